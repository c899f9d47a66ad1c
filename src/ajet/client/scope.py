"""Binds episodes to the worker that began them, so that what a worker leaves open can be aborted.

The executor opens a :class:`WorkerScope` around each run; clients find it through a context variable, which asyncio
tasks and ``asyncio.to_thread`` inherit. Outside an executor there is no scope and nothing is bound.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar

Abort = Callable[[str, float], None]
"""``abort(reason, budget_s)``: tell the server, trying for at most ``budget_s`` seconds; raises nothing."""


class WorkerScope:
    """The open episodes of one run of a worker."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, tuple[Abort, bool]] = {}
        self._closed: str | None = None
        self.finished = False
        """A ``begin_episode`` of this run was told that training is finished, whatever the run made of it."""
        self.reported = False
        """An episode of this run has a result."""
        self.without_output = False
        """The block of one was left without."""

    def adopt(self, episode: str, abort: Abort, *, is_eval: bool = False) -> str | None:
        """Bind ``episode``. Returns None, or why this run may hold no episode any more (the caller then aborts it)."""
        with self._lock:
            if self._closed is None:
                self._open[episode] = (abort, is_eval)
            return self._closed

    def release(self, episode: str) -> None:
        """``episode`` has ended or was aborted."""
        with self._lock:
            self._open.pop(episode, None)

    @property
    def closed(self) -> str | None:
        """Why this run may hold no episode any more."""
        return self._closed

    @property
    def holds_eval(self) -> bool:
        with self._lock:
            return any(is_eval for _, is_eval in self._open.values())

    def close(self, reason: str, budget_s: float = 30.0) -> list[str]:
        """Abort what is open and refuse what comes later. Returns the episodes that were open."""
        with self._lock:
            self._closed = self._closed or reason
            left, self._open = self._open, {}
        for abort, _ in left.values():
            abort(reason, budget_s)
        return list(left)


current_scope: ContextVar[WorkerScope | None] = ContextVar("ajet_worker_scope", default=None)
