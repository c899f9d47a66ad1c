"""Claims about the executor."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet.client import AsyncSwarmClient, PeriodicDrainThreadPoolExecutor, SwarmClient
from ajet.client import executor as executor_module
from ajet.client.outcome import Outcome, outcome_of
from ajet.schema.errors import (
    AjetError,
    EngineFailed,
    EngineUnavailable,
    EpisodeGone,
    InfrastructureFault,
    InvalidKey,
    ServerUnreachable,
    TrainingFinished,
)
from ajet.schema.task import Task, WorkflowOutput
from tests.unit.client.fake_swarm import FakeSwarm

TASK = Task(task_id="t1")
WON = WorkflowOutput(reward=1.0)


def consume(submissions: Iterable[Any]) -> None:
    for _ in submissions:
        pass


@pytest.fixture(autouse=True)
def _short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_module, "FIRST_RETRY_S", 0.01)
    monkeypatch.setattr(executor_module, "FINISH_GRACE_S", 1.0)


@given(workers=st.integers(1, 7), parallel=st.integers(1, 4), count=st.integers(0, 20))
@settings(max_examples=20, deadline=None)
def test_a_drain_returns_the_results_of_its_submissions_in_order(workers: int, parallel: int, count: int) -> None:
    executor = PeriodicDrainThreadPoolExecutor(workers=workers, max_parallel=parallel)
    drained: list[list[int]] = []
    for n in range(count):
        _, results = executor.submit_with_periodic_drain(fn=lambda n: n, n=n)
        if results:
            drained.append(results)
    rest = executor.drain()
    executor.shutdown()
    assert all(len(results) == workers for results in drained)
    assert [n for results in [*drained, rest] for n in results] == list(range(count))


def test_never_more_than_max_parallel_at_once_and_a_drain_waits_for_all() -> None:
    lock, now, most = threading.Lock(), [0], [0]

    def run() -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.01)
        with lock:
            now[0] -= 1

    executor = PeriodicDrainThreadPoolExecutor(workers=20, max_parallel=3)
    for _ in range(20):
        _, results = executor.submit_with_periodic_drain(run)
    assert len(results) == 20
    assert now == [0]
    assert most == [3]


def test_submit_has_no_barrier() -> None:
    release = threading.Event()
    executor = PeriodicDrainThreadPoolExecutor(workers=2, max_parallel=2)
    slow = executor.submit(release.wait)
    assert [executor.submit(lambda n: n, n).result(5) for n in range(20)] == list(range(20))
    assert not slow.done()
    release.set()
    executor.shutdown()


def test_none_means_as_many_at_once_as_workers() -> None:
    assert PeriodicDrainThreadPoolExecutor(workers=5, max_parallel=None).max_parallel == 5
    assert PeriodicDrainThreadPoolExecutor(workers=500).max_parallel == 64


def test_block_first_run_plays_the_first_alone() -> None:
    done = []
    executor = PeriodicDrainThreadPoolExecutor(workers=9, block_first_run=True)
    executor.submit_with_periodic_drain(lambda: (time.sleep(0.05), done.append(1)))
    assert done == [1]
    executor.shutdown()


@pytest.mark.parametrize(
    "error",
    [
        InfrastructureFault("opponent is away"),
        EpisodeGone("expired"),
        ServerUnreachable("away"),
        httpx.ReadTimeout("slow"),
        openai.APIConnectionError(request=httpx.Request("POST", "http://x")),
        ConnectionResetError(),
    ],
)
def test_weather_is_run_again(error: Exception) -> None:
    attempts = []

    def run() -> str:
        attempts.append(1)
        if len(attempts) < 3:
            raise error
        return "played"

    with PeriodicDrainThreadPoolExecutor(workers=1) as executor:
        _, results = executor.submit_with_periodic_drain(run)
    assert results == ["played"]
    assert executor.stats["retried"] == 2


def test_retries_are_bounded_and_weather_does_not_end_the_loop() -> None:
    attempts = []

    def run() -> None:
        attempts.append(1)
        raise InfrastructureFault("the opponent's endpoint is away")

    with PeriodicDrainThreadPoolExecutor(workers=1) as executor:
        _, results = executor.submit_with_periodic_drain(run)
        executor.submit_with_periodic_drain(run)
    assert results == [None]
    assert len(attempts) == 8
    assert executor.stats["weather"] == 2


def test_without_auto_retry_nothing_is_run_again() -> None:
    attempts: list[int] = []

    def run() -> None:
        attempts.append(1)
        raise InfrastructureFault("away")

    with PeriodicDrainThreadPoolExecutor(workers=1, auto_retry=False) as executor:
        executor.submit_with_periodic_drain(run)
    assert len(attempts) == 1


def test_a_users_bug_is_shown_once_with_its_traceback_and_counted(capfd: pytest.CaptureFixture[str]) -> None:
    def run(n: int) -> int:
        if n % 2:
            raise KeyError("my bug")
        return n

    with PeriodicDrainThreadPoolExecutor(workers=10) as executor:
        for n in range(10):
            _, results = executor.submit_with_periodic_drain(run, n=n)
    assert results == [0, None, 2, None, 4, None, 6, None, 8, None]
    err = capfd.readouterr().err
    assert err.count("Traceback") == 1
    assert 'raise KeyError("my bug")' in err
    assert "5 rollouts failed by KeyError" in err
    assert executor.stats == {"succeeded": 5, "bug": 5}


def test_when_every_run_fails_the_users_exception_is_raised_in_the_submitting_thread() -> None:
    def run() -> None:
        raise KeyError("my bug")

    executor = PeriodicDrainThreadPoolExecutor(workers=4)
    for _ in range(3):
        executor.submit_with_periodic_drain(run)
    with pytest.raises(KeyError, match="my bug"):
        executor.submit_with_periodic_drain(run)
    endless = PeriodicDrainThreadPoolExecutor(workers=10**9, max_parallel=2)
    with pytest.raises(KeyError, match="my bug"):
        consume(endless.submit(run) for _ in itertools.count())
    with pytest.raises(KeyError, match="my bug"), PeriodicDrainThreadPoolExecutor() as last:
        last.submit_with_periodic_drain(run)


@pytest.mark.parametrize("error", [EngineFailed("dead"), InvalidKey("no")])
def test_what_no_run_can_survive_is_raised_at_the_next_submission(error: Exception) -> None:
    def run() -> None:
        raise error

    executor = PeriodicDrainThreadPoolExecutor(workers=10**9, max_parallel=1)
    with pytest.raises(type(error)):
        consume(executor.submit_with_periodic_drain(run) for _ in range(3))


def test_an_engine_that_stays_offline_does_not_loop_for_ever(swarm: FakeSwarm) -> None:
    swarm.state = "OFFLINE"
    client = SwarmClient(swarm.url, verbose=False, retry_budget_s=0.05)
    executor = PeriodicDrainThreadPoolExecutor(workers=4, auto_retry=False)
    with pytest.raises(EngineUnavailable, match="OFFLINE"):
        consume(executor.submit_with_periodic_drain(client.begin_episode) for _ in itertools.count())


# ── episodes ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_episode_that_an_exception_leaves_open_is_aborted(swarm: FakeSwarm, client: SwarmClient) -> None:
    def run() -> None:
        client.begin_episode(task=TASK)
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"), PeriodicDrainThreadPoolExecutor(workers=3) as executor:
        consume(executor.submit_with_periodic_drain(run) for _ in range(3))
    assert swarm.open == set()
    assert set(swarm.aborted.values()) == {"ValueError: a bug"}


def test_an_episode_that_a_rollout_forgets_is_aborted_and_said_so(
    swarm: FakeSwarm, client: SwarmClient, capfd: pytest.CaptureFixture[str]
) -> None:
    with PeriodicDrainThreadPoolExecutor() as executor:
        executor.submit(client.begin_episode)
    assert swarm.open == set()
    assert executor.stats["left_open"] == 1
    assert "without ending its episode" in capfd.readouterr().err


def test_a_hung_run_is_given_up_its_episode_aborted_and_its_place_used(swarm: FakeSwarm, client: SwarmClient) -> None:
    release, late = threading.Event(), []

    def hang() -> None:
        client.begin_episode(task=TASK)
        release.wait()
        try:
            client.begin_episode(task=TASK)
        except EpisodeGone as err:
            late.append(err)

    executor = PeriodicDrainThreadPoolExecutor(max_parallel=1, max_run_s=0.2)
    future = executor.submit(hang)
    assert executor.submit(lambda: "played").result(5) == "played"
    assert isinstance(future.exception(), InfrastructureFault)
    assert swarm.open == set()
    assert "hung" in next(iter(swarm.aborted.values()))
    release.set()
    deadline = time.monotonic() + 5
    while not late and time.monotonic() < deadline:
        time.sleep(0.01)
    assert late, "a worker that was given up begins nothing more"
    assert len(swarm.granted) == 1


def test_an_async_clients_episode_is_aborted_though_its_loop_is_gone(swarm: FakeSwarm) -> None:
    import asyncio

    async def play() -> None:
        client = AsyncSwarmClient(swarm.url, verbose=False)
        await client.begin_episode(task=TASK)

    with PeriodicDrainThreadPoolExecutor() as executor:
        executor.submit(lambda: asyncio.run(play()))
    assert len(swarm.granted) == 1
    assert swarm.open == set()


def test_a_retried_run_plays_a_new_episode(swarm: FakeSwarm, client: SwarmClient) -> None:
    def run() -> None:
        episode, _ = client.begin_episode(task=TASK)
        if episode == "ep0":
            raise InfrastructureFault("away")
        client.end_episode(TASK, episode, WON)

    with PeriodicDrainThreadPoolExecutor() as executor:
        executor.submit(run)
    assert list(swarm.aborted) == ["ep0"]
    assert list(swarm.ended) == ["ep1"]


# ── the end of training ──────────────────────────────────────────────────────────────────────────────────────────────


def _rollout(client: SwarmClient) -> Any:
    def rollout(task: Task) -> float:
        episode, _ = client.begin_episode(task=task)
        client.end_episode(task, episode, WON)
        return 1.0

    return rollout


def test_training_finished_ends_an_endless_loop(swarm: FakeSwarm, client: SwarmClient) -> None:
    swarm.finish_after = 30
    with PeriodicDrainThreadPoolExecutor(workers=8, max_parallel=4) as executor:
        while True:
            executor.submit_with_periodic_drain(fn=_rollout(client), task=TASK)
    assert executor.finished
    assert len(swarm.ended) >= 30
    assert swarm.open == set()
    with pytest.raises(TrainingFinished):
        executor.submit(print)


def test_training_finished_does_not_wait_for_open_training_games(swarm: FakeSwarm, client: SwarmClient) -> None:
    forever = threading.Event()

    def slow() -> None:
        client.begin_episode(task=TASK)
        forever.wait()

    started = time.monotonic()
    with PeriodicDrainThreadPoolExecutor() as executor:
        executor.submit(slow)
        swarm.until(lambda: len(swarm.open) == 1)
        swarm.set_state("FINISHED")
        while True:
            executor.submit(_rollout(client), TASK)
    assert time.monotonic() - started < 5
    assert swarm.aborted == {"ep0": "training is finished"}
    forever.set()


def test_training_finished_lets_eval_games_end(swarm: FakeSwarm, client: SwarmClient) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def evaluate() -> str:
        episode, _ = client.begin_episode(task=TASK, episode_type="eval")
        begun.set()
        go_on.wait()
        client.end_episode(TASK, episode, WON)
        return "judged"

    with PeriodicDrainThreadPoolExecutor() as executor:
        future = executor.submit(evaluate)
        assert begun.wait(5)
        swarm.set_state("FINISHED")
        threading.Timer(0.3, go_on.set).start()
        while True:
            executor.submit(_rollout(client), TASK)
    assert future.result() == "judged"


def test_training_finished_is_seen_though_the_rollout_swallows_it(swarm: FakeSwarm, client: SwarmClient) -> None:
    swarm.state = "FINISHED"

    def careless() -> None:
        with contextlib.suppress(Exception):
            client.begin_episode(task=TASK)

    with PeriodicDrainThreadPoolExecutor() as executor:
        while True:
            executor.submit(careless)
    assert executor.finished


SCRIPT = """
import sys
from ajet.schema.task import Task, WorkflowOutput
from ajet.tuner_lib.experimental.swarm_client import SwarmClient
from ajet.utils.thread_executors import PeriodicDrainThreadPoolExecutor
import time
client = SwarmClient(sys.argv[1])

