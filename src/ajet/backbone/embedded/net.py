"""A causal language model as sampler and trainer need it: hand-written Qwen2, or any transformers model.

Letters: N wanted positions, V vocabulary.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from ajet.backbone.embedded import products, qwen2
from ajet.backbone.embedded.attention import takes_lengths
from ajet.backbone.embedded.compiled import kernel
from ajet.backbone.embedded.head import LogProbs, from_logits, in_chunks
from ajet.backbone.embedded.native import SMALL_LAYER, NativeForward
from ajet.backbone.embedded.packing import Pass
from ajet.backbone.embedded.paged import Extension, PagedKV
from ajet.schema.errors import ConfigError

LARGE_MODEL = 2**28
"""From so many parameters on, one core takes seconds to hash them."""
HASHERS = 8
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".safetensors.index.json", ".bin.index.json")


class Net(Protocol):
    """Weights with the three things done to them."""

    vocab: int
    max_position: int
    shares_beginnings: bool
    """Whether a training pass computes what its samples have in common once."""
    frugal: bool
    """Whether a training pass holds few logits at once, however many tokens it predicts."""
    kv_layers: list[tuple[int, int]]
    """(kv heads, head dim) of each layer."""
    dtype: torch.dtype
    """What the forward computes in; the trained weights are float32 (or float64 in tests)."""

    @property
    def by_numpy(self) -> bool:
        """Whether a training pass multiplies by numpy's products (:mod:`ajet.backbone.embedded.products`)."""
        ...

    def parameters(self) -> dict[str, torch.Tensor]:
        """Trained leaf tensors by stable name."""
        ...

    def module_rows(self) -> dict[str, tuple[str, slice]]:
        """Where transformers' linear modules inside of the blocks have their weights: (tensor's name, rows of it)."""
        ...

    def extend(self, kv: PagedKV, ext: Extension) -> torch.Tensor:
        """See :class:`ajet.backbone.embedded.sampler.Forward`."""
        ...

    def packs(self) -> bool:
        """Whether :meth:`extend` wants a packed cache."""
        ...

    def native(self) -> NativeForward | None:
        """A faster way to sample over a tiled cache, where there is one."""
        ...

    def logits_at(self, part: Pass) -> torch.Tensor:
        """Logits ``[N, V]`` in the order of ``part.flat_N``, with gradient unless disabled."""
        ...

    def log_probs_at(self, part: Pass, id_N: torch.Tensor, temperature_N: np.ndarray) -> LogProbs:
        """Of the tokens ``id_N`` at the places of ``part.flat_N``, with gradient unless disabled."""
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
    """The fast path. With ``dtype`` float32 the sampler reads the trained tensors themselves: nothing to copy.

    On an accelerator (``frugal``) a training pass keeps each layer's input only and computes the layer again in the
    backward, takes logits a few positions at a time, and differentiates by the served weights, whose gradients are added
    to the trained ones' in float32: no pass makes a copy of the weights.
    """

    def __init__(
        self, weights: qwen2.Weights, shape: qwen2.Qwen2Shape, config: dict[str, Any], dtype: torch.dtype,
        frugal: bool | None = None,
    ) -> None:  # fmt: skip
        self.frugal = weights["embed"].device.type != "cpu" if frugal is None else frugal
        self.shape, self.config, self.dtype = shape, config, dtype
        self.vocab, self.max_position, self.shares_beginnings = shape.vocab, shape.max_position, True
        self.kv_layers = [(shape.kv_heads, shape.head_dim)] * shape.layers
        self._weights = weights
        self._rope = qwen2.Rope(shape, weights["embed"].device, dtype)
        self._served = weights
        self._leaves: qwen2.Weights | None = None
        self.synchronize()

    @property
    def by_numpy(self) -> bool:
        return products.taken(self._weights["embed"].device, self.dtype)

    def parameters(self) -> dict[str, torch.Tensor]:
        return self._weights

    def module_rows(self) -> dict[str, tuple[str, slice]]:
        return qwen2.module_rows(self.shape, self._weights)

    @torch.no_grad()
    def synchronize(self) -> None:
        if self._weights["embed"].dtype == self.dtype:
            self._served = {name: w.detach() for name, w in self._weights.items()}
        elif self._served is self._weights:
            self._served = {name: w.to(self.dtype) for name, w in self._weights.items()}
        else:  # in place: there is no second copy
            for name, w in self._weights.items():
                self._served[name].copy_(w)

    def extend(self, kv: PagedKV, ext: Extension) -> torch.Tensor:
        return qwen2.extend(self._served, self.shape, self._rope, kv, ext)

    def packs(self) -> bool:
        return takes_lengths(self._served["embed"].device, self.dtype)

    def native(self) -> NativeForward | None:
        embed = self._served["embed"]
        layer = sum(w.numel() for name, w in self._served.items() if name.startswith("0."))
        fits = embed.device.type == "cpu" and embed.dtype == torch.float32 and layer <= SMALL_LAYER
        library = kernel() if fits else None
        return NativeForward(library, lambda: self._served, self.shape, self._rope) if library else None

    def logits_at(self, part: Pass) -> torch.Tensor:
        w = self._training_weights()
        h_N = qwen2.hidden_at(w, self.shape, self._rope, part, recompute=self.frugal)
        logits = products.linear(h_N, w["embed"] if self.shape.tied else w["lm_head"])
        return logits if logits.dtype == torch.float64 else logits.float()

    def log_probs_at(self, part: Pass, id_N: torch.Tensor, temperature_N: np.ndarray) -> LogProbs:
        if not self.frugal:
            return from_logits(self.logits_at(part), id_N, temperature_N)
        w = self._training_weights()
        h_N = qwen2.hidden_at(w, self.shape, self._rope, part, recompute=True)
        return in_chunks(h_N, w["embed"] if self.shape.tied else w["lm_head"], id_N, temperature_N)

    def _training_weights(self) -> qwen2.Weights:
        """What a pass computes with: leaves that lead gradients to the trained tensors, or plain weights without gradient."""
        if not torch.is_grad_enabled():
            return self._served
        if self._weights["embed"].dtype == self.dtype:
            return self._weights
        if not self.frugal:
            return {name: tensor.to(self.dtype) for name, tensor in self._weights.items()}
        if self._leaves is None:
            self._leaves = {name: _leaf_of(self._weights[name], served) for name, served in self._served.items()}
        return self._leaves

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
        return Qwen2Net(weights, self.shape, self.config, self.dtype, self.frugal)


