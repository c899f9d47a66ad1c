"""A causal language model as sampler and trainer need it: hand-written Qwen2, or any transformers model.

Letters: N wanted positions, V vocabulary.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file

from ajet.backbone.embedded import qwen2
from ajet.backbone.embedded.native import SMALL_LAYER, NativeForward, kernel
from ajet.backbone.embedded.packing import Pass
from ajet.backbone.embedded.paged import Extension, PagedKV
from ajet.schema.errors import ConfigError

_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".safetensors.index.json", ".bin.index.json")


class Net(Protocol):
    """Weights with the three things done to them."""

    vocab: int
    max_position: int
    shares_beginnings: bool
    """Whether a training pass computes what its samples have in common once."""
    kv_layers: list[tuple[int, int]]
    """(kv heads, head dim) of each layer."""
    dtype: torch.dtype
    """What the forward computes in; the trained weights are float32 (or float64 in tests)."""

    def parameters(self) -> dict[str, torch.Tensor]:
        """Trained leaf tensors by stable name."""
        ...

    def extend(self, kv: PagedKV, ext: Extension) -> torch.Tensor:
        """See :class:`ajet.backbone.embedded.sampler.Forward`."""
        ...

    def native(self) -> NativeForward | None:
        """A faster way to sample over a tiled cache, where there is one."""
        ...

    def logits_at(self, part: Pass) -> torch.Tensor:
        """Logits ``[N, V]`` in the order of ``part.flat_N``, with gradient unless disabled."""
        ...

    def synchronize(self) -> None:
        """The trained weights have changed: let the sampler see them."""
        ...

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Under transformers' names."""
        ...

    def save(self, directory: Path) -> None:
        """Write weights and config in transformers' format."""
        ...

    def clone_frozen(self) -> Net:
        """A copy that shares nothing and is not trained."""
        ...


class Qwen2Net:
    """The fast path. With ``dtype`` float32 the sampler reads the trained tensors themselves: nothing to copy."""

    def __init__(
        self, weights: qwen2.Weights, shape: qwen2.Qwen2Shape, config: dict[str, Any], dtype: torch.dtype
    ) -> None:
        self.shape, self.config, self.dtype = shape, config, dtype
        self.vocab, self.max_position, self.shares_beginnings = shape.vocab, shape.max_position, True
        self.kv_layers = [(shape.kv_heads, shape.head_dim)] * shape.layers
        self._weights = weights
        self._rope = qwen2.Rope(shape, weights["embed"].device, dtype)
        self._served = weights
        self.synchronize()

    def parameters(self) -> dict[str, torch.Tensor]:
        return self._weights

    @torch.no_grad()
    def synchronize(self) -> None:
        if self._weights["embed"].dtype == self.dtype:
            self._served = {name: w.detach() for name, w in self._weights.items()}
        else:
            self._served = {name: w.to(self.dtype) for name, w in self._weights.items()}

    def extend(self, kv: PagedKV, ext: Extension) -> torch.Tensor:
        return qwen2.extend(self._served, self.shape, self._rope, kv, ext)

    def native(self) -> NativeForward | None:
        embed = self._served["embed"]
        layer = sum(w.numel() for name, w in self._served.items() if name.startswith("0."))
        fits = embed.device.type == "cpu" and embed.dtype == torch.float32 and layer <= SMALL_LAYER
        library = kernel() if fits else None
        return NativeForward(library, lambda: self._served, self.shape, self._rope) if library else None

    def logits_at(self, part: Pass) -> torch.Tensor:
        w = self._weights if torch.is_grad_enabled() else self._served
        if torch.is_grad_enabled() and w["embed"].dtype != self.dtype:
            w = {name: tensor.to(self.dtype) for name, tensor in w.items()}
        h_N = qwen2.hidden_at(w, self.shape, self._rope, part)
        logits = F.linear(h_N, w["embed"] if self.shape.tied else w["lm_head"])
        return logits if logits.dtype == torch.float64 else logits.float()

    def state_dict(self) -> dict[str, torch.Tensor]:
        return qwen2.unfuse({n: w.detach() for n, w in self._weights.items()}, self.shape)

    def save(self, directory: Path) -> None:
        state = {n: w.to(self.dtype).contiguous().cpu() for n, w in self.state_dict().items()}
        save_file(state, directory / "model.safetensors", metadata={"format": "pt"})
        config = {**self.config, "dtype": str(self.dtype).removeprefix("torch.")}
        config.pop("torch_dtype", None)
        (directory / "config.json").write_text(json.dumps(config, indent=2))

    def clone_frozen(self) -> Qwen2Net:
        weights = {n: w.detach().to(self.dtype, copy=True) for n, w in self._weights.items()}
        return Qwen2Net(weights, self.shape, self.config, self.dtype)


def load_net(directory: Path, device: torch.device, dtype: torch.dtype, master: torch.dtype = torch.float32) -> Net:
    """Load a model directory; weights are kept in ``master`` and computed with in ``dtype``."""
    try:
        config = json.loads((directory / "config.json").read_text())
    except FileNotFoundError:
        raise ConfigError(
            f"model.path: {directory} has no config.json. Name a directory that transformers can load.",
            param="model.path",
        ) from None
    shape = qwen2.Qwen2Shape.from_config(config)
    files = _safetensors_files(directory)
    if shape is None:
        from ajet.backbone.embedded.generic import load_generic

        return load_generic(directory, device, dtype, master)
    state: dict[str, torch.Tensor] = {}
    for file in files:
        with safe_open(file, "pt") as opened:
            state.update({name: opened.get_tensor(name) for name in list(opened.keys())})
    if not files:  # an older format: transformers reads it
        from transformers import AutoModelForCausalLM

        state = AutoModelForCausalLM.from_pretrained(directory, dtype=master, local_files_only=True).state_dict()
    weights = {n: w.to(device=device, dtype=master) for n, w in qwen2.fuse(state, shape).items()}
    return Qwen2Net(weights, shape, config, dtype)


def _safetensors_files(directory: Path) -> list[Path]:
    index = directory / "model.safetensors.index.json"
    if index.exists():
        return [directory / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
    single = directory / "model.safetensors"
    return [single] if single.exists() else []


def digest(net: Net) -> str:
    """Hex SHA-256 over the trained weights: names, shapes and bytes, in order of name."""
    sha = hashlib.sha256()
    for name, tensor in sorted(net.parameters().items()):
        plain = tensor.detach().contiguous().cpu()
        sha.update(f"{name} {tuple(plain.shape)} {plain.dtype}\n".encode())
        sha.update(plain.view(torch.uint8).reshape(-1).numpy().data)
    return sha.hexdigest()


def copy_beside(source: Path, target: Path) -> None:
    """Copy what a model directory has beside its weights (tokenizer, templates, generation config)."""
    for file in sorted(source.iterdir()):
        beside = file.is_file() and not file.name.startswith(".") and not file.name.endswith(_WEIGHT_SUFFIXES)
        if beside and not (target / file.name).exists():
            shutil.copyfile(file, target / file.name)


def eos_ids(directory: Path) -> frozenset[int]:
    """Ids that end a reply, by ``generation_config.json`` or ``config.json``."""
    for name in ("generation_config.json", "config.json"):
        path = directory / name
        if path.exists():
            eos = json.loads(path.read_text()).get("eos_token_id")
            if eos is not None:
                return frozenset([eos] if isinstance(eos, int) else eos)
    return frozenset()
