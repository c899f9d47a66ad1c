"""One experiment on disk and in memory: folder, journal, checkpoints, pool, open episodes.

Lives from ``/engine/start`` to OFFLINE or FAILED; a backbone may die and come back within.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import yaml

from ajet.backbone.protocol import BackboneInfo
from ajet.default_config.load import job_diff
from ajet.default_config.schema import AjetConfig
from ajet.pool import journal_read
from ajet.pool.groups import Drop, GroupPool
from ajet.pool.journal import Journal
from ajet.pool.leases import LeaseBook
from ajet.pool.records import Counted, JobSet, MetaSet, Record, StepDone
from ajet.pool.roster import Roster
from ajet.schema.errors import DiskRefused, JobConflict, JournalDamaged
from ajet.schema.wire import EpisodeKind
from ajet.server.admission import Admission
from ajet.server.evals import Places
from ajet.server.events import Events, Signal
from ajet.server.jobs import experiment_folder
from ajet.server.metrics import MetricsFile, ZeroAdvantageWatch, line
from ajet.server.registry import Registry
from ajet.server.sharing import Sharing
from ajet.tracking.process import Trackers
from ajet.trajectory import ChatRenderer

log = logging.getLogger("ajet.experiment")

THREADS, DEVICE = "cpu_threads", "device"
"""On record with the run: what its sums depend on in their last bits."""
_FIXED = ("model.path", "lora.rank", "lora.alpha", "lora.target_modules", "backbone")
"""Keys that may not change once an experiment has trained."""
_SLOW = (
    "The disk under {path} is slow for its journal: a write took {seconds:.1f} s, and every answer that it records waited. "
    "Put journal.dir on a faster local disk, or set journal.sync: normal."
)
_NO_MARGIN = (
    "checkpoint.keep_last is 1: should that one checkpoint be damaged on disk, there is none before it to resume from. "
    "Set 2 or more where there is room."
)
_LAST_BITS = "sums may differ in their last bits, so re-applied steps need not be bit-identical"


def backbone_job(config: AjetConfig, threads: int) -> dict[str, Any]:
    """``config`` as a backbone takes it, with the run's number of threads where the configuration leaves it open."""
    tree = config.model_dump(mode="json")
    if not config.trainer_common.cpu_threads and threads:
        tree["trainer_common"]["cpu_threads"] = threads
    return tree


class Store(Protocol):
    """What is used of :class:`ajet.checkpoint.store.CheckpointStore`."""

    def latest_valid(self) -> Any: ...

    def all(self) -> Sequence[Any]: ...

    def wanted_bytes(self, parameters: int | None) -> int: ...

    def shortage(self, parameters: int | None) -> str | None: ...

    def save(self, step: int, write: Callable[..., Any], *, digest: str, metric: float | None) -> Any: ...


