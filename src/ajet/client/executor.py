"""PeriodicDrainThreadPoolExecutor: plays episodes in threads, and ends well.

Promises: at most ``max_parallel`` runs at once, ``submit…`` waits for a free place, so an endless loop needs no other
brake; a run that failed by infrastructure is run again, bounded and with back-off; whatever episode a run leaves open
(an exception, a hang, a forgotten end) is aborted; an exception of the user's code is shown once with its traceback
and counted from then on; nothing is swallowed when everything fails; training being finished is a normal end; Ctrl-C
gives the open episodes back and does not wait for the games.

``submit_with_periodic_drain`` has a barrier every ``workers`` submissions: one slow game makes the others wait. Use
``submit`` where nothing needs the drain: it keeps ``max_parallel`` runs going all the time.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  its exit hook must be registered before ours, to run after it
import random
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any

from ajet.client.advice import NO_OUTPUT_HINT
from ajet.client.error_log import ErrorLog
from ajet.client.exchange import DEAF_S
from ajet.client.finish import StopTraining
from ajet.client.outcome import Outcome, outcome_of
from ajet.client.scope import WorkerScope, current_scope
from ajet.schema.errors import AjetError, InfrastructureFault, TrainingFinished

MAX_RETRIES = 3
FIRST_RETRY_S = 1.0
LONGEST_RETRY_S = 30.0
STOP_BUDGET_S = 2.0
FINISH_GRACE_S = 10.0
_HOPELESS = (Outcome.BUG, Outcome.UNREACHABLE, Outcome.NO_OUTPUT)
"""Outcomes that are no use to repeat where there is nothing else."""


@dataclass(eq=False)
class _Run:
    """One submitted call."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    future: Future[Any] = field(default_factory=Future)
    scope: WorkerScope = field(default_factory=WorkerScope)
    deadline: float | None = None
    outcome: Outcome | None = None
    error: BaseException | None = None
    given_up: bool = False


