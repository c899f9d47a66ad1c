"""Whether sampled log-probs are those of a full transformers forward in float32. For ``benchmarks/sampler.py``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from ajet.backbone.protocol import Sampling
from ajet.trajectory.batch import Row, Sample, TrainBatch
from benchmarks.game_calls import Conversation
from benchmarks.sampler_systems import Ours, Reply


def reference(model: Path, ours: Ours | None = None) -> Any:
    """transformers' model, with the weights ``ours`` has now."""
    net = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    if ours is not None:
        net.load_state_dict(ours.engine.net.state_dict(), strict=False)
    return net


@torch.no_grad()
def largest_difference(net: Any, replies: Sequence[Reply]) -> tuple[float, int]:
    """Over all sampled tokens, and how many these are."""
    worst, tokens = 0.0, 0
    for ids, new, logprobs in replies:
        logits = net(torch.tensor([ids + new])).logits[0, len(ids) - 1 : -1]
        exact = logits.log_softmax(-1).gather(1, torch.tensor(new)[:, None])[:, 0]
        worst = max(worst, float((exact - torch.tensor(logprobs)).abs().max()))
        tokens += len(new)
    return worst, tokens


def check(model: Path, conversations: Sequence[Conversation], threads: int, concurrent: int) -> dict[str, Any]:
    """Ours: plainly, right after a weight update, in the middle of replies across one, and after eviction."""
    out: dict[str, Any] = {}
    ours = Ours(model, threads, concurrent)
    before = reference(model, ours)
    ours.play(conversations)
    out["fresh"] = largest_difference(before, ours.replies)
    # Half of each reply under the old weights, half under the new.
    engine = ours.engine
    prompts = [c[0].ids for c in conversations[:concurrent]]
    for key, ids in enumerate(prompts):
        engine.submit(key, ids, Sampling(max_tokens=16, ignore_eos=True), "policy", False)
    for _ in range(8):
        engine.tick()
    moved = _update(ours, ours.replies)
    after = reference(model, ours)
    chunks = []
    while engine.busy:
        chunks += engine.tick()
    across = [(prompts[key], chunk) for key, chunk in chunks]
    old: list[Reply] = []
    new: list[Reply] = []
    for ids, chunk in across:
        cut = chunk.versions.count(0)
        if cut:
            old.append((ids, chunk.ids[:cut], chunk.logprobs[:cut]))
        if cut < len(chunk.ids):
            new.append((ids + chunk.ids[:cut], chunk.ids[cut:], chunk.logprobs[cut:]))
    out["across an update, old part"] = largest_difference(before, old)
    out["across an update, new part"] = largest_difference(after, new)
    ours.play(conversations)
    out["after an update"] = largest_difference(after, ours.replies)
    out["update moved the same log-probs by"] = (largest_difference(before, ours.replies)[0], moved)
    largest = max(sum(len(t.ids) + t.reply for t in c) for c in conversations)
    out |= _under_eviction(model, conversations, threads, concurrent, largest)
    return out


def _under_eviction(
    model: Path, conversations: Sequence[Conversation], threads: int, concurrent: int, largest: int
) -> dict[str, Any]:
    probe = Ours(model, threads, concurrent)
    kv = probe.engine._sampler._kv
    token_bytes = sum(t.numel() * t.element_size() for t in [*kv.k, *kv.v]) / (kv.blocks * 16)
    tokens = 2400 if largest > 500 else 2060  # one longest sequence must fit
    small = Ours(model, threads, concurrent, kv_gib=tokens * token_bytes / 0.8 / 2**30)
    pool = small.engine._sampler._kv
    evicted, evict = 0, pool._evict

    def counted() -> None:
        nonlocal evicted
        evicted += 1
        evict()

    pool._evict = counted
    small.play(conversations)
    stats = small.engine.stats()
    difference = largest_difference(reference(model, small), small.replies)
    return {
        "after eviction": difference,
        "eviction": {"kv_tokens": stats["kv_tokens"], "evicted_blocks": evicted, "preempted": stats["preempted"]},
    }


def _update(ours: Ours, replies: Sequence[Reply]) -> int:
    """One real training step over what was sampled; returns how many tokens it trained."""
    rows = []
    for n, (ids, new, logprobs) in enumerate(replies[:64]):
        whole = np.array(ids + new, np.int32)
        trained = np.arange(len(whole)) >= len(ids)
        sampled = np.zeros(len(whole), np.float32)
        sampled[len(ids) :] = logprobs
        sample = Sample(
            whole, trained, sampled, np.ones(len(whole), np.float32), np.where(trained, 0, -1).astype(np.int32)
        )
        rows.append(Row(f"e{n}", "a", "wolf", f"t{n // 8}", float(n % 2), [sample]))
    result = ours.engine.train_step(TrainBatch(1, rows))
    return int(result.metrics["tokens/trained"])
