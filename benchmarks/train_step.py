"""The time of one training step of the built-in model's size: 192 games, nine optimizer steps, one thread.

python -m benchmarks.train_step [--steps 3] [--json out.json]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from ajet.backbone.embedded.engine import Engine
from ajet.default_config.schema import AjetConfig
from ajet.trajectory.batch import Row, Sample, TrainBatch
from benchmarks.sampler_systems import VOCAB, save_model

COMMON = list(range(100, 116))


def train_batch(step: int, games: int = 192) -> TrainBatch:
    """Twelve samples a game, of three wolves and a seer; games of one task share the beginning of their prompts."""
    r = random.Random(step)
    rows = []
    for game in range(games):
        won = r.random() < 0.5
        for agent, tag in (("p1", "werewolf"), ("p2", "werewolf"), ("p3", "werewolf"), ("p5", "seer")):
            samples = []
            for _ in range(3):
                start = r.randint(52, 64)
                n = start + r.randint(8, 14)
                situation = [r.randrange(10, 14), r.randrange(20, 29), *((game // 6 * 7 + i) % 400 for i in range(8))]
                ids = (COMMON[:10] + situation + [r.randrange(VOCAB) for _ in range(n)])[:n]
                trained = np.arange(n) >= start
                samples.append(
                    Sample(np.array(ids, np.int32), trained, np.where(trained, -6.1, 0).astype(np.float32),
                           np.ones(n, np.float32), np.where(trained, step - 1, -1).astype(np.int32))
                )  # fmt: skip
            reward = float(won) if tag == "werewolf" else float(not won)
            rows.append(Row(f"e{game}", agent, tag, f"t{game // 6}", reward, samples))
    return TrainBatch(step, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        save_model(Path(directory))
        config = AjetConfig(model={"path": directory})
        common = config.trainer_common
        common.n_gpus_per_node, common.cpu_threads, common.mini_batch_num, common.optim.lr = 0, 1, 9, 5e-4
        engine = Engine(config)
    import ajet.algorithm.loss  # noqa: F401  (verl's import is not a step)

    steps, cpu, metrics = [], [], {}
    for step in range(1, args.steps + 1):
        batch = train_batch(step)
        started, cpu_started = time.perf_counter(), time.process_time()
        metrics = engine.train_step(batch).metrics
        steps.append(time.perf_counter() - started)
        cpu.append(time.process_time() - cpu_started)
    print(
        f"train_step, 192 games, 9 mini-batches: {statistics.median(steps):.2f} s ({min(steps):.2f} – {max(steps):.2f}), "
        f"CPU {statistics.median(cpu):.2f} s; {metrics['tokens/forward']:.0f} tokens, {metrics['tokens/merged_share']:.0%} merged"
    )
    if args.json:
        args.json.write_text(json.dumps({"train_step_s": steps, "train_step_cpu_s": cpu}, indent=2))


if __name__ == "__main__":
    main()
