"""Claims about exactly-once, in any order of events: a state machine against the real application.

Begins, chat calls, ends, aborts, heartbeats, silence, repeats, concurrent repeats, restarts and kills of the server are
drawn at random and sent to the application in this process, with an instant fake backbone and a clock that the test
moves. After every step: each request id has had one answer for ever, each episode at most one fate, each pooled episode
is trained at most once. ``AJET_ONCE_EXAMPLES`` is the number of runs (default: small, for CI).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from ajet.pool import journal_read
from ajet.schema.wire import EngineState
from ajet.server.app import create_app
from ajet.server.settings import ServerSettings
from tests.fakes.backbone import FakeBackbone
from tests.fakes.renderer import ByteRenderer
from tests.integration.server.conftest import QUICK, job

EXAMPLES = int(os.environ.get("AJET_ONCE_EXAMPLES", "12"))
STEPS = int(os.environ.get("AJET_ONCE_STEPS", "30"))
CAPACITY = 4
SILENCE_S = 60.0
DEADLINE_S = 20.0
TASKS = ["a", "b"]


@dataclass
class Known:
    """What the clients were told, for ever."""

    begun: dict[str, dict[str, Any]] = field(default_factory=dict)
    """request id → its answer"""
    keys: dict[str, str] = field(default_factory=dict)
    """episode → its key"""
    ends: dict[tuple[str, str], tuple[int, Any]] = field(default_factory=dict)
    """(episode, request id) → status and answer, once it was accepted or refused for good"""
    fates: dict[str, str] = field(default_factory=dict)
    """episode → the fate it was first told to have"""
    replies: dict[tuple[str, str], Any] = field(default_factory=dict)
    """(episode, idempotency key) → the reply"""
    trained: list[str] = field(default_factory=list)


class Server:
    """The application, its clock and its backbones; may be stopped or dropped and made anew from the same folder."""

    def __init__(self, folder: Path, known: Known) -> None:
        self.folder = folder
        self.known = known
        self.offset = 0.0

    async def start(self) -> None:
        self.offset = 0.0  # restored leases begin with a fresh clock
        self.backbones: list[FakeBackbone] = []

        def make(_config: Any) -> FakeBackbone:
            self.backbones.append(FakeBackbone())
            return self.backbones[-1]

        settings_ = ServerSettings(exp_dir=self.folder, limits=QUICK)
        self.app = create_app(settings_, make, renderer_factory=lambda _config: ByteRenderer())  # type: ignore[arg-type,return-value]
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://127.0.0.1")
        self.lifespan = self.app._starlette.router.lifespan_context(self.app._starlette)
        await self.lifespan.__aenter__()
        if self.app.engine.job is None:
            tree = job(rollout__max_env_worker=CAPACITY, trainer_common__total_training_steps=10_000)
            (await self.http.put("/swarm/v1/job", json={"job": tree})).raise_for_status()
            (await self.http.post("/swarm/v1/engine/start")).raise_for_status()
        await self.rolling()
        registry = self.registry
        clock = asyncio.get_running_loop().time
        registry.now = registry.admission.now = lambda: clock() + self.offset

    @property
    def registry(self) -> Any:
        experiment = self.app.engine.experiment
        assert experiment is not None
        assert experiment.registry is not None
        return experiment.registry

    async def rolling(self) -> None:
        engine = self.app.engine
        assert await engine.changed.wait_until(lambda: engine.state is EngineState.ROLLING, DEADLINE_S), engine.failure

    async def settled(self) -> None:
        """Return when what was told has had its effects: no batch is due, none is being trained."""
        engine = self.app.engine

        def quiet() -> bool:
            pool = engine.experiment.pool if engine.experiment else None
            return engine.state is EngineState.ROLLING and pool is not None and len(pool.complete()) < pool.batch_size

        assert await engine.changed.wait_until(quiet, DEADLINE_S), engine.failure

    async def stop(self) -> None:
        """As by a signal: what runs is finished and saved."""
        await self.lifespan.__aexit__(None, None, None)
        await self.http.aclose()
        self.note_trained()

    async def kill(self) -> Path:
        """As by a SIGKILL: what is on disk at this moment is all there is. Returns the folder to go on in."""
        copy = Path(tempfile.mkdtemp(prefix="ajet-once-"))
        journal = self.app.engine.experiment.journal  # type: ignore[union-attr]
        # SQLite's files are copied while its only writer stands still, as a kill would leave them.
        await journal.execute(lambda _db: shutil.copytree(self.folder, copy, dirs_exist_ok=True) and None)
        await self.stop()
        shutil.rmtree(self.folder)
        self.folder = copy
        return copy

    def note_trained(self) -> None:
        path = self.folder / "exp" / "journal.sqlite"
        batches = journal_read.batches_after(path, 0)
        self.known.trained = [episode for batch in batches for _, episode in batch.members]


class Once(RuleBasedStateMachine):
    episodes: Bundle[str] = Bundle("episodes")

    @initialize()
    def begin_serving(self) -> None:
        self.runner = asyncio.Runner() if hasattr(asyncio, "Runner") else None
        self.loop = asyncio.new_event_loop() if self.runner is None else self.runner.get_loop()
        self.known = Known()
        self.server = Server(Path(tempfile.mkdtemp(prefix="ajet-once-")), self.known)
        self.number = 0
        self.run(self.server.start())

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        async def and_settle() -> Any:
            result = await work
            await self.server.settled()
            return result

        return self.loop.run_until_complete(asyncio.wait_for(and_settle(), DEADLINE_S))

    def teardown(self) -> None:
        if not hasattr(self, "server"):
            return
        self.loop.run_until_complete(asyncio.wait_for(self.server.stop(), DEADLINE_S))
        self.audit()
        shutil.rmtree(self.server.folder, ignore_errors=True)
        if self.runner is not None:
            self.runner.close()
        else:
            self.loop.close()

    def fresh(self) -> str:
        self.number += 1
        return f"r{self.number}"

    async def post(self, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
        answer = await self.server.http.post(path, json=body, headers=headers)
        assert answer.status_code < 500, answer.text
        return answer

    # ── what clients do ──────────────────────────────────────────────────────────────────────────────────────────

    @rule(target=episodes, kind=st.sampled_from(["train", "train", "eval"]), copies=st.integers(1, 3))
    def begin(self, kind, copies):
        """Once, or several times at once: the reply of the others may be thought lost."""
        request = self.fresh()
        body = {
            "client_id": "c",
            "request_id": request,
            "kind": kind,
            "wait_s": 0.01,
            "discard_episode_timeout": SILENCE_S,
        }

        async def ask():
            return await asyncio.gather(*(self.post("/swarm/v1/episodes", body) for _ in range(copies)))

        granted = [a.json() for a in self.run(ask()) if a.status_code == 201]
        assert len({one["episode_id"] for one in granted}) <= 1
        if not granted:
            return multiple()
        self.remember(request, granted[0])
        return granted[0]["episode_id"]

    def remember(self, request: str, begun: dict[str, Any]) -> None:
        self.known.begun[request] = begun
        self.known.keys[begun["episode_id"]] = begun["api_key"]

    @rule(data=st.data())
    def begin_again(self, data):
        """A begin whose lost reply is asked for once more, perhaps much later."""
        if not self.known.begun:
            return
        request = data.draw(st.sampled_from(sorted(self.known.begun)))
        before = len(self.server.registry.open)
        kept = self.known.begun[request]
        body = {"client_id": "c", "request_id": request, "kind": kept["kind"], "wait_s": 0.01}
        answer = self.run(self.post("/swarm/v1/episodes", body))
        if kept["episode_id"] in self.server.registry.open:
            assert answer.status_code == 201
            assert answer.json()["episode_id"] == kept["episode_id"]
            assert len(self.server.registry.open) == before
        elif answer.status_code == 201 and answer.json()["episode_id"] != kept["episode_id"]:
            # Its first episode has ended long ago, and the server no longer knows the request: a new one, told by its id.
            self.remember(request, answer.json())

    @rule(episode=episodes, key=st.sampled_from(["k1", "k2"]), copies=st.integers(1, 2))
    def call(self, episode, key, copies):
        body = {"messages": [{"role": "user", "content": key}]}
        headers = {"authorization": f"Bearer {self.known.keys[episode]}", "idempotency-key": key}

        async def ask():
            return await asyncio.gather(*(self.post("/v1/chat/completions", body, **headers) for _ in range(copies)))

        for answer in self.run(ask()):
            if answer.status_code == 410:
                assert episode not in self.server.registry.open
                continue
            assert answer.status_code == 200, answer.text
            said = (answer.json()["id"], answer.json()["choices"])
            assert self.known.replies.setdefault((episode, key), said) == said

    @rule(
        episode=episodes,
        task=st.sampled_from(TASKS),
        reward=st.sampled_from([0.0, 1.0]),
        request=st.sampled_from(["e1", "e2"]),
        copies=st.integers(1, 3),
    )
    def end(self, episode, task, reward, request, copies):
        body = {"request_id": request, "task": {"task_id": task}, "output": {"reward": reward}}

        async def ask():
            url = f"/swarm/v1/episodes/{episode}/end"
            return await asyncio.gather(*(self.post(url, body) for _ in range(copies)))

        for answer in self.run(ask()):
            self.told(episode, request, answer)

    def told(self, episode: str, request: str, answer: httpx.Response) -> None:
        """An end or abort was answered: as it was before, and not against what is known of the episode."""
        assert answer.status_code in (200, 410), answer.text
        if answer.status_code == 200:
            kept = self.known.ends.setdefault((episode, request), (200, answer.json()))
            assert kept == (200, answer.json())
            fate = "ended:" + request if "fate" in answer.json() else "aborted"
        else:
            fate = "ended" if "has ended already" in answer.json()["error"]["message"] else "aborted"
        first = self.known.fates.setdefault(episode, fate)
        assert first.partition(":")[0] == fate.partition(":")[0]
        if ":" in fate and ":" in first:
            assert first == fate, "two ends of one episode were both accepted"

    @rule(episode=episodes, copies=st.integers(1, 2))
    def abort(self, episode, copies):
        body = {"request_id": "x", "reason": "test: aborted"}

        async def ask():
            url = f"/swarm/v1/episodes/{episode}/abort"
            return await asyncio.gather(*(self.post(url, body) for _ in range(copies)))

        for answer in self.run(ask()):
            self.told(episode, "abort", answer)

    @rule(episode=episodes, task=st.sampled_from(TASKS))
    def end_and_abort_at_once(self, episode, task):
        end = {"request_id": "e1", "task": {"task_id": task}, "output": {"reward": 1.0}}
        base = f"/swarm/v1/episodes/{episode}"

        async def ask():
            return await asyncio.gather(
                self.post(f"{base}/end", end),
                self.post(f"{base}/abort", {"request_id": "x"}),
                self.server.registry.expire(),
            )

        ended, aborted, _ = self.run(ask())
        self.told(episode, "e1", ended)
        self.told(episode, "abort", aborted)

    # ── what happens to them ─────────────────────────────────────────────────────────────────────────────────────

    @rule()
    def heartbeat(self):
        self.run(self.post("/swarm/v1/heartbeat", {"client_id": "c"}))

    @rule(seconds=st.sampled_from([SILENCE_S / 2, SILENCE_S + 1]))
    def silence(self, seconds):
        async def wait():
            self.server.offset += seconds
            await self.server.registry.expire()

        before = set(self.server.registry.open)
        self.run(wait())
        for episode in before - set(self.server.registry.open):
            assert self.known.fates.setdefault(episode, "aborted") == "aborted"

    @rule(kill=st.booleans())
    def restart(self, kill):
        async def again():
            before = {e.id: len(e.trajectory.calls) for e in self.server.registry.open.values()}
            await (self.server.kill() if kill else self.server.stop())
            await self.server.start()
            after = {e.id: len(e.trajectory.calls) for e in self.server.registry.open.values()}
            assert after == before

        self.run(again())

    # ── what must hold ───────────────────────────────────────────────────────────────────────────────────────────

    @invariant()
    def no_lease_is_open_for_nobody(self):
        if not hasattr(self, "server"):
            return
        assert set(self.server.registry.open) <= self.known.keys.keys()
        leases = self.server.registry.leases
        assert len(leases) == len(self.server.registry.open)
        assert leases.open("train") <= CAPACITY
        for episode, fate in self.known.fates.items():
            assert episode not in self.server.registry.open, fate

    def audit(self) -> None:
        """All that was ever told, against what is on disk."""
        trained = self.known.trained
        assert len(trained) == len(set(trained))
        path = self.server.folder / "exp" / "journal.sqlite"
        for episode in self.known.keys:
            record = journal_read.episode(path, episode)
            assert record is not None
            fate = self.known.fates.get(episode)
            how = record.done.how if record.done else None
            if fate is not None:
                assert how == ("abort" if fate == "aborted" else "end"), (episode, fate)
            if record.done is None or how == "abort":
                assert episode not in trained
            for (of, request), (_, answer) in self.known.ends.items():
                if of == episode and request != "abort":
                    assert record.done is not None
                    assert record.done.request == request
                    assert record.done.body["answer"] == answer


TestOnce = Once.TestCase
TestOnce.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    database=None,
    derandomize=EXAMPLES <= 12,
    suppress_health_check=list(HealthCheck),
)
