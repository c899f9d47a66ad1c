"""The clock of leases and of clients that take part: when it is looked at, and when it stands still.

Promises: time in which nobody could have shown life is held against nobody: not the seconds in which this process stood
still, nor those in which the disk took no writes. Used on the event loop, by :mod:`ajet.server.registry` only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from ajet.pool.leases import LeaseBook
from ajet.pool.roster import Roster

STALL_S = 5.0
"""A look that comes this late means that the server stood still, not the clients."""


@dataclass
class Clock:
    """See the module.

    Args:
        now: monotonic seconds. expire: ends what is due.
    """

    leases: LeaseBook
    roster: Roster
    now: Callable[[], float]
    expire: Callable[[], Awaitable[None]]
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _disk_down_since: float | None = None

    def wake(self) -> None:
        """The next deadline may be another one."""
        self._changed.set()

    async def run(self) -> None:
        """Look whenever something is due. Runs until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            deadlines = [d for d in (self.leases.next_deadline(), self.roster.next_silent()) if d is not None]
            deadline = min(deadlines, default=None)
            wait = None if deadline is None else max(0.05, deadline - self.now())
            self._changed.clear()
            began = loop.time()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), wait)
            late = 0.0 if wait is None else loop.time() - began - wait
            if late > STALL_S:
                self._shift(late)
                continue
            await self.expire()

    def disk(self, ok: bool) -> bool:
        """The disk began to refuse, or takes writes again, which returns True."""
        if not ok:
            if self._disk_down_since is None:
                self._disk_down_since = self.now()
        elif self._disk_down_since is not None:
            self._shift(self.now() - self._disk_down_since)
            self._disk_down_since = None
            return True
        return False

    def lease_time(self) -> float:
        """Now, as the leases count it: the time since when the disk refuses while it does."""
        return self.now() if self._disk_down_since is None else self._disk_down_since

    def _shift(self, seconds: float) -> None:
        self.leases.shift(seconds)
        self.roster.shift(seconds)
