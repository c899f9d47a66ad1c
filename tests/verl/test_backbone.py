"""The backbone as the server sees it, on two CPU workers: colocated, with LoRA, and with samplers of their own."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch

from ajet.backbone.protocol import Sampling
from ajet.backbone.verl.process import VerlBackbone
from ajet.schema.errors import ConfigError, EngineStateConflict, InvalidRequest
from ajet.trajectory.batch import Row, Sample, TrainBatch

PROMPTS = [[5, 9, 17, 33], [5, 9, 17, 40], [7, 8, 100]]


async def sampled(backbone, step: int) -> TrainBatch:
    """What the backbone samples for each prompt, twice, as a batch."""

    async def one(prompt, episode):
        sampling = Sampling(max_tokens=24, seed=episode + 100 * step, ignore_eos=True)
        (chunk,) = [c async for c in backbone.generate(prompt, sampling, session=f"e{episode}/a")]
        n, at = len(chunk.ids), len(prompt)
        trained = np.arange(at + n) >= at
        logprobs = np.zeros(at + n, np.float32)
        logprobs[at:] = chunk.logprobs
        assert set(chunk.versions) == {step - 1}
        versions = np.where(trained, step - 1, -1).astype(np.int32)
        ids = np.array(prompt + chunk.ids, np.int32)
        sample = Sample(ids, trained, logprobs, np.ones(at + n, np.float32), versions)
        reward = float(episode % 2) if episode < 4 else 1.0  # the last group's are all equal
        return Row(f"e{episode}", "a", "t", f"t{episode // 2}", reward, [sample])

    rows = await asyncio.gather(*[one(PROMPTS[e // 2], e) for e in range(6)])
    return TrainBatch(step, list(rows))


def exported_log_probs(folder, batch: TrainBatch) -> float:
    """How far the exported model's log-probs are from those of the batch's tokens."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    worst = 0.0
    for row in batch.rows:
        sample = row.samples[0]
        ids = torch.from_numpy(sample.ids_T.astype(np.int64))
        with torch.no_grad():
            scored = model(ids[None]).logits[0].log_softmax(-1)
        found = scored[:-1].gather(1, ids[1:, None])[:, 0].numpy()
        where = np.flatnonzero(sample.trained_T)
        worst = max(worst, float(np.abs(found[where - 1] - sample.logprobs_T[where]).max()))
    return worst


async def train_save_and_go_on(config, tmp_path):
    backbone = VerlBackbone()
    try:
        info = await backbone.start(config.model_dump(mode="json"))
        assert (info.policy_version, info.vocab_size) == (0, 449)
        first = await backbone.train_step(await sampled(backbone, 1))
        assert first.metrics["sampler/logprob_diff_max"] < 1e-4
        assert first.digest != info.digest
        batch = await sampled(backbone, 2)
        folder = tmp_path / "one"
        folder.mkdir()
        await backbone.save(str(folder))
        assert exported_log_probs(folder, batch) < 1e-4
        second = await backbone.train_step(batch)
        assert second.metrics["sampler/logprob_diff_max"] < 1e-4  # the samplers had the weights of step 1
        loaded = await backbone.load(str(folder))
        assert (loaded.policy_version, loaded.digest) == (1, first.digest)
        again = await backbone.train_step(batch)
        assert again.digest == second.digest
        with pytest.raises(EngineStateConflict):
            await backbone.train_step(batch)
        return backbone, second
    except BaseException:
        await backbone.close()
        raise


async def test_colocated_trains_saves_resumes_and_refuses(job, tmp_path):
    config = job(trainer_common__optim__lr=1e-3, trainer_common__algorithm__running_baseline=0.9)
    backbone, second = await train_save_and_go_on(config, tmp_path)
    try:
        assert second.metrics["advantage/t/running_baseline_share"] > 0, "what a resumed run has to find again"
        with pytest.raises(InvalidRequest, match="top_logprobs"):
            await anext(backbone.generate([5], Sampling(top_logprobs=2), session="x"))
        frozen = [c async for c in backbone.generate([5, 9], Sampling(max_tokens=3), session="x", model="frozen")]
        assert frozen[0].ids
        under_way = asyncio.create_task(
            anext(backbone.generate([5, 9], Sampling(max_tokens=400, ignore_eos=True), session="y"))
        )
        # A batch is trained while that is sampled: it goes on, each token under the version that sampled it.
        batch = await sampled(backbone, 3)
        await backbone.train_step(batch)
        chunk = await under_way
        assert len(chunk.ids) == len(chunk.logprobs) == len(chunk.versions) == 400
        assert chunk.versions == sorted(chunk.versions)
        cancelled = asyncio.create_task(
            anext(backbone.generate([5, 9], Sampling(max_tokens=400, ignore_eos=True), session="z"))
        )
        await asyncio.wait([cancelled], timeout=0.2)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        assert (await backbone.stats())["active"] == 0
        with pytest.raises(ConfigError, match="no checkpoint"):
            await backbone.load(str(tmp_path))
    finally:
        await backbone.close()


async def test_lora_trains_adapters_hands_them_over_and_exports_them_folded_in(job, tmp_path):
    config = job(lora__rank=4, lora__alpha=8, trainer_common__optim__lr=1e-2, trainer_common__use_kl_loss=True)
    config.trainer_common.kl_loss_coef = 0.1
    backbone, second = await train_save_and_go_on(config, tmp_path)
    await backbone.close()
    assert second.metrics["actor/kl_loss"] > 1e-9  # against the model without its adapters


async def test_samplers_of_their_own_get_the_weights_over_gloo(job, tmp_path):
    config = job(verl__placement="separate", trainer_common__optim__lr=1e-3)
    backbone, _ = await train_save_and_go_on(config, tmp_path)
    await backbone.close()
