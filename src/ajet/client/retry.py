"""Back-off inside a budget, without a clock of its own: whoever drives it says what time it is and sleeps."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 5.0
RETRYABLE_STATUS = frozenset({429, 502, 503, 504, 507})


@dataclass
class Backoff:
    """Delays of one request's retries: exponential with jitter, at least what the server asked for.

    Attributes:
        budget_s: seconds from the first failure after which there is no further try.
    """

    budget_s: float
    attempts: int = 0
    first_failure: float | None = field(default=None)

    def next_delay(self, now: float, retry_after: float | None = None) -> float | None:
        """Seconds to wait before the next try, or None when the budget is spent."""
        if self.first_failure is None:
            self.first_failure = now
        left = self.first_failure + self.budget_s - now
        if left <= 0:
            return None
        ceiling = min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** min(self.attempts, 16))
        self.attempts += 1
        delay = random.uniform(0.5, 1.0) * ceiling
        if retry_after is not None:
            delay = max(delay, retry_after)
        return min(delay, left)

    def waited(self, now: float) -> float:
        """Seconds since the first failure."""
        return 0.0 if self.first_failure is None else now - self.first_failure
