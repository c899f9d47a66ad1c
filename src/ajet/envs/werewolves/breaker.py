"""A circuit breaker: after so many failures in a row an endpoint is left alone for a while, by the whole process.

*closed*: calls pass. After ``failures`` failures in a row it is *open*: calls are refused without being sent, until
``open_s`` seconds have passed. Then it is *half open*: one call is let through as a probe. If it gets an answer the circuit
closes; if it fails, the circuit is open for twice as long as before, up to ``longest_s``. A refused call is not lost: its
caller waits and asks again within its own budget (:mod:`~ajet.envs.werewolves.endpoint`).

A failure is an endpoint that does not work: no connection, no answer in time, a 5xx, a body that is no completion. An
endpoint that answers 429, or refuses a request, works. Results of calls that were sent before the circuit opened
change nothing any more. Any thread may call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Literal

from ajet.envs.werewolves.limits import shared

State = Literal["closed", "open", "half_open"]


class CircuitOpen(Exception):
    """The call was not sent. ``retry_in``: seconds until a probe is due; None while one is under way."""

    def __init__(self, words: str, retry_in: float | None) -> None:
        super().__init__(words)
        self.retry_in = retry_in


class CircuitBreaker:
    """The circuit of one endpoint.

    Args:
        failures: so many in a row open it.
        open_s, longest_s: how long it stays open the first time, and at most, seconds.
        clock: what time it is, seconds.
    """

    def __init__(
        self,
        failures: int = 10,
        open_s: float = 5.0,
        longest_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit, self._first_s, self._longest_s, self._clock = failures, open_s, longest_s, clock
        self._lock = threading.Lock()
        self._state: State = "closed"
        self._in_a_row = 0
        self._open_s = open_s
        self._since = self._until = 0.0
        self._cause = ""
        self._told = False

    @property
    def state(self) -> State:
        return self._state

    def check(self) -> None:
        """Refuse early a call that would not be sent now.

        Raises:
            CircuitOpen: it would not.
        """
        with self._lock:
            self._refuse(self._clock())

    def enter(self) -> bool:
        """Ask to send a call now; True where it is the probe. Its end must be told by :meth:`leave`.

        Raises:
            CircuitOpen: it may not be sent.
        """
        with self._lock:
            self._refuse(self._clock())
            if self._state == "closed":
                return False
            self._state = "half_open"
            return True

    def leave(self, probe: bool, works: bool | None, cause: str = "") -> None:
        """How a call that :meth:`enter` let through ended: ``works`` None where it was given up without an answer."""
        with self._lock:
            self._told = self._told and not works
            if probe:
                self._probed(works, cause)
            elif self._state == "closed" and works is not None:
                self._in_a_row = 0 if works else self._in_a_row + 1
                if self._in_a_row >= self._limit:
                    self._since = self._clock()
                    self._open(cause)

    def first_trouble(self) -> bool:
        """True once after each time that the endpoint worked: whether a failure is still to be told of."""
        with self._lock:
            told, self._told = self._told, True
            return not told

    def words(self) -> str:
        """What the state is and why, for an error; empty while the circuit is closed."""
        with self._lock:
            return self._words(self._clock())

    def _refuse(self, now: float) -> None:
        if self._state == "half_open":
            raise CircuitOpen(self._words(now), None)
        if self._state == "open" and now < self._until:
            raise CircuitOpen(self._words(now), self._until - now)

    def _probed(self, works: bool | None, cause: str) -> None:
        if works:
            self._state, self._in_a_row, self._open_s = "closed", 0, self._first_s
        elif works is None:
            self._state, self._until = "open", self._clock()  # the next call is the probe
        else:
            self._open_s = min(2 * self._open_s, self._longest_s)
            self._in_a_row += 1
            self._open(cause)

    def _open(self, cause: str) -> None:
        self._state, self._until, self._cause = "open", self._clock() + self._open_s, cause

    def _words(self, now: float) -> str:
        if self._state == "closed":
            return ""
        left = self._until - now
        probe = (
            "a probe is under way" if self._state == "half_open" else f"the next probe is due in {max(0.0, left):.0f} s"
        )
        return (
            f"The circuit is open for {now - self._since:.0f} s, after {self._in_a_row} failures in a row, the last: "
            f"{self._cause}; {probe}."
        )


def breaker_for(base_url: str, model: str, failures: int, open_s: float = 5.0) -> CircuitBreaker:
    """The process-wide circuit of a model at an endpoint."""
    return shared(("breaker", base_url, model, failures, open_s), lambda: CircuitBreaker(failures, open_s))
