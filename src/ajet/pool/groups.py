"""Groups and batches: which finished episodes are trained together, and when.

Promises (property-tested):

- An episode is in at most one group, and leaves the pool exactly once: in a batch, or in a :class:`Drop`.
- A group holds episodes of one task; a batch holds exactly ``batch_size`` groups (under the "agree" rules: one or more) of
  exactly ``num_repeat`` episodes. Equal task ids of two named shares are two tasks.
- The same additions in the same order give the same batches: groups are ordered by when they became complete.

Rules (public names, see :data:`ajet.default_config.schema.CollectionRule`):

- ``rollout_until_finish_enough_tasks``: complete groups of ``batch_size`` different tasks.
- ``rollout_until_finish_enough_episodes``: ``batch_size`` complete groups, whatever their tasks.
- ``rollout_until_finish_enough_non_dummy_tasks``: as the first, with groups whose rewards are not all equal; equal
  ones are dropped, and others are collected in their place.
- ``rollout_until_any_client_agree_sync_weight``, ``rollout_until_all_clients_agree_sync_weight``: once the update is agreed
  to, all complete groups; while there is none the agreement waits. Partial groups stay for the next update.

Where clients with different tasks share a batch, :mod:`ajet.pool.shares` says how many groups each gives.

Pure and synchronous; ``now`` is a monotonic clock in seconds.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass, field

from ajet.pool.shares import Composition, Shares
from ajet.schema.drops import DropReason

TASKS = "rollout_until_finish_enough_tasks"
EPISODES = "rollout_until_finish_enough_episodes"
NON_DUMMY = "rollout_until_finish_enough_non_dummy_tasks"
ANY_AGREES = "rollout_until_any_client_agree_sync_weight"
ALL_AGREE = "rollout_until_all_clients_agree_sync_weight"
AGREE_RULES = frozenset({ANY_AGREES, ALL_AGREE})
UNNAMED = "@"
"""Begins the share of a client that declared how much it gives and no name."""


def task_space(share: str) -> str:
    """Within which task ids mean the same task: a named share, or all that is not named."""
    return "" if share.startswith(UNNAMED) else share


@dataclass(frozen=True)
class Moment:
    """What the next batch depends on beside the pool.

    Attributes:
        live: shares that somebody still plays for. agreed: whether the update is agreed to (for the "agree" rules).
    """

    live: frozenset[str] = frozenset()
    agreed: bool = False


NOW = Moment()


@dataclass(frozen=True)
class Finished:
    """A finished train episode as the pool sees it.

    Attributes:
        rewards: tag → the rewards of its agents, sorted.
        version: the newest policy version that sampled any of its tokens.
        share: the part of the batch that it was played for; "": none in particular.
    """

    episode: str
    task: str
    rewards: dict[str, tuple[float, ...]]
    version: int
    share: str = ""

    @property
    def mean_reward(self) -> float:
        values = [value for of_tag in self.rewards.values() for value in of_tag]
        return sum(values) / len(values) if values else 0.0


@dataclass(eq=False)
class Group:
    """Episodes of one task that share a baseline. ``share``: that of its first episode."""

    task: str
    opened: float
    members: list[Finished] = field(default_factory=list)
    share: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """Which task it is."""
        return task_space(self.share), self.task

    @property
    def equal_rewards(self) -> bool:
        """No tag has two different rewards, so no tag has anything to learn."""
        seen: dict[str, float] = {}
        for member in self.members:
            for tag, values in member.rewards.items():
                for value in values:
                    if seen.setdefault(tag, value) != value:
                        return False
        return True

    def reward_mean_std(self) -> tuple[float, float]:
        values = [member.mean_reward for member in self.members]
        return statistics.fmean(values), statistics.pstdev(values)


@dataclass(frozen=True)
class Drop:
    episode: str
    reason: DropReason


@dataclass(frozen=True)
class Batch:
    """A batch as formed: ``groups`` of exactly ``num_repeat`` episodes, in order.

    ``carry``: what is owed to each share once it is trained; see :meth:`GroupPool.settle`.
    """

    groups: tuple[Group, ...]
    carry: dict[str, float] = field(default_factory=dict)

    @property
    def episodes(self) -> list[str]:
        return [member.episode for group in self.groups for member in group.members]


@dataclass
class GroupPool:
    """Finished episodes that wait to be trained.

    Args:
        num_repeat: episodes of a group. batch_size: groups of a batch. rule: when a batch is complete.
        max_policy_lag: versions that an episode's newest token may lag behind the policy that is being updated.
        group_deadline_s: a partial group older than this is dropped; None = never.
        shares: how clients with different tasks share a batch. share_wait_s: so long after the first share had all its
            groups the batch goes on without what the others do not have yet.
    """

    num_repeat: int
    batch_size: int
    rule: str = TASKS
    max_policy_lag: int = 1
    group_deadline_s: float | None = None
    shares: Shares = field(default_factory=Shares)
    share_wait_s: float = math.inf
    _first_full: float | None = None
    """Since when a share has all its groups of the next batch."""
    _late: bool = False
    """Whether the others are waited for no longer."""
    _partial: dict[tuple[str, str], Group] = field(default_factory=dict)
    _complete: deque[Group] = field(default_factory=deque)
    _episodes: set[str] = field(default_factory=set)

    def add(self, finished: Finished, now: float) -> Group:
        """Put a finished episode into the open group of its task."""
        if finished.episode in self._episodes:
            raise ValueError(f"episode {finished.episode} is in the pool already")
        self._episodes.add(finished.episode)
        key = (task_space(finished.share), finished.task)
        group = self._partial.get(key)
        if group is None:
            group = self._partial[key] = Group(finished.task, now, share=finished.share)
        group.members.append(finished)
        if len(group.members) == self.num_repeat:
            del self._partial[key]
            self._complete.append(group)
        return group

    def sweep(self, version: int, now: float) -> list[Drop]:
        """Drop what can no longer be trained by an update of policy ``version``."""
        drops: list[Drop] = []
        oldest = version - self.max_policy_lag
        for group in list(self._partial.values()):
            if any(member.version < oldest for member in group.members):
                del self._partial[group.key]
                drops += self._drop_stale(group, oldest)
            elif self.group_deadline_s is not None and now - group.opened > self.group_deadline_s:
                del self._partial[group.key]
                drops += self._drop(group, DropReason.GROUP_DEADLINE)
        kept: deque[Group] = deque()
        for group in self._complete:
            if any(member.version < oldest for member in group.members):
                drops += self._drop_stale(group, oldest)
            elif self.rule == NON_DUMMY and group.equal_rewards:
                drops += self._drop(group, DropReason.EQUAL_REWARDS)
            else:
                kept.append(group)
        self._complete = kept
        return drops

    def ready(self, moment: Moment = NOW, now: float = 0.0) -> bool:
        """Whether :meth:`take` would give a batch. Call :meth:`sweep` first."""
        return self._selected(moment, now) is not None

    def take(self, moment: Moment = NOW, now: float = 0.0) -> Batch | None:
        """Remove and return the next batch, or None while the rule does not hold. Call :meth:`sweep` first."""
        batch = self._selected(moment, now)
        if batch is None:
            return None
        taken = {id(group) for group in batch.groups}
        self._complete = deque(group for group in self._complete if id(group) not in taken)
        self._first_full, self._late = None, False
        self._episodes.difference_update(batch.episodes)
        return batch

    def settle(self, batch: Batch) -> None:
        """The batch will be trained: what is owed to each share follows from it."""
        self.shares.carry = batch.carry

    def put_back(self, batch: Batch) -> None:
        """Undo :meth:`take` (the journal refused the batch): the groups are first in line again."""
        self._complete.extendleft(reversed(batch.groups))
        for group in batch.groups:
            self._episodes.update(member.episode for member in group.members)

    def drain(self, reason: DropReason) -> list[Drop]:
        """Drop everything (training is finished)."""
        drops: list[Drop] = []
        for group in [*self._complete, *self._partial.values()]:
            drops += self._drop(group, reason)
        self._complete.clear()
        self._partial.clear()
        return drops

    def next_deadline(self) -> float | None:
        """When :meth:`sweep` may next drop a group for its age, or :meth:`take` give up waiting for a share."""
        found = []
        if self.group_deadline_s is not None and self._partial:
            found.append(min(group.opened for group in self._partial.values()) + self.group_deadline_s)
        if self._first_full is not None and not self._late:
            found.append(self._first_full + self.share_wait_s)
        return min(found, default=None)

    def composition(self, moment: Moment, now: float) -> Composition:
        """How the next batch is divided, as far as can be said now."""
        return self._compose(self.eligible(), moment, now)

    def eligible(self) -> dict[str, list[Group]]:
        """Share → complete groups that the next batch may hold, in order."""
        found: dict[str, list[Group]] = {}
        tasks: set[tuple[str, str]] = set()
        for group in self._complete:
            if self.rule == NON_DUMMY and group.equal_rewards:
                continue
            if self.rule in (TASKS, NON_DUMMY):
                if group.key in tasks:
                    continue
                tasks.add(group.key)
            found.setdefault(group.share, []).append(group)
        return found

    def _compose(self, eligible: dict[str, list[Group]], moment: Moment, now: float) -> Composition:
        available = {share: len(groups) for share, groups in eligible.items()}
        composed = self.shares.compose(self.batch_size, available, moment.live)
        if not composed.missing:
            return composed
        if len(composed.missing) == len([share for share, seats in composed.seats.items() if seats]):
            self._first_full = None
        elif self._first_full is None:
            self._first_full = now
        self._late = self._first_full is not None and now >= self._first_full + self.share_wait_s
        if self._late:
            composed = self.shares.compose(self.batch_size, available, moment.live - composed.missing)
        return composed

    def _selected(self, moment: Moment, now: float) -> Batch | None:
        if self.rule in AGREE_RULES:
            return Batch(tuple(self._complete)) if moment.agreed and self._complete else None
        eligible = self.eligible()
        composed = self._compose(eligible, moment, now)
        if composed.missing or sum(composed.seats.values()) < self.batch_size:
            return None
        chosen = {id(group) for share, groups in eligible.items() for group in groups[: composed.seats.get(share, 0)]}
        return Batch(tuple(group for group in self._complete if id(group) in chosen), composed.carry)

    def _drop_stale(self, group: Group, oldest: int) -> list[Drop]:
        self._episodes.difference_update(member.episode for member in group.members)
        return [
            Drop(m.episode, DropReason.POLICY_LAG if m.version < oldest else DropReason.GROUP_BROKEN)
            for m in group.members
        ]

    def _drop(self, group: Group, reason: DropReason) -> list[Drop]:
        self._episodes.difference_update(member.episode for member in group.members)
        return [Drop(member.episode, reason) for member in group.members]

    # ── reads ────────────────────────────────────────────────────────────────────────────────────────────────────

    def __len__(self) -> int:
        return len(self._episodes)

    def __contains__(self, episode: str) -> bool:
        return episode in self._episodes

    def groups(self) -> list[Group]:
        """Complete groups in training order, then partial ones."""
        return [*self._complete, *self._partial.values()]

    def filling(self, space: str, task: str) -> Group | None:
        """The partial group of a task; ``space``: see :func:`task_space`."""
        return self._partial.get((space, task))

    def complete(self) -> list[Group]:
        return list(self._complete)

    def partial(self) -> list[Group]:
        return list(self._partial.values())
