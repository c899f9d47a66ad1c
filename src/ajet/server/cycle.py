"""One backbone's work: collect a batch, train it, save when due, and again, until the last step or a stop.

Promises:

- A batch is fixed in the journal before it is trained, and what is dropped on the way is on record with its reason.
- Whenever the backbone dies the cycle ends with :class:`BackboneDied`, at once and in no half state: the engine starts
  another one, which continues from checkpoint and journal.
- The last step is followed by a checkpoint, however long the disk refuses it; only a stop ends the waiting, and then the
  journal has what the next start needs.

Used by :class:`ajet.server.engine.Engine` only, on its event loop.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from ajet.backbone.protocol import Backbone, BackboneDied
from ajet.pool.disk_health import SLOW_S
from ajet.pool.groups import GroupPool
from ajet.pool.records import BatchFormed
from ajet.schema.drops import DropReason
from ajet.schema.wire import EngineState
from ajet.server import training
from ajet.server.experiment import Experiment

if TYPE_CHECKING:
    from ajet.server.engine import Engine

S = EngineState
SAVE_RETRY_S = 2.0
_NOTHING = (
    "Step {step} found nothing to train: no token of its episodes is within the limits, so they were dropped and others "
    "are collected. Tokens left out so far: {tokens}. See data.max_prompt_length, data.max_response_length and "
    "swarm.max_policy_lag."
)
SCATTERED = 20
"""Times the groups of a batch; with so many groups begun and none complete, the task ids are hardly meant as they are."""
_SCATTERED = (
    "{n} groups are begun and none is complete: each has a part of the {repeat} episodes (num_repeat) that one task id must "
    "have. Do the episodes of one task share its task_id?"
)


class Cycle:
    """See the module.

    Args:
        backbone: started, and at the policy where the journal ends.
        died: done when the backbone is dead.
    """

    def __init__(
        self, engine: Engine, experiment: Experiment, backbone: Backbone, died: asyncio.Task[BackboneDied]
    ) -> None:
        self._engine = engine
        self._experiment = experiment
        self._backbone = backbone
        self._died = died
        self._scattered = SCATTERED * experiment.config.data.train_batch_size
        """Episodes in the pool from which on it is looked whether they are scattered over too many groups."""

    async def run(self) -> None:
        """Return when the engine is to stop. Raises :class:`BackboneDied`."""
        engine, experiment = self._engine, self._experiment
        config = experiment.config
        total = config.trainer_common.total_training_steps
        unsaved = experiment.step != (experiment.checkpoint_step or 0)
        while experiment.step < total and not engine.stopping:
            engine.enter(S.ROLLING)
            began = time.monotonic()
            collected = await self._collect()
            if collected is None:
                break
            await self._train(*collected, collect_s=time.monotonic() - began)
            experiment.over = experiment.step >= total
            unsaved = True
            if experiment.over or experiment.step % config.trainer_common.save_freq == 0 or experiment.checkpoint_error:
                unsaved = not await self._save(must=experiment.over)
        if unsaved and experiment.step:
            if not engine.stopping:
                engine.enter(S.UPDATING)
            await self._save(must=True)
        if engine.stopping:
            return
        experiment.over = True
        await self._finished()

    async def _collect(self) -> tuple[BatchFormed, training.Built] | None:
        """The next batch, fixed in the journal; None when the engine is to stop. Leaves the state UPDATING."""
        engine, experiment, pool = self._engine, self._experiment, self._experiment.pool
        assert pool is not None
        assert experiment.registry is not None
        registry = experiment.registry
        roster = registry.sharing.roster
        while True:
            self._check()
            if engine.stopping:
                return None
            now = time.monotonic()
            drops = pool.sweep(experiment.step, now)
            batch = pool.take(registry.sharing.moment(), now)
            if drops:
                await experiment.drop(drops)
            if batch is not None:
                engine.enter(S.UPDATING)
                formed = await training.form(experiment, batch)
                if formed is not None:
                    return formed
                engine.warn(_NOTHING.format(step=experiment.step + 1, tokens=registry.tally("tokens")))
                engine.enter(S.ROLLING)
                continue
            if drops:
                continue
            self._warn_of_scattered(pool)
            registry.admission.pump()  # a share that is waited for no longer leaves room to the others
            seen, deadline = (len(pool), roster.changes), pool.next_deadline()
            wait = None if deadline is None else max(0.05, deadline - now)
            await engine.changed.wait_until(
                lambda seen=seen: self._ended_or_stopping() or (len(pool), roster.changes) != seen, wait
            )

    def _warn_of_scattered(self, pool: GroupPool) -> None:
        """Say it once, and again when they are twice as many."""
        if len(pool) < self._scattered:
            return
        self._scattered = 2 * len(pool)
        begun = len(pool.partial())
        if not pool.complete() and begun >= SCATTERED * self._experiment.config.data.train_batch_size:
            self._engine.warn(_SCATTERED.format(n=begun, repeat=self._experiment.config.rollout.num_repeat))

    async def _train(self, formed: BatchFormed, built: training.Built, *, collect_s: float) -> None:
        engine, experiment = self._engine, self._experiment
        warnings = await training.train(experiment, self._backbone, formed, built, collect_s=collect_s)
        engine.telemetry.trained_tokens += int(experiment.last_metrics.get("tokens/trained", 0))
        if not warnings:
            over = ["Every group of tag", "Step "]
            if experiment.journal.health.write_s < SLOW_S:
                over.append("The disk under")
            engine.warnings = [w for w in engine.warnings if not w.startswith(tuple(over))]
        for warning in warnings:
            engine.warn(warning)
        await self._backbone.load_weights(experiment.step)

    async def _save(self, *, must: bool) -> bool:
        """Save; where the disk refuses and the checkpoint ``must`` exist, try until it does or the engine is to stop."""
        engine, experiment = self._engine, self._experiment
        while not await training.save(experiment, self._backbone, engine.info.parameters if engine.info else None):
            engine.last_error = f"Checkpoint: {experiment.checkpoint_error}"
            if not must or engine.stopping:
                return False
            await engine.changed.wait_until(self._ended_or_stopping, SAVE_RETRY_S)
            self._check()
        if engine.last_error and engine.last_error.startswith("Checkpoint:"):
            engine.last_error = None
        return True

    async def _finished(self) -> None:
        """Serve on after the last step; results that still come are counted and not trained."""
        engine, experiment, pool = self._engine, self._experiment, self._experiment.pool
        assert pool is not None
        engine.enter(S.FINISHED)
        experiment.trackers.finish()
        while not engine.stopping:
            drops = pool.drain(DropReason.TRAINING_FINISHED)
            if drops:
                await experiment.drop(drops)
                continue
            await engine.changed.wait_until(lambda: self._ended_or_stopping() or len(pool) > 0, None)
            self._check()

    def _ended_or_stopping(self) -> bool:
        return self._died.done() or self._engine.stopping or self._experiment.journal.health.damaged is not None

    def _check(self) -> None:
        if self._died.done():
            raise self._died.result()
        self._experiment.check_journal()
