"""The engine's life cycle: ``OFFLINE → BOOTING → ROLLING ⇄ UPDATING → FINISHED``, with ``FAILED`` and ``STOPPING``.

Promises:

- One task runs an engine from start to stop; every change of state fires :attr:`Engine.changed` and an event.
- A backbone that dies is started anew with back-off, from checkpoint and journal; requests wait meanwhile. After
  ``limits.backbone_deaths`` deaths without a finished step in between the state is FAILED, with the cause.
- ``start`` and ``stop`` are idempotent and return at once.
- A server that was killed, or stopped by a signal, resumes what was running when it is started again.

Used on the event loop only.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ajet.backbone.protocol import Backbone, BackboneDied, BackboneInfo
from ajet.default_config.load import job_diff
from ajet.default_config.schema import AjetConfig
from ajet.pool.reasons import DropReason
from ajet.pool.records import BatchFormed
from ajet.schema.errors import (
    AjetError,
    DiskRefused,
    EngineFailed,
    EngineStateConflict,
    EngineUnavailable,
    JobConflict,
    TrainingFinished,
)
from ajet.schema.wire import EngineState, EpisodeKind
from ajet.server import training
from ajet.server.events import Events, Signal
from ajet.server.experiment import Experiment
from ajet.server.jobs import check_machine, note_running, running_job, validated
from ajet.server.registry import Registry
from ajet.server.settings import ServerSettings
from ajet.server.telemetry import Telemetry
from ajet.trajectory import ChatRenderer

log = logging.getLogger("ajet.engine")

S = EngineState
SERVING = frozenset({S.ROLLING, S.FINISHED})
RUNNING = frozenset({S.BOOTING, S.ROLLING, S.UPDATING, S.FINISHED})
SAVE_RETRY_S = 2.0
MAX_WARNINGS = 20
_NOTHING = (
    "Step {step} found nothing to train: no token of its episodes is within the limits, so they were dropped and others "
    "are collected. Tokens left out so far: {tokens}. See data.max_prompt_length, data.max_response_length and "
    "swarm.max_policy_lag."
)


class Engine:
    """See the module.

    Args:
        backbone_factory: resolved configuration → a new, not yet started backbone.
        renderer_factory: resolved configuration → the model's renderer; runs in a thread.
        make_store: (directory, keep_last=, keep_best=) → checkpoint store.
    """

    def __init__(
        self,
        settings: ServerSettings,
        *,
        events: Events,
        telemetry: Telemetry,
        backbone_factory: Callable[[AjetConfig], Backbone],
        renderer_factory: Callable[[AjetConfig], ChatRenderer],
        make_store: Callable[..., Any],
    ) -> None:
        self.settings = settings
        self.events = events
        self.telemetry = telemetry
        self.changed = Signal()
        self.state = S.OFFLINE
        self.since = time.time()
        self.job: AjetConfig | None = None
        self.failure: str | None = None
        self.last_error: str | None = None
        self.warnings: list[str] = []
        self.experiment: Experiment | None = None
        self.backbone: Backbone | None = None
        self.info: BackboneInfo | None = None
        self.tearing_down = False
        self.resuming = False
        """Whether what ran before the server went away is to be started again."""
        self.waits_for_disk: str | None = None
        """What the disk said when the experiment could not be opened; it is tried again."""
        self.on_open: Callable[[Path], None] | None = None
        """Told the experiment's folder each time one is opened (the process logs into it)."""
        self._make_backbone = backbone_factory
        self._make_renderer = renderer_factory
        self._make_store = make_store
        self._task: asyncio.Task[None] | None = None
        self._stop = False
        self._starting = asyncio.Lock()

    # ── state ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _set(self, state: EngineState) -> None:
        if state is self.state:
            return
        log.info("engine %s → %s", self.state, state)
        self.state, self.since = state, time.time()
        self.events.emit("state", state=str(state), failure=self.failure)
        registry = self.experiment.registry if self.experiment else None
        if registry is not None:
            if state is S.FINISHED:
                registry.admission.refuse_waiting(("train",), self.finished_error)
            if state is S.FAILED:
                failed = EngineFailed(f"The engine failed: {self.failure}")
                registry.admission.refuse_waiting(("train", "eval"), lambda: failed)
            registry.admission.pump()
        self.changed.fire()

    def warn(self, message: str) -> None:
        """Say it in the log, in the status and as an event."""
        log.warning("%s", message)
        head = message.partition(" for ")[0]
        others = [w for w in self.warnings if w.partition(" for ")[0] != head]
        self.warnings = [*others[-MAX_WARNINGS + 1 :], message]
        self.events.emit("warning", message=message)

    def finished_error(self) -> TrainingFinished:
        return TrainingFinished(
            f"Training is finished: {self.version} of {self.version} steps are done. Eval episodes are still served."
        )

    @property
    def version(self) -> int:
        return self.experiment.step if self.experiment else 0

    def may_grant(self, kind: EpisodeKind) -> bool:
        return self.state is S.ROLLING or (kind == "eval" and self.state is S.FINISHED)

    async def wait_backbone(self, timeout_s: float) -> tuple[Experiment, Backbone]:
        """The serving experiment and backbone, waiting through updates, boots and restarts.

        Raises:
            EngineUnavailable: not serving within ``timeout_s``, or nothing is about to serve.
            EngineFailed: it gave up. DiskRefused: see :meth:`check_disk`.
        """
        self.check_disk()
        if self.state not in SERVING or self.backbone is None:
            await self.changed.wait_until(
                lambda: (self.state in SERVING and self.backbone is not None) or self.state in (S.OFFLINE, S.FAILED),
                timeout_s,
            )
        if self.state is S.FAILED:
            raise EngineFailed(f"The engine failed: {self.failure}")
        if self.state not in SERVING or self.backbone is None or self.experiment is None:
            raise EngineUnavailable(f"The engine is {self.state}; try again when it is ROLLING.")
        return self.experiment, self.backbone

    async def wait_registry(self, timeout_s: float) -> Registry:
        """The open episodes, as soon as they are known. Raises as :meth:`wait_backbone` does."""

        def known() -> bool:
            return self.experiment is not None and self.experiment.registry is not None

        self.check_disk()
        if not known():
            await self.changed.wait_until(lambda: known() or self.state in (S.OFFLINE, S.FAILED), timeout_s)
        if self.experiment is not None and self.experiment.registry is not None and not self.tearing_down:
            return self.experiment.registry
        if self.state is S.FAILED:
            raise EngineFailed(f"The engine failed: {self.failure}")
        raise EngineUnavailable(f"The engine is {self.state}; keep the result and try again when it is ROLLING.")

    # ── orders ───────────────────────────────────────────────────────────────────────────────────────────────────

    def put_job(self, tree: dict[str, Any]) -> bool:
        """Set the job; True where that changed it.

        Raises:
            ConfigError: the tree is not valid.
            JobConflict: an engine runs another job; ``details['diff']`` says where they differ.
        """
        config = validated(tree, self.settings.exp_dir)
        if self.job is not None and self.state not in (S.OFFLINE, S.FAILED):
            diff = job_diff(self.job, config)
            if diff:
                raise JobConflict(
                    f"The engine is {self.state} with another job (they differ in {', '.join(list(diff)[:8])}). Use the "
                    "running one, or stop the engine first (force_restart=True).",
                    details={"diff": diff},
                )
            return False
        changed = self.job is None or self.job != config
        self.job = config
        return changed

    async def start(self) -> EngineState:
        """Begin to boot. A running engine is left alone.

        Raises:
            EngineStateConflict: no job is set, or the engine is just stopping.
            ConfigError, JobConflict, DiskRefused: the experiment cannot be opened.
        """
        async with self._starting:
            if self.state in RUNNING:
                return self.state
            if self.job is None:
                raise EngineStateConflict("No job is set. Send it with PUT /swarm/v1/job first.")
            if self.state is S.STOPPING or (self._task is not None and not self._task.done()):
                raise EngineStateConflict("The engine is stopping. Wait until it is OFFLINE, then start it.")
            check_machine(self.job)
            self.experiment = await Experiment.open(
                self.job, self.settings.exp_dir, events=self.events, changed=self.changed, make_store=self._make_store
            )
            if self.on_open is not None:
                self.on_open(self.experiment.folder)
            self._mark_running(True)
            self._stop = self.tearing_down = False
            self.failure = self.last_error = self.waits_for_disk = None
            self.resuming = False
            self.warnings = []
            self._set(S.BOOTING)
            self._task = asyncio.create_task(self._run(self.experiment), name="engine")
            return self.state

    async def stop(self, *, resume_later: bool = False) -> EngineState:
        """Finish the current update, save, and go OFFLINE. ``resume_later``: the next server start goes on by itself."""
        if not resume_later:
            self._mark_running(False)
        self.resuming, self.waits_for_disk = False, None
        if self.state is S.FAILED:
            self._set(S.OFFLINE)
        if self.state in RUNNING:
            self._stop = True
            self._set(S.STOPPING)
        return self.state

    async def wait_stopped(self) -> None:
        """Return when no engine task is left."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def resume(self) -> bool:
        """Set the job of the experiment that was running when the server went away, if one was; then call start."""
        job = running_job(self.settings.data_dir)
        if job is not None:
            self.job = job
            self.resuming = True
        return self.resuming

    def check_disk(self) -> None:
        """Raises :class:`DiskRefused` while the experiment waits for its disk before it can be opened."""
        if self.waits_for_disk is not None:
            raise DiskRefused(self.waits_for_disk)

    def _mark_running(self, running: bool) -> None:
        try:
            note_running(self.settings.data_dir, self.job, running)
        except OSError as err:
            self.warn(f"The server could not note what it runs ({err}); after a crash, start the engine by hand.")

    # ── the engine's task ────────────────────────────────────────────────────────────────────────────────────────

    async def _run(self, experiment: Experiment) -> None:
        deaths = 0
        stop_after = S.OFFLINE
        try:
            while not self._stop:
                progress = experiment.step
                try:
                    await self._live(experiment)
                except BackboneDied as err:
                    deaths = 1 if experiment.step > progress else deaths + 1
                    self.last_error = f"The backbone died: {err}"
                    log.error("the backbone died (%d of %d): %s", deaths, self.settings.limits.backbone_deaths, err)
                    self.telemetry.count("backbone/deaths")
                    if deaths >= self.settings.limits.backbone_deaths:
                        raise EngineFailed(
                            f"The backbone died {deaths} times without a step in between. Cause: {err}"
                        ) from err
                    await self._drop_backbone()
                    if not self._stop:
                        self._set(S.BOOTING)
                        pause = min(
                            self.settings.limits.backoff_s * 2 ** (deaths - 1), self.settings.limits.backoff_max_s
                        )
                        await self.changed.wait_until(lambda: self._stop, pause)
        except asyncio.CancelledError:
            log.warning("the engine was cancelled")
        except Exception as err:
            self.failure = err.message if isinstance(err, AjetError) else f"{type(err).__name__}: {err}"
            self.last_error = self.failure
            log.error("the engine failed: %s", self.failure, exc_info=not isinstance(err, AjetError))
            stop_after = S.FAILED
        finally:
            # Waiting requests learn the end before the experiment goes.
            self.tearing_down = True
            if stop_after is S.FAILED:
                self._set(S.FAILED)
            await self._drop_backbone()
            await experiment.close()
            self._set(stop_after)
            self.changed.fire()

    async def _drop_backbone(self) -> None:
        backbone, self.backbone = self.backbone, None
        if backbone is not None:
            try:
                await asyncio.wait_for(backbone.close(), 30)
            except Exception as err:
                log.warning("the backbone could not be closed: %r", err)

    async def _live(self, experiment: Experiment) -> None:
        """One backbone's life: boot, collect and update until stopped. Raises :class:`BackboneDied`."""
        if experiment.registry is None:
            renderer = await asyncio.to_thread(self._make_renderer, experiment.config)
            await experiment.restore(renderer, may_grant=self.may_grant, version=lambda: self.version)
            self.changed.fire()
        backbone = self._make_backbone(experiment.config)
        try:
            self.info = await backbone.start(experiment.backbone_job())
            changed = await experiment.note_threads(self.info.threads)
            if changed:
                self.warn(changed)
            for warning in await training.replay(experiment, backbone):
                self._divergence(warning)
        except BaseException:
            await self._close_quietly(backbone)
            raise
        self.backbone = backbone
        died = asyncio.create_task(backbone.wait_died())
        died.add_done_callback(lambda _: self.changed.fire())
        try:
            await self._train(experiment, backbone, died)
        finally:
            died.cancel()

    @staticmethod
    async def _close_quietly(backbone: Backbone) -> None:
        try:
            await asyncio.wait_for(backbone.close(), 30)
        except Exception as err:
            log.warning("the backbone could not be closed: %r", err)

    def _divergence(self, warning: str) -> None:
        if warning.startswith("DIVERGENCE"):
            self.last_error = warning
            self.telemetry.count("divergences")
            log.error("%s", warning)
        self.warn(warning)

    async def _train(self, experiment: Experiment, backbone: Backbone, died: asyncio.Task[BackboneDied]) -> None:
        config = experiment.config
        total = config.trainer_common.total_training_steps
        unsaved = experiment.step != (experiment.checkpoint_step or 0)
        while experiment.step < total and not self._stop:
            self._set(S.ROLLING)
            began = time.monotonic()
            collected = await self._collect(experiment, died)
            if collected is None:
                break
            collect_s = time.monotonic() - began
            warnings = await training.train(experiment, backbone, *collected, collect_s=collect_s)
            self.telemetry.trained_tokens += int(experiment.last_metrics.get("tokens/trained", 0))
            if not warnings:
                self.warnings = [w for w in self.warnings if not w.startswith(("Every group of tag", "Step "))]
            for warning in warnings:
                self.warn(warning)
            await backbone.load_weights(experiment.step)
            experiment.over = experiment.step >= total
            unsaved = True
            if experiment.over or experiment.step % config.trainer_common.save_freq == 0 or experiment.checkpoint_error:
                unsaved = not await self._save(experiment, backbone, must=experiment.over, died=died)
        if unsaved and experiment.step:
            if not self._stop:
                self._set(S.UPDATING)
            await self._save(experiment, backbone, must=True, died=died)
        if self._stop:
            return
        experiment.over = True
        await self._finished(experiment, died)

    async def _collect(
        self, experiment: Experiment, died: asyncio.Task[BackboneDied]
    ) -> tuple[BatchFormed, training.Built] | None:
        """The next batch, fixed in the journal; None when the engine is to stop. Leaves the state UPDATING."""
        pool = experiment.pool
        assert pool is not None
        while True:
            if died.done():
                raise died.result()
            if self._stop:
                return None
            now = time.monotonic()
            drops = pool.sweep(experiment.step, now)
            batch = pool.take()
            if drops:
                await experiment.drop(drops)
            if batch is not None:
                self._set(S.UPDATING)
                formed = await training.form(experiment, batch)
                if formed is not None:
                    return formed
                self.warn(_NOTHING.format(step=experiment.step + 1, tokens=experiment.registry.tally("tokens")))  # type: ignore[union-attr]
                self._set(S.ROLLING)
                continue
            if drops:
                continue
            size, deadline = len(pool), pool.next_deadline()
            wait = None if deadline is None else max(0.05, deadline - now)
            await self.changed.wait_until(lambda n=size: died.done() or self._stop or len(pool) != n, wait)

    async def _save(
        self, experiment: Experiment, backbone: Backbone, *, must: bool, died: asyncio.Task[BackboneDied]
    ) -> bool:
        """Save; where the disk refuses and the checkpoint ``must`` exist, try until it does."""
        while not await training.save(experiment, backbone, self.info.parameters if self.info else None):
            self.last_error = f"Checkpoint: {experiment.checkpoint_error}"
            if not must:
                return False
            await self.changed.wait_until(died.done, SAVE_RETRY_S)
            if died.done():
                raise died.result()
        if self.last_error and self.last_error.startswith("Checkpoint:"):
            self.last_error = None
        return True

    async def _finished(self, experiment: Experiment, died: asyncio.Task[BackboneDied]) -> None:
        """Serve on after the last step; results that still come are counted and not trained."""
        pool = experiment.pool
        assert pool is not None
        self._set(S.FINISHED)
        while not self._stop:
            drops = pool.drain(DropReason.TRAINING_FINISHED)
            if drops:
                await experiment.drop(drops)
                continue
            await self.changed.wait_until(lambda: died.done() or self._stop or len(pool) > 0, None)
            if died.done():
                raise died.result()

    def data_free_bytes(self) -> int | None:
        """Free space where the experiment lies."""
        try:
            folder: Path = self.experiment.folder if self.experiment else self.settings.exp_dir
            stat = os.statvfs(folder)
            return stat.f_bavail * stat.f_frsize
        except OSError:
            return None
