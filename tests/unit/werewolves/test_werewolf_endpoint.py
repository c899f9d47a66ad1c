"""Endpoints that fail: what is tried again, for how long, and what ends the game (reported fault 9)."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from email.utils import formatdate

import pytest

from ajet.envs.werewolves.endpoint import Endpoint, retry_after
from ajet.envs.werewolves.limits import Gate, gate_for
from ajet.schema.errors import ContextLengthExceeded, InfrastructureFault
from tests.unit.werewolves.fake_openai import Answer, Call, failure, refused_url, replies, serve

MESSAGES = [{"role": "user", "content": "hello"}]


class Clock:
    """Time that passes only by waiting."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waits: list[float] = []

    async def pause(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    def __call__(self) -> float:
        return self.now


def endpoint(url: str, clock: Clock, *, budget_s: float = 60.0, timeout_s: float = 5.0, **fields) -> Endpoint:
    fields = {"name": "static", "rng": random.Random(0), **fields}
    return Endpoint(url, "m", budget_s, timeout_s, pause=clock.pause, clock=clock, **fields)


async def ask(url: str, clock: Clock, **fields) -> tuple[dict, Endpoint]:
    async with endpoint(url, clock, **fields) as at:
        return await at.chat(MESSAGES, "key", None), at


async def test_a_429_with_retry_after_is_waited_out_and_the_call_goes_on():
    clock = Clock()
    async with serve(replies(failure(429, retry_after="2"), failure(429, retry_after="2"), "fine")) as server:
        reply, at = await ask(server.url, clock)
    assert reply == {"role": "assistant", "content": "fine"}
    assert at.retries == 2
    assert len(clock.waits) == 2
    assert all(2.0 <= wait < 3.0 for wait in clock.waits)


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 507, 529])
async def test_a_passing_failure_is_tried_again(status):
    clock = Clock()
    async with serve(replies(failure(status), "fine")) as server:
        reply, _ = await ask(server.url, clock)
        assert len(server.calls) == 2
    assert reply["content"] == "fine"


@pytest.mark.parametrize(
    "answer",
    [
        Answer(hang_up=True),
        Answer(raw=b"<html>gateway</html>", headers={"content-type": "text/html"}),
        Answer(raw=b'{"choices": [{"mess'),
        Answer(raw=b'{"choices": []}'),
        Answer(raw=b'{"error": {"message": "overloaded"}}'),
        Answer(raw=b'{"choices": null}'),
        Answer(raw=b"[]"),
        Answer(raw=b""),
    ],
    ids=str,
)
async def test_an_answer_that_is_no_completion_is_tried_again(answer):
    clock = Clock()
    async with serve(replies(answer, "fine")) as server:
        reply, at = await ask(server.url, clock)
    assert reply["content"] == "fine"
    assert at.retries == 1


async def test_a_hanging_endpoint_times_out_and_is_tried_again():
    clock = Clock()
    async with serve(replies(Answer(hang=True), "fine")) as server:
        reply, at = await ask(server.url, clock, timeout_s=0.1)
    assert reply["content"] == "fine"
    assert at.retries == 1


async def test_past_the_budget_the_game_is_void_and_the_cause_is_named():
    clock = Clock()
    async with serve(replies(failure(500))) as server:
        with pytest.raises(InfrastructureFault, match=r"static endpoint .*fault 500.*void"):
            await ask(server.url, clock, budget_s=60.0)
        tries = len(server.calls)
    assert 60.0 - 45.0 < clock.now <= 60.0
    assert 5 < tries < 20


async def test_back_off_grows_with_jitter_up_to_a_limit():
    clock = Clock()
    async with serve(replies(failure(503))) as server:
        with pytest.raises(InfrastructureFault):
            await ask(server.url, clock, budget_s=300.0)
    for n, wait in enumerate(clock.waits):
        middle = min(0.5 * 2**n, 30.0)
        assert middle * 0.5 <= wait <= middle * 1.5
    assert len({round(wait / min(0.5 * 2**n, 30.0), 3) for n, wait in enumerate(clock.waits)}) > 3


async def test_refused_connections_are_tried_again_until_the_budget_ends():
    clock = Clock()
    with pytest.raises(InfrastructureFault, match=r"(?i)connect"):
        await ask(refused_url(), clock, budget_s=20.0)
    assert len(clock.waits) >= 3


