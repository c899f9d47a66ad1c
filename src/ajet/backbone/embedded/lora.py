"""A net of which only LoRA adapters are trained; sampler and trainer compute with the weights they are folded into.

``W = W₀ + (alpha / rank) · B A`` is written into the net's own tensors after each optimizer step, so the sampler, an
export and a training pass read the same bits, and no forward knows of adapters. A pass differentiates by ``W``; as soon
as a tensor's gradient is complete it becomes those of A and B (``dA = s Bᵀ dW``, ``dB = s dW Aᵀ``) and is forgotten: there
is never more than one layer's at a time, and AdamW's state is the adapters' alone.

Adapters are float32. The base keeps the precision it is computed in: nothing adds small steps to it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ajet.backbone.embedded.head import LogProbs
from ajet.backbone.embedded.native import NativeForward
from ajet.backbone.embedded.net import Net
from ajet.backbone.embedded.packing import Pass
from ajet.backbone.embedded.paged import Extension, PagedKV
from ajet.backbone.lora import adapter_name, fold, save_adapter, target_modules
from ajet.default_config.schema import LoraConfig
from ajet.schema.errors import ConfigError


@dataclass(frozen=True)
class _Adapter:
    """Of rows ``rows`` of one of the net's tensors."""

    rows: slice
    a: torch.Tensor
    b: torch.Tensor


class LoraNet:
    """Implements :class:`ajet.backbone.embedded.net.Net` around another one, whose weights it writes.

    Args:
        inner: as loaded; its weights are the base.
        source: the model's directory, whose modules peft chooses from.
        seed: of A's first values (uniform, as peft draws them); B begins at 0.

    Raises:
        ConfigError: ``lora.target_modules`` names what this net has not, or cannot adapt.
    """

    def __init__(self, inner: Net, config: LoraConfig, source: Path, seed: int) -> None:
        self.inner, self.config, self._scale = inner, config, config.alpha / config.rank
        self.vocab, self.max_position, self.shares_beginnings = inner.vocab, inner.max_position, inner.shares_beginnings
        self.frugal, self.kv_layers, self.dtype = inner.frugal, inner.kv_layers, inner.dtype
        self._source = source
        self._adapters: dict[str, list[_Adapter]] = {}
        self._trained: dict[str, torch.Tensor] = {}
        weights, places = inner.parameters(), inner.module_rows()
        generator = torch.Generator().manual_seed(seed)
        for module, (outputs, inputs) in target_modules(source, config).items():
            if module not in places:
                raise ConfigError(
                    f"lora.target_modules: {module} cannot be given an adapter here. Name linear layers inside of the "
                    "decoder's blocks.", param="lora.target_modules",
                )  # fmt: skip
            tensor, rows = places[module]
            a = torch.empty(config.rank, inputs)
            torch.nn.init.kaiming_uniform_(a, a=math.sqrt(5), generator=generator)
            device = weights[tensor].device
            adapter = _Adapter(rows, a.to(device), torch.zeros(outputs, config.rank, device=device))
            self._adapters.setdefault(tensor, []).append(adapter)
            self._trained |= {adapter_name(module, "A"): adapter.a, adapter_name(module, "B"): adapter.b}
        for name, weight in weights.items():
            weight.requires_grad_(name in self._adapters)
        self._base = {name: weights[name].detach().clone() for name in self._adapters}
        for name, adapters in self._adapters.items():
            weights[name].register_post_accumulate_grad_hook(
                lambda weight, adapters=adapters: self._pass_on(weight, adapters)
            )

    @torch.no_grad()
    def _pass_on(self, weight: torch.Tensor, adapters: list[_Adapter]) -> None:
        gradient, weight.grad = weight.grad, None
        assert gradient is not None
        for adapter in adapters:
            own = gradient[adapter.rows].float()
            for leaf, found in ((adapter.a, adapter.b.t() @ own), (adapter.b, own @ adapter.a.t())):
                found *= self._scale
                leaf.grad = found if leaf.grad is None else leaf.grad.add_(found)

    def parameters(self) -> dict[str, torch.Tensor]:
        """The adapters, by peft's names."""
        return self._trained

    @torch.no_grad()
    def synchronize(self) -> None:
        """Fold the adapters in."""
        weights = self.inner.parameters()
        for name, adapters in self._adapters.items():
            for adapter in adapters:
                folded = fold(self._base[name][adapter.rows], adapter.a, adapter.b, self._scale)
                weights[name][adapter.rows] = folded
        self.inner.synchronize()

    @torch.no_grad()
    def set_adapters(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Go on from other adapters: all of them, by peft's names."""
        for name, own in self._trained.items():
            own.copy_(tensors[name])
        self.synchronize()

    @property
    def by_numpy(self) -> bool:
        return self.inner.by_numpy

    def module_rows(self) -> dict[str, tuple[str, slice]]:
        return {}

    def extend(self, kv: PagedKV, ext: Extension) -> torch.Tensor:
        return self.inner.extend(kv, ext)

    def packs(self) -> bool:
        return self.inner.packs()

    def native(self) -> NativeForward | None:
        return self.inner.native()

    def logits_at(self, part: Pass) -> torch.Tensor:
        return self.inner.logits_at(part)

    def log_probs_at(self, part: Pass, id_N: torch.Tensor, temperature_N: np.ndarray) -> LogProbs:
        return self.inner.log_probs_at(part, id_N, temperature_N)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Adapters folded in."""
        return self.inner.state_dict()

    def save(self, directory: Path) -> None:
        """Weights with the adapters folded in."""
        self.inner.save(directory)

    def save_adapter(self, directory: Path) -> None:
        save_adapter(directory, self._trained, self.config, str(self._source))

    @torch.no_grad()
    def clone_frozen(self) -> Net:
        """The base, without adapters."""
        net = self.inner.clone_frozen()
        weights = net.parameters()
        for name, base in self._base.items():
            weights[name].copy_(base)
        net.synchronize()
        return net
