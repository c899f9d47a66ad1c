"""What calls to an endpoint cost: kept per endpoint of a game, and per player."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Traffic:
    """Counts over one game. One event loop writes.

    Attributes:
        seconds: of each answered call, without back-off and without waiting for a turn.
        truncated: replies that were cut off by a token limit (``finish_reason: length``).
        rate_limited: tries that were answered with HTTP 429.
    """

    seconds: list[float] = field(default_factory=list)
    truncated: int = 0
    rate_limited: int = 0

    def answered(self, seconds: float, finish_reason: object) -> None:
        self.seconds.append(seconds)
        self.truncated += finish_reason == "length"