def _leaf_of(master: torch.Tensor, served: torch.Tensor) -> torch.Tensor:
    """``served`` as a leaf of its own, whose gradient is added to that of ``master`` and forgotten."""
    leaf = served.detach().requires_grad_()

    def pass_on(leaf: torch.Tensor) -> None:
        gradient, leaf.grad = leaf.grad, None
        assert gradient is not None
        if master.grad is None:
            master.grad = gradient.to(master.dtype)
        else:
            master.grad.add_(gradient)

    leaf.register_post_accumulate_grad_hook(pass_on)
    return leaf


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
    """Hex SHA-256 over the trained weights: names, shapes and bytes, in order of name.

    Of a large model each tensor is hashed by itself, several at once, and the hash is over these hashes.
    """
    sha = hashlib.sha256()
    tensors = sorted(net.parameters().items())
    if sum(t.numel() for _, t in tensors) < LARGE_MODEL:
        for name, tensor in tensors:
            _hash(sha, name, tensor)
        return sha.hexdigest()
    with ThreadPoolExecutor(HASHERS) as pool:
        for each in pool.map(lambda item: _hash(hashlib.sha256(), *item), tensors):
            sha.update(each.digest())
    return sha.hexdigest()


def _hash(sha: Any, name: str, tensor: torch.Tensor) -> Any:
    plain = tensor.detach().contiguous().cpu()
    sha.update(f"{name} {tuple(plain.shape)} {plain.dtype}\n".encode())
    sha.update(plain.view(torch.uint8).reshape(-1).numpy().data)
    return sha


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
