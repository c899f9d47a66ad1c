"""Checkpoint directories: written aside, verified, swapped in whole, bounded in number.

Promises (invariant 6): a save that fails, by a full disk, a kill or a power cut, damages nothing that was there; the
newest whole checkpoint is never deleted before a newer one is whole; retention holds across restarts, because it reads
the directory and nothing else; saving the same step again succeeds.

Layout: ``step_000007/`` with ``manifest.json`` (size and SHA-256 of every file, step, digest, metric). Beside them
``.tmp-…`` (being written), ``.old-…`` (being replaced or deleted) and ``.corrupt-…`` (set aside, for a human to look
at). One process writes to a directory at a time. No torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import json
import logging
import math
import os
import re
import shutil
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from ajet.schema.errors import DiskRefused

log = logging.getLogger("ajet.checkpoint")

MANIFEST = "manifest.json"
_NAME = re.compile(r"step_(\d{6,})")
_DISK = {errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EFBIG, errno.EIO}
_MARGIN = 4 * 2**20
"""Bytes that must stay free beside a checkpoint."""


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint.

    Attributes:
        path: its directory.
        step: policy version.
        digest: of the weights, as the backbone said.
        metric: what ``keep_best`` compares; None where there was none.
        created: Unix seconds.
        bytes: of all files.
    """

    path: Path
    step: int
    digest: str
    metric: float | None
    created: float
    bytes: int


