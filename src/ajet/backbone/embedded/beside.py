"""Frozen models served beside the policy: the run's initial weights, and other checkpoints of the same model.

Each is loaded when first asked for and kept until others push it out (:data:`MOST`); one that is sampling stays. They
are only read: nothing of theirs enters training or a checkpoint.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError

from ajet.backbone.embedded.net import Net, load_net
from ajet.backbone.embedded.sampler import Sampler
from ajet.backbone.protocol import FROZEN
from ajet.schema.errors import ConfigError

MOST = 12
"""Models kept at once."""
TOKENIZER = "tokenizer.json"


class Beside:
    """Samplers by model name.

    Args:
        source: the policy's own model directory, whose tokenizer the others must share.
        initial: answers the initial weights.
        new_sampler: makes a sampler over a net.
    """

    def __init__(
        self, source: Path, device: torch.device, dtype: torch.dtype, vocab: int,
        initial: Callable[[], Net], new_sampler: Callable[[Net], Sampler],
    ) -> None:  # fmt: skip
        self._source, self._device, self._dtype, self._vocab = source, device, dtype, vocab
        self._initial, self._new_sampler = initial, new_sampler
        self._samplers: OrderedDict[str, Sampler] = OrderedDict()

    def __call__(self, model: str) -> Sampler:
        """The sampler of ``frozen`` or ``frozen:<directory>``. Raises :class:`ConfigError` where it cannot be served."""
        sampler = self._samplers.get(model)
        if sampler is None:
            net = self._initial() if model == FROZEN else self._load(Path(model.removeprefix(f"{FROZEN}:")))
            sampler = self._samplers[model] = self._new_sampler(net)
            idle = [name for name, other in self._samplers.items() if not other.busy and name != model]
            for name in idle[: max(0, len(self._samplers) - MOST)]:
                del self._samplers[name]
        self._samplers.move_to_end(model)
        return sampler

    def all(self) -> list[Sampler]:
        return list(self._samplers.values())

    def stats(self) -> dict[str, float]:
        """Sums over all of them, under ``frozen_…``."""
        out: dict[str, float] = {}
        for sampler in self._samplers.values():
            for name, value in sampler.stats().items():
                out[f"frozen_{name}"] = out.get(f"frozen_{name}", 0.0) + value
        return out

    def _load(self, directory: Path) -> Net:
        try:
            net = load_net(directory, self._device, self._dtype).clone_frozen()
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            raise ConfigError(
                f"The frozen model {directory} cannot be loaded ({type(error).__name__}: {error}). Name a whole checkpoint "
                "of the same model.", param="model.frozen",
            ) from error  # fmt: skip
        mine, other = self._source / TOKENIZER, directory / TOKENIZER
        same = not (mine.exists() and other.exists()) or mine.read_bytes() == other.read_bytes()
        if net.vocab != self._vocab or not same:
            raise ConfigError(
                f"The frozen model {directory} has another tokenizer than the policy ({self._source}), and both are served "
                "through one. Name a checkpoint of the same model.", param="model.frozen",
            )  # fmt: skip
        return net
