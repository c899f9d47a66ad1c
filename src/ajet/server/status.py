"""What the server says of itself: the answer of ``GET /status``, in one place."""

from __future__ import annotations

import math
import time
from pathlib import Path

import ajet
from ajet.pool.filesystem import free_bytes
from ajet.pool.groups import AGREE_RULES, GroupPool
from ajet.pool.journal import Journal
from ajet.schema.status import CheckpointStatus, DiskStatus, LeaseStatus, PoolFill, Status
from ajet.server.activity import activity
from ajet.server.engine import Engine

WHO = 100
"""Clients named at most in one list."""


def served_name(engine: Engine) -> str | None:
    """The model's name as users know it."""
    if engine.job is None:
        return None
    return engine.job.model.served_name or Path(engine.job.model.path).name


def pool_fill(pool: GroupPool) -> PoolFill:
    complete, partial = pool.complete(), pool.partial()
    needed = 1 if pool.rule in AGREE_RULES else pool.batch_size
    return PoolFill(
        rule=pool.rule,
        groups_complete=len(complete),
        groups_partial=len(partial),
        groups_needed=needed,
        groups_non_dummy=sum(not group.equal_rewards for group in complete),
        episodes_finished=len(pool),
        episodes_needed=needed * pool.num_repeat,
        num_repeat=pool.num_repeat,
    )


def _disk(found: DiskStatus, journal: Journal) -> None:
    health = journal.health
    found.error = health.damaged or health.error
    found.ok = found.error is None
    found.path, found.since = str(journal.path.parent), health.since
    found.write_s, found.stalled_s = round(health.write_s, 4), round(health.stalled_s(), 3)
    found.journal_bytes, found.journal_free_bytes = journal.size_bytes(), free_bytes(journal.path.parent)


def status(engine: Engine, top: int = 0) -> Status:
    """A snapshot. Cheap: no file is read but the file system's free space.

    Args:
        top: so many clients and tasks at most in ``activity``; with 0 there is none, and no open episode is looked at.
    """
    experiment = engine.experiment
    found = Status(
        state=engine.state,
        since=engine.since,
        failure=engine.failure,
        last_error=engine.last_error,
        model=served_name(engine),
        warnings=list(engine.warnings),
        speeds=engine.telemetry.speeds(),
        server_version=ajet.__version__,
        started=engine.telemetry.started,
        now=time.time(),
        disk=DiskStatus(
            free_bytes=free_bytes(engine.experiment.folder if engine.experiment else engine.settings.exp_dir)
        ),
    )
    if engine.job is not None:
        found.total_steps = engine.job.trainer_common.total_training_steps
        found.experiment = engine.job.experiment_name
    if engine.info is not None:
        info = engine.info
        found.backbone = {"device": info.device, "parameters": info.parameters, "vocab_size": info.vocab_size}
    if experiment is None:
        return found
    found.experiment_dir = str(experiment.folder)
    found.step = found.policy_version = experiment.step
    found.batch_step = experiment.batch_step
    found.checkpoint = CheckpointStatus(
        step=experiment.checkpoint_step,
        path=experiment.checkpoint_path,
        error=experiment.checkpoint_error,
        since=experiment.checkpoint_refused_since,
        refused=experiment.checkpoints_refused,
        wanted_bytes=experiment.checkpoint_wanted_bytes,
    )
    _disk(found.disk, experiment.journal)
    found.metrics = {
        k: float(v)
        for k, v in experiment.last_metrics.items()
        if isinstance(v, (int, float)) and math.isfinite(v) and k != "time"
    }
    found.trackers = experiment.trackers.status()
    if experiment.pool is not None:
        found.pool = pool_fill(experiment.pool)
    registry = experiment.registry
    if registry is not None:
        leases = registry.leases
        found.leases = LeaseStatus(
            open_train=leases.open("train"),
            open_eval=leases.open("eval"),
            waiting_train=leases.waiting("train"),
            waiting_eval=leases.waiting("eval"),
            capacity=leases.capacity,
            clients=leases.clients(),
        )
        found.drops = registry.tally("drop")
        found.eval = registry.evals.report()
        found.held = registry.tally("held")
        sharing = registry.sharing
        found.shares = sharing.view()
        if sharing.agree_rule:
            upcoming = experiment.batch_step + 1
            found.agreed = sharing.roster.agreements(upcoming)[:WHO]
            found.not_agreed = sharing.not_agreed(upcoming)[:WHO]
        found.dropped_tokens = registry.tally("tokens")
        if top:
            found.activity = activity(registry.open.values(), registry.pool, top, registry.clock.lease_time())
    return found
