"""Counters, speeds, and their Prometheus text. Cheap enough for the chat path: plain additions."""

from __future__ import annotations

import time
from collections import Counter, deque

from ajet.schema.status import Speeds

WINDOW_S = 10.0


class Telemetry:
    """One server's counters since it started."""

    def __init__(self) -> None:
        self.started = time.time()
        self.counts: Counter[str] = Counter()
        self.branches: Counter[str] = Counter()
        """Recorded calls by :class:`ajet.trajectory.Branch`."""
        self.respelled = 0
        """Calls whose template spells the reply before them otherwise than it was sampled."""
        self.calls = 0
        self.sampled_tokens = 0
        self.prompt_tokens = 0
        self.trained_tokens = 0
        self.in_flight = 0
        self._marks: deque[tuple[float, int, int]] = deque([(time.monotonic(), 0, 0)])

    def count(self, name: str, by: int = 1) -> None:
        self.counts[name] += by

    def call(self, prompt_tokens: int, sampled_tokens: int) -> None:
        self.calls += 1
        self.prompt_tokens += prompt_tokens
        self.sampled_tokens += sampled_tokens
        now = time.monotonic()
        if now - self._marks[-1][0] > 1.0:
            self._mark(now)

    def timeline(self, branches: list[str], respelled: bool) -> None:
        """Count recorded calls by how they stand to the calls before them."""
        self.branches.update(branches)
        self.respelled += respelled

    def _mark(self, now: float) -> None:
        self._marks.append((now, self.calls, self.sampled_tokens))
        while len(self._marks) > 2 and now - self._marks[1][0] > WINDOW_S:
            self._marks.popleft()

    def speeds(self) -> Speeds:
        now = time.monotonic()
        if now - self._marks[-1][0] > 1.0:
            self._mark(now)
        then, calls, tokens = self._marks[0]
        span = max(now - then, 1e-3)
        return Speeds(
            calls_per_s=round((self.calls - calls) / span, 2),
            sampled_tokens_per_s=round((self.sampled_tokens - tokens) / span, 1),
            calls=self.calls,
            sampled_tokens=self.sampled_tokens,
            trained_tokens=self.trained_tokens,
            in_flight=self.in_flight,
        )
