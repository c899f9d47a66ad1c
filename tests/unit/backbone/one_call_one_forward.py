"""The plain way to train on conversations, as a reference: one forward pass for each call, over all of its context.

Nothing of the embedded backbone's forward is used: Qwen2 is written out with torch's elementary functions, in the
precision of the weights it is given. Log-probs go to one row per (episode, agent), and verl's loss sees those rows.

Letters: T a call's tokens, R rows, H hidden.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import torch

from ajet.algorithm.advantages import compute_advantages
from ajet.algorithm.loss import RowLoss, Rows, Totals
from ajet.backbone.embedded.qwen2 import Qwen2Shape
from ajet.default_config.schema import TrainerConfig
from ajet.trajectory.batch import Row
from ajet.trajectory.calls import Call
from ajet.trajectory.rows import build_rows, by_agent, timelines
from tests.unit.backbone import tiny

LIMITS = (10_000, 10_000, 10_000)
Weights = dict[str, torch.Tensor]


def forward(w: Weights, shape: Qwen2Shape, ids_T: torch.Tensor) -> torch.Tensor:
    """Logits ``[T, V]`` of one sequence, after each of its tokens."""
    T, dim, dtype = len(ids_T), shape.head_dim, w["embed"].dtype
    inverse = 1.0 / (shape.rope_theta ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim))
    angle_T = torch.arange(T).float()[:, None] * inverse[None]
    cos, sin = (torch.cat([f, f], -1).to(dtype)[:, None] for f in (angle_T.cos(), angle_T.sin()))
    later = torch.ones(T, T, dtype=torch.bool).triu(1)

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + shape.eps).sqrt() * weight

    def rotated(x: torch.Tensor) -> torch.Tensor:
        first, second = x[..., : dim // 2], x[..., dim // 2 :]
        return x * cos + torch.cat([-second, first], -1) * sin

    x = w["embed"][ids_T]
    for i in range(shape.layers):
        h = norm(x, w[f"{i}.norm1"])
        qkv = (h @ w[f"{i}.qkv"].T + w[f"{i}.qkv_bias"]).view(T, -1, dim)
        q, k, v = qkv.split([shape.heads, shape.kv_heads, shape.kv_heads], 1)
        share = shape.heads // shape.kv_heads
        k, v = rotated(k).repeat_interleave(share, 1), v.repeat_interleave(share, 1)
        score = torch.einsum("qhd,khd->hqk", rotated(q), k) / dim**0.5
        attended = torch.einsum("hqk,khd->qhd", score.masked_fill(later, float("-inf")).softmax(-1), v)
        x = x + attended.reshape(T, -1) @ w[f"{i}.o"].T
        gate, up = (norm(x, w[f"{i}.norm2"]) @ w[f"{i}.gate_up"].T).chunk(2, -1)
        x = x + (gate * torch.sigmoid(gate) * up) @ w[f"{i}.down"].T
    return norm(x, w["norm"]) @ (w["embed"] if shape.tied else w["lm_head"]).T


def conversations(seed: int = 0, tasks: int = 2, group: int = 3) -> dict[tuple[str, str], list[Call]]:
    """Random calls by (task, episode): agents whose contexts grow, with side branches, and a beginning that all share."""
    r = random.Random(seed)
    found: dict[tuple[str, str], list[Call]] = {}
    system = tiny.prompt(seed, 9)
    for task in range(tasks):
        story = tiny.prompt(seed * 100 + task, 6)
        for member in range(group):
            calls: list[Call] = []
            for agent in ("p1", "p2", "p5"):
                own: list[Call] = []
                for n in range(r.randint(2, 4)):
                    parent = r.choice(own) if own and r.random() < 0.3 else own[-1] if own else None
                    delta = [r.randrange(3, tiny.VOCAB) for _ in range(r.randint(3, 9))]
                    if parent is None:
                        delta = system + story + delta
                    size = r.randint(2, 8)
                    reply = [r.randrange(3, tiny.VOCAB) for _ in range(size)]
                    logprobs = [-r.uniform(3.5, 4.5) for _ in range(size)]
                    own.append(
                        Call(
                            f"{task}-{member}-{agent}-{n}", agent, "wolf" if agent != "p5" else "seer",
                            None if parent is None else parent.call_id, delta, reply, logprobs, [0] * size,
                            r.choice([0.7, 1.0]), "stop", "", "extends", 0.0,
                        )
                    )  # fmt: skip
                calls += own
            found[f"t{task}", f"e{task}-{member}"] = calls
    return found


def rewards(seed: int, episode: str) -> dict[str, float]:
    value = random.Random(f"{seed}{episode}").random()
    return {"wolf": value, "seer": 1 - value}


def merged(played: dict[tuple[str, str], list[Call]], seed: int = 0) -> list[Row]:
    """As the server builds them."""
    rows: list[Row] = []
    for (task, episode), calls in played.items():
        own, lost = build_rows(episode, task, calls, rewards(seed, episode), limits=LIMITS)
        assert not lost
        rows += own
    return sorted(rows, key=lambda row: (row.episode, row.agent))


def loss_and_gradient(
    w: Weights, shape: Qwen2Shape, played: dict[tuple[str, str], list[Call]], rows: Sequence[Row], config: TrainerConfig
) -> tuple[float, Weights, int]:
    """One optimizer step's loss and gradient, and how many tokens went through forward passes.

    Args:
        w: leaf tensors with ``requires_grad``.
        rows: of ``played``, in the trainer's order; only their advantages are used.
    """
    advantages = compute_advantages(rows, config.algorithm)
    loss = RowLoss(config)
    row_logprobs: list[torch.Tensor] = []
    row_old: list[torch.Tensor] = []
    row_entropy: list[torch.Tensor] = []
    forwarded = 0
    for row in rows:
        own = by_agent(played[row.task, row.episode])[row.agent]
        known = {call.call_id: call for call in own}
        parts, old, entropies = [], [], []
        done: set[str] = set()
        for call in (c for path in timelines(own) for c in path):
            if call.call_id in done:
                continue
            done.add(call.call_id)
            context: list[int] = []
            walk: Call | None = call
            while walk is not None:
                context = [*walk.prompt_delta, *(walk.reply_ids if walk is not call else []), *context]
                walk = known[walk.parent] if walk.parent is not None else None
            ids = torch.tensor([*context, *call.reply_ids])
            forwarded += len(ids)
            logits = forward(w, shape, ids)[len(context) - 1 : -1] / float(
                np.float32(call.temperature)
            )  # as it is recorded
            logp = logits.log_softmax(-1)
            parts.append(logp.gather(1, ids[len(context) :, None])[:, 0])
            old += call.logprobs
            entropies.append(-(logp.exp() * logp).sum(-1))
        row_logprobs.append(torch.cat(parts))
        row_old.append(torch.tensor(np.array(old, np.float32)).to(w["embed"].dtype))
        row_entropy.append(torch.cat(entropies))
    padded = {"batch_first": True}
    log_prob_R_T = torch.nn.utils.rnn.pad_sequence(row_logprobs, **padded)
    old_R_T = torch.nn.utils.rnn.pad_sequence(row_old, **padded)
    entropy_R_T = torch.nn.utils.rnn.pad_sequence(row_entropy, **padded)
    tokens_R = np.array([len(part) for part in row_logprobs])
    mask_R_T = (torch.arange(log_prob_R_T.shape[1])[None] < torch.from_numpy(tokens_R)[:, None]).to(old_R_T.dtype)
    dtype = old_R_T.dtype
    weight_R = torch.from_numpy(loss.row_weights(advantages.unit_of_row, tokens_R)).to(dtype)
    data = Rows(old_R_T, mask_R_T, torch.from_numpy(advantages.per_row).to(dtype), weight_R, None)
    totals = Totals(int(tokens_R.sum()), len(rows), int(tokens_R.max()))
    value, _ = loss(log_prob_R_T, data, totals, entropy_R_T if loss.needs_entropy else None)
    value.backward()
    return float(value.detach()), {n: p.grad for n, p in w.items() if p.grad is not None}, forwarded


def relative(found: Weights, expected: Weights) -> float:
    """‖found − expected‖ / ‖expected‖ over all tensors."""
    assert found.keys() == expected.keys()
    square = sum(float((found[n].double() - expected[n].double()).pow(2).sum()) for n in expected)
    return (square / sum(float(g.double().pow(2).sum()) for g in expected.values())) ** 0.5
