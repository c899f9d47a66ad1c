"""Attention: causal over whole samples, over their ends only, at the few positions that are read, or over lengths.

Letters: B samples, h query heads, k KV heads, S queries, T keys, P keys before the first query, W wanted positions,
D head size. Head tensors are ``[B, heads, length, D]``.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nn.functional as F

from ajet.backbone.embedded.paged import Lengths

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Each of the last S positions of T attends to itself and all before it: ``[B, h, S, D]``."""
    S, T = q.shape[2], k.shape[2]
    if S == T:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
    if q.device.type == "cpu":
        return Ends.apply(q, k, v)
    seen = torch.ones(S, T, dtype=torch.bool, device=q.device).tril_(T - S)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=q.shape[1] != k.shape[1])


def at_positions(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, position_B_W: torch.Tensor) -> torch.Tensor:
    """Queries that stand at ``position_B_W`` of the T keys: ``[B, h, W, D]``."""
    seen = torch.arange(k.shape[2], device=q.device) <= position_B_W[:, None, :, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=q.shape[1] != k.shape[1])


def takes_lengths(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether :func:`over_lengths` has a kernel here (flash attention over sequences of any length, torch 2.11 and later)."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return False
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    known = {"window_size", "enable_gqa"} <= inspect.signature(varlen_attn).parameters.keys()
    return known and torch.cuda.get_device_capability(device) >= (8, 0)


def over_lengths(q_N: torch.Tensor, k_M: torch.Tensor, v_M: torch.Tensor, lengths: Lengths) -> torch.Tensor:
    """Each sequence's queries stand at the end of its keys and attend causally: ``[N, h, D]``. No gradient.

    A device without the kernel works through the sequences one by one.
    """
    shared = q_N.shape[1] != k_M.shape[1]
    if q_N.device.type == "cuda":
        from torch.nn.attention.varlen import varlen_attn

        out = varlen_attn(
            q_N, k_M, v_M, lengths.start_q, lengths.start_k, lengths.most_q, lengths.most_k, window_size=(-1, 0),
            enable_gqa=shared,
        )  # fmt: skip
        assert isinstance(out, torch.Tensor)
        return out
    out = torch.empty_like(q_N)
    q_at, k_at = lengths.start_q.tolist(), lengths.start_k.tolist()
    for b in range(len(q_at) - 1):
        own, keys = slice(q_at[b], q_at[b + 1]), slice(k_at[b], k_at[b + 1])
        q, k, v = (x.transpose(0, 1)[None] for x in (q_N[own], k_M[keys], v_M[keys]))
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril_(k.shape[2] - q.shape[2])
        out[own] = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=shared)[0].transpose(0, 1)
    return out


class Ends(torch.autograd.Function):
    """Causal attention of the last S of T positions, on a CPU.

    The keys before the first query are seen by all queries and need no mask, the others are causal: two calls of torch's
    kernel, joined by their log-sum-exps. Its backward needs of the softmax only the joined output and log-sum-exp, so
    each part's gradient is the kernel's own. (The rule by which blockwise and ring attention work.)
    """

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        P = k.shape[2] - q.shape[2]
        whole, k1, v1 = _folded(q, k), k[:, :, :P], v[:, :, :P]
        o1, lse1 = _flash(whole, k1, v1)
        share = q.shape[1] // k.shape[1]
        k2, v2 = k[:, :, P:].repeat_interleave(share, 1), v[:, :, P:].repeat_interleave(share, 1)
        o2, lse2 = _flash(q, k2, v2, 0.0, True)
        o1, lse1 = o1.reshape(q.shape), lse1.reshape(lse2.shape)
        lse = torch.logaddexp(lse1, lse2)
        o = torch.addcmul(o1 * (lse1 - lse).exp()[..., None], o2, (lse2 - lse).exp()[..., None])
        ctx.save_for_backward(q, k, v, o, lse)
        return o

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # type: ignore[override]
        q, k, v, o, lse = ctx.saved_tensors
        P = k.shape[2] - q.shape[2]
        B, kv, T, D = k.shape
        share = q.shape[1] // kv
        to_k, to_v = torch.empty_like(k), torch.empty_like(v)
        folded = [_folded(x, k) for x in (grad, q, o)]
        lse_folded = lse.reshape(B, kv, -1)
        g, query, out = folded
        to_q1, to_k[:, :, :P], to_v[:, :, :P] = _flash_backward(
            g, query, k[:, :, :P], v[:, :, :P], out, lse_folded, 0.0, False
        )
        k2, v2 = k[:, :, P:].repeat_interleave(share, 1), v[:, :, P:].repeat_interleave(share, 1)
        to_q2, to_k2, to_v2 = _flash_backward(grad, q, k2, v2, o, lse, 0.0, True)
        to_k[:, :, P:] = to_k2.view(B, kv, share, T - P, D).sum(2)
        to_v[:, :, P:] = to_v2.view(B, kv, share, T - P, D).sum(2)
        return to_q1.reshape(q.shape) + to_q2, to_k, to_v


def _folded(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """The query heads of one KV head as further queries of it: nothing is repeated."""
    return x.reshape(len(x), k.shape[1], -1, x.shape[-1]) if x.shape[1] != k.shape[1] else x
