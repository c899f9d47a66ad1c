"""``backbone: verl`` with ``rollout.name: vllm`` on a CPU: the policy is sampled by vLLM in a Ray actor."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from ajet.backbone import create_backbone
from ajet.backbone.protocol import Sampling
from ajet.backbone.verl.process import VerlBackbone
from ajet.default_config.schema import AjetConfig
from ajet.schema.errors import InvalidRequest
from tests.unit.backbone import tiny
from tests.vllm.models import logprob_gap, save_qwen2
from tests.vllm.test_updates import FLOAT32, HOW, PROMPT

pytestmark = pytest.mark.timeout(400)


async def ask(backbone: VerlBackbone, prompt: list[int] = PROMPT, how: Sampling = HOW, **other):
    return [chunk async for chunk in backbone.generate(prompt, how, session="e/a", **other)][-1]


@pytest.mark.parametrize("tied", [True, False])
async def test_what_is_sampled_after_each_update_is_what_the_workers_have(tied, tmp_path):
    source = save_qwen2(tmp_path / "model", tied=tied)
    config = AjetConfig(
        backbone="verl", model={"path": str(source)},
        rollout={"name": "vllm", "max_model_len": 400, "max_num_seqs": 8},
        trainer_common={"n_gpus_per_node": 0, "use_kl_loss": False, "optim": {"lr": 3e-2}}, verl={"cpu_workers": 1},
    )  # fmt: skip
    backbone = create_backbone(config)
    assert isinstance(backbone, VerlBackbone)
    try:
        await backbone.start(config.model_dump(mode="json"))
        saved = source
        for step in (1, 2):
            for _ in range(2):  # the second finds its prompt in the cache
                reply = await ask(backbone)
                assert set(reply.versions) == {step - 1}
                gap = logprob_gap(saved, PROMPT, reply, HOW)
                print(f"{'tied' if tied else 'untied'}, policy {step - 1}: {gap:.2e}")
                assert gap < FLOAT32
            long = replace(HOW, max_tokens=200)
            calls = [asyncio.create_task(ask(backbone, [*PROMPT[:30], 3 + i], long)) for i in range(4)]
            await backbone.train_step(tiny.make_batch(step))
            new = tmp_path / f"step {step}"
            new.mkdir()
            await backbone.save(str(new))
            for i, call in enumerate(calls):
                reply = await call
                assert len(reply.ids) == 200
                at = reply.versions.count(step - 1)
                assert reply.versions == [step - 1] * at + [step] * (200 - at)
                for folder, part in ((saved, slice(0, at)), (new, slice(at, 200))):
                    assert logprob_gap(folder, [*PROMPT[:30], 3 + i], reply, long, part) < FLOAT32
            stale = logprob_gap(saved, PROMPT, await ask(backbone), HOW)
            assert stale > 100 * FLOAT32, "the weights before the step fit, too"
            saved = new
        frozen = await ask(backbone, model="frozen")
        assert logprob_gap(source, PROMPT, frozen, HOW) < FLOAT32
        with pytest.raises(InvalidRequest, match="raises it to"):
            await ask(backbone, how=replace(HOW, temperature=0.001))
    finally:
        await backbone.close()
