"""Small files of a run that are written late: where the disk has no room just then, the writer waits and says so."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

RETRY_S = 2.0
_WEATHER = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}


def write(path: Path, text: str, say: Callable[[str], None]) -> None:
    """Write ``path`` whole or not at all; see :func:`when_there_is_room`."""
    temporary = path.with_name(f"{path.name}.tmp")

    def once() -> None:
        temporary.write_text(text)
        temporary.replace(path)

    when_there_is_room(path, once, say)


def when_there_is_room(path: Path, make: Callable[[], T], say: Callable[[str], None]) -> T:
    """What ``make`` returns, which writes ``path``; tried as long as the disk refuses, which is ``say``-ed once.

    Raises:
        OSError: it cannot be written for any other reason.
    """
    said = False
    while True:
        try:
            return make()
        except OSError as err:
            if err.errno not in _WEATHER:
                raise
            if not said:
                said = True
                say(f"waiting until {path} can be written: {err.strerror}")
            time.sleep(RETRY_S)
