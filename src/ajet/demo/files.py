"""Small files of a run that are written late: where the disk has no room just then, the writer waits and says so."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from pathlib import Path

RETRY_S = 2.0
_WEATHER = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}


def write(path: Path, text: str, say: Callable[[str], None]) -> None:
    """Write ``path`` whole or not at all; wait as long as its disk refuses, and ``say`` so once.

    Raises:
        OSError: it cannot be written for any other reason.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    said = False
    while True:
        try:
            temporary.write_text(text)
            temporary.replace(path)
            return
        except OSError as err:
            if err.errno not in _WEATHER:
                raise
            if not said:
                said = True
                say(f"waiting until {path} can be written: {err.strerror}")
            time.sleep(RETRY_S)
