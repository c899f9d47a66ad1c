"""Errors of rollouts as a user wants to see them: each kind once and whole, then a number."""

from __future__ import annotations

import sys
import threading
import traceback
from collections import Counter

from ajet.schema.uncaught import SHOWN, plainly


class ErrorLog:
    """Thread-safe; prints to standard error."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures: Counter[str] = Counter()
        self._told: set[str] = set()

    def show(self, error: BaseException) -> None:
        """The traceback, the first time this exception comes from this line; counted from then on."""
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "?"
        signature = f"{type(error).__name__} at {place}"
        with self._lock:
            self._failures[signature] += 1
            if self._failures[signature] > 1:
                setattr(error, SHOWN, True)  # its like was
                return
        text = plainly(error, error.__traceback__)
        if text is None:
            text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        setattr(error, SHOWN, True)
        _print(f"a rollout failed; the same error is counted, not shown again:\n{text}")

    def tell_once(self, kind: str, text: str) -> None:
        """``text``, unless one of this ``kind`` was told before."""
        with self._lock:
            if kind in self._told:
                return
            self._told.add(kind)
        _print(text)

    def summary(self) -> None:
        """How often each error came that came more than once; starts counting anew."""
        with self._lock:
            failures, self._failures = self._failures, Counter()
        for signature, count in failures.items():
            if count > 1:
                _print(f"{count} rollouts failed by {signature}")


def _print(text: str) -> None:
    print(f"[ajet] {text}", file=sys.stderr, flush=True)
