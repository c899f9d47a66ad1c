"""Random weights of known shapes, made where they are needed; nothing is read or downloaded."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ajet.backbone.embedded.net import Qwen2Net
from ajet.backbone.embedded.qwen2 import Qwen2Shape


@dataclass(frozen=True)
class Size:
    """``intermediate``: of the feed-forward layers, which :class:`Qwen2Shape` does not name."""

    name: str
    shape: Qwen2Shape
    intermediate: int

    @property
    def matrix_parameters(self) -> int:
        """Weights that a token is multiplied by, the output layer included, the look-up of the embedding not."""
        s = self.shape
        width = (s.heads + 2 * s.kv_heads) * s.head_dim
        layer = s.hidden * width + s.heads * s.head_dim * s.hidden + 3 * s.hidden * self.intermediate
        return s.layers * layer + s.vocab * s.hidden


def _size(name: str, vocab: int, hidden: int, layers: int, heads: int, kv: int, intermediate: int, tied: bool) -> Size:
    shape = Qwen2Shape(vocab, hidden, layers, heads, kv, hidden // heads, 1e-6, 1e6, 32768, tied)
    return Size(name, shape, intermediate)


# Qwen2.5's published configurations; "tiny" only shows that the scripts run.
SIZES = {
    "tiny": _size("tiny", 512, 64, 2, 4, 2, 96, True),
    "0.5b": _size("0.5b", 151936, 896, 24, 14, 2, 4864, True),
    "7b": _size("7b", 152064, 3584, 28, 28, 4, 18944, False),
}


def random_net(
    size: Size, device: torch.device, dtype: torch.dtype, master: torch.dtype, frugal: bool = True
) -> Qwen2Net:
    """Weights about as large as trained ones, so that activations and log-probs stay in range."""
    s = size.shape
    generator = torch.Generator(device).manual_seed(0)

    def matrix(*shape: int) -> torch.Tensor:
        return torch.empty(*shape, device=device, dtype=master).normal_(0, shape[-1] ** -0.5, generator=generator)

    def vector(length: int, value: float) -> torch.Tensor:
        return torch.full((length,), value, device=device, dtype=master)

    width = (s.heads + 2 * s.kv_heads) * s.head_dim
    weights = {"embed": matrix(s.vocab, s.hidden), "norm": vector(s.hidden, 1.0)}
    if not s.tied:
        weights["lm_head"] = matrix(s.vocab, s.hidden)
    for i in range(s.layers):
        weights |= {
            f"{i}.norm1": vector(s.hidden, 1.0), f"{i}.norm2": vector(s.hidden, 1.0),
            f"{i}.qkv": matrix(width, s.hidden), f"{i}.qkv_bias": vector(width, 0.0),
            f"{i}.o": matrix(s.hidden, s.heads * s.head_dim),
            f"{i}.gate_up": matrix(2 * size.intermediate, s.hidden), f"{i}.down": matrix(s.hidden, size.intermediate),
        }  # fmt: skip
    return Qwen2Net(weights, s, {"model_type": "qwen2"}, dtype, frugal)
