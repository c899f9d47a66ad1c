"""What merging saves in training: forward tokens and the time of an update on recorded nine-player Werewolves.

    python -m benchmarks.training_cost [--rounds 5] [--threads 1] [--json FILE]

One training step over the same rows in three ways, side by side in each round: every call a forward row of its own over
all of its context ("one call, one row"); an agent's calls merged into their timelines; merged, and beginnings that
several samples share computed once. All three run the same kernels, packed by length without padding to a batch's
longest, so what differs is merging alone. Two workloads: ``full`` (the growing conversations of real models, scripted
players, each deal played several times as in a group) and ``compact`` (the state prompts of the built-in model, with no
history to merge). Loss and gradient of the three agree (printed; ``tests/unit/backbone/test_merging.py`` shows it for
every loss). The model has the built-in one's size with random weights.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from ajet.backbone.embedded import packing
from ajet.backbone.embedded.net import load_net
from ajet.backbone.embedded.trainer import Trainer
from ajet.default_config.schema import AlgorithmConfig, TrainerConfig
from ajet.trajectory.batch import Row, Sample, TrainBatch
from benchmarks.game_calls import Conversation, describe, record_compact, record_full

SEATS = 4
MODES = ("one call, one row", "merged timelines", "merged, shared beginnings")


def save_model(directory: Path) -> int:
    """The built-in model's shape, a longer reach, random weights. Returns its vocabulary."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=450, hidden_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=288, max_position_embeddings=65536, tie_word_embeddings=True, initializer_range=0.05,
        bos_token_id=0, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(directory)
    return config.vocab_size


def _sample(ids: list[int], spans: list[tuple[int, int]]) -> Sample:
    T = len(ids)
    trained_T = np.zeros(T, bool)
    for start, stop in spans:
        trained_T[start:stop] = True
    logprob_T = np.where(trained_T, np.float32(-5.0), np.float32(0))
    return Sample(
        np.array(ids, np.int32), trained_T, logprob_T, np.ones(T, np.float32),
        np.where(trained_T, 0, -1).astype(np.int32),
    )  # fmt: skip


def rows_of(conversations: list[Conversation], group: int, vocab: int, merge: bool) -> list[Row]:
    """One row a conversation: merged into timelines, or a sample for each call."""
    rows = []
    for n, conversation in enumerate(conversations):
        r = random.Random(n)
        game, seat = divmod(n, SEATS)
        samples: list[Sample] = []
        context: list[int] = []
        spans: list[tuple[int, int]] = []
        for turn in conversation:
            if not turn.grows and context and merge:
                samples.append(_sample(context, spans))
            if not turn.grows:
                context, spans = [], []
            context = [*context, *turn.ids]
            start = len(context)
            context += [r.randrange(3, vocab) for _ in range(turn.reply)]
            spans = [*spans, (start, len(context))] if merge else [(start, len(context))]
            if not merge:
                samples.append(_sample(context, spans))
        if merge:
            samples.append(_sample(context, spans))
        won = r.random() < 0.5
        tag, task = ("wolf", "seer")[seat == SEATS - 1], f"deal-{game // group}"
        rows.append(Row(f"game-{game:03d}", f"seat-{seat}", tag, task, float(won), samples))
    return rows


@contextmanager
def sharing(on: bool) -> Iterator[None]:
    """Whether passes compute shared beginnings once."""
    if on:
        yield
        return
    shared = packing._shared
    packing._shared = lambda _a, _b: 0
    try:
        yield
    finally:
        packing._shared = shared


def measure(model: Path, conversations: list[Conversation], group: int, vocab: int, rounds: int) -> dict[str, Any]:
    apart = rows_of(conversations, group, vocab, merge=False)
    whole = rows_of(conversations, group, vocab, merge=True)
    cases = {MODES[0]: (apart, False), MODES[1]: (whole, False), MODES[2]: (whole, True)}
    found: dict[str, Any] = {mode: {"seconds": []} for mode in MODES}
    config = TrainerConfig(algorithm=AlgorithmConfig(), use_kl_loss=False, max_tokens_per_microbatch=32768)
    for n in range(rounds + 1):  # the first warms up
        for mode, (rows, on) in cases.items():
            net = load_net(model, torch.device("cpu"), torch.float32, master=torch.float32)
            trainer = Trainer(net, config, lambda net=net: net, torch.device("cpu"))
            with sharing(on):
                began = time.perf_counter()
                metrics = trainer.train_step(TrainBatch(1, rows)).metrics
                seconds = time.perf_counter() - began
            if n:
                found[mode]["seconds"].append(seconds)
            found[mode] |= {
                "forward_tokens": metrics["tokens/forward"] * (1 - metrics["tokens/merged_share"]),
                "loss": metrics["actor/loss"],
                "grad_norm": metrics["actor/grad_norm"],
            }
    base = found[MODES[0]]
    for mode in MODES:
        ratios = [a / b for a, b in zip(base["seconds"], found[mode]["seconds"], strict=True)]
        found[mode] |= {
            "fewer_tokens": base["forward_tokens"] / found[mode]["forward_tokens"],
            "faster": statistics.median(ratios),
            "faster_spread": [min(ratios), max(ratios)],
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--deals", type=int, default=2)
    parser.add_argument("--group", type=int, default=4, help="games of each deal")
    parser.add_argument("--context", type=int, default=16384, help="turns beyond so many tokens are left out")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    report: dict[str, Any] = {"threads": args.threads, "rounds": args.rounds}
    with tempfile.TemporaryDirectory() as folder:
        vocab = save_model(Path(folder))
        workloads: dict[str, Callable[[], list[Conversation]]] = {
            "full": lambda: record_full(args.deals, args.context, args.group),
            "compact": lambda: record_compact(args.deals * args.group, 512),
        }
        for name, record in workloads.items():
            conversations = record()
            size = describe(conversations)
            found = measure(Path(folder), conversations, args.group, vocab, args.rounds)
            report[name] = {"workload": size, "modes": found}
            calls = size["calls"] / size["conversations"]
            print(
                f"\n{name}: {size['conversations']:.0f} conversations, {calls:.1f} calls each, contexts of "
                f"{size['prompt_tokens_mean']:.0f} tokens (at most {size['prompt_tokens_max']:.0f}), replies of "
                f"{size['reply_tokens_mean']:.0f}; {args.threads} thread(s)"
            )
            print(
                f"{'':28}{'forward tokens':>15}{'fewer':>8}{'seconds':>9}{'faster':>8}  {'spread':<14}loss, |gradient|"
            )
            for mode in MODES:
                m = found[mode]
                low, high = m["faster_spread"]
                print(
                    f"{mode:28}{m['forward_tokens']:>15,.0f}{m['fewer_tokens']:>7.2f}x"
                    f"{statistics.median(m['seconds']):>9.2f}{m['faster']:>7.2f}x  {f'{low:.2f} … {high:.2f}':<14}"
                    f"{m['loss']:.6f}, {m['grad_norm']:.6f}"
                )
    if args.json:
        args.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
