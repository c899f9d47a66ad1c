"""The episodes a client holds open, for its heartbeat. Thread-safe; knows no transport."""

from __future__ import annotations

import threading
from collections.abc import Callable

LONGEST_INTERVAL_S = 60.0
REMEMBERED_GONE = 10_000


class OpenEpisodes:
    """Open episodes with their timeouts, and why others ended.

    Args:
        on_change: called (from any thread, without the lock) after an episode was added.
    """

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._lock = threading.Lock()
        self._timeouts: dict[str, float] = {}
        self._gone: dict[str, str] = {}
        self.beat_s: float | None = None
        """How often to show life, also while nothing is open, where the server counts who takes part."""
        self.on_change = on_change

    def add(self, episode: str, timeout_s: float) -> None:
        with self._lock:
            self._timeouts[episode] = timeout_s
        self.on_change()

    def remove(self, episode: str, reason: str | None = None) -> bool:
        """Forget ``episode``; with a ``reason``, remember why it is gone. Returns whether it was open."""
        with self._lock:
            if reason is not None:
                self._gone[episode] = reason
                while len(self._gone) > REMEMBERED_GONE:
                    del self._gone[next(iter(self._gone))]
            return self._timeouts.pop(episode, None) is not None

    def ids(self) -> list[str]:
        with self._lock:
            return list(self._timeouts)

    def gone_reason(self, episode: str) -> str | None:
        with self._lock:
            return self._gone.get(episode)

    def interval_s(self) -> float | None:
        """Seconds between heartbeats: a third of the smallest timeout, or :attr:`beat_s`; None while neither asks."""
        with self._lock:
            if not self._timeouts:
                return self.beat_s
            return min(min(self._timeouts.values()) / 3, self.beat_s or LONGEST_INTERVAL_S, LONGEST_INTERVAL_S)
