"""The file of steps, followed while it grows; how far a tracker has come with it; what of a step is a number.

Promise: each step comes once and in order, whatever happens to the file: a torn last line is read when it is whole, and a
file that was replaced is read again from its start, without the steps that were there before.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_NOT_METRICS = ("step", "time")


class StepFile:
    """``metrics.jsonl`` of one experiment.

    Args:
        after: the last step that is known already.
    """

    def __init__(self, path: Path, after: int) -> None:
        self._path = path
        self._after = after
        self._inode: int | None = None
        self._offset = 0

    def new(self) -> Iterator[dict[str, Any]]:
        """The steps that have come since. Raises OSError; a file that does not exist yet has none."""
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return
        with file:
            found = os.fstat(file.fileno())
            if found.st_ino != self._inode or found.st_size < self._offset:
                self._inode, self._offset = found.st_ino, 0
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                try:
                    step = json.loads(line)
                except ValueError:
                    return  # the server replaces such a file
                self._offset += len(line)
                if step["step"] > self._after:
                    self._after = step["step"]
                    yield step


@dataclass
class Cursor:
    """How far a run has been reported: ``run`` is the tracker's name for it, ``step`` the last one it has."""

    run: str | None = None
    step: int = 0

    @classmethod
    def load(cls, path: Path) -> Cursor:
        """An unreadable one begins a new run."""
        try:
            found = json.loads(path.read_text())
            return cls(found["run"], int(found["step"]))
        except (OSError, ValueError, KeyError, TypeError):
            return cls()

    def save(self, path: Path) -> None:
        """Atomically. Raises OSError."""
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(self)))
        os.replace(temporary, path)


def scalars(step: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a step. Counts by name become ``dropped/<reason>`` and the like."""
    found: dict[str, float] = {}
    for key, value in step.items():
        entries = {f"{key}/{name}": one for name, one in value.items()} if isinstance(value, Mapping) else {key: value}
        for name, one in entries.items():
            if name not in _NOT_METRICS and isinstance(one, (int, float)) and math.isfinite(one):
                found[name] = float(one)
    return found


def line(step: Mapping[str, Any], total: int) -> str:
    """A step for the server's log: rewards and win rates, and what the update took."""
    shown = [f"step {step['step']} of {total}"]
    values = scalars(step)
    wanted = ("reward/mean", "win_rate", *(k for k in values if k.startswith("env/win/")))
    shown += [f"{key.removeprefix('env/')} {values[key]:.3g}" for key in wanted if key in values]
    if "tokens/trained" in values:
        shown.append(f"{values['tokens/trained']:.0f} tokens trained")
    if "time/update_s" in values:
        shown.append(f"update {values['time/update_s']:.1f} s")
    return ", ".join(shown)
