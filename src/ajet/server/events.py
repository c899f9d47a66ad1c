"""What happened, told as it happens: a bounded history and any number of listeners; and a flag that wakes waiters."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ajet.schema.status import Event

HISTORY = 256
BACKLOG = 1024


class Signal:
    """Wakes everybody who waits, each time it fires."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def fire(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def wait_until(self, holds: Callable[[], bool], timeout_s: float | None) -> bool:
        """Return as soon as ``holds()``, else after ``timeout_s``; says whether it holds."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        while not holds():
            event = self._event
            left = None if deadline is None else deadline - loop.time()
            if left is not None and left <= 0:
                return False
            try:
                await asyncio.wait_for(event.wait(), left)
            except asyncio.TimeoutError:
                return holds()
        return True


class Events:
    """The stream behind ``GET /events``. A listener that falls behind loses the oldest events, never blocks anyone."""

    def __init__(self) -> None:
        self._next = 1
        self._recent: deque[Event] = deque(maxlen=HISTORY)
        self._listeners: set[asyncio.Queue[Event]] = set()

    def emit(self, kind: str, **data: Any) -> None:
        event = Event(id=self._next, kind=kind, time=time.time(), data=data)
        self._next += 1
        self._recent.append(event)
        for queue in self._listeners:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(event)

    def listen(self, after: int | None = None) -> asyncio.Queue[Event]:
        """A queue of events to come, begun with those of the recent past after id ``after``."""
        queue: asyncio.Queue[Event] = asyncio.Queue(BACKLOG)
        if after is not None:
            for event in self._recent:
                if event.id > after:
                    queue.put_nowait(event)
        self._listeners.add(queue)
        return queue

    def leave(self, queue: asyncio.Queue[Event]) -> None:
        self._listeners.discard(queue)