class CheckpointStore:
    """Checkpoints of one experiment.

    Args:
        directory: ``<experiment>/checkpoints``; created when first needed.
        keep_last: newest checkpoints kept.
        keep_best: checkpoints with the largest metric kept beside them.
    """

    def __init__(self, directory: str | os.PathLike[str], keep_last: int = 3, keep_best: int = 1) -> None:
        if keep_last < 1:
            raise ValueError("keep_last must be at least 1: a run without a checkpoint cannot be continued")
        self.directory = Path(directory)
        self.keep_last, self.keep_best = keep_last, keep_best

    # -- writing --------------------------------------------------------------------------------------------------------

    async def save(
        self, step: int, write: Callable[[str], Awaitable[None]], *, digest: str, metric: float | None = None
    ) -> Checkpoint:
        """Save ``step``. ``write`` fills an existing empty directory (``Backbone.save``).

        Raises:
            DiskRefused: the disk is full or read-only; nothing that was there is damaged.
        """
        aside = await asyncio.to_thread(self._begin, step)
        try:
            await write(str(aside))
            return await asyncio.to_thread(self._finish, aside, step, digest, metric)
        except BaseException as error:
            await asyncio.shield(asyncio.to_thread(self._abandon, aside, error))
            raise

    def save_now(
        self, step: int, write: Callable[[Path], None], *, digest: str, metric: float | None = None
    ) -> Checkpoint:
        """:meth:`save` for a ``write`` that is a plain function."""
        aside = self._begin(step)
        try:
            write(aside)
            return self._finish(aside, step, digest, metric)
        except BaseException as error:
            self._abandon(aside, error)
            raise

    def estimate(self, parameters: int | None = None, weight_bytes: int = 4) -> int:
        """Bytes the next save takes: what the newest took, else weights and two moments for ``parameters``."""
        for path in reversed(self.directories()):
            found = self.read(path)
            if found is not None:
                return int(found.bytes * 1.05)
        return 0 if parameters is None else parameters * (weight_bytes + 8 + (4 if weight_bytes < 4 else 0))

    def shortage(self, parameters: int | None = None) -> str | None:
        """Why the next save would not fit, once what killed saves left is gone; None where it seems to fit.

        Where room is short, what the next save would have replaced anyway goes now; the newest stays whatever happens.
        An estimate: only the save itself knows.
        """
        with contextlib.suppress(OSError):
            self.clean()
        wanted = self.wanted_bytes(parameters)
        if self._free() < wanted:
            self._retain(max(1, self.keep_last - 1))
        free = self._free()
        if free >= wanted:
            return None
        return (
            f"the disk under {self.directory} has {free / 2**20:,.0f} MiB free, and a checkpoint needs about "
            f"{wanted / 2**20:,.0f} MiB. Free some space"
        )

    def wanted_bytes(self, parameters: int | None = None) -> int:
        """Bytes that must be free for the next save to be tried."""
        return self.estimate(parameters) + _MARGIN

    def _free(self) -> int:
        at = self.directory
        while not at.exists():
            at = at.parent
        return shutil.disk_usage(at).free

    def clean(self) -> list[str]:
        """Remove what killed saves left behind; names removed. Called by every save; the writer may call it at start."""
        removed: list[str] = []
        if not self.directory.is_dir():
            return removed
        for path in sorted(self.directory.iterdir()):
            if path.name.startswith(".old-") and (step := _NAME.search(path.name)) is not None:
                home = self.directory / step.group(0)
                if not home.exists() and self.fault(path) is None:
                    # Killed between the two renames of a replacement: the one before is the last good one.
                    with contextlib.suppress(OSError):
                        path.rename(home)
                        _sync_directory(self.directory)
                    continue
            if path.name.startswith((".tmp-", ".old-")):
                shutil.rmtree(path, ignore_errors=True)
                removed.append(path.name)
        return removed

    def _begin(self, step: int) -> Path:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self.clean()
            aside = self.directory / f".tmp-step_{step:06d}-{os.getpid()}"
            aside.mkdir()
            return aside
        except OSError as error:
            raise _refused(error, self.directory) from error

    def _abandon(self, aside: Path, error: BaseException) -> None:
        shutil.rmtree(aside, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in _DISK:
            raise _refused(error, self.directory) from error

    def _finish(self, aside: Path, step: int, digest: str, metric: float | None) -> Checkpoint:
        files: dict[str, dict[str, object]] = {}
        for path in sorted(aside.rglob("*")):
            if path.is_file():
                files[path.relative_to(aside).as_posix()] = {"bytes": path.stat().st_size, "sha256": _sha256(path)}
                _sync_file(path)
        if metric is not None and not math.isfinite(metric):
            metric = None
        manifest = {
            "format": 1,
            "step": step,
            "digest": digest,
            "metric": metric,
            "created": time.time(),
            "files": files,
        }
        manifest["sha256"] = _digest(manifest)
        with open(aside / MANIFEST, "w") as f:
            json.dump(manifest, f, indent=1)
            f.flush()
            os.fsync(f.fileno())
        for path in [*(p for p in aside.rglob("*") if p.is_dir()), aside]:
            _sync_directory(path)
        home = self.directory / f"step_{step:06d}"
        old: Path | None = None
        if home.exists():
            old = self.directory / f".old-{home.name}-{os.getpid()}"
            shutil.rmtree(old, ignore_errors=True)
            home.rename(old)
        try:
            aside.rename(home)
        except OSError:
            if old is not None:
                old.rename(home)
            raise
        _sync_directory(self.directory)
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)
        saved = self.read(home)
        if saved is None:
            raise OSError(errno.EIO, "the checkpoint cannot be read back", str(home))
        self._retain(self.keep_last, saved.path)
        return saved

    def _retain(self, last: int, *paths: Path) -> None:
        """Delete all but the ``last`` newest, the ``keep_best`` best and ``paths``. What is not whole counts for nothing."""
        found = self.all()
        keep = {c.path for c in found[-last:]} | set(paths)
        rated = sorted((c for c in found if c.metric is not None), key=lambda c: (c.metric, c.step))
        keep |= {c.path for c in rated[len(rated) - min(self.keep_best, len(rated)) :]}
        for checkpoint in found:
            if checkpoint.path not in keep:
                old = self.directory / f".old-{checkpoint.path.name}-{os.getpid()}"
                try:
                    checkpoint.path.rename(old)  # so that a kill in mid-delete leaves no half checkpoint
                    shutil.rmtree(old)
                except OSError as error:
                    log.warning(
                        "Could not delete the checkpoint %s (%s); it is tried again at the next save.",
                        checkpoint.path,
                        error,
                    )

    # -- reading --------------------------------------------------------------------------------------------------------

    def all(self) -> list[Checkpoint]:
        """By step, by their manifests; contents are not verified."""
        return [c for c in map(self.read, self.directories()) if c is not None]

    def latest_valid(self) -> Checkpoint | None:
        """The newest checkpoint whose every file has the size and SHA-256 of its manifest.

        One that has not is set aside as ``.corrupt-…`` with a warning, and the one before is tried.
        """
        self.clean()
        for path in reversed(self.directories()):
            fault = self.fault(path)
            if fault is None:
                return self.read(path)
            self._set_aside(path, fault)
        return None

    def best(self) -> Checkpoint | None:
        """The one with the largest metric."""
        rated = [c for c in self.all() if c.metric is not None]
        return max(rated, key=lambda c: (c.metric, c.step), default=None)

    def directories(self) -> list[Path]:
        """Of all checkpoints, whole or not, by step."""
        if not self.directory.is_dir():
            return []
        found = [
            (int(m.group(1)), p) for p in self.directory.iterdir() if (m := _NAME.fullmatch(p.name)) and p.is_dir()
        ]
        return [path for _, path in sorted(found)]

    def read(self, path: Path) -> Checkpoint | None:
        """What a checkpoint's manifest says; None where that cannot be read."""
        manifest = _manifest(path)
        if manifest is None:
            return None
        size = sum(f["bytes"] for f in manifest["files"].values()) + (path / MANIFEST).stat().st_size
        return Checkpoint(path, manifest["step"], manifest["digest"], manifest["metric"], manifest["created"], size)

    def fault(self, path: Path) -> str | None:
        """What is wrong with a checkpoint, or None where every file is what its manifest says."""
        manifest = _manifest(path)
        if manifest is None:
            return f"its {MANIFEST} is missing, unreadable or changed"
        for name, entry in manifest["files"].items():
            try:
                size = (path / name).stat().st_size
                if size != entry["bytes"]:
                    return f"{name} has {size} bytes instead of {entry['bytes']}"
                if _sha256(path / name) != entry["sha256"]:
                    return f"{name} has changed"
            except OSError as error:
                if isinstance(error, (FileNotFoundError, NotADirectoryError)):
                    return f"{name} is missing"
                if error.errno not in (errno.EIO, errno.EISDIR):
                    raise  # no fault of the checkpoint: too many open files, no permission
                return f"{name} cannot be read ({error.strerror})"
        return None

    def _set_aside(self, path: Path, fault: str) -> None:
        target = self.directory / f".corrupt-{path.name}"
        number = 1
        while target.exists():
            number += 1
            target = self.directory / f".corrupt-{path.name}-{number}"
        log.warning(
            "The checkpoint %s is damaged (%s). It is set aside as %s; the one before it is used.",
            path,
            fault,
            target.name,
        )
        try:
            path.rename(target)
        except OSError as error:  # a read-only disk: reading the one before needs no rename
            log.warning("It could not be renamed: %s", error)


def _manifest(path: Path) -> dict | None:
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        if not {"digest", "metric", "created"} <= manifest.keys() or not isinstance(manifest["step"], int):
            return None
        if not all(isinstance(f["bytes"], int) and isinstance(f["sha256"], str) for f in manifest["files"].values()):
            return None
        own = manifest.pop("sha256", None)
        if own is not None and own != _digest(manifest):
            return None
        return manifest
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _digest(manifest: dict) -> str:
    """Of a manifest's content, whatever its layout."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str:
    sha = hashlib.sha256()
    with open(path, "rb") as f:
        while block := f.read(2**20):
            sha.update(block)
    return sha.hexdigest()


def _sync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


_sync_directory = _sync_file


def _refused(error: OSError, directory: Path) -> DiskRefused:
    return DiskRefused(
        f"The disk under {directory} refuses a checkpoint: {error.strerror or error}. Nothing that was saved is damaged; "
        "free some space, or make it writable", details={"errno": error.errno, "directory": str(directory)},
    )  # fmt: skip
