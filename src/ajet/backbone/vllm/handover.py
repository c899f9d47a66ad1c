"""Where the trainer leaves weights for the sampler: a private folder in memory (tmpfs) where there is room, else on disk.

No file outlives its update; what a killed server left is removed when the next one starts.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ajet.schema.errors import DiskRefused

SHARED_MEMORY = Path("/dev/shm")
_PREFIX = "ajet-weights-"
_MARGIN = 1.1


@contextlib.contextmanager
def handover(size: int) -> Iterator[Path]:
    """An empty folder with room for ``size`` bytes, gone afterwards. Raises :class:`DiskRefused` where there is none."""
    places = [SHARED_MEMORY, Path(tempfile.gettempdir())]
    for place in places:
        if os.access(place, os.W_OK) and shutil.disk_usage(place).free >= _MARGIN * size:
            folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=place))
            break
    else:
        raise DiskRefused(
            f"Handing {size / 2**30:.2f} GiB of weights to the sampler needs that much room in {SHARED_MEMORY} (Docker: "
            f"--shm-size) or in {places[1]} (TMPDIR), and neither has it. Make room there."
        )
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers() -> None:
    """Folders of processes that are gone."""
    for place in (SHARED_MEMORY, Path(tempfile.gettempdir())):
        for folder in place.glob(f"{_PREFIX}*-*") if place.is_dir() else ():
            pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
            if pid.isdigit() and not Path(f"/proc/{pid}").exists():
                shutil.rmtree(folder, ignore_errors=True)
