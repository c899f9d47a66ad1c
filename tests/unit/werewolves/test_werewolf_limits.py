"""What protects a static endpoint: rate limits, the circuit breaker, and the counts of what calls took."""

from __future__ import annotations

import asyncio
import json
import random
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet.envs.werewolves.breaker import CircuitBreaker, CircuitOpen, breaker_for
from ajet.envs.werewolves.endpoint import Endpoint
from ajet.envs.werewolves.limits import WINDOW_S, RateLimiter, gate_for, limiter_for
from ajet.envs.werewolves.usage import Prices, Usage
from ajet.schema.errors import ConfigError, InfrastructureFault
from tests.unit.werewolves.fake_openai import Answer, Call, failure, refused_url, replies, serve
from tests.unit.werewolves.test_werewolf_endpoint import MESSAGES, Clock, ask, endpoint

# ── rate ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(
    st.lists(st.tuples(st.floats(0, 40), st.integers(0, 500)), min_size=1, max_size=60),
    st.one_of(st.none(), st.integers(1, 8)),
    st.one_of(st.none(), st.integers(50, 1500)),
)
def test_no_minute_holds_more_requests_or_tokens_than_allowed(calls, requests, tokens):
    clock = Clock()
    limiter = RateLimiter(requests, tokens, clock)
    starts: list[tuple[float, int]] = []
    for gap, size in calls:
        clock.now += gap
        turn, wait = limiter.reserve(size)
        assert wait >= 0
        assert turn.start == pytest.approx(clock.now + wait)
        starts.append((turn.start, size))
    assert starts == sorted(starts, key=lambda s: s[0]), "first come, first served"
    for end, _ in starts:
        window = [(s, n) for s, n in starts if s <= end < s + WINDOW_S]
        assert requests is None or len(window) <= requests
        assert tokens is None or len(window) == 1 or sum(n for _, n in window) <= tokens


def test_without_bounds_nobody_waits_and_within_them_neither():
    clock = Clock()
    free = RateLimiter(clock=clock)
    assert {free.reserve(10**6)[1] for _ in range(100)} == {0.0}
    bounded = RateLimiter(10, 1000, clock)
    assert {bounded.reserve(100)[1] for _ in range(10)} == {0.0}
    assert bounded.reserve(0)[1] == WINDOW_S


def test_an_answer_corrects_what_its_call_was_counted_for():
    clock = Clock()
    limiter = RateLimiter(None, 1000, clock)
    turn, _ = limiter.reserve(900)
    limiter.settle(turn, 100)
    assert limiter.reserve(900)[1] == 0.0
    clock.now += WINDOW_S
    small, _ = limiter.reserve(10)
    limiter.settle(small, 995)
    assert limiter.reserve(10)[1] == WINDOW_S


def test_a_turn_given_back_leaves_its_room_to_others():
    limiter = RateLimiter(1, None, Clock())
    turn, _ = limiter.reserve(1)
    limiter.give_back(turn)
    assert limiter.reserve(1)[1] == 0.0
    later, wait = limiter.reserve(1)
    assert wait == WINDOW_S
    limiter.give_back(later)
    assert limiter.reserve(1)[1] == WINDOW_S  # the first one still counts


