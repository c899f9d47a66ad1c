"""Ctrl-C at the steps at which Python lets a signal in: nothing stays locked, half sent, or open."""

from __future__ import annotations

import contextlib
import gc
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest

from ajet import SwarmClient
from ajet.client.blocking import EXIT_BUDGET_S
from ajet.client.exchange import Call
from ajet.client.transport import BlockingTransport
from ajet.schema.errors import AjetError
from tests.unit.client.fake_swarm import FakeSwarm

LONGEST_S = 10.0


@pytest.fixture(autouse=True)
def _little_to_collect() -> Iterator[None]:
    gc.collect()
    gc.freeze()  # so that the collections below have only the test's own objects to look at
    yield
    gc.unfreeze()


@pytest.fixture
def swarm() -> Iterator[FakeSwarm]:
    fake = FakeSwarm()
    fake.set_state("ROLLING")
    yield fake
    fake.close()


def struck(work: Callable[[], Any], step: int) -> bool:
    """Raise ``KeyboardInterrupt`` at the ``step``-th place inside ``work`` where Python would look for signals: as a
    function begins, and after each call.

    Returns:
        Whether it had so many. An interrupt that ``work`` swallows is an error.
    """
    seen = 0

    def strike(_frame: FrameType, event: str, _arg: Any) -> None:
        nonlocal seen
        if event == "c_call":
            return
        seen += 1
        if seen == step:
            sys.setprofile(None)
            raise KeyboardInterrupt

    # What the interrupt before this one cut short is finalized now: Python drops an interrupt that meets a finalizer.
    gc.collect()
    gc.disable()
    try:
        sys.setprofile(strike)
        work()
    except BaseException as err:  # the standard library may fail over the interrupt, which is then the cause
        if isinstance(err, KeyboardInterrupt) or isinstance(err.__context__, KeyboardInterrupt):
            return True
        raise
    finally:
        sys.setprofile(None)
        gc.enable()
    assert seen < step, f"the interrupt at step {step} was swallowed"
    return False


def in_time(work: Callable[[], Any]) -> Any:
    """What ``work`` returns; an error where it hangs."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    thread.join(LONGEST_S)
    assert results, "it hangs, or failed"
    return results[0]


def test_a_connection_is_as_good_as_new_after_ctrl_c_at_any_step(swarm: FakeSwarm) -> None:
    transport = BlockingTransport(swarm.url, None, 1)
    status, history = Call("GET", "/swarm/v1/status"), Call("GET", "/swarm/v1/metrics/history", params={"since": "0"})
    transport.send(status)
    step = 1
    while struck(lambda: transport.send(status), step):
        reply = in_time(lambda: transport.send(history))
        assert reply.body == {"steps": []}, "the answer to what was asked, not to what was cut short"
        step += 1
    assert step > 100
    transport.close()


@pytest.mark.parametrize("first", [1, 4, 7, 10])
def test_what_was_begun_is_given_back_after_ctrl_c_at_every_third_step(swarm: FakeSwarm, first: int) -> None:
    step = first
    while True:
        client = SwarmClient(swarm.url, verbose=False, retry_budget_s=1)
        more = struck(client.begin_episode, step)
        in_time(lambda client=client: client.close() or "closed")
        assert swarm.open == set(), f"Ctrl-C at step {step}"
        if not more:
            break
        step += 12
    assert step > 200


def test_the_exit_does_not_wait_for_a_server_that_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = SwarmClient(f"http://127.0.0.1:{silent.getsockname()[1]}", verbose=False)
        client._operations.took_part = True
        client._operations.leases.add("ep-1", 240)
        started = time.monotonic()
        client.close()
        assert EXIT_BUDGET_S * 0.9 < time.monotonic() - started < EXIT_BUDGET_S + 1


def test_the_exit_does_not_wait_for_requests_that_hold_all_connections(swarm: FakeSwarm) -> None:
    swarm.capacity = 0
    client = SwarmClient(swarm.url, verbose=False, pool_size=2)

    def begin() -> None:
        with contextlib.suppress(AjetError):  # the client is closed meanwhile
            client.begin_episode()

    for _ in range(6):
        threading.Thread(target=begin, daemon=True).start()
    swarm.until(lambda: swarm.requests.count("POST /swarm/v1/episodes") >= 2)
    started = time.monotonic()
    client.close()
    assert time.monotonic() - started < EXIT_BUDGET_S
    assert swarm.goodbyes == [client.client_id]


def test_connections_are_waited_for_and_shared_by_more_threads_than_there_are(swarm: FakeSwarm) -> None:
    transport = BlockingTransport(swarm.url, None, 2)
    call = Call("GET", "/swarm/v1/status")
    with ThreadPoolExecutor(16) as pool:
        started = time.monotonic()
        replies = list(pool.map(lambda _: transport.send(call).status, range(400)))
    assert replies == [200] * 400
    assert swarm.connections <= 2
    assert time.monotonic() - started < 10, "each is woken as one becomes free"
    transport.close()
