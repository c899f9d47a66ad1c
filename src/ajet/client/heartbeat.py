"""The blocking client's heartbeat: one daemon thread for all open episodes, at a third of the smallest timeout.

It lives while anything is open and sleeps on a condition otherwise. A beat that fails is tried again soon and never
raises: whether the server is gone is for the calls to say.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ajet.client.leases import OpenEpisodes

RETRY_S = 2.0


class HeartbeatThread:
    """Calls ``beat(episode_ids)`` in time. ``beat`` returns whether it got through."""

    def __init__(self, leases: OpenEpisodes, beat: Callable[[list[str]], bool]) -> None:
        self._leases = leases
        self._beat = beat
        self._lock = threading.RLock()
        """Entered directly, never through the condition: Ctrl-C would find a step of Python between taking and holding it."""
        self._wake = threading.Condition(self._lock)
        self._changed = False
        self._stopped = False
        self._thread: threading.Thread | None = None
        leases.on_change = self._on_change

    def _on_change(self) -> None:
        with self._lock:
            self._changed = True
            if self._thread is None and not self._stopped:
                thread = threading.Thread(target=self._run, name="ajet-heartbeat", daemon=True)
                thread.start()
                self._thread = thread  # only now: one that Ctrl-C kept from starting beats for nobody
            self._wake.notify_all()

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            self._wake.notify_all()

    def _run(self) -> None:
        last, failed = time.monotonic(), False
        while True:
            with self._lock:
                if self._stopped:
                    return
                interval = self._leases.interval_s()
                if interval is None:
                    self._changed = False
                    self._wake.wait_for(lambda: self._changed or self._stopped)
                    last = time.monotonic()
                    continue
                due = last + (min(interval, RETRY_S) if failed else interval)
                left = due - time.monotonic()
                if left > 0:
                    self._changed = False
                    self._wake.wait_for(lambda: self._changed or self._stopped, left)
                    continue
            last = time.monotonic()
            failed = not self._beat(self._leases.ids())
