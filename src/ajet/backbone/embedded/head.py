"""From final hidden states to log-probs of given tokens, and the entropy of what they were drawn from.

Two ways to the same numbers: over all logits at once, or (on an accelerator) a few positions at a time, where the logits
are computed again in the backward: with a vocabulary of 150,000 they would take more memory than the model.

Letters: N wanted positions, H hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

CHUNK_LOGITS = 2**27
"""Logits of one chunk at most: half a GiB in float32."""

LogProbs = tuple[torch.Tensor, Callable[[], torch.Tensor]]
"""Log-probs ``[N]``, and what computes the entropies ``[N]`` when asked, with gradient unless disabled."""


def from_logits(logits_N_V: torch.Tensor, id_N: torch.Tensor, temperature_N: np.ndarray) -> LogProbs:
    """Each position at its own temperature."""
    if (temperature_N != 1.0).any():
        logits_N_V = logits_N_V / torch.from_numpy(temperature_N).to(logits_N_V)[:, None]
    logprob_N_V = torch.log_softmax(logits_N_V, -1)

    def entropy() -> torch.Tensor:
        seen_N_V = logprob_N_V if torch.is_grad_enabled() else logprob_N_V.detach()
        return -(seen_N_V.exp() * seen_N_V).sum(-1)

    return logprob_N_V.gather(1, id_N[:, None])[:, 0], entropy


def in_chunks(
    h_N_H: torch.Tensor, head_V_H: torch.Tensor, id_N: torch.Tensor, temperature_N: np.ndarray, chunk: int | None = None
) -> LogProbs:
    """The same, never with more than ``chunk`` positions' logits at once."""
    scale = None
    if (temperature_N != 1.0).any():
        scale = torch.from_numpy(temperature_N).to(h_N_H.device, torch.float32).reciprocal()
    chunk = chunk or max(1, CHUNK_LOGITS // len(head_V_H))
    logprob_N, entropy_N = _Chunks.apply(h_N_H, head_V_H, id_N, scale, chunk)
    return logprob_N, lambda: entropy_N if torch.is_grad_enabled() else entropy_N.detach()


class _Chunks(torch.autograd.Function):
    """d log p_i / d logit_j = [i = j] - p_j; d entropy / d logit_j = -p_j (log p_j + entropy)."""

    @staticmethod
    def forward(
        ctx: Any,
        h_N_H: torch.Tensor,
        head_V_H: torch.Tensor,
        id_N: torch.Tensor,
        scale_N: torch.Tensor | None,
        chunk: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logprob_N = torch.empty(len(h_N_H), device=h_N_H.device, dtype=_wide(h_N_H))
        entropy_N, lse_N = torch.empty_like(logprob_N), torch.empty_like(logprob_N)
        for at in range(0, len(h_N_H), chunk):
            part = slice(at, at + chunk)
            logits = _logits(h_N_H[part], head_V_H, None if scale_N is None else scale_N[part])
            lse = lse_N[part] = torch.logsumexp(logits, -1)
            logprob_N[part] = logits.gather(1, id_N[part, None])[:, 0] - lse
            entropy_N[part] = lse - (logits.sub(lse[:, None]).exp_() * logits).sum(-1)
        ctx.save_for_backward(h_N_H, head_V_H, id_N, scale_N, lse_N, entropy_N)
        ctx.chunk = chunk
        return logprob_N, entropy_N

    @staticmethod
    def backward(ctx: Any, to_logprob: torch.Tensor, to_entropy: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        h_N_H, head_V_H, id_N, scale_N, lse_N, entropy_N = ctx.saved_tensors
        to_h = torch.empty_like(h_N_H)
        to_head = torch.zeros(head_V_H.shape, device=head_V_H.device, dtype=_wide(head_V_H))
        for at in range(0, len(h_N_H), ctx.chunk):
            part = slice(at, at + ctx.chunk)
            scale = None if scale_N is None else scale_N[part]
            log_p = _logits(h_N_H[part], head_V_H, scale).sub_(lse_N[part, None])
            p = log_p.exp()
            # One tensor of a chunk's size beside these two, not four.
            to_logits = log_p.add_(entropy_N[part, None]).mul_(to_entropy[part, None]).add_(to_logprob[part, None])
            to_logits.mul_(p).neg_()
            to_logits[torch.arange(len(to_logits), device=p.device), id_N[part]] += to_logprob[part]
            if scale is not None:
                to_logits.mul_(scale[:, None])
            narrow = to_logits.to(head_V_H.dtype)
            to_h[part] = narrow @ head_V_H
            to_head += narrow.T @ h_N_H[part]
        return to_h, to_head.to(head_V_H.dtype), None, None, None


def _logits(h_N_H: torch.Tensor, head_V_H: torch.Tensor, scale_N: torch.Tensor | None) -> torch.Tensor:
    logits = F.linear(h_N_H, head_V_H).to(_wide(h_N_H))
    return logits if scale_N is None else logits.mul_(scale_N[:, None].to(logits.dtype))


def _wide(tensor: torch.Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32
