"""A folder whose disk turns slow, hangs, fails or becomes read-only under a running process: see ``bad_disk.c``."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("bad_disk.c")


class BadDisk:
    """The disk under ``folder``, as the processes see it that run with :attr:`environment`.

    Args:
        folder: a new folder is made.
        beside: where the library and the switch lie; not in ``folder``.
    """

    def __init__(self, folder: Path, beside: Path) -> None:
        self.folder = folder
        self._mode = beside / "disk-mode"
        library = beside / "bad_disk.so"
        compiler = shutil.which("cc") or shutil.which("gcc")
        assert compiler, "see available()"
        command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
        subprocess.run(command, check=True, capture_output=True, text=True)
        folder.mkdir(parents=True, exist_ok=True)
        self.environment = {
            "LD_PRELOAD": str(library), "BAD_DISK_FOLDER": str(folder), "BAD_DISK_MODE": str(self._mode),
        }  # fmt: skip

    @staticmethod
    def available() -> bool:
        """Whether there is a C compiler, and an operating system that preloads libraries."""
        return os.uname().sysname == "Linux" and bool(shutil.which("cc") or shutil.which("gcc"))

    def be(self, mode: str) -> None:
        """Change how it is, at once for every process: see ``bad_disk.c``; ``well`` for as the real one."""
        new = self._mode.with_suffix(".new")
        new.unlink(missing_ok=True)
        new.symlink_to(mode)
        new.replace(self._mode)
