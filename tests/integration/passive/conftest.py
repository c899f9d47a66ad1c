"""A swarm server (its fake backbone in this process), a passive client before it, and the real ``openai`` SDK."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import openai
import pytest
import uvicorn

from ajet.passive import Answer, Asked, PassiveClient
from ajet.passive.app import create_app
from tests.fakes.backbone import FakeBackbone
from tests.faults.processes import until
from tests.integration.server.conftest import DEADLINE_S, Swarm, renderer, serve

__all__ = ["renderer", "serve"]


@dataclass
class Judge:
    """A judge that prefers long answers, remembers what it saw, and errs on request."""

    seen: list[tuple[Asked, list[Answer]]] = field(default_factory=list)
    says: Callable[[list[Answer]], Any] = lambda answers: [float(len(a.text)) for a in answers]

    def __call__(self, asked: Asked, answers: list[Answer]) -> Any:
        self.seen.append((asked, answers))
        return self.says(answers)


@dataclass
class StandIn:
    """A running endpoint."""

    url: str
    passive: PassiveClient
    http: httpx.Client

    def sdk(self, key: str = "any") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=DEADLINE_S)

    def say(self, text: str = "hello", key: str = "any", **more: Any) -> Any:
        with self.sdk(key) as client:
            return client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}], **more)

    def post(self, **body: Any) -> httpx.Response:
        return self.http.post("/v1/chat/completions", json=body)

    def stats(self) -> dict[str, int]:
        return self.http.get("/passive/stats").json()


@contextlib.contextmanager
def standing_in(passive: PassiveClient, key: str | None = None) -> Iterator[StandIn]:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(256)
    server = uvicorn.Server(
        uvicorn.Config(create_app(passive, key), log_level="error", ws="none", timeout_graceful_shutdown=2)
    )
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    until(lambda: server.started, DEADLINE_S, "the endpoint's start")
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        with httpx.Client(base_url=url, headers=headers, timeout=DEADLINE_S) as http:
            yield StandIn(url, passive, http)
    finally:
        server.should_exit = True
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), "the endpoint did not stop"


def different_answers() -> FakeBackbone:
    """Each reply is longer than the one before: 1, 2, 3, … letters."""
    made = FakeBackbone()
    made.script = lambda _ids, sampling, _session: [*[72] * len(made.samplings), *sampling.stop_token_ids[:1]]
    return made


@pytest.fixture
def judge() -> Judge:
    return Judge()


@pytest.fixture
def swarm(serve: Any) -> Iterator[Swarm]:
    with serve(make=different_answers) as running:
        running.start()
        yield running


@pytest.fixture
def stand_in(swarm: Swarm, judge: Judge) -> Iterator[StandIn]:
    with standing_in(PassiveClient(swarm.url, judge, verbose=False)) as running:
        yield running
