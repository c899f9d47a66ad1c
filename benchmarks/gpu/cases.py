"""What is checked and timed. A case runs in a process of its own and returns one JSON object.

The share of the chip's limit: floating-point operations are 2 per matrix weight and token forward, 6 for an update (the
recomputation of layers is work that the limit does not know), plus attention's products; bytes of a decoding pass are
the weights once and each sequence's cache once.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ajet.backbone.embedded.attention import takes_lengths
from ajet.backbone.embedded.paged import BLOCK, PagedKV
from ajet.backbone.embedded.sampler import Sampler
from ajet.backbone.embedded.trainer import Trainer
from ajet.backbone.protocol import Sampling
from ajet.default_config.schema import TrainerConfig
from ajet.trajectory.batch import Row, Sample, TrainBatch
from benchmarks.gpu.chips import chip_of
from benchmarks.gpu.models import SIZES, Size, random_net


@dataclass(frozen=True)
class Case:
    """``run(size, device, tiny)``; ``tiny`` cases have shapes that a CPU does in a moment."""

    name: str
    size: str
    run: Callable[[Size, torch.device, bool], dict[str, Any]]


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _dtype(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def limits(device: torch.device, seconds: float, flops: float = 0.0, read: float = 0.0) -> dict[str, Any]:
    """Shares of the chip's limits; None where the chip is not in the table."""
    chip = chip_of(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    out: dict[str, Any] = {"chip": chip.name if chip else None, "chip_source": chip.source if chip else None}
    if flops:
        out["flops_per_s"] = flops / seconds
        out["share_of_flops"] = flops / seconds / chip.flops if chip else None
    if read:
        out["bytes_per_s"] = read / seconds
        out["share_of_bandwidth"] = read / seconds / chip.bandwidth if chip else None
    if device.type == "cuda":
        out["peak_gib"] = torch.cuda.max_memory_allocated(device) / 2**30
    return out


def _sampler(size: Size, device: torch.device, seqs: int, max_len: int) -> Sampler:
    dtype = _dtype(device)
    net = random_net(size, device, dtype, dtype)
    blocks = seqs * (-(-(max_len + 1) // BLOCK)) + 1
    kv = PagedKV(net.kv_layers, blocks, device, dtype, packed=net.packs())
    return Sampler(
        net.extend, kv, vocab=net.vocab, max_seqs=seqs, max_len=max_len + 1, eos=frozenset(), seed=0, version=0
    )


def _sampling(prompt: int, reply: int, seqs: int) -> Callable[[Size, torch.device, bool], dict[str, Any]]:
    def run(size: Size, device: torch.device, tiny: bool) -> dict[str, Any]:
        n_prompt, n_reply, n_seqs = (48, 4, 2) if tiny else (prompt, reply, seqs)
        sampler = _sampler(size, device, n_seqs, n_prompt + n_reply)
        draw = random.Random(0)

        def submit(key: int, length: int) -> None:
            ids = [draw.randrange(size.shape.vocab) for _ in range(length)]
            sampler.submit(key, ids, Sampling(max_tokens=n_reply, ignore_eos=True))

        submit(10**6, min(n_prompt, 64))  # takes in kernels
        while sampler.busy:
            sampler.tick()
        for key in range(n_seqs):
            submit(key, n_prompt)
        before = dict(sampler.counters)
        _synchronize(device)
        began = time.perf_counter()
        while sampler.counters["prefill_tokens"] - before["prefill_tokens"] < n_seqs * n_prompt:
            sampler.tick()
        _synchronize(device)
        prefill_s, sampled = time.perf_counter() - began, sampler.counters["sampled_tokens"]
        began = time.perf_counter()
        passes = 0
        while sampler.busy:
            sampler.tick()
            passes += 1
        _synchronize(device)
        decode_s = max(1e-9, time.perf_counter() - began)
        decoded = sampler.counters["sampled_tokens"] - sampled
        s, item = size.shape, _dtype(device).itemsize
        attention = 2 * s.layers * s.heads * s.head_dim * n_prompt * n_prompt  # causal: half of both products
        prefill_flops = n_seqs * (2.0 * size.matrix_parameters * n_prompt + attention)
        cache = 2 * s.layers * s.kv_heads * s.head_dim * item * (n_prompt + n_reply / 2) * n_seqs
        return {
            "prompt": n_prompt, "reply": n_reply, "sequences": n_seqs, "packed": takes_lengths(device, _dtype(device)),
            "prefill_s": prefill_s, "prefill_tokens_per_s": n_seqs * n_prompt / prefill_s,
            "prefill": limits(device, prefill_s, flops=prefill_flops),
            "decode_s": decode_s, "decode_tokens_per_s": decoded / decode_s,
            "decode": limits(device, decode_s, read=passes * (size.matrix_parameters * item + cache)),
        }  # fmt: skip

    return run


def batch_of(rows: int, tokens: int, trained: int, vocab: int, step: int) -> TrainBatch:
    """``rows`` of one sample each, in groups of two with opposed rewards; the last ``trained`` tokens are trained."""
    draw = np.random.default_rng(step)
    out = []
    for r in range(rows):
        ids = draw.integers(0, vocab, tokens).astype(np.int32)
        mask = np.arange(tokens) >= tokens - trained
        sample = Sample(
            ids, mask, np.where(mask, -np.log(vocab), 0).astype(np.float32), np.ones(tokens, np.float32),
            np.where(mask, step - 1, -1).astype(np.int32),
        )  # fmt: skip
        out.append(Row(f"e{step}-{r}", "a", "t", f"task{r // 2}", float(r % 2), [sample]))
    return TrainBatch(step, out)


def _update(rows: int, tokens: int, trained: int) -> Callable[[Size, torch.device, bool], dict[str, Any]]:
    def run(size: Size, device: torch.device, tiny: bool) -> dict[str, Any]:
        n_rows, n_tokens, n_trained = (4, 48, 16) if tiny else (rows, tokens, trained)
        net = random_net(size, device, _dtype(device), torch.float32)
        config = TrainerConfig(use_kl_loss=False, max_tokens_per_microbatch=max(16384, n_tokens))
        trainer = Trainer(net, config, lambda: net, device)
        seconds = []
        metrics: dict[str, float] = {}
        for step in (1, 2):
            batch = batch_of(n_rows, n_tokens, n_trained, size.shape.vocab, step)
            _synchronize(device)
            began = time.perf_counter()
            metrics = trainer.train_step(batch).metrics
            _synchronize(device)
            seconds.append(time.perf_counter() - began)
        s, total = size.shape, n_rows * n_tokens
        head = s.vocab * s.hidden
        attention = 6 * s.layers * s.heads * s.head_dim * n_tokens * n_tokens * n_rows
        flops = 6.0 * ((size.matrix_parameters - head) * total + head * n_rows * n_trained) + attention
        return {
            "rows": n_rows, "tokens": n_tokens, "trained": n_trained, "first_s": seconds[0], "step_s": seconds[1],
            "update_s": metrics["timing/update_s"], "update_tokens_per_s": total / metrics["timing/update_s"],
            "grad_norm": metrics["actor/grad_norm"], **limits(device, metrics["timing/update_s"], flops=flops),
        }  # fmt: skip

    return run


def check(size: Size, device: torch.device, tiny: bool) -> dict[str, Any]:
    """Sampled log-probs against the trainer's forward and a float32 forward on the CPU; a step repeated bit by bit."""
    prompt, reply, seqs = (40, 6, 3) if tiny else (700, 32, 4)
    small = (
        SIZES["tiny"]
        if tiny
        else Size("check", SIZES["0.5b"].shape.__class__(4096, 256, 4, 8, 2, 32, 1e-6, 1e6, 4096, True), 512)
    )
    dtype = _dtype(device)
    net = random_net(small, device, dtype, dtype)
    kv = PagedKV(net.kv_layers, seqs * 64 + 1, device, dtype, packed=net.packs())
    sampler = Sampler(net.extend, kv, vocab=net.vocab, max_seqs=seqs, max_len=1000, eos=frozenset(), seed=0, version=0)
    draw = random.Random(1)
    prompts = {key: [draw.randrange(net.vocab) for _ in range(prompt + key)] for key in range(seqs)}
    for key, ids in prompts.items():
        sampler.submit(key, ids, Sampling(max_tokens=reply, ignore_eos=True))
    replies = {}
    while sampler.busy:
        replies.update(sampler.tick())
    cpu = torch.device("cpu")
    exact = random_net(small, cpu, torch.float32, torch.float32)
    for name, weight in net.parameters().items():
        exact.parameters()[name].copy_(weight)
    exact.synchronize()
    rows = []
    for key, chunk in replies.items():
        ids = np.array([*prompts[key], *chunk.ids], np.int32)
        mask = np.arange(len(ids)) >= len(prompts[key])
        logprobs = np.zeros(len(ids), np.float32)
        logprobs[mask] = chunk.logprobs
        sample = Sample(ids, mask, logprobs, np.ones(len(ids), np.float32), np.where(mask, 0, -1).astype(np.int32))
        rows.append(Row(f"e{key}", "a", "t", "task", float(key % 2), [sample]))

    def step(other: Any, where: torch.device) -> tuple[str, dict[str, float]]:
        trainer = Trainer(other, TrainerConfig(use_kl_loss=False), lambda: other, where)
        result = trainer.train_step(TrainBatch(1, rows))
        return result.digest, result.metrics

    fresh = [random_net(small, device, dtype, torch.float32) for _ in range(2)]
    (one, metrics), (two, _) = (step(other, device) for other in fresh)
    _, on_cpu = step(exact, cpu)
    gap, tolerance = on_cpu["sampler/logprob_diff_mean"], 1e-4 if dtype == torch.float32 else 0.05
    return {
        "sampler_against_own_trainer_mean": metrics["sampler/logprob_diff_mean"],
        "sampler_against_cpu_float32_mean": gap, "repeated_step_is_the_same_bits": one == two,
        "ok": bool(gap < tolerance and one == two),
    }  # fmt: skip


CASES = (
    Case("check", "0.5b", check),
    Case("sample_512", "0.5b", _sampling(512, 128, 64)),
    Case("update_1k", "0.5b", _update(32, 1024, 512)),
    Case("sample_22k", "0.5b", _sampling(22_000, 32, 4)),
    Case("update_22k", "0.5b", _update(2, 22_000, 4096)),
    Case("sample_512", "7b", _sampling(512, 64, 64)),
    Case("sample_22k", "7b", _sampling(22_000, 16, 4)),
    Case("update_1k", "7b", _update(8, 1024, 512)),
    Case("update_22k", "7b", _update(2, 22_000, 4096)),
)
