"""Any transformers causal LM: its own forward, over our paged KV for sampling. Correct, and slower than ``qwen2``.

The paged cache is handed to the model as a transformers ``Cache``, with a 4-D mask, so batching, prefix reuse and
eviction are the same as on the fast path. A model whose state is more than keys and values of full attention (sliding
windows, recurrent layers) is refused.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM
from transformers.cache_utils import Cache, DynamicCache

from ajet.backbone.embedded.head import LogProbs, from_logits
from ajet.backbone.embedded.packing import Group, Pass
from ajet.backbone.embedded.paged import Extension, PagedKV
from ajet.schema.errors import ConfigError

_FULL = {"full_attention"}


class GenericNet:
    """A transformers model; the trained tensors are its parameters. Computes in their dtype, or under autocast in ``dtype``."""

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        self.model, self.dtype = model, dtype
        config = model.config.get_text_config()
        self.vocab, self.shares_beginnings, self.frugal = config.vocab_size, False, False
        self.max_position = int(getattr(config, "max_position_embeddings", 0) or 2**20)
        self.kv_layers = _kv_layers(model)
        self._parameters = dict(model.named_parameters())  # tied weights appear once
        self._served = model
        self._keeps_logits = "logits_to_keep" in inspect.signature(model.forward).parameters
        first = next(iter(self._parameters.values()))
        self._autocast = first.dtype != dtype
        self._recomputes = first.device.type != "cpu" and _can_recompute(model)

    @property
    def by_numpy(self) -> bool:
        """transformers' models multiply by torch's."""
        return False

    def parameters(self) -> dict[str, torch.Tensor]:
        return self._parameters

    def module_rows(self) -> dict[str, tuple[str, slice]]:
        return {
            name.removesuffix(".weight"): (name, slice(None))
            for name in self._parameters
            if isinstance(self.model.get_submodule(name.rpartition(".")[0]), torch.nn.Linear)
            and name.endswith(".weight")
        }

    def synchronize(self) -> None:
        """Sampler and trainer read the same tensors."""

    def _cast(self) -> torch.autocast:
        device = next(iter(self._parameters.values())).device.type
        return torch.autocast(device, dtype=self.dtype if self._autocast else torch.bfloat16, enabled=self._autocast)

    def extend(self, kv: PagedKV, ext: Extension) -> torch.Tensor:
        mask = _mask(ext)
        with self._cast():
            out = self.model(
                input_ids=ext.ids_B_T, position_ids=ext.positions_B_T, attention_mask=mask[:, None],
                past_key_values=PagedCache(kv, ext, len(self.kv_layers)), use_cache=True,
            )  # fmt: skip
        return out.logits[ext.row_B, ext.last_B].float()

    def packs(self) -> bool:
        return False

    def native(self) -> None:
        """transformers' models are run by torch alone."""

    def logits_at(self, part: Pass) -> torch.Tensor:
        return torch.cat([self._logits_of(group) for group in part.groups])

    def log_probs_at(self, part: Pass, id_N: torch.Tensor, temperature_N: np.ndarray) -> LogProbs:
        return from_logits(self.logits_at(part), id_N, temperature_N)

    def _logits_of(self, group: Group) -> torch.Tensor:
        B, T = group.ids_B_T.shape
        positions = torch.arange(T, device=group.ids_B_T.device)[None].expand(B, T)
        rows, columns = group.wanted_N // T, group.wanted_N % T
        kwargs: dict[str, Any] = {}
        if self._keeps_logits:
            kept, columns = columns.unique(return_inverse=True)
            kwargs["logits_to_keep"] = kept
        self.model.train(self._recomputes and torch.is_grad_enabled())  # for transformers the switch of checkpointing
        with self._cast():
            logits = self.model(input_ids=group.ids_B_T, position_ids=positions, use_cache=False, **kwargs).logits
        self.model.eval()
        logits_N_V = logits[rows, columns]
        return logits_N_V if logits_N_V.dtype == torch.float64 else logits_N_V.float()

    def state_dict(self) -> dict[str, torch.Tensor]:
        return self.model.state_dict()

    def save(self, directory: Path) -> None:
        state = {
            n: w.detach().to(self.dtype) if w.is_floating_point() else w for n, w in self.model.state_dict().items()
        }
        self.model.save_pretrained(directory, state_dict=state)
        path = directory / "config.json"
        config = {**json.loads(path.read_text()), "dtype": str(self.dtype).removeprefix("torch.")}
        path.write_text(json.dumps(config, indent=2))

    def clone_frozen(self) -> GenericNet:
        model = type(self.model)(self.model.config)
        like = next(iter(self._parameters.values()))
        model.to(like.device, like.dtype).load_state_dict(self.model.state_dict())
        model.eval().requires_grad_(False)
        return GenericNet(model, self.dtype)


