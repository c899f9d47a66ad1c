"""Claims about a replay as lines of text, and as a terminal of 80×24."""

import re
import time
from itertools import pairwise

import pytest
from rich.cells import cell_len

from ajet.envs.werewolves.replay import eyes, sees
from ajet.envs.werewolves.wording import ROLES, narrate, put
from ajet.monitor.replay.app import ReplayApp
from ajet.monitor.replay.story import known_roles, phases
from ajet.monitor.replay.text import told, whole
from tests.unit.monitor.replays import game, joined
from tests.unit.werewolves.model_table import MARKER

VIEWS = ["god", "public", "wolves", *range(9)]


def text(replay, view="god", language="en", width=80, private=False):
    return "\n".join(line.plain for line in whole(replay, view, language, width, private=private))


def test_phases_cut_a_game_into_nights_and_days_without_a_gap():
    for seed in range(6):
        replay = game(seed)
        found = phases(replay)
        assert (found[0].start, found[-1].end) == (0, len(replay.events))
        assert all(a.end == b.start for a, b in pairwise(found))
        assert [(p.kind, p.day) for p in found] == [
            (kind, day) for day in range(1, replay.days + 1) for kind in ("night", "day")
        ][: len(found)]
        assert len(found) == 2 * replay.days


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_view_tells_what_its_eyes_saw_and_nothing_else(view, language):
    replay = game(2, language)
    seats = eyes(replay, view)
    shown = re.sub(r"\s+", "", text(replay, view, language, width=4000))
    for event in replay.events:
        words = re.sub(r"\s+", "", narrate(event, language))
        if sees(event, seats):
            assert words in shown
        elif event.kind in ("role", "check", "witch_saved", "witch_poisoned", "teammates"):
            assert words not in shown


def test_private_words_are_shown_to_their_own_view_alone():
    replay = game()
    thought = {s: {m for d in replay.decisions if d.seat == s for x in d.exchanges for m in MARKER.findall(x.private)} for s in range(9)}  # fmt: skip
    for seat in range(9):
        shown = set(MARKER.findall(text(replay, seat, private=True, width=4000)))
        assert thought[seat] <= shown
        for other in range(9):
            assert other == seat or not thought[other] & shown
    assert not set().union(*thought.values()) & set(MARKER.findall(text(replay, "public", private=True, width=4000)))
    assert not set().union(*thought.values()) & set(MARKER.findall(text(replay, "god", width=4000)))


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("width", [40, 80])
def test_lines_fit_their_width_and_lose_no_words(language, width):
    replay = joined(2, language)
    for phase in phases(replay):
        for line in told(replay, phase, "god", language, width, private=True):
            assert cell_len(line.plain) <= width, line.plain
    wide = text(replay, language=language, width=4000)
    narrow = text(replay, language=language, width=width)
    assert "".join(wide.split()) == "".join(narrow.split())


def test_what_was_said_cannot_command_the_terminal():
    replay = game()
    events = list(replay.events)
    place = next(i for i, e in enumerate(events) if e.kind == "speech")
    events[place] = events[place].model_copy(update={"text": "a\x1b[2Jb\r\x07 [bold]c[/bold]"})
    shown = text(replay.model_copy(update={"events": tuple(events)}))
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "[bold]c[/bold]" in shown


def test_roles_are_known_by_those_who_know_them():
    replay = game()
    n = len(replay.events)
    roles = {s.seat: s.role for s in replay.seats}
    assert known_roles(replay, "god", n) == roles
    assert {s for s, r in known_roles(replay, "wolves", n).items() if r == "werewolf"} == set(replay.wolves)
    seer = next(s for s, r in roles.items() if r == "seer")
    checked = {e.target: e.is_wolf for e in replay.events if e.kind == "check"}
    known = known_roles(replay, seer, n)
    assert checked
    for seat, wolf in checked.items():
        assert known[seat] == ("wolf" if wolf else "good")
    villager = next(s for s, r in roles.items() if r == "villager")
    public = known_roles(replay, "public", n)
    assert known_roles(replay, villager, n) == {**public, villager: "villager"}


def test_plain_statements_are_put_into_chinese_and_others_left_alone():
    assert put("I am the seer. Player4 is a wolf.", "zh") == "我是预言家。4号是狼人。"
    assert put("I suspect Player3.", "zh") == "我怀疑3号。"
    assert put("I am a villager.", "zh") == "我是村民。"
    assert put("I have no idea.", "zh") == "我没有头绪。"
    for other in ("I suspect Player3 because he lies.", "Hello.", "我怀疑3号", ""):
        assert put(other, "zh") == other
    assert put("I suspect\nPlayer3.", "en") == "I suspect Player3."


# ── the terminal ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def until(pilot, holds):
    deadline = time.monotonic() + 10.0
    while not holds(said := "\n".join("".join(s.text for s in strip) for strip in pilot.app.screen._compositor.render_strips())):  # fmt: skip
        assert time.monotonic() < deadline, said
        await pilot.pause()
    return said


async def test_a_game_is_walked_through_by_keys_on_80_by_24():
    replay = joined()
    app = ReplayApp(replay)
    async with app.run_test(size=(80, 24)) as pilot:
        said = await until(pilot, lambda t: "Night 1" in t and "The wolves attack" in t)
        lines = said.splitlines()
        assert len(lines) == 24
        assert all(cell_len(line) <= 80 for line in lines)
        for seat in replay.seats:
            assert any(line.startswith(f" {seat.seat + 1} {seat.role}") for line in lines[3:12])
        for words in ("q Quit", "g God", "1-9 Seat", "w Wolf", "p Public", "r Replies", "t Tables", "l Lang"):
            assert words in lines[-1]
        await pilot.press("right")
        await until(pilot, lambda t: "Day 1 breaks" in t)
        await pilot.press("left", "left")
        await until(pilot, lambda t: "Night 1" in t)
        await pilot.press("end")
        await until(pilot, lambda t: f"Day {replay.days} breaks" in t)
        await pilot.press("q")
    assert app.return_code == 0


async def test_views_are_switched_by_key():
    replay = game()
    villager = next(s.seat for s in replay.seats if s.role == "villager")
    app = ReplayApp(replay)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda t: "The wolves attack" in t)
        await pilot.press("p")
        said = await until(pilot, lambda t: "Nothing that this view sees" in t)
        below = said.split("\n", 1)[1]  # how the game ended stands in the first line
        assert not any(role in below for role in ROLES["en"])
        await pilot.press("w")
        said = await until(pilot, lambda t: "The wolves attack" in t)
        assert "checks" not in said
        await pilot.press(str(villager + 1))
        said = await until(pilot, lambda t: f"Player{villager + 1} is dealt the villager." in t)
        assert "attack" not in said
        await pilot.press("g")
        await until(pilot, lambda t: "The wolves attack" in t)


async def test_replies_tables_and_languages_are_a_key_away():
    app = ReplayApp(joined())
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda t: "The wolves attack" in t)
        await pilot.press("r")
        await until(pilot, lambda t: "is asked" in t)
        await pilot.press("end")
        await pilot.press("t")
        await until(pilot, lambda t: "Votes" in t and "is asked" not in t)
        await pilot.press("l")
        await until(pilot, lambda t: "投票" in t and "狼人" in t)
        await pilot.resize_terminal(120, 40)
        await until(pilot, lambda t: "怀疑度" in t)
