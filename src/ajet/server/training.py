"""From a full pool to the next policy, and from a checkpoint back to where the journal ends.

Order of a step, each on disk before the next: batch fixed → weights updated → step with its digest → metrics →
checkpoint if due. A crash between any two is made good by :func:`replay`: the batch is trained again from the same
journal records, and its digest is compared with the one on record.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ajet.backbone.fingerprint import same_weights
from ajet.backbone.protocol import Backbone, BackboneDied
from ajet.default_config.schema import AjetConfig
from ajet.pool import journal_read
from ajet.pool.groups import Batch, Drop
from ajet.pool.records import BatchFormed, Counted, StepDone
from ajet.schema.drops import DropReason
from ajet.schema.errors import AjetError, DiskRefused, EngineFailed
from ajet.server.experiment import Experiment
from ajet.server.metrics import batch_metrics, lag_histogram
from ajet.trajectory import TrainBatch, build_rows

log = logging.getLogger("ajet.training")
REJECTED = "rejected_off_policy"
"""Tokens that ``rollout_correction`` rejected."""


@dataclass(frozen=True)
class Built:
    """A batch's rows and what they say of themselves."""

    batch: TrainBatch
    dropped_tokens: dict[str, int]
    nothing_to_train: list[str]
    metrics: dict[str, Any]


def build_batch(path: Path, formed: BatchFormed, config: AjetConfig) -> Built:
    """Rows of a journaled batch: the same records give the same rows. Runs in a thread."""
    episodes = journal_read.batch_episodes(path, formed)
    limits = (config.data.max_prompt_length, config.data.max_response_length, config.rollout.max_model_len)
    rows = []
    dropped: Counter[str] = Counter()
    nothing: list[str] = []
    seen_tasks: Counter[str] = Counter()
    label = ""
    for i, episode in enumerate(episodes):
        task = episode.done.body["task"]
        if i % formed.num_repeat == 0:
            seen_tasks[task] += 1
            label = task if seen_tasks[task] == 1 else f"{task}\0{seen_tasks[task]}"
        own, lost = build_rows(
            episode.lease.episode,
            label,
            episode.calls,
            episode.done.body["reward"],
            limits=limits,
            min_version=formed.min_version,
        )
        rows += own
        dropped.update(lost)
        if not own:
            nothing.append(episode.lease.episode)
    trained = sum(row.trained_tokens for row in rows)
    metrics = {
        **batch_metrics(formed, episodes),
        "tokens/trained": trained,
        "policy_lag_tokens": lag_histogram(formed, episodes),
        "dropped_tokens": dict(sorted(dropped.items())),
        "pool/nothing_to_train": len(nothing),
    }
    return Built(TrainBatch(formed.step, rows), dict(dropped), nothing, metrics)


async def form(experiment: Experiment, batch: Batch) -> tuple[BatchFormed, Built] | None:
    """Fix a batch in the journal; from here on it will be trained, whatever happens.

    None where none of its tokens may be trained: such a batch is dropped, and others are collected in its place.
    """
    registry = experiment.registry
    assert registry is not None
    step = experiment.step + 1
    formed = BatchFormed(
        step=step,
        num_repeat=experiment.config.rollout.num_repeat,
        min_version=step - 1 - experiment.config.swarm.max_policy_lag,
        members=tuple((registry.numbers[episode], episode) for episode in batch.episodes),
        created=time.time(),
    )
    built = await asyncio.to_thread(build_batch, experiment.journal.path, formed, experiment.config)
    if not built.batch.rows:
        tokens = registry.count_tokens(built.dropped_tokens)
        await experiment.drop([Drop(episode, DropReason.NOTHING_TO_TRAIN) for episode in batch.episodes], tokens)
        return None
    await experiment.durable(formed, *registry.sharing.settle(batch))
    experiment.batch_step = step
    registry.changed.fire()
    for episode in batch.episodes:
        registry.numbers.pop(episode, None)
    return formed, built


