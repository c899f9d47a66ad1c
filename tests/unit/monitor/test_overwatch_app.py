"""Claims about overwatch in a terminal of 80×24, driven by Textual's pilot."""

import time
from dataclasses import replace

from ajet.monitor.overwatch.app import Overwatch
from ajet.schema.errors import InvalidKey
from ajet.schema.status import Activity
from tests.unit.monitor.views import NOW, FakeFeed, client, rolling, seen, task


def screen(app):
    """What stands on the screen."""
    strips = app.screen._compositor.render_strips()
    return ["".join(segment.text for segment in strip) for strip in strips]


async def until(pilot, holds):
    """Let the app work until ``holds`` is true of its screen as one text."""
    deadline = time.monotonic() + 10.0
    while not holds(said := "\n".join(screen(pilot.app))):
        assert time.monotonic() < deadline, said
        await pilot.pause()
    return said


def many(n=40):
    return rolling(
        activity=Activity(
            clients=[client(f"client-{k}") for k in range(n)], clients_total=n,
            tasks=[task(f"task-{k}") for k in range(n)], tasks_total=n,
        )
    )  # fmt: skip


async def test_everything_that_matters_stands_on_80_by_24_and_q_quits():
    feed = FakeFeed([seen(many())])
    app = Overwatch(feed, 60.0)
    async with app.run_test(size=(80, 24)) as pilot:
        lines = (await until(pilot, lambda said: "17 of 45" in said)).splitlines()
        assert len(lines) == 24
        labels = [line[:12].strip() for line in lines]
        for label in ("ROLLING", "step", "checkpoint", "disk", "speed", "dropped", "pool", "episodes", "learning"):
            assert label in labels, lines
        assert "more tasks" in "\n".join(lines)
        assert "Quit" in lines[-1]
        await pilot.press("q")
    assert (app.return_code, app.fault, feed.closed) == (0, None, True)


async def test_a_larger_terminal_and_a_change_of_size_show_more_rows():
    app = Overwatch(FakeFeed([seen(many())]), 60.0)
    async with app.run_test(size=(80, 24)) as pilot:
        small = (await until(pilot, lambda said: "task-" in said)).count("task-")
        await pilot.resize_terminal(150, 60)
        await until(pilot, lambda said: said.count("task-") > small + 10 and "│" in said)
        await pilot.resize_terminal(80, 24)
        await until(pilot, lambda said: said.count("task-") == small and "learning" in said)


async def test_a_terminal_of_120_columns_has_two_columns_of_lists_and_one_of_119_has_not():
    app = Overwatch(FakeFeed([seen(many())]), 60.0)
    async with app.run_test(size=(120, 36)) as pilot:
        assert "│" in await until(pilot, lambda said: "task-" in said)
        await pilot.resize_terminal(119, 36)
        await until(pilot, lambda said: "task-" in said and "│" not in said)


async def test_all_is_shown_on_demand_and_scrolled_by_keys():
    app = Overwatch(FakeFeed([seen(many())]), 60.0)
    async with app.run_test(size=(80, 24)) as pilot:
        assert "task-39" not in await until(pilot, lambda said: "task-" in said)
        await pilot.press("a")
        await until(pilot, lambda said: "AgentJet" in said and "learning" not in said)
        await pilot.press("end")
        await until(pilot, lambda said: "reward of all" in said)
        await pilot.press("home")
        await until(pilot, lambda said: "AgentJet" in said)
        await pilot.press("down", "pagedown")
        await until(pilot, lambda said: "AgentJet" not in said)
        await pilot.press("a")
        await until(pilot, lambda said: "AgentJet" in said and "learning" in said)


async def test_a_server_that_is_absent_then_there_then_lost_then_back():
    absent = seen(None, lost=NOW, why="Connection refused", tries=1)
    there = seen(rolling())
    gone = replace(there, lost=NOW + 5, why="Connection refused")
    back = seen(rolling(step=18))
    feed = FakeFeed([absent])
    app = Overwatch(feed, 60.0)
    async with app.run_test(size=(80, 24)) as pilot:
        for view, words in (
            (absent, "waiting for http://127.0.0.1:10086: Connection refused"),
            (there, "17 of 45"),
            (gone, "lost the server at"),
            (back, "18 of 45"),
        ):
            feed.views = [view]
            await pilot.press("r")
            said = await until(pilot, lambda said, words=words: words in said)
        assert "lost the server" not in said


async def test_it_looks_again_by_itself():
    feed = FakeFeed([seen(rolling(step=n)) for n in range(1, 6)])
    async with Overwatch(feed, 60.0).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda said: " 5 of 45" in said)
    assert feed.looks == 5


async def test_a_wrong_key_ends_it_with_the_error():
    feed = FakeFeed([InvalidKey("This is not the server's admin key.")])
    app = Overwatch(feed, 60.0)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda _said: app.fault is not None)
    assert isinstance(app.fault, InvalidKey)
    assert app.return_code == 1
    assert feed.closed


async def test_names_that_look_like_markup_or_escapes_are_shown_as_they_are():
    evil = Activity(tasks=[task("[bold red]x[/] \x1b[2J\x07")], tasks_total=1)
    async with Overwatch(FakeFeed([seen(rolling(activity=evil))]), 60.0).run_test(size=(80, 24)) as pilot:
        said = await until(pilot, lambda said: "17 of 45" in said)
        assert "[bold red]x[/] �[2J�" in said
        assert "\x1b" not in said
