"""How `backbone: verl` should scale: what one driver does is measured here, what GPUs do is modelled from their data sheets.

python -m benchmarks.scaling [--gpus 8,64,512] [--chip H100] [--size 7b] [--json out.json]

Nothing of it is a measurement on GPUs. Measured on this machine, with the code that runs in a job: the driver's share of a
training step (laying rows out, advantages, the loss over rows and its derivative, verl's batches, their bytes). Modelled, with
N parameters, G GPUs, and :data:`ASSUMED` shares of a chip's limits: sampling (weights and cached keys and values are read for
each token of a replica's sequences; prompts at 2N operations a token), one pass for log-probs (2N), one for the update (6N,
and 2N for recomputing), attention's own operations, FSDP's gathers and reductions where they exceed the computing, and the
hand-over of weights. Not modelled: stragglers among episodes, the games' own time, host failures.
"""

from __future__ import annotations

import argparse
import json
import pickle
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from ajet.backbone.verl.entries import dealt, to_verl, with_gradients
from ajet.backbone.verl.trainer import Trainer
from ajet.default_config.schema import TrainerConfig
from ajet.trajectory.batch import Row, Sample, TrainBatch
from benchmarks.gpu.chips import CHIPS, Chip
from benchmarks.gpu.models import SIZES, Size

ASSUMED = {
    "share of peak products, training": 0.40,
    "share of peak products, prompts": 0.50,
    "share of peak bandwidth, sampling": 0.60,
    "bytes/s between GPUs of a host (NVLink 4, one way)": 450e9,
    "bytes/s a GPU between hosts (one 400 Gb/s port each)": 50e9,
    "bytes/s from the driver to the workers (one 100 Gb/s port)": 12.5e9,
    "GPUs of a host": 8,
}


@dataclass(frozen=True)
class Work:
    """What a step has per GPU; the batch grows with the cluster.

    Attributes:
        samples, length, sampled: samples a GPU, tokens of each, those of them that were sampled.
        sequences: decoded at once by a replica of one GPU.
        microbatch: ``trainer_common.max_tokens_per_microbatch``.
    """

    samples: int = 32
    length: int = 8000
    sampled: int = 2000
    sequences: int = 32
    microbatch: int = 16384


class _Ranks:
    """Answers at once what workers would compute; counts what they would be sent."""

    def __init__(self, vocab: int, ranks: int) -> None:
        self.vocab, self.ranks, self.sent = vocab, ranks, 0

    def log_probs(self, entries, tokens, *, reference=False, entropy=False):
        self._send(to_verl(dealt(entries, self.ranks), max_tokens=16384, entropy=entropy, compute_loss=False))
        return torch.full((tokens,), -1.0), torch.ones(tokens) if entropy else None

    def backward(self, entries, gradient_N, entropy_N):
        order = dealt(entries, self.ranks)
        data = to_verl(order, max_tokens=16384, entropy=False, compute_loss=True)
        self._send(with_gradients(data, order, gradient_N, entropy_N))

    def _send(self, data) -> None:
        self.sent += len(pickle.dumps(data, protocol=5))

    def optimizer_step(self, lr: float) -> float:
        return 1.0

    def digest(self) -> str:
        return ""


def driver_cost(work: Work) -> tuple[float, float]:
    """(seconds, bytes sent) per token of the driver's share of a step, from two sizes of batch on this machine, each the best of seven."""
    found = []
    for rows in (64, 512):
        random = np.random.default_rng(rows)
        trained = np.arange(work.length) >= work.length - work.sampled
        batch = []
        for r in range(rows):
            ids = random.integers(3, 1000, work.length).astype(np.int32)
            logprobs = np.where(trained, -1.1, 0).astype(np.float32)
            sample = Sample(
                ids, trained, logprobs, np.ones(work.length, np.float32), np.where(trained, 0, -1).astype(np.int32)
            )
            batch.append(Row(f"e{r}", "a", "t", f"t{r // 8}", float(r % 3 == 0), [sample]))
        ranks = _Ranks(1000, 8)
        trainer = Trainer(ranks, TrainerConfig(use_kl_loss=True))
        trainer.train_step(TrainBatch(1, batch))  # imports and first allocations
        took = []
        for step in range(2, 9):
            ranks.sent, started = 0, time.thread_time()
            trainer.train_step(TrainBatch(step, batch))
            took.append(time.thread_time() - started)
        found.append((rows * work.length, min(took), ranks.sent))  # CPU time, the least disturbed
    (small, early, few), (large, late, many) = found
    return (late - early) / (large - small), (many - few) / (large - small)


