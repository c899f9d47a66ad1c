"""What a disk says of a write: refusals told from other errors, and files made durable. For every backbone's checkpoints."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError

from ajet.schema.errors import DiskRefused

_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO}


def disk_refusal(error: OSError | SafetensorError) -> str | None:
    """What the disk said, where that is what ``error`` is about."""
    if isinstance(error, OSError):
        code = error.errno
    else:  # safetensors tells the number in words only
        found = re.search(r"os error (\d+)", str(error))
        code = int(found.group(1)) if found else None
    return os.strerror(code) if code in _DISK_ERRORS else None


def checkpoint_refused(directory: Path, words: str) -> DiskRefused:
    return DiskRefused(
        f"The disk under {directory} refuses a checkpoint ({words}). Free some space, or make it writable"
    )


@contextlib.contextmanager
def checkpoint_refusals(directory: Path) -> Iterator[None]:
    """Raises :class:`DiskRefused` for what the disk refuses inside; any other error as it is."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        refused = disk_refusal(error)
        if refused is None:
            raise
        raise checkpoint_refused(directory, refused) from error


def synced(path: Path) -> None:
    """fsync ``path`` and, of a folder, all that is in it."""
    for each in [*path.rglob("*"), path] if path.is_dir() else [path]:
        fd = os.open(each, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
