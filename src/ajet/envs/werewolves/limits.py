"""What bounds the calls to somebody else's model: how many at once, and how many requests and tokens a minute.

Both bounds hold over all games, threads and event loops of the process: :func:`shared` gives everybody who names the same
endpoint and the same bound the same object. Neither ever refuses: a caller waits for its turn, first come, first served.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

WINDOW_S = 60.0

T = TypeVar("T")

_shared: dict[Hashable, Any] = {}
_shared_lock = threading.Lock()


def shared(key: Hashable, make: Callable[[], T]) -> T:
    """The process-wide object of this key, made at the first call."""
    with _shared_lock:
        if key not in _shared:
            _shared[key] = make()
        return _shared[key]


class Gate:
    """At most ``limit`` holders at once, over all event loops and threads of the process."""

    def __init__(self, limit: int) -> None:
        self._lock = threading.Lock()
        self._free = limit
        self._waiting: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()

    async def __aenter__(self) -> None:
        with self._lock:
            if self._free > 0:
                self._free -= 1
                return
            loop = asyncio.get_running_loop()
            turn: asyncio.Future[None] = loop.create_future()
            self._waiting.append((loop, turn))
        try:
            await turn
        except asyncio.CancelledError:
            with self._lock:
                if (loop, turn) in self._waiting:
                    self._waiting.remove((loop, turn))
                    raise
            self._release()  # the turn had come already
            raise

    async def __aexit__(self, *_: object) -> None:
        self._release()

    def _release(self) -> None:
        with self._lock:
            while self._waiting:
                loop, turn = self._waiting.popleft()
                try:
                    loop.call_soon_threadsafe(lambda t=turn: None if t.done() else t.set_result(None))
                except RuntimeError:  # that loop is closed
                    continue
                return
            self._free += 1


def gate_for(base_url: str, limit: int) -> Gate:
    """The process-wide gate of one endpoint."""
    return shared(("gate", base_url, limit), lambda: Gate(limit))


@dataclass
class Turn:
    """A place in the queue of a :class:`RateLimiter`: when the request may be sent, and the tokens it is counted for."""

    start: float
    tokens: int


class RateLimiter:
    """At most so many requests, and so many tokens, in any sixty seconds.

    The window slides: a request may start as soon as it, and those that started in the minute before it, keep both bounds.
    Tokens are estimated before a call and put right after it. A request that is larger than a whole minute's tokens waits
    for an empty window rather than for ever. Any thread may call.

    Args:
        requests_per_min, tokens_per_min: the bounds; None for none.
        clock: what time it is, seconds.
    """

    def __init__(
        self,
        requests_per_min: int | None = None,
        tokens_per_min: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._requests, self._tokens, self._clock = requests_per_min, tokens_per_min, clock
        self._lock = threading.Lock()
        self._turns: list[Turn] = []
        """Those that started less than a window ago, or will start; oldest first."""

    def reserve(self, tokens: int) -> tuple[Turn, float]:
        """Queue up; returns the turn and how many seconds it is away."""
        with self._lock:
            now = self._clock()
            self._forget(now)
            turns = self._turns
            start = max(now, turns[-1].start) if turns else now
            total = tokens + sum(turn.tokens for turn in turns)
            for passed, turn in enumerate(turns):  # out of the window, one after another, until there is room
                if turn.start + WINDOW_S > start:
                    if not self._full(len(turns) - passed, total):
                        break
                    start = turn.start + WINDOW_S
                total -= turn.tokens
            mine = Turn(start, tokens)
            turns.append(mine)
            return mine, start - now

    def settle(self, turn: Turn, tokens: int) -> None:
        """Say what the request really took."""
        with self._lock:
            turn.tokens = tokens

    def give_back(self, turn: Turn) -> None:
        """Leave the queue without having sent anything."""
        with self._lock:
            self._turns = [queued for queued in self._turns if queued is not turn]

    def _full(self, before: int, tokens: int) -> bool:
        """Whether a window with ``before`` other requests, and ``tokens`` in all, is too much."""
        over_requests = self._requests is not None and before >= self._requests
        return over_requests or (self._tokens is not None and tokens > self._tokens)

    def _forget(self, now: float) -> None:
        gone = 0
        while gone < len(self._turns) and self._turns[gone].start + WINDOW_S <= now:
            gone += 1
        del self._turns[:gone]


def limiter_for(
    base_url: str, model: str, requests_per_min: int | None, tokens_per_min: int | None
) -> RateLimiter | None:
    """The process-wide limiter of a model at an endpoint; None where nothing is bounded."""
    if requests_per_min is None and tokens_per_min is None:
        return None
    key = ("limiter", base_url, model, requests_per_min, tokens_per_min)
    return shared(key, lambda: RateLimiter(requests_per_min, tokens_per_min))
