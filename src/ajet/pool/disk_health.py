"""What the journal's disk does with writes: whether it takes them, since when not, and how long they take.

Written by the journal's writer thread, read by anyone; each value is replaced as a whole.
"""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass

SLOW_S = 1.0
"""A write that takes so long is worth a word: every answer that needs it has waited."""


@dataclass
class DiskHealth:
    """See the module.

    Attributes:
        error: what the disk said when it refused the last write; None while it takes writes.
        since: Unix seconds when it began to refuse.
        damaged: what SQLite said where the file is not what it wrote. Nothing mends that by itself.
        write_s: seconds the last write took, its fsync included.
    """

    error: str | None = None
    since: float | None = None
    damaged: str | None = None
    write_s: float = 0.0
    _began: float | None = None

    def begin(self) -> None:
        """A write begins."""
        self._began = time.monotonic()

    def end(self) -> float:
        """It came back, whatever it answered. Returns its seconds."""
        began, self._began = self._began, None
        self.write_s = 0.0 if began is None else time.monotonic() - began
        return self.write_s

    def stalled_s(self) -> float:
        """Seconds for which a write has not come back; 0 where none is under way."""
        began = self._began
        return 0.0 if began is None else max(0.0, time.monotonic() - began)

    def refuse(self, error: str) -> bool:
        """Note a refusal. True where it is the first of a row."""
        first, self.error = self.error is None, error
        if first:
            self.since = time.time()
        return first

    def take(self) -> None:
        """It takes writes again."""
        self.error = self.since = None


def is_damage(error: sqlite3.Error) -> bool:
    """Whether an error means that the file is not a sound database, and not that the disk refuses.

    Python gives ``SQLITE_CORRUPT`` and ``SQLITE_NOTADB`` the bare base class, and the disk's troubles OperationalError.
    """
    return type(error) is sqlite3.DatabaseError
