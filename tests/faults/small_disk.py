"""A disk small enough to fill: a tmpfs, mounted where that is allowed."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

FILLER = "filler"


@contextlib.contextmanager
def mounted(at: Path, mib: float) -> Iterator[bool]:
    """A tmpfs of ``mib`` MiB at the new folder ``at``; False where this user may not mount one."""
    at.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={int(mib * 1024)}k", "ajet-test", str(at)]
    try:
        done = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        done = False
    try:
        yield done
    finally:
        if done:
            subprocess.run(["umount", "-l", str(at)], check=False)


def fill(disk: Path) -> None:
    """Take the last byte."""
    fd = os.open(disk / FILLER, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        chunk = 1 << 22
        while chunk:
            try:
                os.posix_fallocate(fd, os.fstat(fd).st_size, chunk)
            except OSError:
                chunk //= 2
                if chunk < 512:
                    break
    finally:
        os.close(fd)


def narrow(disk: Path, leave: int) -> None:
    """Take all but ``leave`` bytes, so that little is left to do when it is to be full."""
    state = os.statvfs(disk)
    spare = state.f_bavail * state.f_frsize - leave
    if spare > 0:
        fd = os.open(disk / FILLER, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        try:
            os.posix_fallocate(fd, os.fstat(fd).st_size, spare)
        finally:
            os.close(fd)


def free(disk: Path) -> None:
    """Give it back."""
    (disk / FILLER).unlink(missing_ok=True)
