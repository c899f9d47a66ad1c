"""An instant backbone in the test's own process: scriptable replies, failures and latency; no torch.

Its "weights" are a hash chain over the batches it trained, so that a digest shows exactly what was trained in what
order. One object is one process life: after :meth:`FakeBackbone.die` a factory must make a new one.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack

from ajet.backbone.protocol import BackboneDied, BackboneInfo, Chunk, ModelName, Sampling, StepResult, TrainBatch

Script = Callable[[list[int], Sampling, str], list[int]]


def hello(ids: list[int], sampling: Sampling, session: str) -> list[int]:
    """Four tokens and the stop token."""
    return [72, 75, 82, 79, *sampling.stop_token_ids[:1]]


@dataclass
class FakeBackbone:
    """See the module. ``script(prompt ids, sampling, session) -> reply ids``."""

    script: Script = hello
    latency_s: float = 0.0
    hold: asyncio.Event | None = None
    """While set to an unset event, generations wait for it."""
    hold_train: asyncio.Event | None = None
    train_error: BaseException | None = None
    save_error: BaseException | None = None
    start_error: BaseException | None = None
    version: int = 0
    digest: str = "0" * 64
    trained: list[TrainBatch] = field(default_factory=list)
    prompts: list[list[int]] = field(default_factory=list)
    samplings: list[Sampling] = field(default_factory=list)
    models: list[str] = field(default_factory=list)
    cancelled: int = 0
    active: int = 0
    started_with: dict[str, Any] | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    """Further metrics of each step."""
    keep: bool = True
    """Remember prompts (off in benchmarks)."""

    def __post_init__(self) -> None:
        self._dead: asyncio.Event = asyncio.Event()
        self._cause = ""
        self.generating: asyncio.Event = asyncio.Event()
        self.training: asyncio.Event = asyncio.Event()
        self.cancelled_event: asyncio.Event = asyncio.Event()

    def info(self) -> BackboneInfo:
        return BackboneInfo(self.version, "fake", 1, self.digest, 400, 1 << 20)

    async def start(self, job: dict[str, Any]) -> BackboneInfo:
        if self.start_error is not None:
            raise self.start_error
        self.started_with = job
        return self.info()

    def die(self, cause: str = "killed by the test") -> None:
        self._cause = cause
        self._dead.set()

    def _check(self) -> None:
        if self._dead.is_set():
            raise BackboneDied(self._cause)

    async def wait_died(self) -> BackboneDied:
        await self._dead.wait()
        return BackboneDied(self._cause)

    async def _or_death(self, event: asyncio.Event) -> None:
        waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(self._dead.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        self._check()

    async def generate(
        self, ids: list[int], sampling: Sampling, *, session: str, model: ModelName = "policy", stream: bool = False
    ) -> AsyncIterator[Chunk]:
        self._check()
        if self.keep:
            self.prompts.append(ids)
            self.samplings.append(sampling)
            self.models.append(model)
        self.active += 1
        self.generating.set()
        finished = False
        try:
            if self.latency_s:
                await asyncio.sleep(self.latency_s)
            if self.hold is not None:
                await self._or_death(self.hold)
            reply = self.script(ids, sampling, session)
            finish = "stop"
            if len(reply) > sampling.max_tokens:
                reply, finish = reply[: sampling.max_tokens], "length"
            elif not reply or reply[-1] not in sampling.stop_token_ids:
                finish = "length"
            pieces = [[i] for i in reply] if stream else [reply]
            for k, piece in enumerate(pieces):
                self._check()
                top = [[(i, -0.5)] + [(0, -2.0)] * (sampling.top_logprobs - 1) for i in piece]
                yield Chunk(
                    piece,
                    [-0.5] * len(piece),
                    [self.version] * len(piece),
                    top if sampling.top_logprobs else [],
                    finish if k == len(pieces) - 1 else None,  # type: ignore[arg-type]
                )
                if stream:
                    await asyncio.sleep(0)
            finished = True
        finally:
            self.active -= 1
            if not finished:
                self.cancelled += 1
                self.cancelled_event.set()

    async def load_weights(self, version: int) -> None:
        self._check()

    async def train_step(self, batch: TrainBatch) -> StepResult:
        self._check()
        self.training.set()
        if self.hold_train is not None:
            await self._or_death(self.hold_train)
        if self.train_error is not None:
            error, self.train_error = self.train_error, None
            raise error
        self.trained.append(batch)
        packed = msgpack.packb(batch.to_wire())
        self.digest = hashlib.sha256(self.digest.encode() + packed).hexdigest()
        self.version = batch.step
        advantages = {f"{row.episode}/{row.agent}": 0.5 for row in batch.rows}
        return StepResult(self.version, {"actor/loss": 0.0, **self.metrics}, advantages, self.digest)

    async def save(self, directory: str) -> None:
        self._check()
        if self.save_error is not None:
            error, self.save_error = self.save_error, None
            raise error
        Path(directory, "state.json").write_text(  # noqa: ASYNC240
            json.dumps({"version": self.version, "digest": self.digest})
        )

    async def load(self, directory: str) -> BackboneInfo:
        self._check()
        state = json.loads(Path(directory, "state.json").read_text())  # noqa: ASYNC240
        self.version, self.digest = state["version"], state["digest"]
        return self.info()

    async def stats(self) -> dict[str, float]:
        return {"active": float(self.active)}

    async def close(self) -> None:
        self.die("closed")