def modelled(gpus: int, size: Size, chip: Chip, work: Work, driver: tuple[float, float]) -> dict[str, float]:
    """Seconds of each part of a step on ``gpus`` GPUs."""
    shape, n = size.shape, size.matrix_parameters + size.shape.vocab * size.shape.hidden * (not size.shape.tied)
    tokens, sampled = work.samples * work.length, work.samples * work.sampled  # a GPU
    attention = 2 * shape.layers * shape.heads * shape.head_dim * work.length  # forward, a token, causal
    forward = 2 * size.matrix_parameters + attention
    kv = 4 * shape.layers * shape.kv_heads * shape.head_dim * (work.length - work.sampled / 2)
    one = (2 * n + work.sequences * kv) / (chip.bandwidth * ASSUMED["share of peak bandwidth, sampling"])
    sample = sampled / work.sequences * one
    sample += (tokens - sampled) * forward / (chip.flops * ASSUMED["share of peak products, prompts"])
    products = chip.flops * ASSUMED["share of peak products, training"]
    inside = gpus <= ASSUMED["GPUs of a host"]
    link = ASSUMED[
        "bytes/s between GPUs of a host (NVLink 4, one way)"
        if inside
        else "bytes/s a GPU between hosts (one 400 Gb/s port each)"
    ]
    passes = max(1.0, tokens / work.microbatch)
    others = (gpus - 1) / gpus
    scores = max(tokens * forward / products, passes * 2 * n * others / link)
    # Backward: the weights are gathered twice (forward, and again), gradients are reduced in float32.
    update = max(tokens * 4 * forward / products, passes * (2 * 2 * n + 4 * n) * others / link)
    hand_over = 2 * n * others / link + 2 * 2 * n / chip.bandwidth
    seconds, sent = (each * tokens * gpus for each in driver)
    serial = seconds + sent / ASSUMED["bytes/s from the driver to the workers (one 100 Gb/s port)"]
    step = sample + scores + update + hand_over + serial
    return {
        "gpus": gpus, "tokens": tokens * gpus, "sample_s": sample, "logprobs_s": scores, "update_s": update,
        "hand_over_s": hand_over, "driver_s": serial, "step_s": step, "tokens_per_gpu_s": tokens / step,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", default="8,64,512")
    parser.add_argument("--chip", default="H100", choices=[chip.name for chip in CHIPS])
    parser.add_argument("--size", default="7b", choices=sorted(SIZES))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    work, chip = Work(), next(chip for chip in CHIPS if chip.name == args.chip)
    driver = driver_cost(work)
    rows = [modelled(int(gpus), SIZES[args.size], chip, work, driver) for gpus in args.gpus.split(",")]
    print(
        f"measured: the driver takes {driver[0] * 1e6:.3f} s and sends {driver[1] * 1e6 / 1e6:.1f} MB a million tokens"
    )
    print(f"modelled: {args.size} on {chip.name} ({chip.source}); a GPU's share of a step: {asdict(work)}; {ASSUMED}\n")
    print(
        "| GPUs | tokens a step | sampling | log-probs | update | hand-over | driver | step | tokens/s a GPU | of 8 GPUs' |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        times = " | ".join(
            f"{row[k]:.1f} s" for k in ("sample_s", "logprobs_s", "update_s", "hand_over_s", "driver_s", "step_s")
        )
        share = row["tokens_per_gpu_s"] / rows[0]["tokens_per_gpu_s"]
        print(
            f"| {row['gpus']} | {row['tokens'] / 1e6:.1f} M | {times} | {row['tokens_per_gpu_s']:,.0f} | {share:.0%} |"
        )
    if args.json:
        measured = {"driver_s_per_token": driver[0], "driver_bytes_per_token": driver[1]}
        args.json.write_text(
            json.dumps({"measured": measured, "assumed": ASSUMED, "work": asdict(work), "rows": rows}, indent=2)
        )


if __name__ == "__main__":
    main()