async def train(
    experiment: Experiment,
    backbone: Backbone,
    formed: BatchFormed,
    built: Built,
    *,
    collect_s: float,
    known_digest: str | None = None,
) -> list[str]:
    """Train one batch and put the step on record (where it is not yet). Returns warnings.

    Args:
        known_digest: the digest on record, when this step is re-applied.

    Raises:
        BackboneDied: the batch stays on record and is re-applied after a restart.
    """
    began = time.monotonic()
    warnings: list[str] = []
    result = await backbone.train_step(built.batch)
    digest, metrics = result.digest, {**built.metrics, **result.metrics}
    if known_digest is not None:
        if not same_weights(digest, known_digest):
            warnings.append(
                f"DIVERGENCE at step {formed.step}: re-applying its batch gave weights {digest[:16]}, the journal has "
                f"{known_digest[:16]}. The run goes on from the re-applied weights; it is not the run it was."
            )
        experiment.step, experiment.digest = formed.step, digest
        return warnings
    registry = experiment.registry
    assert registry is not None
    evals = registry.evals.cut()
    metrics |= registry.evals.metrics()
    metrics |= {
        "policy_version": formed.step,
        "time/collect_s": round(collect_s, 3),
        "time/update_s": round(time.monotonic() - began, 3),
        "dropped": registry.tally("drop"),
        "pool/open_episodes": len(registry.open),
    }
    done = StepDone(formed.step, digest, metrics, result.advantages, time.time())
    rejected = int(result.metrics.get("tokens/rejected", 0))
    tokens = registry.count_tokens({**built.dropped_tokens, REJECTED: rejected})
    lost = (
        [Counted(f"drop/{DropReason.NOTHING_TO_TRAIN}", len(built.nothing_to_train))] if built.nothing_to_train else []
    )
    await experiment.durable(done, *tokens, *lost)
    registry.evals.clear(evals)
    for counted in [*tokens, *lost]:
        registry.tallies[counted.name] += counted.by
    experiment.step, experiment.digest = formed.step, digest
    await experiment.write_metrics(done)
    experiment.events.emit("step", step=formed.step, metrics=metrics)
    warnings += experiment.zero_watch.see(metrics)
    return warnings


async def replay(experiment: Experiment, backbone: Backbone) -> list[str]:
    """Load the newest whole checkpoint and re-apply every later batch of the journal. Returns warnings.

    Raises:
        EngineFailed: the journal no longer holds a batch that is needed.
    """
    path = experiment.journal.path
    checkpoint = await asyncio.to_thread(experiment.store.latest_valid)
    warnings: list[str] = []
    start = 0
    if checkpoint is not None:
        info = await backbone.load(str(checkpoint.path))
        start = checkpoint.step
        experiment.note_checkpoint(start, str(checkpoint.path))
        known = await asyncio.to_thread(journal_read.step_digest, path, start)
        if known is None:
            warnings.append(
                f"The checkpoint is of step {start}, and the journal does not have that step: it was lost, or comes from "
                "elsewhere. The run goes on from the checkpoint; episodes that only the lost journal knew are gone."
            )
        elif not same_weights(known, info.digest):
            warnings.append(
                f"DIVERGENCE: the checkpoint of step {start} has weights {info.digest[:16]}, the journal has {known[:16]}."
            )
        experiment.digest = info.digest
    experiment.step = start
    for formed in await asyncio.to_thread(journal_read.batches_after, path, start):
        if formed.step != experiment.step + 1 or await asyncio.to_thread(
            journal_read.compacted_calls_missing, path, formed
        ):
            raise EngineFailed(
                f"The newest whole checkpoint is of step {start}, and the journal no longer holds the batch of step "
                f"{experiment.step + 1} that followed. Restore a later checkpoint into {experiment.folder / 'checkpoints'}."
            )
        known = await asyncio.to_thread(journal_read.step_digest, path, formed.step)
        log.info("re-applying the batch of step %d", formed.step)
        built = await asyncio.to_thread(build_batch, path, formed, experiment.config)
        warnings += await train(experiment, backbone, formed, built, collect_s=0.0, known_digest=known)
    return warnings


async def save(experiment: Experiment, backbone: Backbone, parameters: int | None = None) -> bool:
    """Save a checkpoint of the current step. False (and said so) where the disk refuses, or has no room for it.

    Args:
        parameters: of the model, to estimate the first checkpoint's size by.

    Raises:
        BackboneDied: nothing was saved.
    """
    step, config = experiment.step, experiment.config
    metric = experiment.last_metrics.get(config.checkpoint.best_metric)
    try:
        experiment.checkpoint_wanted_bytes = await asyncio.to_thread(experiment.store.wanted_bytes, parameters)
        shortage = await asyncio.to_thread(experiment.store.shortage, parameters)
        if shortage is not None:
            raise DiskRefused(shortage)
        saved = experiment.store.save(
            step,
            lambda directory: backbone.save(str(directory)),
            digest=experiment.digest,
            metric=float(metric) if isinstance(metric, (int, float)) else None,
        )
        if inspect.isawaitable(saved):
            saved = await saved
    except BackboneDied:
        raise
    except (OSError, AjetError) as err:
        experiment.refuse_checkpoint(f"step {step}: {str(err).rstrip('.')}")
        return False
    experiment.note_checkpoint(step, str(saved.path))
    experiment.events.emit("checkpoint", step=step, path=experiment.checkpoint_path)
    if config.journal.keep == "needed":
        # Each of the newest checkpoints leads here exactly: should one turn out damaged, the one before it is enough.
        keep = config.checkpoint.keep_last
        newest = [kept.step for kept in await asyncio.to_thread(experiment.store.all)][-keep:]
        if len(newest) == keep:  # with fewer the journal still leads here from its beginning
            experiment.journal.compact(newest[0]).add_done_callback(_compacted)
    return True


def _compacted(done: asyncio.Future[None]) -> None:
    if not done.cancelled() and done.exception() is not None:
        log.warning("the journal could not be compacted: %s", done.exception())