def _can_recompute(model: Any) -> bool:
    """Have a training pass keep a layer's input only, where that is the same mathematics (nothing is dropped out)."""
    drops = any(isinstance(m, torch.nn.Dropout) and m.p > 0 for m in model.modules())
    rates = [v for k, v in model.config.get_text_config().to_dict().items() if "dropout" in k or k.endswith("pdrop")]
    if drops or any(rate for rate in rates) or not getattr(model, "supports_gradient_checkpointing", False):
        return False
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return True


class PagedCache(Cache):
    """Our paged KV in the shape of a transformers cache, for one forward."""

    def __init__(self, kv: PagedKV, ext: Extension, layers: int) -> None:
        super().__init__(layers=[])
        self._kv, self._ext = kv, ext

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        dtype = self._kv.k[layer_idx].dtype  # under autocast, rotary embeddings come back in float32
        new_k, new_v = key_states.transpose(1, 2).to(dtype), value_states.transpose(1, 2).to(dtype)
        k, v = self._kv.update(layer_idx, new_k, new_v, self._ext)
        return k.transpose(1, 2).to(key_states.dtype), v.transpose(1, 2).to(value_states.dtype)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


def _mask(ext: Extension) -> torch.Tensor:
    if ext.fresh:
        T = ext.ids_B_T.shape[1]
        causal = torch.ones(T, T, dtype=torch.bool, device=ext.ids_B_T.device).tril()
        return causal[None].expand(len(ext.ids_B_T), T, T)
    return ext.mask_B_T_S


def load_generic(directory: Path, device: torch.device, dtype: torch.dtype, master: torch.dtype) -> GenericNet:
    """Load with transformers, offline. Raises :class:`ConfigError` for what this path cannot serve rightly."""
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            directory, dtype=master, attn_implementation="sdpa", local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ConfigError(f"model.path: transformers cannot load {directory}: {error}", param="model.path") from error
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    if kinds != _FULL or window:
        raise ConfigError(
            f"model.path: {directory} ({config.model_type}) has layers other than full attention "
            f"({', '.join(sorted(kinds))}{f', sliding window {window}' if window else ''}), which the embedded backbone does "
            "not serve. Use a model with full attention in every layer, for example of the Qwen2, Qwen3 or Llama family.",
            param="model.path",
        )
    model.eval().to(device)
    return GenericNet(model, dtype)


@torch.no_grad()
def _kv_layers(model: Any) -> list[tuple[int, int]]:
    """Sizes of each layer's keys, asked of the model itself."""
    cache = DynamicCache()
    device = next(model.parameters()).device
    model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=device), past_key_values=cache, use_cache=True)
    sizes = []
    layers: list[Any] = list(cache.layers)
    for layer in layers:
        if layer.keys.shape != layer.values.shape:
            raise ConfigError(
                f"model.path: {model.config.model_type} keeps keys and values of different sizes, which is not served."
            )
        sizes.append((layer.keys.shape[1], layer.keys.shape[3]))
    return sizes
