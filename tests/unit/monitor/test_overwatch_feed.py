"""Claims about how overwatch asks a server: absent, there, gone, back, another run, a wrong key."""

import asyncio
from contextlib import asynccontextmanager, contextmanager

import pytest

from ajet.monitor.overwatch import feed as feeding
from ajet.monitor.overwatch.feed import Feed
from ajet.schema.errors import ConfigError, InvalidKey
from tests.unit.monitor.views import AnsweringServer, rolling, steps


@contextmanager
def answering(port=0):
    server = AnsweringServer(port)
    try:
        yield server
    finally:
        server.stop()


@asynccontextmanager
async def feeding_on(url, **kw):
    feed = Feed(url, **kw)
    try:
        yield feed
    finally:
        await feed.close()


def asked_for_steps(server):
    return [path.rpartition("=")[2] for path in server.asked if "history" in path]


async def test_a_server_that_comes_later_is_waited_for_and_then_shown():
    with answering() as probe:
        port = probe.port
    async with feeding_on(f"http://127.0.0.1:{port}") as feed:
        first, second = await feed.look(), await feed.look()
        assert (first.status, first.why, first.tries) == (None, "Connection refused", 1)
        assert (second.tries, second.lost) == (2, first.lost)
        with answering(port) as server:
            server.status, server.steps = rolling(), list(steps())
            found = await feed.look()
        assert found.lost is None
        assert found.status == rolling()
        assert [step["step"] for step in found.steps] == list(range(1, 18))


async def test_a_server_that_goes_and_comes_back_leaves_what_was_known():
    now = [100.0]
    with answering() as server:
        server.status, server.steps = rolling(), list(steps())
        async with feeding_on(server.url, clock=lambda: now[0]) as feed:
            await feed.look()
            server.stop()
            now[0] = 107.0
            gone = await feed.look()
            assert (gone.lost, gone.answered, gone.at, gone.why) == (107.0, 100.0, 107.0, "Connection refused")
            assert gone.status is not None
            assert len(gone.steps) == 17
            now[0] = 109.0
            assert (await feed.look()).lost == 107.0
            with answering(server.port) as again:
                again.status = rolling(started=5.0, step=3)
                again.steps = list(steps(3))
                back = await feed.look()
            assert (back.lost, back.answered, back.tries) == (None, 109.0, 0)
            assert [step["step"] for step in back.steps] == [1, 2, 3]


async def test_pauses_grow_while_the_server_is_away_and_are_the_interval_else():
    with answering() as server:
        async with feeding_on(server.url) as feed:
            await feed.look()
            assert feed.pause(2.0) == 2.0
            server.stop()
            pauses = []
            for _ in range(10):
                await feed.look()
                pauses.append(feed.pause(2.0))
            assert 0 < pauses[0] <= 0.1
            assert 2.5 <= pauses[-1] <= 5.0


async def test_only_new_steps_are_asked_for_and_only_when_there_are_some():
    with answering() as server:
        server.status, server.steps = rolling(step=2), list(steps(2))
        async with feeding_on(server.url) as feed:
            for _ in range(3):
                await feed.look()
            server.status, server.steps = rolling(step=4), list(steps(4))
            found = await feed.look()
        assert asked_for_steps(server) == ["0", "2"]
        assert [step["step"] for step in found.steps] == [1, 2, 3, 4]


async def test_a_long_run_is_read_from_its_newest_steps(monkeypatch):
    monkeypatch.setattr(feeding, "STEPS", 10)
    with answering() as server:
        server.status, server.steps = rolling(step=100), list(steps(100))
        async with feeding_on(server.url) as feed:
            await feed.look()
            server.status, server.steps = rolling(step=103), list(steps(103))
            found = await feed.look()
        assert asked_for_steps(server) == ["90", "100"]
        assert [step["step"] for step in found.steps] == list(range(94, 104))


@pytest.mark.parametrize("changes", [{"experiment_dir": "/other"}, {"step": 1}, {"started": 9.0}])
async def test_another_run_begins_its_curves_anew(changes):
    with answering() as server:
        server.status, server.steps = rolling(step=5), list(steps(5))
        async with feeding_on(server.url) as feed:
            await feed.look()
            server.status, server.steps = rolling(**{"step": 5, **changes}), list(steps(1))
            found = await feed.look()
        assert [step["step"] for step in found.steps] == [1]


async def test_curves_that_cannot_be_read_are_said_and_asked_for_again():
    with answering() as server:
        server.status, server.steps = rolling(), 500
        async with feeding_on(server.url) as feed:
            found = await feed.look()
            assert (found.lost, found.steps_error) == (None, "the journal is damaged")
            server.steps = list(steps())
            found = await feed.look()
        assert (len(found.steps), found.steps_error) == (17, "")


async def test_a_wrong_key_is_an_error_and_the_right_one_opens(monkeypatch):
    with answering() as server:
        server.key = "a-good-key"
        async with feeding_on(server.url, api_key="another-key") as feed:
            with pytest.raises(InvalidKey, match="not the server's admin key"):
                await feed.look()
        monkeypatch.setenv("AJET_SWARM_KEY", "a-good-key")
        async with feeding_on(server.url) as feed:
            assert (await feed.look()).status is not None


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (404, "HTTP 404, and not from a swarm server"),
        (502, "HTTP 502, and not from a swarm server"),
        (401, "HTTP 401, and not from a swarm server"),
        ("<html>", "The server's answer is no Status."),
        ('{"state": "DREAMING"}', "The server's answer is no Status."),
    ],
)
async def test_what_is_no_swarm_server_is_said_and_asked_again(answer, why):
    with answering() as server:
        server.status = answer
        async with feeding_on(server.url) as feed:
            found = await feed.look()
            assert found.why.startswith(why)
            assert feed.pause(2.0) < 1.0
            server.status = rolling()
            assert (await feed.look()).lost is None


async def test_a_server_that_does_not_answer_in_time_is_lost(monkeypatch):
    monkeypatch.setattr(feeding, "ANSWER_S", 0.05)

    async def silent(reader, writer):
        await reader.read()
        writer.close()

    listener = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with listener, feeding_on(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}") as feed:
        assert (await feed.look()).why == "no answer within 0.05 s"


async def test_an_address_that_is_none_is_refused_at_once():
    with pytest.raises(ConfigError, match="server_url"):
        Feed("localhost:10086")