class PeriodicDrainThreadPoolExecutor:
    """Runs rollouts in threads.

    Args:
        workers: submissions between two drains of :meth:`submit_with_periodic_drain`.
        max_parallel: runs at once; None = ``workers``.
        auto_retry: run a call again, up to three times, when it failed by infrastructure.
        block_first_run: play the first call alone and wait for it, so that a mistake shows before 64 games start.
        max_run_s: a run that takes longer has hung: its episodes are aborted and its place is given to another.

    How it ends: when training is finished, :meth:`submit` and :meth:`submit_with_periodic_drain` raise
    :class:`~ajet.client.StopTraining`. ``with executor:`` swallows it; uncaught, it ends the script with exit code 0.
    So this loop is complete::

        with PeriodicDrainThreadPoolExecutor(workers=192, max_parallel=64) as executor:
            while not executor.finished:
                for task in reader.generate_training_tasks():
                    for _ in range(job.num_repeat):
                        executor.submit_with_periodic_drain(fn=rollout, task=task)

    Where every run since the last drain (for ``submit``: the last ``2 × max_parallel`` in a row, at least 8) failed
    by the user's code, found no server, or left its episode without a result, the first such exception is raised in the
    submitting thread; and at the end, where no run at all succeeded.
    """

    def __init__(
        self,
        workers: int = 100,
        max_parallel: int | None = 64,
        auto_retry: bool = True,
        block_first_run: bool = False,
        *,
        max_run_s: float | None = 4 * 3600,
    ) -> None:
        if workers < 1 or (max_parallel is not None and max_parallel < 1):
            raise ValueError("workers and max_parallel are at least 1")
        self.workers = workers
        self.max_parallel = workers if max_parallel is None else max_parallel
        self.auto_retry = auto_retry
        self._block_next = block_first_run
        self._max_run_s = max_run_s
        self._changed = threading.Condition()
        self._running: set[_Run] = set()
        self._batch: list[_Run] = []
        self._finished = threading.Event()
        self._stopped = threading.Event()
        self._fatal: BaseException | None = None
        self._streak: list[_Run] = []
        self._counts: Counter[str] = Counter()
        self._log = ErrorLog()
        _call_at_exit(self)

    # ── for users ────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def finished(self) -> bool:
        """Whether the server said that training is finished."""
        return self._finished.is_set()

    @property
    def stats(self) -> dict[str, int]:
        """Runs by outcome, retries, episodes left open, runs that hung."""
        with self._changed:
            return dict(self._counts)

    def submit(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        """Start ``fn`` as soon as a place is free, without any barrier.

        Raises:
            TrainingFinished: training is finished (as :class:`~ajet.client.StopTraining`).
            EngineFailed, InvalidKey, Forbidden: no run can succeed.
        """
        limit = max(8, 2 * self.max_parallel)
        with self._changed:
            streak = self._streak[:] if len(self._streak) >= limit else []
        self._raise_if_all_failed(streak)
        return self._start(fn, args, kwargs).future

    def submit_with_periodic_drain(
        self, fn: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> tuple[Future[Any], list[Any]]:
        """As :meth:`submit`, and after every ``workers`` submissions wait for all.

        Returns:
            The future, and on a drain the results of the submissions since the last one, in order, None for those
            that failed; else [].
        """
        run = self._start(fn, args, kwargs)
        self._batch.append(run)
        results = self.drain() if len(self._batch) >= self.workers else []
        return run.future, results

    def drain(self) -> list[Any]:
        """Wait for all runs. Returns as :meth:`submit_with_periodic_drain` does on a drain."""
        self._wait(lambda: not self._running or self.finished)
        if self.finished:
            self._wind_down()
        batch, self._batch = self._batch, []
        self._raise_if_fatal()
        self._raise_if_all_failed(batch)
        return [None if run.future.exception() is not None else run.future.result() for run in batch]

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for all runs, or (``wait=False``) abort what they play and leave."""
        if not wait or cancel_futures:
            self._stop("the executor was shut down")
            return
        if not self._stopped.is_set():
            try:
                self.drain()
                if not self.finished and not self._counts[Outcome.SUCCEEDED.value]:
                    self._raise_if_all_failed(self._streak)
            finally:
                self._log.summary()
                self._stopped.set()

    def __enter__(self) -> PeriodicDrainThreadPoolExecutor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if error is None:
            self.shutdown(wait=True)
            return False
        if isinstance(error, TrainingFinished):
            self._finished.set()
            self._wind_down()
            self._log.summary()
            self._stopped.set()
            return True
        self._stop(f"the script ended: {type(error).__name__}")
        return False

    # ── the submitting thread ────────────────────────────────────────────────────────────────────────────────────────

    def _start(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Run:
        self._wait(lambda: len(self._running) < self.max_parallel or self.finished or self._fatal is not None)
        self._raise_if_fatal()
        if self.finished:
            self._wind_down()
            raise StopTraining()
        if self._stopped.is_set():
            raise RuntimeError("this executor was shut down; make a new one")
        run = _Run(fn, args, kwargs)
        run.future.set_running_or_notify_cancel()
        if self._max_run_s is not None:
            run.deadline = time.monotonic() + self._max_run_s
        with self._changed:
            self._running.add(run)
        context = copy_context()
        threading.Thread(target=context.run, args=(self._work, run), name="ajet-rollout", daemon=True).start()
        if self._block_next:
            self._block_next = False
            self._wait(lambda: run not in self._running)
            self._raise_if_fatal()
            self._raise_if_all_failed([run])
        return run

    def _wait(self, condition: Callable[[], bool]) -> None:
        """Wait until ``condition`` holds; meanwhile give up on runs that hang. Ctrl-C stops the executor."""
        try:
            while True:
                with self._changed:
                    if condition():
                        return
                    deadlines = [run.deadline for run in self._running if run.deadline is not None]
                    left = max(0.0, min(deadlines) - time.monotonic()) if deadlines else DEAF_S
                    self._changed.wait(min(left, DEAF_S))
                    now = time.monotonic()
                    hung = [run for run in self._running if run.deadline is not None and run.deadline <= now]
                for run in hung:
                    self._give_up(run)
        except KeyboardInterrupt:
            self._stop("interrupted by the user")
            raise

    def _give_up(self, run: _Run) -> None:
        run.given_up = True
        error = InfrastructureFault(f"The run took longer than {self._max_run_s:g} s and was given up.")
        self._settle(run, Outcome.WEATHER, error=error, counted="hung")
        run.scope.close("worker hung: it took longer than the executor's max_run_s")

    def _raise_if_fatal(self) -> None:
        if self._fatal is not None:
            self._stop(f"no run can succeed: {type(self._fatal).__name__}")
            raise self._fatal

    def _raise_if_all_failed(self, runs: list[_Run]) -> None:
        if runs and all(run.outcome in _HOPELESS for run in runs):
            self._stop("every run failed")
            raise runs[0].error or AjetError(NO_OUTPUT_HINT)

    def _wind_down(self) -> None:
        """Training is finished: give back open training episodes, let eval ones end, wait a little for the threads."""
        deadline = time.monotonic() + FINISH_GRACE_S
        with self._changed:
            runs = list(self._running)
        for run in runs:
            if not run.scope.holds_eval:
                run.scope.close("training is finished", STOP_BUDGET_S)
        try:
            with self._changed:
                while self._running:
                    waits_for_eval = any(run.scope.holds_eval for run in self._running)
                    left = DEAF_S if waits_for_eval else deadline - time.monotonic()
                    if left <= 0:
                        break
                    self._changed.wait(min(left, DEAF_S))
                late = list(self._running)
        except KeyboardInterrupt:
            self._stop("interrupted by the user")
            raise
        for run in late:
            run.given_up = True
            self._settle(run, Outcome.FINISHED, error=StopTraining())

    def _stop(self, reason: str) -> None:
        """Leave at once: abort what is open (for two seconds at most), wait for nothing."""
        self._stopped.set()
        with self._changed:
            runs = list(self._running)
            self._changed.notify_all()
        deadline = time.monotonic() + STOP_BUDGET_S
        for run in runs:
            run.given_up = True
            run.scope.close(reason, max(0.0, deadline - time.monotonic()))
            self._settle(
                run,
                Outcome.WEATHER,
                error=InfrastructureFault(f"The run was abandoned: {reason}."),
                counted="abandoned",
            )
        self._log.summary()

    # ── the worker's thread ──────────────────────────────────────────────────────────────────────────────────────────

    def _work(self, run: _Run) -> None:
        for attempt in range(MAX_RETRIES + 1):
            current_scope.set(run.scope)
            result, error, outcome = None, None, Outcome.SUCCEEDED
            try:
                result = run.fn(*run.args, **run.kwargs)
            except BaseException as err:  # the boundary of a run: judged, shown, counted, and kept in the future
                error, outcome = err, outcome_of(err)
            if run.given_up:
                return
            reason = f"{type(error).__name__}: {error}"[:500] if error is not None else "left open: the worker returned"
            left = run.scope.close(reason)
            if run.scope.finished or outcome is Outcome.FINISHED:
                outcome = Outcome.FINISHED
                error = error or StopTraining()
            elif left and error is None:
                self._count("left_open", len(left))
                self._log.tell_once(
                    "left open", f"a rollout returned without ending its episode {left[0]}; it was aborted"
                )
            again = outcome in (Outcome.WEATHER, Outcome.UNREACHABLE) and self.auto_retry and attempt < MAX_RETRIES
            if not again or self.finished or self._stopped.is_set():
                break
            self._count("retried")
            if error is not None:
                self._log.tell_once(
                    type(error).__name__, f"running a rollout again after {type(error).__name__}: {error}"
                )
            delay = random.uniform(0.5, 1.0) * min(LONGEST_RETRY_S, FIRST_RETRY_S * 4**attempt)
            self._stopped.wait(delay)
            with self._changed:
                if run.given_up or self._stopped.is_set() or self.finished:
                    break
                run.scope = WorkerScope()
                if self._max_run_s is not None:
                    run.deadline = time.monotonic() + self._max_run_s
        if outcome is Outcome.BUG and error is not None:
            self._log.show(error)
        if outcome is Outcome.SUCCEEDED and run.scope.without_output and not run.scope.reported:
            outcome = Outcome.NO_OUTPUT
        self._settle(run, outcome, result=result, error=error)

    def _settle(
        self, run: _Run, outcome: Outcome, *, result: Any = None, error: BaseException | None = None, counted: str = ""
    ) -> None:
        with self._changed:
            if run.outcome is not None:
                return
            run.outcome, run.error = outcome, error
            self._running.discard(run)
            self._counts[counted or outcome.value] += 1
            if outcome is Outcome.FINISHED:
                self._finished.set()
            elif outcome is Outcome.FATAL:
                self._fatal = self._fatal or error
            elif outcome is Outcome.SUCCEEDED:
                self._streak.clear()
            elif outcome in _HOPELESS:
                self._streak.append(run)
            self._changed.notify_all()
        if error is not None:
            run.future.set_exception(error)
        else:
            run.future.set_result(result)

    def _count(self, name: str, by: int = 1) -> None:
        with self._changed:
            self._counts[name] += by


def _call_at_exit(executor: PeriodicDrainThreadPoolExecutor) -> None:
    """A script that ends without ``shutdown`` still gets its last runs played, unless it ends by an exception.

    ``threading._register_atexit`` runs before the standard executors stop working (asyncio needs one to resolve names).
    """
    reference = weakref.ref(executor)

    def at_exit() -> None:
        alive = reference()
        if alive is None or alive._stopped.is_set():
            return
        if alive.finished:
            alive._wind_down()
        elif getattr(sys, "last_value", None) is not None:
            alive._stop("the script ended by an exception")
        else:
            try:
                alive.shutdown(wait=True)
            except KeyboardInterrupt:
                pass
            except Exception as err:  # the process's boundary: the exit code can no longer be changed
                print(f"[ajet] the last rollouts failed: {err!r}", file=sys.stderr)

    register: Callable[[Callable[[], None]], Any] = getattr(threading, "_register_atexit", None) or atexit.register
    register(at_exit)
