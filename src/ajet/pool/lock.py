"""One process at a time in a journal: a lock on a file beside it, which ends with the process."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from ajet.schema.errors import ConfigError, DiskRefused


def take_lock(journal: Path) -> IO[str]:
    """Hold the journal at the path ``journal`` until the returned file is closed.

    Raises:
        ConfigError: another process holds it. DiskRefused: its folder cannot be written.
    """
    path = journal.with_suffix(".lock")
    try:
        file = path.open("a")
    except OSError as err:
        raise DiskRefused(f"The journal's folder {path.parent} cannot be written: {err}") from err
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as err:
        file.close()
        raise ConfigError(
            f"Another server has the journal in {path.parent} open. Stop it, or choose another experiment_name or --exp-dir."
        ) from err
    return file


@contextlib.contextmanager
def hold(path: Path) -> Iterator[None]:
    """Keep servers out of the journal at ``path`` while it is read as a whole.

    Raises:
        ConfigError: a server has it open.
    """
    lock = take_lock(path)
    try:
        yield
    finally:
        lock.close()