def test_threads_share_a_limiter_without_losing_count():
    limiter = RateLimiter(50, None, Clock())
    starts: list[float] = []
    lock, together = threading.Lock(), threading.Barrier(8)

    def many() -> None:
        together.wait(10)
        mine = [limiter.reserve(1)[0].start for _ in range(25)]
        with lock:
            starts.extend(mine)

    threads = [threading.Thread(target=many) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(20)
    assert sorted(starts) == [WINDOW_S * (n // 50) for n in range(200)]


def test_limiters_and_circuits_are_shared_by_endpoint_model_and_bound():
    assert limiter_for("u", "m", 5, None) is limiter_for("u", "m", 5, None)
    assert limiter_for("u", "m", 5, None) is not limiter_for("u", "n", 5, None)
    assert limiter_for("u", "m", None, None) is None
    assert breaker_for("u", "m", 3) is breaker_for("u", "m", 3)
    assert breaker_for("u", "m", 3) is not breaker_for("v", "m", 3)


async def test_calls_wait_for_their_turn_and_the_wait_does_not_use_up_the_retry_budget():
    clock = Clock()
    limiter = RateLimiter(2, None, clock)
    answers = ["a", "b", failure(500), failure(500), failure(500), "c"]
    async with serve(replies(*answers)) as server, endpoint(server.url, clock, limiter=limiter, budget_s=20.0) as at:
        for expected in ("a", "b", "c"):
            assert (await at.chat(MESSAGES, "key", None))["content"] == expected
    # Six requests at two a minute: the third and the fifth wait for a window each.
    assert clock.now >= 2 * WINDOW_S
    assert at.rate_wait_s >= 2 * WINDOW_S - 20
    assert at.retries == 3


async def test_tokens_a_minute_bound_calls_by_what_answers_say_they_took():
    clock = Clock()
    limiter = RateLimiter(None, 3000, clock)
    async with serve(replies(completion("x", 900, 100))) as server, endpoint(server.url, clock, limiter=limiter) as at:
        for _ in range(3):
            await at.chat(MESSAGES, "key", None)
        assert clock.now == 0.0
        await at.chat(MESSAGES, "key", None)
    assert clock.now == WINDOW_S


async def test_a_cancelled_call_leaves_the_queue_and_those_who_were_sent_stay_in_it():
    clock, queued = Clock(), asyncio.Event()
    limiter = RateLimiter(1, None, clock)

    async def pause(seconds: float) -> None:
        queued.set()
        await asyncio.Event().wait()

    async with serve(replies("x")) as server, Endpoint(server.url, "m", 10.0, 5.0, limiter=limiter, pause=pause) as at:
        await at.chat(MESSAGES, "key", None)
        waiting = asyncio.create_task(at.chat(MESSAGES, "key", None))
        await asyncio.wait_for(queued.wait(), 10)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert len(server.calls) == 1
    assert limiter.reserve(1)[1] == WINDOW_S


# ── circuit ──────────────────────────────────────────────────────────────────────────────────────────────────────


def fail(breaker: CircuitBreaker, times: int) -> None:
    for _ in range(times):
        breaker.leave(breaker.enter(), False, "HTTP 503")


def test_failures_in_a_row_open_the_circuit_and_a_success_between_them_does_not():
    breaker = CircuitBreaker(3, 5.0, clock=Clock())
    fail(breaker, 2)
    breaker.leave(breaker.enter(), True)
    fail(breaker, 2)
    assert breaker.state == "closed"
    fail(breaker, 1)
    assert breaker.state == "open"
    with pytest.raises(
        CircuitOpen, match=r"3 failures in a row, the last: HTTP 503; the next probe is due in 5 s"
    ) as e:
        breaker.enter()
    assert e.value.retry_in == 5.0


def test_an_open_circuit_lets_one_probe_through_when_its_time_has_come_and_closes_on_its_answer():
    clock = Clock()
    breaker = CircuitBreaker(1, 5.0, clock=clock)
    fail(breaker, 1)
    clock.now = 5.0
    assert breaker.enter() is True
    with pytest.raises(CircuitOpen, match="a probe is under way") as refused:
        breaker.enter()
    assert refused.value.retry_in is None
    breaker.leave(True, True)
    assert breaker.state == "closed"
    assert breaker.words() == ""
    assert breaker.enter() is False


def test_a_failed_probe_opens_for_twice_as_long_up_to_a_limit():
    clock = Clock()
    breaker = CircuitBreaker(1, 5.0, longest_s=15.0, clock=clock)
    fail(breaker, 1)
    waits = []
    for _ in range(4):
        clock.now = breaker._until
        fail(breaker, 1)
        waits.append(breaker._until - clock.now)
    assert waits == [10.0, 15.0, 15.0, 15.0]
    clock.now = breaker._until
    breaker.leave(breaker.enter(), True)
    fail(breaker, 1)
    assert breaker._until - clock.now == 5.0


def test_a_probe_that_was_given_up_lets_the_next_call_probe():
    clock = Clock()
    breaker = CircuitBreaker(1, 5.0, clock=clock)
    fail(breaker, 1)
    clock.now = 5.0
    breaker.leave(breaker.enter(), None)
    assert breaker.enter() is True


def test_late_results_of_calls_sent_before_the_circuit_opened_change_nothing():
    clock = Clock()
    breaker = CircuitBreaker(1, 5.0, clock=clock)
    late = [breaker.enter() for _ in range(3)]
    fail(breaker, 1)
    breaker.leave(late[0], False, "late")
    breaker.leave(late[1], True)
    assert breaker.state == "open"
    clock.now = 5.0
    assert breaker.enter() is True
    breaker.leave(late[2], True)
    assert breaker.state == "half_open"


async def test_games_leave_a_broken_endpoint_alone_and_go_on_when_it_is_back():
    clock = Clock()
    breaker = CircuitBreaker(3, 5.0, clock=clock)
    broken = True

    def decide(call: Call) -> Answer | str:
        return failure(503) if broken else "fine"

    async with serve(decide) as server:
        with pytest.raises(InfrastructureFault) as first:
            await ask(server.url, clock, breaker=breaker, budget_s=4.0)
        assert "The circuit is open" in str(first.value)
        assert "fault 503" in str(first.value)
        sent = len(server.calls)
        assert sent == 3
        with pytest.raises(InfrastructureFault, match=r"its circuit is open.*3 failures in a row.*next probe is due"):
            await ask(server.url, clock, breaker=breaker, budget_s=1.0)
        assert len(server.calls) == sent, "another game sends nothing while the circuit is open"
        broken = False
        reply, at = await ask(server.url, clock, breaker=breaker, budget_s=60.0)
        assert reply["content"] == "fine"
        assert at.refused == 1
        assert at.retries == 0
    assert breaker.state == "closed"


@pytest.mark.parametrize("answer", [failure(429), failure(400), failure(401)], ids=["429", "400", "401"])
async def test_an_endpoint_that_answers_is_not_broken(answer):
    breaker = CircuitBreaker(1, clock=Clock())
    async with serve(replies(answer, "fine")) as server:
        try:
            await ask(server.url, Clock(), breaker=breaker)
        except InfrastructureFault:
            assert answer.status != 429
    assert breaker.state == "closed"


@pytest.mark.parametrize("kind", ["refused", "hang", "hang_up", "no_completion", "5xx"])
async def test_every_kind_of_break_counts(kind):
    breaker = CircuitBreaker(2, clock=Clock())
    answer = {"hang": Answer(hang=True), "hang_up": Answer(hang_up=True), "no_completion": Answer(raw=b"oops")}
    async with serve(replies(answer.get(kind, failure(500)))) as server:
        url = refused_url() if kind == "refused" else server.url
        with pytest.raises(InfrastructureFault, match="The circuit is open"):
            await ask(url, Clock(), breaker=breaker, timeout_s=0.2, budget_s=3.0)
    assert breaker.state == "open"


async def test_a_cancelled_probe_does_not_leave_the_circuit_half_open():
    clock = Clock()
    breaker = CircuitBreaker(1, 5.0, clock=clock)
    fail(breaker, 1)
    clock.now = 5.0
    arrived = asyncio.Event()

    def decide(call: Call) -> Answer:
        arrived.set()
        return Answer(hang=True)

    async with serve(decide) as server, endpoint(server.url, clock, breaker=breaker) as at:
        probe = asyncio.create_task(at.chat(MESSAGES, "key", None))
        await asyncio.wait_for(arrived.wait(), 10)
        assert breaker.state == "half_open"
        probe.cancel()
        await asyncio.gather(probe, return_exceptions=True)
    assert breaker.enter() is True


# ── usage ────────────────────────────────────────────────────────────────────────────────────────────────────────


def completion(text: str, prompt: object, reply: object, **more: object) -> Answer:
    usage = {"prompt_tokens": prompt, "completion_tokens": reply, **more}
    return Answer(raw=json.dumps({"choices": [{"message": {"content": text}}], "usage": usage}).encode())


async def test_tokens_and_cost_are_counted_as_the_endpoint_says():
    details = {"prompt_tokens_details": {"cached_tokens": 400}}
    answers = [completion("a", 1000, 10), completion("b", 1000, 30, **details), "no usage"]
    async with serve(replies(*answers)) as server, endpoint(server.url, Clock(), prices=Prices(2.0, 10.0, 0.5)) as at:
        for _ in range(3):
            await at.chat(MESSAGES, "key", None)
    metrics = at.metrics()
    assert metrics["static/calls"] == 3
    assert metrics["static/prompt_tokens"] == 2000
    assert metrics["static/completion_tokens"] == 40
    assert metrics["static/uncounted_calls"] == 1
    assert metrics["static/cost"] == pytest.approx((1600 * 2.0 + 400 * 0.5 + 40 * 10.0) / 1e6)
    assert all(type(v) is float for v in metrics.values())


@pytest.mark.parametrize("usage", [None, [], "x", {}, {"prompt_tokens": 3}, {"prompt_tokens": -1, "completion_tokens": 1},
                                   {"prompt_tokens": True, "completion_tokens": 1}, {"prompt_tokens": "3", "completion_tokens": 1}])  # fmt: skip
def test_a_usage_that_says_nothing_is_counted_as_such(usage):
    counts = Usage()
    assert counts.add(usage) is None
    assert (counts.calls, counts.uncounted, counts.prompt_tokens) == (1, 1, 0)


def test_odd_details_do_not_matter():
    counts = Usage()
    assert counts.add({"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": None}) == 4
    assert counts.add({"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 9}}) == 4
    assert counts.cached_tokens == 3


def test_prices_are_checked():
    assert Prices.of({"input": 1, "output": 2}) == Prices(1, 2)
    assert Prices.of(None) is None
    for bad in ({"input": 1}, {"input": 1, "output": 2, "tax": 3}, {"input": -1, "output": 2}, {"input": "1", "output": 2},
                {"input": float("nan"), "output": 2}, {"input": True, "output": 1}):  # fmt: skip
        with pytest.raises(ConfigError):
            Prices.of(bad)  # type: ignore[arg-type]


# ── all of it at once ────────────────────────────────────────────────────────────────────────────────────────────


async def test_many_calls_from_threads_through_one_endpoint_keep_every_bound():
    rng, lock = random.Random(3), threading.Lock()

    def decide(call: Call) -> Answer | str:
        with lock:
            return failure(429, retry_after="0") if rng.random() < 0.5 else completion("fine", 50, 5)

    async with serve(decide) as server:
        gate_url = server.url

        async def some() -> list[str]:
            async with Endpoint(
                gate_url, "m", 30.0, 10.0, gate=gate_for(gate_url, 4), limiter=limiter_for(gate_url, "m", 10**6, 10**9),
                breaker=breaker_for(gate_url, "m", 5), rng=random.Random(1), name="static",
            ) as at:  # fmt: skip
                return [r["content"] for r in await asyncio.gather(*(at.chat(MESSAGES, "k", None) for _ in range(10)))]

        answers = await asyncio.gather(*(asyncio.to_thread(lambda: asyncio.run(some())) for _ in range(8)))
        assert answers == [["fine"] * 10] * 8
        assert server.most_busy <= 4
        assert len(server.calls) > 80
