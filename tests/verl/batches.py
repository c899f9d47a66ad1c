"""Batches with everything that makes rows hard: several samples a row, shared beginnings, tags, lags, temperatures."""

from __future__ import annotations

import numpy as np
import torch

from ajet.trajectory.batch import Row, Sample, TrainBatch


def recorded(net, step: int, *, seed: int = 0, temperatures=(1.0,), noise: float = 0.15, flat=False) -> TrainBatch:
    """Two tasks with three episodes of two roles each; log-probs are ``net``'s, off by ``noise``.

    Args:
        net: an embedded net, whose log-probs stand for the sampler's.
        flat: the second task's rewards are all equal.
    """
    random = np.random.default_rng(seed + step)
    rows = []
    for task in range(2):
        for episode in range(3):
            for agent, tag in (("wolf 1", "werewolf"), ("wolf 2", "werewolf"), ("seer", "seer")):
                samples = [_sample(net, random, step, temperatures, noise) for _ in range(int(random.integers(1, 4)))]
                reward = float(random.integers(0, 2)) if tag == "werewolf" else float(random.random())
                reward = float(step) if flat and task else reward
                rows.append(Row(f"e{task}{episode}", agent, tag, f"t{task}", reward, samples))
    return TrainBatch(step, rows)


def _sample(net, random, step, temperatures, noise) -> Sample:
    length = int(random.integers(12, 60))
    ids = random.integers(3, net.vocab, length).astype(np.int32)
    trained = random.random(length) < 0.6
    trained[:4], trained[-1] = False, True
    temperature = np.where(trained, random.choice(temperatures, length), 1.0).astype(np.float32)
    logprobs = np.where(trained, _log_probs(net, ids, temperature) + noise * random.standard_normal(length), 0)
    versions = np.where(trained, step - 1, -1).astype(np.int32)
    return Sample(ids, trained, np.minimum(logprobs, 0).astype(np.float32), temperature, versions)


@torch.no_grad()
def _log_probs(net, ids, temperature) -> np.ndarray:
    from ajet.backbone.embedded.packing import lay_out, passes

    everything = np.ones(len(ids), bool)
    zeros = np.zeros(len(ids), np.float32)
    row = Row("e", "a", "t", "t", 0.0, [Sample(ids, everything, zeros, zeros + 1, np.zeros(len(ids), np.int32))])
    _, pieces = lay_out([row])
    out = np.zeros(len(ids))
    for part in passes(pieces, 10**6, 10**6, torch.device("cpu")):
        logits = net.logits_at(part)
        flat = part.flat_N.numpy()
        scaled = torch.log_softmax(logits / torch.from_numpy(temperature[flat + 1])[:, None], -1)
        out[flat + 1] = scaled.gather(1, torch.from_numpy(ids[flat + 1].astype(np.int64))[:, None])[:, 0].numpy()
    return out
