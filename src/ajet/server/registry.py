"""The episodes of one running experiment: what is open, and how it ends (result, abort, expiry).

How they begin is :mod:`ajet.server.admission`; how past ones ended, :mod:`ajet.server.fates`.

Invariants kept here:

- Journal first: an answer is given, and a finished episode enters the pool, only after its record is durable.
- A lease ends once. Ends and aborts run in a task of their own, so a client that hangs up cannot cut one in half, and
  concurrent repeats share its outcome.
- Faults are not rewards: what expires or is aborted is counted under its reason and never enters the pool.
- While the disk refuses writes the clocks of the leases stand still.

Used on the event loop only.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ajet.pool import journal_read
from ajet.pool.groups import Finished, GroupPool
from ajet.pool.journal import Journal
from ajet.pool.leases import Lease, LeaseBook
from ajet.pool.records import Counted, Done, Dropped, LeaseOpened
from ajet.schema.drops import DropReason
from ajet.schema.errors import DiskRefused, EpisodeGone, InvalidRequest
from ajet.schema.wire import CLOSED, AbortRequest, EndAnswer, EndRequest
from ajet.server.admission import Admission
from ajet.server.clock import Clock
from ajet.server.episode import OpenEpisode
from ajet.server.evals import EvalTally
from ajet.server.events import Events, Signal
from ajet.server.fates import Fates, gone_error
from ajet.server.rewards import check_result, rewards_by_tag
from ajet.server.sharing import DEBUG, Sharing
from ajet.trajectory import ChatRenderer, EpisodeTrajectory

log = logging.getLogger("ajet.registry")

ABORT_REASONS = 50
"""Different abort reasons that are counted apart."""


@dataclass
class Registry:
    """See the module.

    Args:
        admission: grants the leases; what it opens is entered in ``open``.
        sharing: who trains together.
        training_over: whether no further batch will be formed.
        version: the policy version now.
        changed: fired whenever the pool may have become ready.
    """

    path: Path
    journal: Journal
    leases: LeaseBook
    pool: GroupPool
    renderer: ChatRenderer
    events: Events
    admission: Admission
    sharing: Sharing
    training_over: Callable[[], bool]
    version: Callable[[], int]
    changed: Signal
    opposed_tags: Sequence[Collection[str]] = ()
    evals: EvalTally = field(default_factory=EvalTally)
    tallies: Counter[str] = field(default_factory=Counter)
    open: dict[str, OpenEpisode] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    """Pooled episode → its lease number."""
    now: Callable[[], float] = time.monotonic
    clock: Clock = field(init=False)
    fates: Fates = field(init=False)

    def __post_init__(self) -> None:
        self.fates = Fates(self.path)
        self.clock = Clock(self.leases, self.sharing.roster, lambda: self.now(), lambda: self.expire())
        self.admission.on_open = self._opened
        self.sharing.on_change = self.somebody_came_or_went
        self.sharing.count = lambda name: self._count(Counted(name))

    def _opened(self, episode: OpenEpisode) -> None:
        self.open[episode.id] = episode
        self.clock.wake()

    # ── restore ──────────────────────────────────────────────────────────────────────────────────────────────────

    def restore(self, restored: journal_read.Restored) -> None:
        """Continue from the journal: open episodes live on with a fresh clock, finished ones wait in the pool."""
        self.admission.next_n, self.admission.former_clients = restored.next_n, restored.clients
        self.tallies = Counter(restored.tallies)
        self.sharing.restore(restored)
        self.evals.restore(restored.evals)
        for kept in restored.open:
            opened = kept.lease
            lease = self.leases.grant(opened.episode, opened.client, opened.kind, opened.timeout_s, self.now())  # type: ignore[arg-type]
            episode = OpenEpisode(opened, lease, EpisodeTrajectory(self.renderer), self.renderer)
            episode.restore(kept.calls)
            self.admission.remember(episode)
            self.open[episode.id] = episode
        for opened, done in restored.pooled:
            self._pool(opened, done)

    def _pool(self, opened: LeaseOpened, done: Done) -> None:
        body = done.body
        rewards = {tag: tuple(values) for tag, values in body["rewards"].items()}
        self.numbers[done.episode] = opened.n
        self.pool.add(Finished(done.episode, body["task"], rewards, body["version"], opened.share), self.now())

    # ── end and abort ────────────────────────────────────────────────────────────────────────────────────────────

    async def find(self, episode_id: str) -> OpenEpisode:
        """The open episode. Raises :class:`EpisodeGone` with the reason, or :class:`NotFound`."""
        episode = self.open.get(episode_id)
        if episode is not None:
            return episode
        raise gone_error(await self.fates.of(episode_id))

    async def check(self, episode_id: str, request: EndRequest) -> int:
        """Whether :meth:`end` would take this result now, which is a sign of life and changes nothing else.

        Returns:
            The episode's recorded calls.

        Raises:
            As :meth:`end`.
        """
        episode = await self.find(episode_id)
        episode.check_open()
        check_result(request.task, request.output, episode.tags, episode.opened.task, self.opposed_tags)
        self.leases.enter(episode.id, self.now())
        self.leases.leave(episode.id, self.now())
        return len(episode.trajectory.calls)

    async def end(self, episode_id: str, request: EndRequest, metadata: str = "{}") -> EndAnswer:
        """Record an episode's result. Idempotent by request id; at most one end is ever recorded.

        Args:
            metadata: of its output, as JSON.

        Raises:
            EpisodeGone: the lease ended before (expired, aborted, or ended by another request).
            InvalidRequest, IncompleteReward: see :func:`check_result`; the episode stays open.
            DiskRefused: nothing was recorded; the episode stays open.
        """
        episode = self.open.get(episode_id)
        if episode is None:
            done = await self.fates.of(episode_id)
            if done.how == "end" and done.request == request.request_id:
                return EndAnswer.model_validate(done.body["answer"])
            if done.how == "abort":
                self._count(Counted(f"late/{DropReason.LATE_END}"))
            raise gone_error(done)
        if episode.ending is not None:
            outcome: EndAnswer | str = await asyncio.shield(episode.ending)  # type: ignore[arg-type]
            if episode.ending_request == request.request_id and isinstance(outcome, EndAnswer):
                return outcome
            return await self.end(episode_id, request, metadata)
        if episode.opened.share == DEBUG:
            raise InvalidRequest("This episode was begun for debugging and is never trained: abort it.")
        check_result(request.task, request.output, episode.tags, episode.opened.task, self.opposed_tags)
        episode.ending_request = request.request_id
        task = asyncio.create_task(self._end(episode, request, metadata))
        episode.ending = task
        return await asyncio.shield(task)

    async def _end(self, episode: OpenEpisode, request: EndRequest, metadata: str) -> EndAnswer:
        output = request.output
        calls = len(episode.trajectory.calls)
        tags = dict(episode.tags)
        over = self.training_over()
        fate = "eval" if not episode.train else "no_calls" if not calls else "training_finished" if over else "pooled"
        answer = EndAnswer(
            episode_id=episode.id,
            task_id=request.task.task_id,
            fate=fate,  # type: ignore[arg-type]
            calls=calls,
            policy_version=self.version(),
        )
        done = Done(
            n=episode.n,
            episode=episode.id,
            request=request.request_id,
            how="end",
            fate=fate,
            reason=f"Episode {episode.id} has ended already ({fate}).",
            created=time.time(),
            body={
                "task": request.task.task_id,
                "reward": output.reward,
                "rewards": rewards_by_tag(output, tags),
                "is_success": output.is_success,
                "log_metrics": output.log_metrics,
                "metadata": metadata,
                "version": episode.newest_version(),
                "calls": calls,
                "sampled": sum(len(call.reply_ids) for call in episode.trajectory.calls.values()),
                "answer": answer.model_dump(),
            },
        )
        counted = (Counted(f"drop/{fate}"),) if fate in ("no_calls", "training_finished") else ()
        self.leases.enter(episode.id, self.now())
        try:
            await self.journal.append(done, *counted)
        except BaseException:
            self.leases.leave(episode.id, self.now())
            episode.ending = episode.ending_request = None
            raise
        self._closed(episode, done, counted)
        if fate == "pooled":
            self._pool(episode.opened, done)
            self.changed.fire()
        elif fate == "eval":
            self.evals.add(done)
        return answer

    def _closed(self, episode: OpenEpisode, done: Done, counted: tuple[Counted, ...]) -> None:
        """The record is durable: let go of the lease and of what is in flight."""
        for one in counted:
            self.tallies[one.name] += one.by
            if one.name.startswith("drop/"):
                self.events.emit("drop", reason=one.name[5:], episodes=[episode.id])
        del self.open[episode.id]
        self.leases.close(episode.id)
        self.sharing.exit(episode.id)
        self._sign(episode.opened.client)
        self.fates.remember(done)
        episode.close(done.reason)
        self.admission.pump()

    async def abort(self, episode_id: str, request: AbortRequest) -> str:
        """End an episode without a result. Returns the reason; a repeat, or an expired one, returns the first."""
        return await self._abort(episode_id, request.request_id, DropReason.ABORTED, f"aborted: {request.reason}")

    async def _abort(self, episode_id: str, request_id: str, fate: DropReason, reason: str) -> str:
        episode = self.open.get(episode_id)
        if episode is None:
            done = await self.fates.of(episode_id)
            if done.how == "abort":
                return done.reason
            raise gone_error(done)
        if episode.ending is not None:
            await asyncio.wait([episode.ending])
            return await self._abort(episode_id, request_id, fate, reason)
        episode.ending_request = request_id
        task = asyncio.create_task(self._write_abort(episode, request_id, fate, reason))
        episode.ending = task
        return await asyncio.shield(task)

    async def _write_abort(self, episode: OpenEpisode, request_id: str, fate: DropReason, reason: str) -> str:
        words = f"Episode {episode.id} is gone: {reason}"
        done = Done(episode.n, episode.id, request_id, "abort", str(fate), words, time.time())
        counted: tuple[Counted, ...] = (Counted(f"drop/{fate}" if episode.train else f"eval_drop/{fate}"),)
        if fate is DropReason.ABORTED:
            counted += (Counted(self._abort_counter(reason)),)
        self.leases.enter(episode.id, self.now())
        try:
            await self.journal.append(done, *counted)
        except BaseException:
            self.leases.leave(episode.id, self.now())
            episode.ending = episode.ending_request = None
            raise
        self._closed(episode, done, counted)
        return words

    def _abort_counter(self, reason: str) -> str:
        head = reason.removeprefix("aborted: ").partition(":")[0].strip()[:60] or "unnamed"
        name = f"abort/{head}"
        if name not in self.tallies and sum(key.startswith("abort/") for key in self.tallies) >= ABORT_REASONS:
            return "abort/other"
        return name

    # ── what is due ────────────────────────────────────────────────────────────────────────────────────────────────

    async def expire(self) -> None:
        """End all leases that are due now, and let go of clients that are silent."""
        if self.journal.disk_error is not None:
            await self.journal.writable()
        self.sharing.expire()
        due = [(lease, why) for lease, why in self.leases.due(self.now()) if self._may_expire(lease)]
        results = await asyncio.gather(*(self._expire_one(lease, why) for lease, why in due), return_exceptions=True)
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, (DiskRefused, EpisodeGone)):
                log.error("an expired lease could not be ended: %r", result)

    def _may_expire(self, lease: Lease) -> bool:
        episode = self.open.get(lease.episode)
        return episode is not None and episode.ending is None

    async def _expire_one(self, lease: Lease, why: DropReason) -> None:
        if why is DropReason.SILENT:
            reason = f"expired: no sign of life from client {lease.client} for {lease.timeout_s:g} s"
        else:
            reason = f"expired: older than max_episode_age_s ({self.leases.max_age_s:g} s)"
        await self._abort(lease.episode, f"expire-{lease.episode}", why, reason)

    def disk(self, ok: bool) -> None:
        """The disk began to refuse, or takes writes again: lease clocks stand still in between."""
        if self.clock.disk(ok):
            self.admission.pump()

    # ── the rest ─────────────────────────────────────────────────────────────────────────────────────────────────

    def heartbeat(self, client: str, episodes: list[str] | None) -> tuple[int, list[str]]:
        self._sign(client)
        return self.leases.heartbeat(client, episodes, self.now())

    def _sign(self, client: str) -> None:
        if not self.admission.has_left(client):
            self.sharing.sign(client)

    async def leave(self, client: str) -> None:
        """The client said goodbye: what it has open is aborted, also what it was just granted, and it is granted no more.

        Raises :class:`DiskRefused`; what could not be ended then ends by its silence.
        """
        self.sharing.leave(client)
        await self.admission.leave(client)
        mine = [episode.id for episode in self.open.values() if episode.opened.client == client]
        left = AbortRequest(request_id="goodbye", reason=CLOSED)
        for result in await asyncio.gather(*(self.abort(one, left) for one in mine), return_exceptions=True):
            if isinstance(result, BaseException) and not isinstance(result, EpisodeGone):
                raise result

    def somebody_came_or_went(self) -> None:
        """Who takes part has changed, or who agrees: what waits for that is looked at again."""
        self.clock.wake()
        self.admission.pump()
        self.changed.fire()

    def _count(self, counted: Counted) -> None:
        """Count without waiting for the disk."""
        self.tallies[counted.name] += counted.by
        self.journal.append(counted).add_done_callback(lambda done: done.cancelled() or done.exception())

    def count_tokens(self, dropped: dict[str, int]) -> list[Counted]:
        """Records that count dropped tokens; the caller appends them."""
        return [Counted(f"tokens/{reason}", n) for reason, n in dropped.items() if n]

    def dropped_records(self, drops: list[tuple[str, DropReason]]) -> list[Dropped | Counted]:
        """Records for episodes that left the pool untrained."""
        records: list[Dropped | Counted] = [Dropped(self.numbers[e], str(reason)) for e, reason in drops]
        counts = Counter(str(reason) for _, reason in drops)
        return records + [Counted(f"drop/{reason}", n) for reason, n in counts.items()]

    def note_dropped(self, drops: list[tuple[str, DropReason]]) -> None:
        """The records are durable."""
        by_reason: dict[str, list[str]] = {}
        for episode, reason in drops:
            self.numbers.pop(episode, None)
            self.tallies[f"drop/{reason}"] += 1
            by_reason.setdefault(str(reason), []).append(episode)
        for reason, episodes in by_reason.items():
            self.events.emit("drop", reason=reason, episodes=episodes)
        self.admission.pump()

    def tally(self, prefix: str) -> dict[str, int]:
        """Counters under ``prefix/``."""
        return {k[len(prefix) + 1 :]: n for k, n in sorted(self.tallies.items()) if k.startswith(prefix + "/")}

    async def close(self) -> None:
        """The engine stops: requests in flight are let go; leases stay in the journal."""
        for episode in list(self.open.values()):
            for task in list(episode.in_flight):
                task.cancel()
        endings = [e.ending for e in self.open.values() if e.ending is not None]
        await self.admission.settled()
        if endings:
            await asyncio.wait(endings)
