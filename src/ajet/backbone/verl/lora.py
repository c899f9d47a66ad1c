"""Adapters folded into their base weights, in the weights' own precision. Torch only; for export and for our replica."""

from __future__ import annotations

from collections.abc import Mapping

import torch

_PREFIX = "base_model.model."


def plain_name(name: str) -> str:
    """The name that the model without adapters has for a tensor of the model with them."""
    return name.removeprefix(_PREFIX).replace(".base_layer.", ".")


def is_adapter(name: str) -> bool:
    return ".lora_A." in name or ".lora_B." in name


def merged(
    base: Mapping[str, torch.Tensor], adapters: Mapping[str, torch.Tensor], scale: float
) -> dict[str, torch.Tensor]:
    """``base + scale · B A`` for every module that has an adapter.

    Args:
        base: by plain name.
        adapters: by peft's names, ``….q_proj.lora_A.weight`` (or with the adapter's name in it).
        scale: alpha / rank.
    """
    out = dict(base)
    for name, a in adapters.items():
        if ".lora_A." not in name:
            continue
        b = adapters[name.replace(".lora_A.", ".lora_B.")]
        module = name.removeprefix(_PREFIX).split(".lora_A.")[0]
        weight = out[f"{module}.weight"]
        out[f"{module}.weight"] = (weight.float() + scale * (b.float() @ a.float())).to(weight.dtype)
    return out
