"""Clients that train together: who takes part, whose episode is granted next, who is held back, what is agreed to.

Joins :mod:`ajet.pool.roster` and :mod:`ajet.pool.shares` with the journal.

Promises:

- Nothing here is in force, and nothing is written, until a job asks for it (``swarm.shares``, an "agree" rule) or a client
  declares a share.
- An agreement is answered after it is on disk. Who takes part, weights and what is owed survive a restart.
- A request is held back only while the episodes of its share that are finished or being played can fill ``ratio`` times its
  part of the next batch, so whatever is held back comes free by itself; each request that was is counted once.

Used on the event loop only.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ajet.pool.groups import AGREE_RULES, ALL_AGREE, EPISODES, UNNAMED, Batch, GroupPool, Moment, task_space
from ajet.pool.journal import Journal
from ajet.pool.journal_read import Restored
from ajet.pool.leases import LeaseBook
from ajet.pool.records import ClientSet, MetaSet, Record
from ajet.pool.roster import Participant, Roster
from ajet.schema.errors import InvalidRequest
from ajet.schema.status import ShareView
from ajet.schema.wire import AgreeAnswer, BeginRequest

AHEAD = 1.5
"""How far ahead of its part of a batch a client plays that says nothing of it."""
HELD = "held/share"
_META = "shares"
DEBUG = "!debug"
"""The share of episodes that are only looked at."""


def takes_part(request: BeginRequest) -> bool:
    """Whether the episode may be trained, so that its client counts."""
    return request.kind == "train" and not request.debug


@dataclass
class Sharing:
    """See the module.

    Args:
        declared: the job's ``swarm.shares``; where there are any, clients declare no weights.
        next_step: the next update whose batch is not fixed yet.

    Attributes:
        on_change: told when somebody came, went or agreed. count: adds to a counter by name.
    """

    journal: Journal
    leases: LeaseBook
    pool: GroupPool
    roster: Roster
    declared: dict[str, float]
    next_step: Callable[[], int]
    on_change: Callable[[], None] = lambda: None
    count: Callable[[str], None] = lambda name: None
    now: Callable[[], float] = time.monotonic
    _named: bool = False
    """Whether a client has named a share, or declared how much it gives."""
    _playing: defaultdict[str, Counter[str | None]] = field(default_factory=lambda: defaultdict(Counter))
    """Share → task, as far as it is told → open train episodes, those that are just being granted included."""
    _places: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    """Episode, or ticket that is being granted → its share and task."""
    _held: set[str] = field(default_factory=set)
    """Tickets that wait and have been counted as held back."""

    def __post_init__(self) -> None:
        self.pool.shares.weights.update(self.declared)
        self.pool.shares.rest = self._rest()

    @property
    def agree_rule(self) -> bool:
        return self.pool.rule in AGREE_RULES

    @property
    def active(self) -> bool:
        """Whether anything here is in force."""
        return self.agree_rule or self._named or bool(self.declared)

    @property
    def beat_s(self) -> float | None:
        """How often a client that takes part is to show life."""
        return self.roster.silence_s / 3 if self.active else None

    def moment(self) -> Moment:
        """What the next batch depends on beside the pool."""
        if not self.active:
            return Moment()
        agreed = self.agree_rule and self.roster.agreed(self.next_step(), every=self.pool.rule == ALL_AGREE)
        return Moment(self.roster.shares(), agreed)

    # ── who takes part ───────────────────────────────────────────────────────────────────────────────────────────

    def share_of(self, request: BeginRequest) -> str:
        """The share of a train episode.

        Raises:
            InvalidRequest: the job divides its batches, and the request names none of its shares.
        """
        if request.debug:
            return DEBUG
        if self.agree_rule or request.kind == "eval":
            return ""
        throttle = request.throttle
        name = request.share or (throttle.share if throttle else None)
        if self.declared:
            if name not in self.declared:
                said = f"not {name!r}" if name else "and this client named none"
                raise InvalidRequest(
                    f"The job divides each batch between the shares {', '.join(sorted(self.declared))}, {said}. Say which one "
                    f"this client plays for: SwarmClient(url, share={sorted(self.declared)[0]!r}).",
                    param="share",
                )
            return name
        if name:
            return name
        return UNNAMED + request.client_id if throttle and throttle.expected_batch_size else ""

    def join(self, request: BeginRequest) -> None:
        """A client asks for a train episode. Raises as :meth:`share_of`."""
        share = self.share_of(request)
        if not takes_part(request):
            return
        throttle = request.throttle
        self._named = self._named or bool(share)
        if share and not self.declared and throttle and throttle.expected_batch_size:
            repeat = self.pool.num_repeat
            weight = throttle.expected_batch_size * (throttle.expected_num_repeat or repeat) / repeat
            if self.pool.shares.weights.get(share) != weight:
                self.pool.shares.weights[share] = weight
                self.pool.shares.rest = self._rest()
                self._write(self.shares_record())
                self.roster.changes += 1
        if self.active:
            self._changed(self.roster.join(request.client_id, share, self.now()))

    def _rest(self) -> float:
        """What the declared weights leave of a batch, for clients that declare nothing; one group at least."""
        return max(1.0, self.pool.batch_size - sum(self.pool.shares.weights.values()))

    def sign(self, client: str) -> None:
        """A sign of life."""
        self._changed(self.roster.sign(client, self.now()))

    def leave(self, client: str) -> None:
        """The client said goodbye."""
        self._changed(self.roster.leave(client))

    def expire(self) -> None:
        """Let go of the clients whose time is over."""
        for client in self.roster.silent(self.now(), self.leases.seen_of):
            self._changed(self.roster.leave(client))

    def _changed(self, one: Participant | None) -> None:
        if one is not None:
            self._write(self._record(one))
            self.on_change()

    def _record(self, one: Participant) -> ClientSet:
        agreed = one.agreed if one.agreed >= self.next_step() else 0
        return ClientSet(one.client, one.shares, agreed, one.present)

    def _write(self, record: Record) -> None:
        """Without waiting: what is written later on the ground of it comes later in the journal, too."""
        self.journal.append(record).add_done_callback(lambda done: done.cancelled() or done.exception())

    def settle(self, batch: Batch) -> list[Record]:
        """A batch is about to be fixed: the records that belong to it. See :meth:`GroupPool.settle`."""
        if not self.active or self.agree_rule:
            return []
        self.pool.settle(batch)
        alive = {*self.declared, *self.roster.shares(), *(group.share for group in self.pool.groups())}
        alive |= {share for share, playing in self._playing.items() if playing}
        weights = self.pool.shares.weights
        self.pool.shares.weights = {share: weight for share, weight in weights.items() if share in alive}
        self.pool.shares.rest = self._rest()
        return [self.shares_record()]

    def shares_record(self) -> MetaSet:
        """Weights, and what is owed, for the journal."""
        shares = self.pool.shares
        return MetaSet(_META, json.dumps({"weights": shares.weights, "carry": shares.carry}))

    def restore(self, restored: Restored) -> None:
        """As it was on record; whoever took part has ``client_silence_s`` to show that it still does."""
        kept = json.loads(restored.meta.get(_META, "{}"))
        alive = {share for one in restored.participants for share in one.shares if one.present}
        alive |= {opened.share for opened, _ in restored.pooled} | {one.lease.share for one in restored.open}
        alive -= {"", DEBUG}
        if not self.declared and not self.agree_rule:
            self.pool.shares.weights = {s: w for s, w in kept.get("weights", {}).items() if s in alive}
        self.pool.shares.carry = kept.get("carry", {})
        self.pool.shares.rest = self._rest()
        self._named = any(alive)
        for kept_open in restored.open:
            if kept_open.lease.kind == "train":
                self.enter(kept_open.lease.episode, kept_open.lease.share, kept_open.lease.task)
        for one in restored.participants:
            if not one.present and one.agreed < self.next_step():
                self._write(ClientSet(one.client, (), 0, False))  # an agreement that was used, of a client that left
                continue
            self.roster.restore(one.client, one.shares, one.agreed, one.present, self.now())

    # ── agreement ────────────────────────────────────────────────────────────────────────────────────────────────

    async def agree(self, client: str, step: int | None) -> AgreeAnswer:
        """``client`` agrees to an update. Idempotent.

        Raises:
            InvalidRequest: an update that is not the next. DiskRefused: nothing was recorded.
        """
        upcoming = self.next_step()
        step = step or upcoming
        if not self.agree_rule:
            words = f"The job collects by {self.pool.rule}, which asks nobody: updates come by themselves."
            return AgreeAnswer(step=step, counted=False, message=words)
        if step > upcoming:
            raise InvalidRequest(f"Update {step} is not the next one, {upcoming} is.", param="step")
        if step < upcoming:
            return AgreeAnswer(step=step, counted=True, under_way=True, message=f"Update {step} has its batch already.")
        one = self.roster.get(client)
        wanted = ClientSet(client, one.shares if one else (), step, one.present if one else False)
        await self.journal.append(wanted)
        self.roster.agree(client, step, self.now())
        self.on_change()
        waiting = self.not_agreed(step)
        if waiting and self.pool.rule == ALL_AGREE:
            words = f"Update {step} waits for {len(waiting)} more of those who take part."
        elif not self.pool.complete():
            words = f"Update {step} begins with the first complete group; there is none yet."
        else:
            words = f"Update {step} begins."
        return AgreeAnswer(
            step=step, counted=True, agreed=self.roster.agreements(step), waiting_for=waiting, message=words
        )

    def not_agreed(self, step: int) -> list[str]:
        return [one.client for one in self.roster.present() if one.agreed < step]

    # ── who is granted next ──────────────────────────────────────────────────────────────────────────────────────

    def enter(self, place: str, share: str, task: str | None) -> None:
        """A train episode is about to be open. ``place``: its id, or the ticket that it is for."""
        self._places[place] = share, task
        self._playing[share][task] += 1

    def rename(self, ticket: str, episode: str) -> None:
        """The ticket's episode has its id."""
        if ticket in self._places:
            self._places[episode] = self._places.pop(ticket)

    def exit(self, place: str) -> None:
        """It is not open any more."""
        if place not in self._places:
            return
        share, task = self._places.pop(place)
        playing = self._playing[share]
        playing[task] -= 1
        if not playing[task]:
            del playing[task]

    def pick(self, waiting: Iterable[str], request_of: Callable[[str], BeginRequest]) -> str | None:
        """Of the train requests that wait, in order of arrival, the one to grant now; None where all are held back.

        The share that plays least for its weight comes first; within it, who waits longest.
        """
        seats = {} if self.agree_rule else self.pool.composition(self.moment(), self.now()).seats
        coming = {share: self._coming(share) for share in seats}
        first: dict[str, str] = {}
        for ticket in waiting:
            request = request_of(ticket)
            share = self.share_of(request)
            if share in first:
                continue
            if self.is_held(request, share, seats, coming):
                if ticket not in self._held:
                    self._held.add(ticket)
                    self.count(HELD)
                continue
            first[share] = ticket
        if not first:
            return None
        pooled = Counter(member.share for group in self.pool.groups() for member in group.members)

        def load(share: str) -> tuple[float, str]:
            return (self._playing[share].total() + pooled[share]) / self.pool.shares.weight(share), share

        ticket = first[min(first, key=load)]
        self._held.discard(ticket)
        return ticket

    def forget(self, ticket: str) -> None:
        """The request waits no more."""
        self._held.discard(ticket)

    def held(self, request: BeginRequest) -> bool:
        """Whether a request is held back just now."""
        if not self.active or self.agree_rule or not takes_part(request):
            return False
        share = self.share_of(request)
        seats = self.pool.composition(self.moment(), self.now()).seats
        return self.is_held(request, share, seats, {share: self._coming(share)})

    def is_held(self, request: BeginRequest, share: str, seats: dict[str, int], coming: dict[str, int]) -> bool:
        """See :meth:`held`; of the next batch, share → groups it gives, and → groups that are complete or will be."""
        if share not in seats:  # an "agree" rule, or an episode that is not trained
            return False
        throttle = request.throttle
        task = request.told_task
        if task and 0 < self._begun(share, task) < self.pool.num_repeat:
            return False
        ratio = throttle.ratio if throttle else AHEAD
        return coming[share] >= max(1, math.ceil(ratio * seats[share]))

    def _begun(self, share: str, task: str) -> int:
        """Episodes of the group of ``task`` that is filling: finished and open ones."""
        group = self.pool.filling(task_space(share), task)
        return (len(group.members) if group else 0) + self._playing[share][task]

    def _coming(self, share: str) -> int:
        """Groups of ``share`` that are complete, or will be when what is open has ended."""
        repeat = self.pool.num_repeat
        eligible = self.pool.eligible()
        there = set() if self.pool.rule == EPISODES else {g.key for groups in eligible.values() for g in groups}
        complete, space = len(eligible.get(share, ())), task_space(share)
        playing = self._playing[share]
        tasks = {task for task in playing if task is not None}
        tasks |= {group.task for group in self.pool.partial() if group.share == share}
        filling = sum((space, task) not in there and self._begun(share, task) >= repeat for task in tasks)
        return complete + filling + playing[None] // repeat

    # ── reads ────────────────────────────────────────────────────────────────────────────────────────────────────

    def view(self) -> list[ShareView]:
        """How the next batch is divided; empty where it is not."""
        if self.agree_rule or not self.active:
            return []
        moment = self.moment()
        composed = self.pool.composition(moment, self.now())
        ready = Counter(group.share for group in self.pool.complete())
        return [
            ShareView(
                share=share,
                weight=self.pool.shares.weight(share),
                seats=seats,
                ready=ready[share],
                live=share in moment.live,
                owed=self.pool.shares.carry.get(share, 0.0),
            )
            for share, seats in sorted(composed.seats.items())
        ]