async def test_a_retry_after_beyond_the_budget_ends_the_game_without_waiting():
    clock = Clock()
    async with serve(replies(failure(429, retry_after="3600"))) as server:
        with pytest.raises(InfrastructureFault):
            await ask(server.url, clock)
    assert clock.waits == []


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "invalid_request"),
        (401, "invalid_api_key"),
        (404, ""),
        (409, "engine_state"),
        (410, "episode_gone"),
        (500, "engine_failed"),
        (429, "insufficient_quota"),
    ],
)
async def test_a_refusal_that_stays_voids_the_game_at_once(status, code):
    clock = Clock()
    async with serve(replies(failure(status, code))) as server:
        with pytest.raises(InfrastructureFault, match=f"fault {status} {code}"):
            await ask(server.url, clock, name="policy")
        assert len(server.calls) == 1


async def test_a_conversation_that_does_not_fit_is_told_apart():
    clock = Clock()
    async with serve(replies(failure(400, "context_length_exceeded"))) as server:
        with pytest.raises(ContextLengthExceeded):
            await ask(server.url, clock)
        assert len(server.calls) == 1


async def test_a_restarting_server_only_makes_the_policy_wait():
    clock = Clock()
    down = [failure(503, "engine_unavailable", retry_after="5")] * 20
    async with serve(replies(Answer(hang_up=True), *down, "back")) as server:
        reply, _ = await ask(server.url, clock, name="policy", budget_s=900.0)
    assert reply["content"] == "back"
    assert clock.now >= 100


async def test_a_call_carries_model_messages_key_and_temperature_only_if_given():
    async with serve(replies("fine")) as server, endpoint(server.url, Clock()) as at:
        await at.chat(MESSAGES, "key-1", None)
        await at.chat(MESSAGES, "key-2", 0.5)
    first, second = server.calls
    assert first.path == "/v1/chat/completions"
    assert (first.key, second.key) == ("key-1", "key-2")
    assert first.body == {"model": "m", "messages": MESSAGES}
    assert second.body == {"model": "m", "messages": MESSAGES, "temperature": 0.5}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ("", ""),
        ("a", "a"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
        ("\ud800", "?"),
    ],
)
async def test_any_content_becomes_a_text_that_can_be_sent_again(content, text):
    async with serve(replies(Answer(content), "fine")) as server, endpoint(server.url, Clock()) as at:
        reply = await at.chat(MESSAGES, "key", None)
        assert reply["content"] == text
        await at.chat([*MESSAGES, reply], "key", None)


async def test_reasoning_is_kept_with_the_reply():
    body = b'{"choices": [{"message": {"content": "x", "reasoning_content": "y", "tool_calls": null}}]}'
    async with serve(replies(Answer(raw=body))) as server:
        reply, _ = await ask(server.url, Clock())
    assert reply == {"role": "assistant", "content": "x", "reasoning_content": "y"}


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0.0),
    ],
)
def test_retry_after_is_read_in_all_its_forms(headers, seconds):
    assert retry_after(headers) == seconds


def test_retry_after_may_be_a_date():
    seconds = retry_after({"retry-after": formatdate(time.time() + 100, usegmt=True)})
    assert seconds is not None
    assert 90 < seconds <= 100


# ── the gate ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_gate_bounds_the_calls_of_all_games_together():
    waiting: list[asyncio.Event] = []

    async def decide(call: Call) -> str:
        mine = asyncio.Event()
        waiting.append(mine)
        if len(waiting) >= 3:  # three are inside; a fourth must not come before one of them is done
            for event in waiting[-3:]:
                event.set()
        await asyncio.wait_for(mine.wait(), 10)
        return "fine"

    async with serve(decide) as server:
        gate = gate_for(server.url, 3)
        assert gate is gate_for(server.url, 3)
        await asyncio.gather(*(ask(server.url, Clock(), gate=gate) for _ in range(12)))
        assert len(server.calls) == 12
        assert server.most_busy == 3


def test_a_gate_holds_over_threads_with_loops_of_their_own():
    gate, lock, inside, most = Gate(2), threading.Lock(), 0, 0
    both = threading.Barrier(8)

    async def enter() -> None:
        nonlocal inside, most
        async with gate:
            with lock:
                inside += 1
                most = max(most, inside)
            for _ in range(3):
                await asyncio.sleep(0)
            with lock:
                inside -= 1

    async def many() -> None:
        await asyncio.wait_for(asyncio.gather(*(enter() for _ in range(20))), 20)

    def thread() -> None:
        both.wait(10)
        asyncio.run(many())

    threads = [threading.Thread(target=thread) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(30)
        assert not t.is_alive()
    assert most <= 2
    assert gate._free == 2


async def test_a_cancelled_waiter_leaves_its_turn_to_the_next():
    gate = Gate(1)
    order: list[str] = []

    async def enter(name: str) -> None:
        async with gate:
            order.append(name)

    async with gate:
        first, second = asyncio.create_task(enter("first")), asyncio.create_task(enter("second"))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
    await asyncio.wait_for(second, 10)
    assert order == ["second"]
    assert gate._free == 1
