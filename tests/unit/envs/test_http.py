"""What games' calls travel on: connections that one loop's callers share, and the loop that a process's games share."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import ajet.envs.http as http_module
from ajet.envs.http import NoAnswer, connections
from ajet.envs.loop import run_shared
from tests.unit.werewolves.fake_openai import Answer, failure, refused_url, replies, serve

HEADERS = {"Authorization": "Bearer k", "Content-Type": "application/json"}


@pytest.fixture(params=["aiohttp", "httpx"], autouse=True)
def library(request, monkeypatch):
    if request.param == "httpx":
        monkeypatch.setattr(http_module, "aiohttp", None)
    return request.param


async def post(url: str, timeout_s: float = 10.0) -> http_module.Answer:
    async with connections(url) as poster:
        return await poster.post(url + "/chat/completions", b'{"messages": []}', HEADERS, timeout_s)


async def test_an_answer_comes_with_status_headers_and_body_whatever_the_status():
    async with serve(replies(failure(429, "slow", retry_after="3"), "fine")) as server:
        refused, fine = await post(server.url), await post(server.url)
    assert (refused.status, refused.headers["Retry-After"]) == (429, "3")
    assert b"fault 429 slow" in refused.body
    assert fine.status == 200
    assert server.calls[0].key == "k"


@pytest.mark.parametrize("answer", [Answer(hang_up=True), Answer(hang=True)], ids=["hangs up", "hangs"])
async def test_no_answer_is_told_apart_from_any_answer(answer):
    async with serve(replies(answer)) as server:
        with pytest.raises(NoAnswer):
            await post(server.url, 0.2)
    with pytest.raises(NoAnswer):
        await post(refused_url())


async def test_callers_of_a_loop_share_connections_and_the_last_one_closes_them():
    async with serve(replies("fine")) as server:
        async with connections(server.url) as first, connections(server.url + "/else") as second:
            assert first is second
            async with connections(server.url):
                pass
            assert (await first.post(server.url + "/x", b"{}", HEADERS, 10)).status == 200
        async with connections(server.url) as later:
            assert later is not first


def test_games_of_many_threads_run_on_one_loop_and_errors_come_back():
    async def where() -> tuple[int, str]:
        await asyncio.sleep(0)
        return id(asyncio.get_running_loop()), threading.current_thread().name

    with ThreadPoolExecutor(8) as pool:
        seen = set(pool.map(lambda _: run_shared(where()), range(40)))
    assert len(seen) == 1

    async def fail() -> None:
        raise KeyError("as raised")

    with pytest.raises(KeyError, match="as raised"):
        run_shared(fail())


def test_waiting_for_oneself_is_refused_instead_of_hanging():
    async def inside() -> None:
        run_shared(asyncio.sleep(0))

    with pytest.raises(RuntimeError, match="await the coroutine"):
        run_shared(inside())
