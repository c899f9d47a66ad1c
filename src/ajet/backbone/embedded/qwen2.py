"""The Qwen2 architecture by hand: fused weights, one forward for sampling over paged KV and one for training.

Letters: B sequences, T tokens of each in this pass, N wanted tokens, U distinct tokens, H hidden, V vocabulary. Weights live under short
names with q, k, v (and gate, up) fused; :func:`fuse` and :func:`unfuse` convert from and to transformers' names.
Checked against transformers in ``tests/unit/backbone``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from ajet.backbone.embedded.attention import at_positions, causal, over_lengths
from ajet.backbone.embedded.fused import Rotate, SwiGLU, rms_norm, rotate_
from ajet.backbone.embedded.packing import Group, Pass
from ajet.backbone.embedded.paged import Extension, PagedKV
from ajet.backbone.embedded.products import linear

Weights = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Qwen2Shape:
    """What of ``config.json`` the forward needs."""

    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    rope_theta: float
    max_position: int
    tied: bool

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Qwen2Shape | None:
        """The shape, or None where the config asks for something that this forward does not do."""
        if config.get("model_type") != "qwen2" or config.get("architectures") not in (None, ["Qwen2ForCausalLM"]):
            return None
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if rope.get("rope_type", rope.get("type", "default")) != "default" or "quantization_config" in config:
            return None
        if config.get("hidden_act", "silu") != "silu" or config.get("use_sliding_window"):
            return None
        heads = config["num_attention_heads"]
        return cls(
            vocab=config["vocab_size"],
            hidden=config["hidden_size"],
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            eps=config.get("rms_norm_eps", 1e-6),
            rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0),
            max_position=config.get("max_position_embeddings", 32768),
            tied=bool(config.get("tie_word_embeddings", False)),
        )


def fuse(state: Weights, shape: Qwen2Shape) -> Weights:
    """transformers' state dict → fused weights."""
    w: Weights = {"embed": state["model.embed_tokens.weight"], "norm": state["model.norm.weight"]}
    if not shape.tied:
        w["lm_head"] = state["lm_head.weight"]
    for i in range(shape.layers):
        at = f"model.layers.{i}."
        qkv = [f"{at}self_attn.{x}_proj." for x in "qkv"]
        w[f"{i}.norm1"] = state[f"{at}input_layernorm.weight"]
        w[f"{i}.qkv"] = torch.cat([state[n + "weight"] for n in qkv])
        w[f"{i}.qkv_bias"] = torch.cat([state[n + "bias"] for n in qkv])
        w[f"{i}.o"] = state[f"{at}self_attn.o_proj.weight"]
        w[f"{i}.norm2"] = state[f"{at}post_attention_layernorm.weight"]
        w[f"{i}.gate_up"] = torch.cat([state[f"{at}mlp.{x}_proj.weight"] for x in ("gate", "up")])
        w[f"{i}.down"] = state[f"{at}mlp.down_proj.weight"]
    return {name: tensor.contiguous() for name, tensor in w.items()}


def unfuse(w: Weights, shape: Qwen2Shape) -> Weights:
    """Fused weights → transformers' state dict (views; a tied head is left out, as transformers does)."""
    state: Weights = {"model.embed_tokens.weight": w["embed"], "model.norm.weight": w["norm"]}
    if not shape.tied:
        state["lm_head.weight"] = w["lm_head"]
    sizes = [shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim, shape.kv_heads * shape.head_dim]
    for i in range(shape.layers):
        at = f"model.layers.{i}."
        state[f"{at}input_layernorm.weight"] = w[f"{i}.norm1"]
        for x, weight, bias in zip("qkv", w[f"{i}.qkv"].split(sizes), w[f"{i}.qkv_bias"].split(sizes), strict=True):
            state[f"{at}self_attn.{x}_proj.weight"], state[f"{at}self_attn.{x}_proj.bias"] = weight, bias
        state[f"{at}self_attn.o_proj.weight"] = w[f"{i}.o"]
        state[f"{at}post_attention_layernorm.weight"] = w[f"{i}.norm2"]
        gate, up = w[f"{i}.gate_up"].chunk(2)
        state[f"{at}mlp.gate_proj.weight"], state[f"{at}mlp.up_proj.weight"] = gate, up
        state[f"{at}mlp.down_proj.weight"] = w[f"{i}.down"]
    return state


