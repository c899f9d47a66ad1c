"""Autograd functions with hand-written backwards: the same mathematics as torch's, in fewer passes over memory."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F


class SwiGLU(torch.autograd.Function):
    """silu(gate) * up of a fused ``[.., gate | up]``."""

    @staticmethod
    def forward(ctx: Any, gate_up: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate_up)
        gate, up = gate_up.chunk(2, -1)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (gate_up,) = ctx.saved_tensors
        gate, up = gate_up.chunk(2, -1)
        out = torch.empty_like(gate_up)
        to_gate, to_up = out.chunk(2, -1)
        sigmoid = torch.sigmoid(gate)
        silu = sigmoid * gate
        torch.mul(grad, silu, out=to_up)
        # d silu = sigmoid + silu * (1 - sigmoid)
        silu.addcmul_(silu, sigmoid, value=-1).add_(sigmoid).mul_(up)
        torch.mul(grad, silu, out=to_gate)
        return out


class Rotate(torch.autograd.Function):
    """Rotary embedding, in place, of the first ``heads`` heads of ``[N, all heads, dim]``."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, heads: int) -> torch.Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.heads = heads
        ctx.mark_dirty(x)
        rotate_(x[:, :heads], cos, sin)
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:  # type: ignore[override]
        cos, sin = ctx.saved_tensors
        grad = grad.clone()
        rotate_(grad[:, : ctx.heads], cos, -sin)
        return grad, None, None, None


def rotate_(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Rotate halves of ``x [N, heads, dim]`` by ``cos, sin [N, 1, dim / 2]``."""
    first, second = x.chunk(2, -1)
    kept = first * sin
    first.mul_(cos).addcmul_(second, sin, value=-1)
    second.mul_(cos).add_(kept)


class RMSNorm(torch.autograd.Function):
    """x / rms(x) * weight, for float32 and float64."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        scale = torch.linalg.vecdot(x, x).div_(x.shape[-1]).add_(eps).rsqrt_()[:, None]
        unit = x * scale
        ctx.save_for_backward(unit, scale, weight)
        return unit * weight

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:  # type: ignore[override]
        unit, scale, weight = ctx.saved_tensors
        product = grad * unit
        to_weight = product.sum(0)
        along = torch.mv(product, weight).div_(-unit.shape[-1])[:, None]
        to_x = torch.mul(grad, weight, out=product).addcmul_(unit, along).mul_(scale)
        return to_x, to_weight, None


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Of ``[N, H]``."""
    if x.dtype in (torch.float32, torch.float64) and x.device.type == "cpu":
        return RMSNorm.apply(x, weight, eps)
    return F.rms_norm(x, (x.shape[-1],), weight, eps)
