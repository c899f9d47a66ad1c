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
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ajet.backbone.protocol import Backbone, BackboneDied, BackboneInfo
from ajet.default_config.load import job_diff
from ajet.default_config.schema import AjetConfig
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
from ajet.server.cycle import Cycle
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
MAX_WARNINGS = 20


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
        self.leaving = False
        """Whether the server was told to go: who waits for a change of state need wait no longer."""
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

    def enter(self, state: EngineState) -> None:
        """Change the state, and tell whoever waits for it."""
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
    def stopping(self) -> bool:
        """Whether it was told to stop."""
        return self._stop

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
                    f"The engine is {self.state} with another job (they differ in {', '.join(list(diff)[:8])}). Use that "
                    "job, or end it first: `ajet-swarm stop`, or auto_sync_train_config_and_start_engine(job, "
                    "force_restart=True).",
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
            if self.state is S.FAILED and self._task is not None:
                await asyncio.wait([self._task])  # it lets go of what it had
            if self.state is S.STOPPING or (self._task is not None and not self._task.done()):
                raise EngineStateConflict("The engine is stopping. Wait until it is OFFLINE, then start it.")
            check_machine(self.job)
            self.warnings = []
            self.experiment = await Experiment.open(
                self.job,
                self.settings.exp_dir,
                events=self.events,
                changed=self.changed,
                make_store=self._make_store,
                warn=self.warn,
            )
            if self.on_open is not None:
                self.on_open(self.experiment.folder)
            await self._mark_running(True)
            self._stop = self.tearing_down = False
            self.failure = self.last_error = self.waits_for_disk = None
            self.resuming = False
            self.enter(S.BOOTING)
            self._task = asyncio.create_task(self._run(self.experiment), name="engine")
            return self.state

    async def stop(self, *, resume_later: bool = False) -> EngineState:
        """Finish the current update, save, and go OFFLINE. ``resume_later``: the next server start goes on by itself."""
        if not resume_later:
            await self._mark_running(False)
        self.resuming, self.waits_for_disk = False, None
        if self.state is S.FAILED:
            self.enter(S.OFFLINE)
        if self.state in RUNNING:
            self._stop = True
            if self.experiment is not None:
                self.experiment.giving_up = True
            self.enter(S.STOPPING)
        return self.state

    def leave(self) -> None:
        """Let those who wait for a change of state go; the server will not last."""
        self.leaving = True
        self.changed.fire()

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

    async def _mark_running(self, running: bool) -> None:
        try:
            await asyncio.to_thread(note_running, self.settings.data_dir, self.job, running)
        except OSError as err:
            self.warn(f"The server could not note what it runs ({err}); after a crash, start the engine by hand.")

    # ── the engine's task ────────────────────────────────────────────────────────────────────────────────────────

    async def _run(self, experiment: Experiment) -> None:
        deaths = reached = 0
        stop_after = S.OFFLINE
        try:
            while not self._stop:
                # A death while steps are re-applied leaves fewer of them done; that is no progress of the next backbone.
                reached = max(reached, experiment.step)
                try:
                    await self._live(experiment)
                except BackboneDied as err:
                    deaths = 1 if experiment.step > reached else deaths + 1
                    self.last_error = f"The backbone died: {err}"
                    log.error("the backbone died (%d of %d): %s", deaths, self.settings.limits.backbone_deaths, err)
                    self.telemetry.count("backbone/deaths")
                    if deaths >= self.settings.limits.backbone_deaths:
                        raise EngineFailed(
                            f"The backbone died {deaths} times without a step in between. Cause: {err}"
                        ) from err
                    await self._drop_backbone()
                    if not self._stop:
                        self.enter(S.BOOTING)
                        pause = min(
                            self.settings.limits.backoff_s * 2 ** (deaths - 1), self.settings.limits.backoff_max_s
                        )
                        await self.changed.wait_until(lambda: self._stop, pause)
        except asyncio.CancelledError:
            log.warning("the engine was cancelled")
        except Exception as err:
            if self._stop and isinstance(err, DiskRefused):
                self.last_error = (
                    f"Stopped while the disk refused writes; the next start makes up for it. {err.message}"
                )
                log.warning("%s", self.last_error)
                return
            self.failure = err.message if isinstance(err, AjetError) else f"{type(err).__name__}: {err}"
            self.last_error = self.failure
            log.error("the engine failed: %s", self.failure, exc_info=not isinstance(err, AjetError))
            stop_after = S.FAILED
        finally:
            # Waiting requests learn the end before the experiment goes.
            self.tearing_down = True
            if stop_after is S.FAILED:
                self.enter(S.FAILED)
            await self._drop_backbone()
            await experiment.close()
            self.enter(stop_after)
            self.changed.fire()

    async def _drop_backbone(self) -> None:
        backbone, self.backbone = self.backbone, None
        if backbone is not None:
            await self._close_quietly(backbone)

    async def _live(self, experiment: Experiment) -> None:
        """One backbone's life: boot, collect and update until stopped. Raises :class:`BackboneDied`."""
        if experiment.registry is None:
            renderer = await asyncio.to_thread(self._make_renderer, experiment.config)
            await experiment.restore(renderer, may_grant=self.may_grant, version=lambda: self.version)
            self.changed.fire()
        backbone = self._make_backbone(experiment.config)
        try:
            info = await self._boot(backbone, experiment.backbone_job())
            if info is None:
                await self._close_quietly(backbone)
                return
            self.info = info
            for warning in await experiment.note_machine(self.info):
                self.warn(warning)
            for warning in await training.replay(experiment, backbone):
                self._divergence(warning)
            await backbone.load_weights(experiment.step)
        except BaseException:
            await self._close_quietly(backbone)
            raise
        self.backbone = backbone
        died = asyncio.create_task(backbone.wait_died())
        died.add_done_callback(lambda _: self.changed.fire())
        try:
            await Cycle(self, experiment, backbone, died).run()
        finally:
            died.cancel()

    async def _boot(self, backbone: Backbone, job: dict[str, Any]) -> BackboneInfo | None:
        """Load the model, which may take minutes. None: the engine was told to stop meanwhile, and does not wait for it."""
        booting = asyncio.create_task(backbone.start(job))
        told = asyncio.create_task(self.changed.wait_until(lambda: self._stop, None))
        try:
            await asyncio.wait((booting, told), return_when=asyncio.FIRST_COMPLETED)
            return booting.result() if booting.done() else None
        finally:
            booting.cancel()
            told.cancel()
            await asyncio.gather(booting, told, return_exceptions=True)

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
