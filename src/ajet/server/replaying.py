"""Training a journal again, in one go: what a run did must follow from its records alone.

Starts from the initial model (or, where calls were compacted away, from the oldest checkpoint that suffices), re-applies
every journaled batch under the job that was in force, and compares each step's digest with the one on record. Reads the
journal only; nothing in the experiment's folder is changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ajet.backbone import create_backbone
from ajet.backbone.protocol import Backbone, BackboneInfo
from ajet.checkpoint.store import Checkpoint, CheckpointStore
from ajet.default_config.schema import AjetConfig
from ajet.pool import journal_read
from ajet.pool.lock import hold
from ajet.pool.records import BatchFormed
from ajet.schema.errors import ConfigError, EngineFailed, JournalDamaged
from ajet.server.experiment import DEVICE, THREADS, backbone_job
from ajet.server.jobs import journal_of
from ajet.server.training import build_batch

Progress = Callable[[int, int, bool], None]
"""Called after each step with (step, last step, whether its digest agrees)."""


@dataclass
class Replayed:
    """What came of it.

    Attributes:
        start: step of the checkpoint it began from; 0: the initial model.
        steps: steps re-applied. digest: of the weights after the last one.
        diverged: steps whose digest is not the journal's.
        notes: why they may differ.
    """

    start: int
    steps: int = 0
    digest: str = ""
    diverged: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


async def replay_journal(
    folder: Path,
    *,
    out: Path | None = None,
    progress: Progress = lambda step, last, same: None,
    make_backbone: Callable[[AjetConfig], Backbone] = create_backbone,
) -> Replayed:
    """Re-apply all journaled batches of the experiment in ``folder``.

    Args:
        out: an existing empty directory for the final model and trainer state, or None.

    Raises:
        ConfigError: there is no journal, a server has it open, or it is of another version.
        JournalDamaged: it is not what was written.
        EngineFailed: calls that are needed were compacted away, and no whole checkpoint makes up for them.
        BackboneDied: the backbone died.
    """
    path, home = journal_of(folder)
    with hold(path):
        jobs = await asyncio.to_thread(journal_read.jobs, path)
        if not jobs:
            raise ConfigError(f"The journal {path} holds no job: nothing was trained.")
        recorded = await asyncio.to_thread(journal_read.meta, path)
        done = {step.step: step.digest for step in await asyncio.to_thread(journal_read.steps, path)}
        formed = [b for b in await asyncio.to_thread(journal_read.batches_after, path, 0) if b.step in done]
        if [b.step for b in formed] != list(range(1, len(done) + 1)):
            raise JournalDamaged(f"The journal {path} does not have a batch for each of its {len(done)} steps.")
        checkpoint = await asyncio.to_thread(_start, path, home, formed)
        start = checkpoint.step if checkpoint is not None else 0
        result = Replayed(start)
        backbone: Backbone | None = None
        config: AjetConfig | None = None

        async def boot(config: AjetConfig) -> Backbone:
            started, info = await _boot(make_backbone, config, int(recorded.get(THREADS, 0)), backbone, checkpoint)
            for note in _other_machine(recorded, config, info):
                if note not in result.notes:
                    result.notes.append(note)
            return started

        try:
            for batch in formed[start:]:
                wanted = _in_force(jobs, batch.step)
                if backbone is None or wanted != config:
                    backbone = await boot(wanted)
                    config = wanted
                built = await asyncio.to_thread(build_batch, path, batch, wanted)
                step = await backbone.train_step(built.batch)
                await backbone.load_weights(batch.step)
                result.steps, result.digest = result.steps + 1, step.digest
                if step.digest != done[batch.step]:
                    result.diverged.append(batch.step)
                progress(batch.step, len(formed), step.digest == done[batch.step])
            if backbone is None:
                backbone = await boot(jobs[-1][1])
            if out is not None:
                await backbone.save(str(out))
        finally:
            if backbone is not None:
                await backbone.close()
        return result


def _other_machine(recorded: dict[str, str], config: AjetConfig, info: BackboneInfo) -> list[str]:
    """What computes here and did not there; digests may differ for it."""
    notes = []
    device, threads = recorded.get(DEVICE, info.device), int(recorded.get(THREADS, 0))
    if device != info.device:
        notes.append(f"The run was trained on {device}; this is {info.device}.")
    elif threads and not config.trainer_common.cpu_threads and info.threads != threads:
        notes.append(f"The run was trained with {threads} CPU threads; here {info.threads} compute.")
    return notes


def _in_force(jobs: list[tuple[int, AjetConfig]], step: int) -> AjetConfig:
    """The job that ``step`` was trained under."""
    return [config for after, config in jobs if after < step][-1]


def _start(path: Path, home: Path, formed: list[BatchFormed]) -> Checkpoint | None:
    """Where to begin: None for the initial model, else the oldest whole checkpoint after which nothing is missing."""
    missing = [b.step for b in formed if journal_read.compacted_calls_missing(path, b)]
    if not missing:
        return None
    store = CheckpointStore(home / "checkpoints")
    for checkpoint in store.all():
        if checkpoint.step >= missing[-1] and store.fault(checkpoint.path) is None:
            return checkpoint
    raise EngineFailed(
        f"The calls of step {missing[0]} to {missing[-1]} were removed from the journal, and no whole checkpoint of step "
        f"{missing[-1]} or later is in {home / 'checkpoints'}. Runs with journal.keep: all can be replayed from the start."
    )


def _without_sampler(config: AjetConfig) -> AjetConfig:
    """Nothing is sampled here, and the embedded trainer is the same beside any sampler."""
    if config.backbone != "embedded" or config.rollout.name in ("auto", "embedded"):
        return config
    rollout = config.rollout.model_copy(update={"name": "auto", "sleep_while_training": False})
    return config.model_copy(update={"rollout": rollout})


async def _boot(
    make: Callable[[AjetConfig], Backbone], config: AjetConfig, threads: int, before: Backbone | None,
    checkpoint: Checkpoint | None,
) -> tuple[Backbone, BackboneInfo]:  # fmt: skip
    """A backbone under ``config`` that goes on from ``before``, from ``checkpoint``, or from the initial model."""
    with contextlib.ExitStack() as stack:
        source = str(checkpoint.path) if checkpoint is not None else None
        if before is not None:
            source = stack.enter_context(tempfile.TemporaryDirectory(prefix="ajet-replay-"))
            await before.save(source)
            await before.close()
        config = _without_sampler(config)
        backbone = make(config)
        try:
            info = await backbone.start(backbone_job(config, threads))
            if source is not None:
                await backbone.load(source)
        except BaseException:
            await backbone.close()
            raise
        return backbone, info
