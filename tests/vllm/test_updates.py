"""The update table: every kind of update × (tied, untied) × (float32, bf16), against a transformers forward.

What is served after an update is compared with what the trainer saved: "the outputs changed" proves nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ajet.backbone import create_backbone
from ajet.backbone.protocol import Chunk, Sampling
from ajet.backbone.vllm.backbone import VllmBackbone
from ajet.default_config.schema import AjetConfig
from ajet.schema.errors import EngineStateConflict
from tests.unit.backbone import tiny
from tests.vllm.models import VOCAB, logprob_gap, save_qwen2

pytestmark = pytest.mark.timeout(300)
PROMPT = [(7 * i) % (VOCAB - 3) + 3 for i in range(150)]
"""Longer than a block of the cache, so that a stale prefix would be found again."""
FLOAT32 = 1e-4
BF16 = 0.1
"""bfloat16 keeps eight bits: log-probs of two right forwards differ, by less than this in the mean."""
HOW = Sampling(temperature=0.8, max_tokens=12, ignore_eos=True)


def config_for(directory: Path, dtype: str = "float32", **rollout: Any) -> AjetConfig:
    return AjetConfig(
        model={"path": str(directory), "dtype": dtype},
        rollout={"name": "vllm", "max_model_len": 400, "max_num_seqs": 8, **rollout},
        trainer_common={"n_gpus_per_node": 0, "use_kl_loss": False, "optim": {"lr": 3e-2}},
    )


async def started(config: AjetConfig) -> VllmBackbone:
    backbone = create_backbone(config)
    assert isinstance(backbone, VllmBackbone)
    await backbone.start(config.model_dump())
    return backbone


async def ask(backbone: VllmBackbone, prompt: list[int] = PROMPT, how: Sampling = HOW, **other: Any) -> Chunk:
    return [chunk async for chunk in backbone.generate(prompt, how, session="e/a", **other)][-1]


@pytest.fixture(params=["tied", "untied"])
def tied(request: pytest.FixtureRequest) -> bool:
    return request.param == "tied"


@pytest.fixture(params=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
async def served(tied: bool, dtype: str, tmp_path: Path) -> AsyncIterator[tuple[VllmBackbone, Path, float]]:
    source = save_qwen2(tmp_path / "model", tied=tied, dtype=getattr(torch, dtype))
    backbone = await started(config_for(source, dtype))
    yield backbone, source, FLOAT32 if dtype == "float32" else BF16
    await backbone.close()


async def test_every_update_path_serves_what_the_trainer_has(served, tmp_path):
    backbone, source, tolerance = served

    def folder(name: str) -> Path:
        (tmp_path / name).mkdir()
        return tmp_path / name

    async def check(what: str, saved: Path, version: int, old: Path | None = None) -> None:
        for _ in range(2):  # the second finds its prompt in the cache
            reply = await ask(backbone)
            assert reply.versions == [version] * len(reply.ids)
            gap = logprob_gap(saved, PROMPT, reply, HOW, like=tolerance)
            print(f"{what}: {gap:.2e}")
            assert gap < tolerance, what
            if old is not None:
                stale = logprob_gap(old, PROMPT, reply, HOW, like=tolerance)
                assert stale > max(tolerance, 3 * gap), f"{what}: the weights before it fit, too"

    await check("boot", source, 0)
    await backbone.load_weights(0)
    await check("version 0 again", source, 0)

    # A step, with nothing under way.
    await backbone.train_step(tiny.make_batch(1))
    before = await ask(backbone)
    assert set(before.versions) == {0}, "the old policy serves until load_weights"
    await backbone.load_weights(1)
    await backbone.save(str(first := folder("first")))
    await check("step 1", first, 1, old=source)

    # A step, with calls under way: what they sampled before and after is each of its own version.
    long = Sampling(temperature=0.8, max_tokens=200, ignore_eos=True)
    calls = [asyncio.create_task(ask(backbone, [*PROMPT[:30], 3 + i], long)) for i in range(4)]
    await backbone.train_step(tiny.make_batch(2))
    await backbone.save(str(second := folder("second")))
    running = [asyncio.create_task(ask(backbone, [*PROMPT[:30], 9 + i], long)) for i in range(4)]
    while (await backbone.stats())["active"] < 4:
        pass
    await backbone.load_weights(2)
    mixed = 0
    for i, call in [*enumerate(calls), *enumerate(running, 6)]:
        reply = await call
        mixed += set(reply.versions) == {1, 2}
        assert len(reply.ids) == 200
        assert reply.versions == sorted(reply.versions)
        assert set(reply.versions) <= {1, 2}
        at = reply.versions.count(1)
        prompt = [*PROMPT[:30], 3 + i]
        for version, saved, part in ((1, first, slice(0, at)), (2, second, slice(at, 200))):
            gap = logprob_gap(saved, prompt, reply, long, part, like=tolerance)
            print(f"under way, tokens of version {version}: {gap:.2e}")
            assert gap < tolerance
    assert mixed, "the update came between two tokens of a call"
    await check("step 2", second, 2, old=first)

    # Back to a checkpoint, and on again.
    await backbone.load(str(first))
    with pytest.raises(EngineStateConflict):
        await backbone.load_weights(2)
    await backbone.load_weights(1)
    await check("back to step 1", first, 1, old=second)
    for step in (2, 3, 4):
        await backbone.train_step(tiny.make_batch(step))
        await backbone.load_weights(step)
    await backbone.save(str(last := folder("last")))
    await check("three more steps", last, 4, old=first)
    stats = await backbone.stats()
    assert stats["weight_updates"] == 6
    assert stats["reused_tokens"] > 0


async def test_frozen_calls_are_answered_by_the_initial_model_after_updates(tmp_path):
    source = save_qwen2(tmp_path / "model", tied=True)
    backbone = await started(config_for(source))
    try:
        await backbone.train_step(tiny.make_batch(1))
        await backbone.load_weights(1)
        reply = await ask(backbone, model="frozen")
        assert set(reply.versions) == {0}
        assert logprob_gap(source, PROMPT, reply, HOW) < FLOAT32
    finally:
        await backbone.close()


async def test_weights_are_the_same_bytes_as_with_the_embedded_sampler(tmp_path):
    """The trainer half is the embedded one: what samples beside it changes no bit of a step."""
    source = save_qwen2(tmp_path / "model", tied=True)
    backbone = await started(config_for(source))
    alone_config = config_for(source, name="auto")
    alone = create_backbone(alone_config)
    try:
        await alone.start(alone_config.model_dump())
        for step in (1, 2):
            batch = tiny.make_batch(step)
            assert (await backbone.train_step(batch)).digest == (await alone.train_step(batch)).digest
            await backbone.load_weights(step)
    finally:
        await backbone.close()
        await alone.close()