def rollout(task):
    episode_uuid, api = client.begin_episode(discard_episode_timeout=240)
    {play}
    client.end_episode(task, episode_uuid, WorkflowOutput(reward=1.0))

executor = PeriodicDrainThreadPoolExecutor(workers=6, max_parallel=4, auto_retry=True)
for epoch in range({epochs}):
    for n in range(7):
        executor.submit_with_periodic_drain(fn=rollout, task=Task(task_id=str(n)))
print("the loop is over", flush=True)
"""


def _script(swarm: FakeSwarm, play: str = "pass", epochs: int = 10**6) -> subprocess.Popen[str]:
    code = SCRIPT.format(play=play, epochs=epochs)
    return subprocess.Popen(
        [sys.executable, "-c", code, swarm.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_plain_script_without_a_with_block_ends_with_code_0(swarm: FakeSwarm) -> None:
    swarm.finish_after = 20
    process = _script(swarm)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")
    assert len(swarm.ended) >= 20


def test_a_script_that_reaches_its_end_still_plays_its_last_runs(swarm: FakeSwarm) -> None:
    process = _script(swarm, play="time.sleep(0.3)", epochs=1)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "the loop is over\n", "")
    assert len(swarm.ended) == 7


def test_ctrl_c_ends_promptly_and_gives_open_episodes_back(swarm: FakeSwarm) -> None:
    process = _script(swarm, play="sys.stdout.write('playing\\n'); sys.stdout.flush(); time.sleep(600)")
    assert process.stdout is not None
    heard = ""
    while heard.count("playing") < 4:
        heard += process.stdout.readline()
    started = time.monotonic()
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert time.monotonic() - started < 5
    assert process.returncode in (1, 130, -signal.SIGINT)
    assert "interrupted" in err
    assert "Traceback" not in err
    assert swarm.open == set()
    assert set(swarm.aborted.values()) <= {"interrupted by the user", "the script ended by an exception"}


def test_a_users_bug_ends_a_plain_script_with_its_traceback_and_code_1(swarm: FakeSwarm) -> None:
    process = _script(swarm, play="raise KeyError('my bug')")
    out, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert out == ""
    assert "KeyError: 'my bug'" in err
    assert swarm.open == set()


# ── judging ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class _StatusError(Exception):
    def __init__(self, code: str) -> None:
        self.status_code, self.code = 410, code


def _wrapped(error: Exception) -> Exception:
    try:
        raise RuntimeError("the game was void") from error
    except RuntimeError as outer:
        return outer


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ValueError(), Outcome.BUG),
        (SystemExit(3), Outcome.BUG),
        (httpx.HTTPStatusError("404", request=None, response=None), Outcome.BUG),  # type: ignore[arg-type]
        (TimeoutError(), Outcome.WEATHER),
        (_wrapped(InfrastructureFault("x")), Outcome.WEATHER),
        (_wrapped(ValueError()), Outcome.BUG),
        (_StatusError("episode_gone"), Outcome.WEATHER),
        (_StatusError("training_finished"), Outcome.FINISHED),
        (TrainingFinished("done"), Outcome.FINISHED),
        (EngineUnavailable("offline"), Outcome.UNREACHABLE),
        (openai.APITimeoutError(request=httpx.Request("POST", "http://x")), Outcome.WEATHER),
    ],
)
def test_errors_are_judged(error: BaseException, outcome: Outcome) -> None:
    assert outcome_of(error) is outcome


def test_a_run_of_nothing_but_failures_ends_in_an_error_however_short() -> None:
    def run() -> None:
        raise KeyError("my bug")

    executor = PeriodicDrainThreadPoolExecutor(max_parallel=64)
    for _ in range(8):
        executor.submit(run)
    with pytest.raises(KeyError, match="my bug"):
        executor.shutdown()
    with PeriodicDrainThreadPoolExecutor() as executor:
        executor.submit(run)
        executor.submit(lambda: None)
    assert executor.stats == {"succeeded": 1, "bug": 1}


def test_a_run_of_nothing_but_forgotten_results_ends_in_an_error(swarm: FakeSwarm, client: SwarmClient) -> None:
    def forget(keep: bool) -> str:
        with client.episode(TASK) as episode:
            if keep:
                episode.output = WON
        return "played"

    executor = PeriodicDrainThreadPoolExecutor()
    first = executor.submit(forget, False)
    executor.submit(forget, False)
    with pytest.raises(AjetError, match=r"episode\.output"):
        executor.shutdown()
    assert first.result() == "played"
    with PeriodicDrainThreadPoolExecutor() as executor:
        executor.submit(forget, False)
        executor.submit(forget, True)
    assert executor.stats == {"succeeded": 1, "no_output": 1}
