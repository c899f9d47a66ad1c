"""One event loop for all games of a process.

A thread that runs ``asyncio.run`` for each game pays for a loop, a selector and fresh connections each time, and two
hundred of them pass the interpreter around at every answer. Games that never block can share one loop in a thread of
its own, whose callers just wait.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_owner = 0


def run_shared(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` on the process's shared loop and return its result; for threads that are not that loop's.

    The coroutine must not block: all others wait as long. When the caller is interrupted, the work is cancelled.
    """
    loop = _shared_loop()
    if _running() is loop:
        work.close()
        raise RuntimeError("run_shared was called on the shared loop itself; await the coroutine there.")
    future = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _shared_loop() -> asyncio.AbstractEventLoop:
    global _loop, _owner
    with _lock:
        if _loop is None or _owner != os.getpid():  # a forked child has the object, but not its thread
            _loop, _owner = _new_loop(), os.getpid()
            threading.Thread(target=_loop.run_forever, name="ajet-games", daemon=True).start()
        return _loop


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