def module_rows(shape: Qwen2Shape, w: Weights) -> dict[str, tuple[str, slice]]:
    """transformers' linear modules of the blocks → (fused weight, its rows)."""
    out: dict[str, tuple[str, slice]] = {}
    across, shared = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for i in range(shape.layers):
        at, inner = f"model.layers.{i}.", len(w[f"{i}.gate_up"]) // 2
        out[f"{at}self_attn.q_proj"] = f"{i}.qkv", slice(0, across)
        out[f"{at}self_attn.k_proj"] = f"{i}.qkv", slice(across, across + shared)
        out[f"{at}self_attn.v_proj"] = f"{i}.qkv", slice(across + shared, across + 2 * shared)
        out[f"{at}self_attn.o_proj"] = f"{i}.o", slice(None)
        out[f"{at}mlp.gate_proj"] = f"{i}.gate_up", slice(0, inner)
        out[f"{at}mlp.up_proj"] = f"{i}.gate_up", slice(inner, 2 * inner)
        out[f"{at}mlp.down_proj"] = f"{i}.down", slice(None)
    return out


class Rope:
    """cos and sin of every position, grown as needed."""

    def __init__(self, shape: Qwen2Shape, device: torch.device, dtype: torch.dtype) -> None:
        self._shape, self._device, self._dtype = shape, device, dtype
        self._cos_T = self._sin_T = torch.empty(0, shape.head_dim)

    def tables(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """``[>= length, head_dim]`` each."""
        if len(self._cos_T) < length:
            self._grow(1 << (length - 1).bit_length())
        return self._cos_T, self._sin_T

    def _grow(self, length: int) -> None:
        with torch.inference_mode(False):  # training reads these, too
            # As transformers: frequencies in float32.
            even = torch.arange(0, self._shape.head_dim, 2, dtype=torch.int64, device=self._device).float()
            inverse = 1.0 / (self._shape.rope_theta ** (even / self._shape.head_dim))
            angle = torch.arange(length, device=self._device).float()[:, None] * inverse[None]
            angle = torch.cat([angle, angle], -1)
            self._cos_T, self._sin_T = angle.cos().to(self._dtype), angle.sin().to(self._dtype)


def hidden_at(w: Weights, shape: Qwen2Shape, rope: Rope, part: Pass, recompute: bool = False) -> torch.Tensor:
    """Final hidden states ``[N, H]`` at the wanted positions of ``part``, differentiable.

    Padding needs no mask: it stands behind everything that is read. The last layer attends from, and goes on with, the
    wanted positions only.

    Args:
        recompute: keep each layer's input only, and compute the layer again in the backward.
    """
    cos, sin = rope.tables(part.longest)
    half = shape.head_dim // 2
    cos_U, sin_U = cos[part.position_U, None, :half], sin[part.position_U, None, :half]
    x = F.embedding(part.ids_U, w["embed"])
    again = recompute and torch.is_grad_enabled()
    for i in range(shape.layers):
        if again:
            x = checkpoint(
                _layer, x, w, i, shape, part, cos_U, sin_U, use_reentrant=False, preserve_rng_state=False,
                determinism_check="none",
            )  # fmt: skip
        else:
            x = _layer(x, w, i, shape, part, cos_U, sin_U)
    return rms_norm(x, w["norm"], shape.eps)


def _layer(
    x: torch.Tensor, w: Weights, i: int, shape: Qwen2Shape, part: Pass, cos_U: torch.Tensor, sin_U: torch.Tensor
) -> torch.Tensor:
    kv, dim, across = shape.kv_heads, shape.head_dim, shape.heads * shape.head_dim
    width = across + 2 * kv * dim
    h = rms_norm(x, w[f"{i}.norm1"], shape.eps)
    qkv_U = linear(h, w[f"{i}.qkv"], w[f"{i}.qkv_bias"]).view(-1, shape.heads + 2 * kv, dim)
    qkv_U = Rotate.apply(qkv_U, cos_U, sin_U, shape.heads + kv).view(-1, width)
    if i < shape.layers - 1:
        attended = [_attend_from(qkv_U, group, shape, group.start).reshape(-1, across) for group in part.groups]
        o = _gather(attended[0] if len(attended) == 1 else torch.cat(attended), part.home_U)
    else:
        attended = []
        for group in part.groups:
            # Nearly all of them: torch's causal kernel has half the work. On a GPU it is the only one without a mask of
            # all pairs, and without scores of all pairs where query heads share KV heads.
            few = 2 * group.wanted_B_W.shape[1] < group.index_B_T.shape[1] and x.device.type == "cpu"
            if few:
                attended.append(_gather(_attend_at(qkv_U, group, shape).reshape(-1, across), group.slot_N))
            else:
                attended.append(_gather(_attend_from(qkv_U, group, shape, 0).reshape(-1, across), group.wanted_N))
        o = attended[0] if len(attended) == 1 else torch.cat(attended)
        x = _gather(x, torch.cat([group.index_B_T.view(-1)[group.wanted_N] for group in part.groups]))
    x = x + linear(o, w[f"{i}.o"])
    h = rms_norm(x, w[f"{i}.norm2"], shape.eps)
    return x + linear(SwiGLU.apply(linear(h, w[f"{i}.gate_up"])), w[f"{i}.down"])


def _gather(rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """``rows[index]``; an embedding's backward adds up repeated rows much faster than indexing's."""
    return F.embedding(index, rows)


def _heads(rows: torch.Tensor, shape: Qwen2Shape) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k, v ``[B, heads, T, dim]`` of gathered ``[B, T, width]``."""
    sizes = [shape.heads, shape.kv_heads, shape.kv_heads]
    q, k, v = rows.unflatten(-1, (sum(sizes), shape.head_dim)).transpose(1, 2).split(sizes, 1)
    return q, k, v


def _attend_from(qkv_U: torch.Tensor, group: Group, shape: Qwen2Shape, start: int) -> torch.Tensor:
    """Causal attention from position ``start`` on: ``[B, T - start, heads, dim]``."""
    q, k, v = _heads(_gather(qkv_U, group.index_B_T), shape)
    return causal(q[:, :, start:], k, v).transpose(1, 2)


def _attend_at(qkv_U: torch.Tensor, group: Group, shape: Qwen2Shape) -> torch.Tensor:
    """Causal attention at the wanted positions: ``[B, W, heads, dim]``."""
    _, k, v = _heads(_gather(qkv_U, group.index_B_T), shape)
    q, _, _ = _heads(_gather(qkv_U, group.index_B_T.gather(1, group.wanted_B_W)), shape)
    return at_positions(q, k, v, group.wanted_B_W).transpose(1, 2)


def extend(w: Weights, shape: Qwen2Shape, rope: Rope, kv: PagedKV, ext: Extension) -> torch.Tensor:
    """Run new tokens of B sequences over their cached ones; float32 logits ``[B, V]`` after each one's last token."""
    B, T = ext.ids_B_T.shape
    heads, kvh, dim = shape.heads, shape.kv_heads, shape.head_dim
    cos, sin = rope.tables(ext.longest)
    position_N = ext.positions_B_T.reshape(-1)
    cos_N, sin_N = cos[position_N, None, : dim // 2], sin[position_N, None, : dim // 2]
    x = F.embedding(ext.ids_B_T, w["embed"])
    for i in range(shape.layers):
        h = F.rms_norm(x, (shape.hidden,), w[f"{i}.norm1"], shape.eps)
        qkv = F.linear(h, w[f"{i}.qkv"], w[f"{i}.qkv_bias"]).view(B, T, heads + 2 * kvh, dim)
        rotate_(qkv.view(B * T, heads + 2 * kvh, dim)[:, : heads + kvh], cos_N, sin_N)
        q, k, v = qkv.split([heads, kvh, kvh], 2)
        k_B_S, v_B_S = kv.update(i, k, v, ext)
        o = _attend(q, k_B_S, v_B_S, ext, heads // kvh)
        if i == shape.layers - 1:
            x, o = x[ext.row_B, ext.last_B], o[ext.row_B, ext.last_B]
        x = x + F.linear(o, w[f"{i}.o"])
        h = F.rms_norm(x, (shape.hidden,), w[f"{i}.norm2"], shape.eps)
        gate, up = F.linear(h, w[f"{i}.gate_up"]).chunk(2, -1)
        x = x + F.linear(F.silu(gate).mul_(up), w[f"{i}.down"])
    x = F.rms_norm(x, (shape.hidden,), w["norm"], shape.eps)
    return F.linear(x, w["embed"] if shape.tied else w["lm_head"]).float()


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ext: Extension, share: int) -> torch.Tensor:
    """``[B, T, heads * dim]``. The heads that share a KV head become further queries of it: nothing is repeated."""
    B, T, heads, dim = q.shape
    if ext.fresh:
        o = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=share > 1
        )
        return o.transpose(1, 2).reshape(B, T, heads * dim)
    if ext.lengths is not None:
        flat = q.reshape(B * T, heads, dim)
        real = ext.lengths.real_N
        if real is None:
            return over_lengths(flat, k, v, ext.lengths).view(B, T, heads * dim)
        out = flat.new_zeros(B * T, heads, dim)
        return out.index_copy_(0, real, over_lengths(flat[real], k, v, ext.lengths)).view(B, T, heads * dim)
    q = q.unflatten(2, (heads // share, share)).permute(0, 2, 1, 3, 4).reshape(B, heads // share, T * share, dim)
    mask = ext.mask_B_T_S[:, None] if T == 1 else ext.mask_B_T_S.repeat_interleave(share, 1)[:, None]
    o = F.scaled_dot_product_attention(q, k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask)
    o = o.view(B, heads // share, T, share, dim).permute(0, 2, 1, 3, 4)
    return o.reshape(B, T, heads * dim)