@dataclass
class Experiment:
    """Mutable; owned by the engine.

    Attributes:
        step: optimizer steps done; also the policy version.
        registry: None until :meth:`restore`.
        over: no further batch will be formed.
    """

    config: AjetConfig
    folder: Path
    journal: Journal
    store: Store
    metrics_file: MetricsFile
    trackers: Trackers
    changed: Signal
    events: Events
    step: int = 0
    batch_step: int = 0
    """The newest update whose batch is fixed in the journal."""
    digest: str = ""
    registry: Registry | None = None
    pool: GroupPool | None = None
    renderer: ChatRenderer | None = None
    over: bool = False
    last_metrics: dict[str, Any] = field(default_factory=dict)
    checkpoint_step: int | None = None
    checkpoint_path: str | None = None
    checkpoint_error: str | None = None
    checkpoint_refused_since: float | None = None
    checkpoints_refused: int = 0
    checkpoint_wanted_bytes: int | None = None
    giving_up: bool = False
    """The engine is to stop: what waits for the disk waits no longer, and is made up for at the next start."""
    threads: int = 0
    """CPU threads this run has been trained with so far; 0 before the first boot."""
    device: str = ""
    """What this run has been trained on so far."""
    places: Places = field(default_factory=lambda: Places(1))
    frozen_models: dict[str, str] = field(default_factory=dict)
    """What calls named → what the backbone is asked for; see :mod:`ajet.server.frozen`."""
    zero_watch: ZeroAdvantageWatch = field(default_factory=ZeroAdvantageWatch)
    clock: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        config: AjetConfig,
        exp_dir: Path,
        *,
        events: Events,
        changed: Signal,
        make_store: Callable[..., Store],
        warn: Callable[[str], None] = lambda _: None,
    ) -> Experiment:
        """Create or reopen the folder and its journal, and put the job on record.

        Raises:
            ConfigError: the folder is another server's, unusable, or of a newer version.
            JobConflict: it has been trained from another model.
            DiskRefused: it cannot be written. JournalDamaged: its journal is not what was written.
        """
        folder = experiment_folder(config, exp_dir)
        journal_dir = Path(config.journal.dir) / config.experiment_name if config.journal.dir else folder
        experiment: Experiment

        def on_disk(ok: bool, error: str | None) -> None:
            events.emit("disk", ok=ok, error=error)
            if experiment.registry is not None:
                experiment.registry.disk(ok)
            changed.fire()

        def on_slow(seconds: float) -> None:
            warn(_SLOW.format(path=journal_dir, seconds=seconds))

        def open_journal() -> Journal:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                journal_dir.mkdir(parents=True, exist_ok=True)
            except OSError as err:
                raise DiskRefused(f"The experiment's folder {folder} cannot be made: {err}") from err
            path = journal_dir / "journal.sqlite"
            return Journal(path, sync=config.journal.sync, on_disk=on_disk, on_slow=on_slow)

        journal = await asyncio.to_thread(open_journal)
        try:
            store = make_store(
                folder / "checkpoints", keep_last=config.checkpoint.keep_last, keep_best=config.checkpoint.keep_best
            )
            trackers = Trackers(config, folder, warn)
            metrics_file = MetricsFile(folder / "metrics.jsonl")
            experiment = cls(config, folder, journal, store, metrics_file, trackers, changed, events)
            await experiment._record_job()
        except BaseException:
            await asyncio.to_thread(journal.close)
            raise
        if config.checkpoint.keep_last == 1:
            warn(_NO_MARGIN)
        return experiment

    async def _record_job(self) -> None:
        tree = self.config.model_dump(mode="json")
        restored = await asyncio.to_thread(journal_read.restore, self.journal.path)
        self.batch_step = restored.unfinished.step if restored.unfinished else restored.step
        if restored.job is not None:
            diff = job_diff(restored.job, tree)
            fixed = {key: pair for key, pair in diff.items() if key in _FIXED}
            if fixed and restored.step:
                raise JobConflict(
                    f"Experiment {self.config.experiment_name!r} has trained {restored.step} steps with another "
                    f"{', '.join(fixed)}. Choose another experiment_name (or ensure_new_experiment).",
                    details={"diff": fixed},
                )
        if restored.job != tree:
            await self.journal.append(JobSet(tree, time.time(), restored.step))
        await asyncio.to_thread(self._write_job, yaml.safe_dump({"ajet": tree}, sort_keys=False, allow_unicode=True))

    def _write_job(self, text: str) -> None:
        """``job.yaml``, whole or as it was: a copy for people; the journal is the truth."""
        path, temporary = self.folder / "job.yaml", self.folder / ".job.yaml.tmp"
        try:
            if not path.exists() or path.read_text() != text:
                temporary.write_text(text)
                os.replace(temporary, path)
        except OSError as err:
            log.warning("job.yaml could not be written: %s", err)

    async def restore(
        self, renderer: ChatRenderer, *, may_grant: Callable[[EpisodeKind], bool], version: Callable[[], int]
    ) -> None:
        """Read the journal and continue where it ends: open episodes, pool, counters, curves."""
        config = self.config
        restored = await asyncio.to_thread(journal_read.restore, self.journal.path)
        steps = await asyncio.to_thread(journal_read.steps, self.journal.path)
        self.renderer = renderer
        self.step, self.digest = restored.step, restored.digest or ""
        self.threads = int(restored.meta.get(THREADS, 0))
        self.device = restored.meta.get(DEVICE, "")
        self.pool = GroupPool(
            num_repeat=config.rollout.num_repeat,
            batch_size=config.data.train_batch_size,
            rule=config.swarm_mode_sample_collection_method,
            max_policy_lag=config.swarm.max_policy_lag,
            group_deadline_s=config.swarm.group_deadline_s,
            share_wait_s=config.swarm.share_wait_s,
        )
        self.places = Places(config.rollout.max_num_seqs)
        leases = LeaseBook(config.rollout.max_env_worker, config.swarm.max_episode_age_s)
        sharing = Sharing(
            journal=self.journal,
            leases=leases,
            pool=self.pool,
            roster=Roster(config.swarm.client_silence_s),
            declared=dict(config.swarm.shares),
            next_step=lambda: self.batch_step + 1,
        )
        registry = Registry(
            path=self.journal.path,
            journal=self.journal,
            leases=leases,
            pool=self.pool,
            renderer=renderer,
            events=self.events,
            admission=Admission(self.journal, leases, renderer, sharing, may_grant, version),
            sharing=sharing,
            training_over=lambda: self.over,
            version=version,
            changed=self.changed,
            opposed_tags=config.swarm.opposed_tags,
        )
        registry.restore(restored)
        self.registry = registry
        self.clock = asyncio.create_task(registry.clock.run())
        for step in steps:
            self.zero_watch.see(step.metrics)
        if steps:
            self.last_metrics = line(steps[-1])
        await asyncio.to_thread(self.rewrite_metrics, steps)
        self.trackers.start(self.step)

    def backbone_job(self) -> dict[str, Any]:
        """The configuration to boot a backbone with: threads that were chosen at the first boot stay."""
        return backbone_job(self.config, self.threads)

    async def note_machine(self, info: BackboneInfo) -> list[str]:
        """Put on record what computes. Returns warnings where that is not what the run was trained on so far."""
        warnings = []
        if info.threads not in (0, self.threads):
            if self.threads:
                warnings.append(
                    f"The run was trained with {self.threads} CPU threads and goes on with {info.threads}: {_LAST_BITS}. Set "
                    "trainer_common.cpu_threads to the former number if they must."
                )
            self.threads = info.threads
            await self.durable(MetaSet(THREADS, str(info.threads)))
        if info.device != self.device:
            if self.device:
                warnings.append(
                    f"The run was trained on {self.device}, and {info.device} goes on with it: {_LAST_BITS}."
                )
            self.device = info.device
            await self.durable(MetaSet(DEVICE, info.device))
        return warnings

    def rewrite_metrics(self, steps: list[StepDone]) -> None:
        try:
            self.metrics_file.rewrite(steps)
        except OSError as err:
            log.warning("metrics.jsonl could not be written: %s", err)

    async def write_metrics(self, step: StepDone) -> None:
        """Add a step's line, and tell the trackers; what the disk refuses now is made up for later."""
        self.last_metrics = line(step)
        await self._write_line(step)
        self.trackers.step(self.last_metrics)

    async def _write_line(self, step: StepDone) -> None:
        if self.metrics_file.dirty:
            steps = await asyncio.to_thread(journal_read.steps, self.journal.path)
            await asyncio.to_thread(self.rewrite_metrics, steps)
            return
        try:
            await asyncio.to_thread(self.metrics_file.append, step)
        except OSError as err:
            log.warning("metrics.jsonl could not be written: %s", err)

    async def durable(self, *records: Record) -> None:
        """Append, waiting for the disk as long as it takes.

        Raises:
            DiskRefused: the engine is to stop. JournalDamaged: waiting would not help.
        """
        while True:
            try:
                await self.journal.append(*records)
                return
            except DiskRefused:
                await self.changed.wait_until(lambda: self.giving_up or self.journal.disk_error is None, None)
                if self.giving_up and self.journal.disk_error is not None:
                    raise

    def check_journal(self) -> None:
        """Raises :class:`JournalDamaged` where it was found to be."""
        if self.journal.health.damaged is not None:
            raise JournalDamaged(self.journal.health.damaged)

    def note_checkpoint(self, step: int, path: str) -> None:
        """There is a whole one."""
        self.checkpoint_step, self.checkpoint_path = step, path
        self.checkpoint_error = self.checkpoint_refused_since = None
        self.checkpoints_refused = 0

    def refuse_checkpoint(self, error: str) -> None:
        """The disk refused one; said in the log and as an event, in a row of refusals less and less often."""
        self.checkpoint_error = error
        self.checkpoint_refused_since = self.checkpoint_refused_since or time.time()
        self.checkpoints_refused += 1
        if self.checkpoints_refused & (self.checkpoints_refused - 1) == 0:  # the 1st, 2nd, 4th, 8th …
            words = (
                f"The checkpoint of {error}. It is tried again by itself; until one is saved the journal keeps what was "
                f"trained since step {self.checkpoint_step or 0} ({self.journal.size_bytes() / 2**20:,.1f} MiB now), so nothing is lost."
            )
            log.error("%s", words)
            self.events.emit("warning", message=words)

    async def drop(self, drops: list[Drop], also: Sequence[Counted] = ()) -> None:
        """Put on record that episodes left the pool untrained; ``also``: counters that belong to it."""
        assert self.registry is not None
        pairs = [(drop.episode, drop.reason) for drop in drops]
        await self.durable(*self.registry.dropped_records(pairs), *also)
        self.registry.note_dropped(pairs)
        for counted in also:
            self.registry.tallies[counted.name] += counted.by

    async def close(self) -> None:
        """Let go of everything; leases and pool stay in the journal."""
        if self.clock is not None:
            self.clock.cancel()
            await asyncio.gather(self.clock, return_exceptions=True)
        if self.registry is not None:
            await self.registry.close()
        await self.trackers.close()
        await asyncio.to_thread(self.journal.close)
