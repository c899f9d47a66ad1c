"""From logits to one sampled token per sequence, with the log-prob it was sampled with.

Letters: B sequences, V vocabulary. Sampling is by inverse CDF over one uniform number per sequence, so a reply depends
on its own seed and on nothing else in the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ajet.backbone.protocol import Sampling

_BELOW_ONE = 1.0 - 2.0**-24
"""Largest float32 below 1: with it, the drawn token always has a probability above 0."""


def not_finite() -> FloatingPointError:
    """What is raised where logits are NaN or infinite."""
    return FloatingPointError(
        "The model answers probabilities that are not finite: its weights have diverged. Go back to an earlier "
        "checkpoint with a smaller trainer_common.optim.lr or grad_clip."
    )


@dataclass(frozen=True)
class Drawn:
    """One token per sequence; ``top`` has an entry per sequence where any asked for alternatives."""

    ids: list[int]
    logprobs: list[float]
    top: list[list[tuple[int, float]]] | None


def draw(logits_B_V: torch.Tensor, samplings: Sequence[Sampling], uniforms: Sequence[float]) -> Drawn:
    """Sample. Log-probs are float32 log-softmax of logits / temperature, over what top_k and top_p leave.

    Temperature 0 takes the most probable token and reports its log-prob at temperature 1.

    Raises:
        FloatingPointError: the logits are not finite.
    """
    device = logits_B_V.device
    temperature = [s.temperature for s in samplings]
    first = temperature[0]
    if all(t == first for t in temperature):
        logits_B_V = logits_B_V if first in (0.0, 1.0) else logits_B_V / first
    else:
        divisor_B = torch.tensor([t if t > 0 else 1.0 for t in temperature], dtype=logits_B_V.dtype, device=device)
        logits_B_V = logits_B_V / divisor_B[:, None]
    cut = [
        b for b, s in enumerate(samplings) if s.temperature > 0 and (s.top_p < 1 or 0 < s.top_k < logits_B_V.shape[1])
    ]
    if cut:
        index = torch.tensor(cut, device=device)
        logits_B_V = logits_B_V.index_copy(0, index, _truncate(logits_B_V[index], [samplings[b] for b in cut]))
    logprob_B_V = torch.log_softmax(logits_B_V, -1)
    cdf_B_V = logprob_B_V.exp().cumsum_(-1)
    uniform_B = torch.tensor(uniforms, dtype=cdf_B_V.dtype).clamp_(max=_BELOW_ONE).to(device)
    id_B = torch.searchsorted(cdf_B_V, (uniform_B * cdf_B_V[:, -1])[:, None], right=True)
    id_B.clamp_(max=cdf_B_V.shape[1] - 1)  # NaN finds no place
    if any(t == 0 for t in temperature):
        greedy_B = torch.tensor([t == 0 for t in temperature], device=device)
        id_B = torch.where(greedy_B[:, None], logits_B_V.argmax(-1, keepdim=True), id_B)
    chosen = logprob_B_V.gather(1, id_B)[:, 0].tolist()
    if not math.isfinite(sum(chosen)):
        raise not_finite()
    wanted = max(s.top_logprobs for s in samplings)
    top = None
    if wanted:
        values, indices = logprob_B_V.topk(min(wanted, logprob_B_V.shape[1]), -1)
        top = [
            [(i, p) for i, p in zip(ids[: s.top_logprobs], ps[: s.top_logprobs], strict=True) if p > float("-inf")]
            for s, ids, ps in zip(samplings, indices.tolist(), values.tolist(), strict=True)
        ]
    return Drawn(id_B[:, 0].tolist(), chosen, top)


def _truncate(logits_B_V: torch.Tensor, samplings: Sequence[Sampling]) -> torch.Tensor:
    """-inf outside of the top_k tokens and of the smallest set whose probability reaches top_p (top_k goes first)."""
    vocab = logits_B_V.shape[1]
    device = logits_B_V.device
    top_k_B = torch.tensor([s.top_k if s.top_k > 0 else vocab for s in samplings], device=device)
    top_p_B = torch.tensor([s.top_p for s in samplings], device=device)
    values, indices = logits_B_V.sort(dim=-1, descending=True, stable=True)
    values = values.masked_fill(torch.arange(vocab, device=device)[None] >= top_k_B[:, None], float("-inf"))
    p_B_V = values.softmax(-1)
    before_B_V = p_B_V.cumsum(-1) - p_B_V
    outside = before_B_V >= top_p_B[:, None]
    outside[:, 0] = False
    outside &= (top_p_B < 1)[:, None]
    values = values.masked_fill(outside, float("-inf"))
    return torch.empty_like(logits_B_V).scatter_(1, indices, values)
