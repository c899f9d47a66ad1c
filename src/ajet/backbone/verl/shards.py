"""The files of a checkpoint as a rank writes them: what a disk refuses is an answer, not an exception. Runs in verl's actors.

Shards lie where verl's ``load_checkpoint`` looks for them, ``<part>_world_size_<W>_rank_<R>.pt``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from ajet.backbone.disk import disk_refusal, synced
from ajet.backbone.lora import FOLDER, is_adapter, merged, plain_name, save_adapter
from ajet.default_config.schema import LoraConfig


def name(part: str, rank: int, world: int) -> str:
    return f"{part}_world_size_{world}_rank_{rank}.pt"


def write(folder: Path, parts: Mapping[str, Any], *, rank: int, world: int) -> str | None:
    """One file a part, fsynced; what the disk refused, or None."""

    def work() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for part, value in parts.items():
            _torch_save(value, folder / name(part, rank, world))

    return _refused(work)


def export(
    folder: Path, state: Mapping[str, torch.Tensor], dtype: torch.dtype, tied: bool, lora: LoraConfig | None, base: str
) -> str | None:
    """``model.safetensors`` (adapters folded in) and, with ``lora``, ``adapter/``; what the disk refused, or None."""
    weights = {plain_name(n): t for n, t in state.items() if not is_adapter(n)}
    adapters = {n.replace(".default.", "."): t for n, t in state.items() if is_adapter(n)}
    if lora is not None:
        weights = merged(weights, adapters, lora.alpha / lora.rank)
    if tied:
        weights.pop("lm_head.weight", None)
    weights = {n: t.to(dtype).contiguous() for n, t in weights.items()}

    def work() -> None:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        if lora is not None:
            save_adapter(folder / FOLDER, adapters, lora, base)
        synced(folder)

    return _refused(work)


def _refused(work: Callable[[], None]) -> str | None:
    try:
        work()
    except (OSError, SafetensorError) as error:
        refused = disk_refusal(error)
        if refused is None:
            raise
        return refused
    return None


class _File:
    """Keeps the error of a write: torch's own says only that there was one."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = self.error or error
            raise

    def flush(self) -> None:
        self._file.flush()


def _torch_save(value: Any, path: Path) -> None:
    with path.open("wb", buffering=0) as raw:
        file = _File(raw)
        try:
            torch.save(value, file)  # type: ignore[arg-type]
        except Exception as error:
            if file.error is not None:
                raise file.error from error
            raise
    synced(path)
