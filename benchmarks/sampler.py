"""The embedded sampler against transformers' batched generate, and the time of a training step, in one run.

    python benchmarks/sampler.py [--runs 5] [--json out.json]

The model has the size of the built-in one (0.37 M parameters, random weights); prompts have about 60 tokens of which
the first 16 are common, replies end at a length drawn around 11, 64 sequences are in flight. Useful tokens are those of
replies; prompts and padding are not counted. transformers gets its best case: static batches of 64, sorted by length of
reply, so that hardly a row waits for another. Times are of one thread; ratios are per run, sampler and peer one after
the other, so that a busy machine hits both.
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
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from ajet.backbone.embedded.engine import Engine
from ajet.backbone.protocol import Sampling
from ajet.default_config.schema import AjetConfig
from ajet.trajectory.batch import Row, Sample, TrainBatch

VOCAB, CONCURRENT = 450, 64
COMMON = list(range(100, 116))


def save_model(directory: Path) -> None:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCAB, hidden_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=288, max_position_embeddings=2048, tie_word_embeddings=True, initializer_range=0.05,
        bos_token_id=0, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(directory)


def requests(n: int, seed: int) -> list[tuple[list[int], int]]:
    """Prompts, and how long each reply shall be."""
    r = random.Random(seed)
    return [
        (COMMON + [r.randrange(3, VOCAB) for _ in range(r.randint(38, 50))], max(4, round(r.gauss(11, 3))))
        for _ in range(n)
    ]


def time_sampler(engine: Engine, work: list[tuple[list[int], int]]) -> float:
    started, next_one, live = time.perf_counter(), 0, 0
    while next_one < len(work) or live:
        while live < CONCURRENT and next_one < len(work):
            ids, length = work[next_one]
            engine.submit(next_one, ids, Sampling(max_tokens=length, ignore_eos=True), "policy", False)
            next_one, live = next_one + 1, live + 1
        live -= len(engine.tick())
    return time.perf_counter() - started


@torch.inference_mode()
def time_transformers(model: torch.nn.Module, work: list[tuple[list[int], int]]) -> float:
    started = time.perf_counter()
    ordered = sorted(work, key=lambda w: w[1])
    for at in range(0, len(ordered), CONCURRENT):
        part = ordered[at : at + CONCURRENT]
        longest = max(len(ids) for ids, _ in part)
        ids = torch.zeros(len(part), longest, dtype=torch.long)
        mask = torch.zeros(len(part), longest, dtype=torch.long)
        for b, (prompt, _) in enumerate(part):
            ids[b, longest - len(prompt) :] = torch.tensor(prompt)
            mask[b, longest - len(prompt) :] = 1
        new = max(length for _, length in part)
        model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=True,
            top_k=0,
            pad_token_id=0,
        )
    return time.perf_counter() - started


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
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--requests", type=int, default=640)
    parser.add_argument("--train-steps", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        save_model(Path(directory))
        config = AjetConfig(model={"path": directory})
        common = config.trainer_common
        common.n_gpus_per_node, common.cpu_threads, common.mini_batch_num, common.optim.lr = 0, 1, 9, 5e-4
        engine = Engine(config)
        peer = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    time_sampler(engine, requests(128, 99))
    time_transformers(peer, requests(128, 99))
    ours, theirs = [], []
    for run in range(args.runs):
        work = requests(args.requests, run)
        useful = sum(length for _, length in work)
        ours.append(useful / time_sampler(engine, work))
        theirs.append(useful / time_transformers(peer, work))
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    steps, cpu = [], []
    for step in range(1, args.train_steps + 1):
        batch = train_batch(step)
        if step == 1:
            import ajet.algorithm.loss  # noqa: F401  (verl's import is not a step)
        started, cpu_started = time.perf_counter(), time.process_time()
        metrics = engine.train_step(batch).metrics
        steps.append(time.perf_counter() - started)
        cpu.append(time.process_time() - cpu_started)
    print(f"useful tokens/s, {CONCURRENT} concurrent    median   min – max")
    for name, values in (("ajet embedded sampler", ours), ("transformers generate", theirs)):
        print(f"  {name:<28} {statistics.median(values):9.0f}   {min(values):.0f} – {max(values):.0f}")
    print(f"  {'ratio':<28} {statistics.median(ratios):9.2f}   {min(ratios):.2f} – {max(ratios):.2f}")
    print(
        f"train_step, 192 games, 9 mini-batches: {statistics.median(steps):.2f} s ({min(steps):.2f} – {max(steps):.2f}), "
        f"CPU {statistics.median(cpu):.2f} s; {metrics['tokens/forward']:.0f} tokens, {metrics['tokens/merged_share']:.0%} merged"
    )
    if args.json:
        result = {
            "sampler_tokens_per_s": ours,
            "transformers_tokens_per_s": theirs,
            "ratio": ratios,
            "train_step_s": steps,
            "train_step_cpu_s": cpu,
        }
        args.json.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
