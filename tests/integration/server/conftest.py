"""A real server over HTTP on a free port, in a thread, with fake backbones in the same process."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import uvicorn

from ajet.schema.endpoint import OpenaiBaseUrlAndApiKey
from ajet.server.app import SwarmApp, create_app
from ajet.server.main import server_config
from ajet.server.settings import Limits, ServerSettings
from ajet.trajectory import ChatRenderer
from tests.fakes.backbone import FakeBackbone
from tests.fakes.chat_model import save_tokenizer

DEADLINE_S = 20.0
QUICK = Limits(backoff_s=0.01, backoff_max_s=0.02)


def job(**changes: Any) -> dict[str, Any]:
    """A small job: 2 groups of 2 episodes a step. ``rollout__temperature=…`` reaches into the tree."""
    tree: dict[str, Any] = {
        "experiment_name": "exp",
        "rollout": {
            "num_repeat": 2,
            "max_env_worker": 16,
            "max_model_len": 2000,
            "max_response_length_in_one_turn": 64,
        },
        "data": {"train_batch_size": 2, "max_prompt_length": 1000, "max_response_length": 1000},
        "trainer_common": {"total_training_steps": 3, "save_freq": 1},
    }
    for key, value in changes.items():
        *path, leaf = key.split("__")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        node[leaf] = value
    return tree


@dataclass
class Swarm:
    """A running server and what a test needs to drive it."""

    url: str
    app: SwarmApp
    loop: asyncio.AbstractEventLoop
    backbones: list[FakeBackbone]
    http: httpx.Client
    count: int = 0
    names: dict[str, Any] = field(default_factory=dict)

    @property
    def backbone(self) -> FakeBackbone:
        return self.backbones[-1]

    def call(self, work: Callable[[], Any]) -> Any:
        """Run ``work`` on the server's loop."""
        done: Any = asyncio.run_coroutine_threadsafe(_as_coroutine(work), self.loop)
        return done.result(DEADLINE_S)

    def post(self, path: str, body: dict[str, Any] | None = None, **kw: Any) -> httpx.Response:
        return self.http.post(f"/swarm/v1{path}", json=body or {}, **kw)

    def get(self, path: str, **kw: Any) -> httpx.Response:
        return self.http.get(f"/swarm/v1{path}", **kw)

    def status(self, **query: Any) -> dict[str, Any]:
        return self.get("/status", params=query).json()

    def wait(self, state: str) -> dict[str, Any]:
        found = self.status(wait_state=state, wait_s=DEADLINE_S)
        assert found["state"] == state, found
        return found

    def wait_step(self, step: int) -> dict[str, Any]:
        found = self.status(wait_step=step, wait_s=DEADLINE_S)
        assert found["step"] >= step, found
        return found

    def start(self, tree: dict[str, Any] | None = None) -> None:
        self.http.put("/swarm/v1/job", json={"job": tree or job()}).raise_for_status()
        self.post("/engine/start").raise_for_status()
        self.wait("ROLLING")

    def fresh(self, word: str = "r") -> str:
        self.count += 1
        return f"{word}{self.count}"

    def begin(self, **changes: Any) -> dict[str, Any]:
        body = {"client_id": "c1", "request_id": self.fresh(), "wait_s": DEADLINE_S, **changes}
        answer = self.post("/episodes", body)
        assert answer.status_code == 201, answer.text
        return answer.json()

    def end(
        self, episode: str, task: str, reward: Any = 1.0, request: str | None = None, **output: Any
    ) -> httpx.Response:
        body = {
            "request_id": request or self.fresh("end"),
            "task": {"task_id": task},
            "output": {"reward": reward, **output},
        }
        return self.post(f"/episodes/{episode}/end", body)

    def openai(
        self, begun: dict[str, Any], agent: str | None = None, tag: str | None = None, **kw: Any
    ) -> openai.OpenAI:
        key = OpenaiBaseUrlAndApiKey(self.url + "/v1", begun["api_key"], begun["episode_id"])
        if agent:
            key = key.for_agent(agent, tag)
        return openai.OpenAI(base_url=key.base_url, api_key=key.api_key, max_retries=0, timeout=DEADLINE_S, **kw)

    def say(self, begun: dict[str, Any], text: str = "hello", agent: str | None = None, **kw: Any) -> Any:
        with self.openai(begun, agent) as client:
            return client.chat.completions.create(model="policy", messages=[{"role": "user", "content": text}], **kw)

    def play(self, task: str, reward: Any = 1.0, **output: Any) -> str:
        begun = self.begin()
        self.say(begun, f"task {task}")
        answer = self.end(begun["episode_id"], task, reward, **output)
        assert answer.status_code == 200, answer.text
        return begun["episode_id"]

    def play_batch(self, word: str = "t", groups: int = 2, repeat: int = 2) -> list[str]:
        tag = self.fresh(word)
        return [self.play(f"{tag}-{g}", float(r)) for g in range(groups) for r in range(repeat)]


async def _as_coroutine(work: Callable[[], Any]) -> Any:
    result = work()
    return await result if asyncio.iscoroutine(result) else result


@contextmanager
def serving(
    exp_dir: Path,
    renderer: ChatRenderer,
    make: Callable[[], FakeBackbone] = FakeBackbone,
    limits: Limits = QUICK,
    admin_key: str | None = None,
) -> Iterator[Swarm]:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(1024)
    port = listener.getsockname()[1]
    backbones: list[FakeBackbone] = []

    def factory(_config: Any) -> FakeBackbone:
        backbones.append(make())
        return backbones[-1]

    settings = ServerSettings(port=port, exp_dir=exp_dir, limits=limits, admin_key=admin_key)
    app = create_app(settings, factory, renderer_factory=lambda _config: renderer)
    server = uvicorn.Server(server_config(app, limits))
    loops: list[asyncio.AbstractEventLoop] = []

    async def run() -> None:
        loops.append(asyncio.get_running_loop())
        await server.serve(sockets=[listener])

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    headers = {"authorization": f"Bearer {admin_key}"} if admin_key else {}
    http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=DEADLINE_S + 5, headers=headers)
    _wait_for(lambda: server.started)
    try:
        yield Swarm(f"http://127.0.0.1:{port}", app, loops[0], backbones, http)
    finally:
        http.close()
        server.should_exit = True
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), "the server did not stop"


def _wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture(scope="session")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> ChatRenderer:
    return ChatRenderer(save_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture
def swarm(tmp_path: Path, renderer: ChatRenderer) -> Iterator[Swarm]:
    with serving(tmp_path, renderer) as running:
        yield running


@pytest.fixture
def serve(tmp_path: Path, renderer: ChatRenderer) -> Callable[..., Any]:
    """``with serve(make=…) as swarm:``; the same folder each time, so a second use is a restart."""
    return lambda **kw: serving(kw.pop("exp_dir", tmp_path), renderer, **kw)
