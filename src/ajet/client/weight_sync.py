"""Callbacks on every weight update: who is told, of which updates, and how a failing one is borne.

Promises: each callback is called once for every update whose batch is fixed after it was added, in order, however often
the connection drops or the server restarts in between (late, then, but not twice); what it raises is shown and counted,
and ends nothing. An update is known by its number, which the server keeps in its journal, so nothing is guessed from
states that may have passed unseen.
"""

from __future__ import annotations

import inspect
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from ajet.schema.wire import EngineState

Callback = Callable[..., Any]
Ask = Callable[[dict[str, Any]], "dict[str, Any] | None"]
"""What a status is to be waited for with → the status; None where there was no answer."""
WATCH_RETRY_S = 1.0


class WeightSyncCallbacks:
    """The callbacks of one client. Thread-safe; knows no transport."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: list[tuple[Callback, int]] = []
        self._told = 0
        self._experiment: str | None = None
        self.errors = 0
        """Calls that raised."""

    def add(self, callback: Callback, status: dict[str, Any]) -> bool:
        """``callback`` is to be told of updates after those of ``status``. Returns whether it is the first."""
        if not callable(callback):
            raise TypeError(f"add_entering_weight_sync_callback takes a function, not {callback!r}.")
        batch_step = int(status["batch_step"])
        with self._lock:
            first = not self._callbacks
            if first:
                self._told, self._experiment = batch_step, status["experiment_dir"]
            self._callbacks.append((callback, batch_step))
            return first

    @property
    def waits_for(self) -> dict[str, Any]:
        """What a status is to be asked with: the next update, or an engine while there is none."""
        with self._lock:
            if self._experiment is None:
                return {"wait_states": (EngineState.BOOTING, EngineState.ROLLING, EngineState.FINISHED)}
            return {"wait_batch": self._told + 1}

    def due(self, status: dict[str, Any]) -> Iterator[tuple[Callback, int]]:
        """(callback, update) for all updates up to that of ``status`` that were not told yet.

        Where the server runs another experiment than before, its updates are told from there on.
        """
        batch_step, experiment = int(status["batch_step"]), status["experiment_dir"]
        with self._lock:
            if experiment is None:  # between two engines there is nothing to count
                return
            if experiment != self._experiment:
                self._told, self._experiment = batch_step, experiment
                self._callbacks = [(callback, batch_step) for callback, _ in self._callbacks]
        while True:
            with self._lock:
                if self._told >= batch_step:
                    return
                self._told += 1
                step, wanted = self._told, list(self._callbacks)
            for callback, since in wanted:
                if step > since:
                    yield callback, step

    def failed(self, callback: Callback, step: int, error: BaseException) -> None:
        """Show what a callback raised."""
        self.errors += 1
        name = getattr(callback, "__qualname__", repr(callback))
        print(f"[ajet] the weight-sync callback {name} failed at update {step}; training goes on:", file=sys.stderr)
        traceback.print_exception(type(error), error, error.__traceback__, file=sys.stderr)


def arguments(callback: Callback, step: int) -> tuple[int, ...]:
    """The update's number for a callback that demands one argument, else nothing."""
    try:
        parameters = inspect.signature(callback).parameters.values()
    except (TypeError, ValueError):
        return ()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    demanded = [p for p in parameters if p.kind in positional and p.default is inspect.Parameter.empty]
    return (step,) if demanded else ()


def watch(callbacks: WeightSyncCallbacks, ask: Ask, closed: threading.Event) -> None:
    """Start the thread that waits for updates and tells of them, until ``closed``."""

    def run() -> None:
        while not closed.is_set():
            status = ask(callbacks.waits_for)
            if status is None:
                closed.wait(WATCH_RETRY_S)
                continue
            for callback, step in callbacks.due(status):
                if closed.is_set():
                    return
                try:
                    callback(*arguments(callback, step))
                except Exception as err:  # the user's code: shown, and borne
                    callbacks.failed(callback, step, err)

    threading.Thread(target=run, name="ajet-weight-sync", daemon=True).start()
