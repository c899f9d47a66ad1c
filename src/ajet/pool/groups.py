"""Groups and batches: which finished episodes are trained together, and when.

Promises (property-tested):

- An episode is in at most one group, and leaves the pool exactly once: in a batch, or in a :class:`Drop`.
- A group holds episodes of one task; a batch holds exactly ``batch_size`` groups of exactly ``num_repeat`` episodes.
- The same additions in the same order give the same batches: groups are ordered by when they became complete.

Rules (public names, see :data:`ajet.default_config.schema.CollectionRule`):

- ``rollout_until_finish_enough_tasks``: complete groups of ``batch_size`` different tasks.
- ``rollout_until_finish_enough_episodes``: ``batch_size`` complete groups, whatever their tasks.
- ``rollout_until_finish_enough_non_dummy_tasks``: as the first, with groups whose rewards are not all equal; equal
  ones are dropped, and others are collected in their place.

Pure and synchronous; ``now`` is a monotonic clock in seconds.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ajet.pool.reasons import DropReason

TASKS = "rollout_until_finish_enough_tasks"
EPISODES = "rollout_until_finish_enough_episodes"
NON_DUMMY = "rollout_until_finish_enough_non_dummy_tasks"


@dataclass(frozen=True)
class Finished:
    """A finished train episode as the pool sees it.

    Attributes:
        rewards: tag → the rewards of its agents, sorted.
        version: the newest policy version that sampled any of its tokens.
    """

    episode: str
    task: str
    rewards: dict[str, tuple[float, ...]]
    version: int

    @property
    def mean_reward(self) -> float:
        values = [value for of_tag in self.rewards.values() for value in of_tag]
        return sum(values) / len(values) if values else 0.0


@dataclass(eq=False)
class Group:
    """Episodes of one task that share a baseline."""

    task: str
    opened: float
    members: list[Finished] = field(default_factory=list)

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
    """A batch as formed: ``groups`` of exactly ``num_repeat`` episodes, in order."""

    groups: tuple[Group, ...]

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
    """

    num_repeat: int
    batch_size: int
    rule: str = TASKS
    max_policy_lag: int = 1
    group_deadline_s: float | None = None
    _partial: dict[str, Group] = field(default_factory=dict)
    _complete: deque[Group] = field(default_factory=deque)
    _episodes: set[str] = field(default_factory=set)

    def add(self, finished: Finished, now: float) -> Group:
        """Put a finished episode into the open group of its task."""
        if finished.episode in self._episodes:
            raise ValueError(f"episode {finished.episode} is in the pool already")
        self._episodes.add(finished.episode)
        group = self._partial.get(finished.task)
        if group is None:
            group = self._partial[finished.task] = Group(finished.task, now)
        group.members.append(finished)
        if len(group.members) == self.num_repeat:
            del self._partial[finished.task]
            self._complete.append(group)
        return group

    def sweep(self, version: int, now: float) -> list[Drop]:
        """Drop what can no longer be trained by an update of policy ``version``."""
        drops: list[Drop] = []
        oldest = version - self.max_policy_lag
        for group in list(self._partial.values()):
            if any(member.version < oldest for member in group.members):
                del self._partial[group.task]
                drops += self._drop_stale(group, oldest)
            elif self.group_deadline_s is not None and now - group.opened > self.group_deadline_s:
                del self._partial[group.task]
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

    def ready(self) -> bool:
        """Whether :meth:`take` would give a batch. Call :meth:`sweep` first."""
        return self._selected() is not None

    def take(self) -> Batch | None:
        """Remove and return the next batch, or None while the rule does not hold. Call :meth:`sweep` first."""
        chosen = self._selected()
        if chosen is None:
            return None
        taken = {id(group) for group in chosen}
        self._complete = deque(group for group in self._complete if id(group) not in taken)
        for group in chosen:
            self._episodes.difference_update(member.episode for member in group.members)
        return Batch(tuple(chosen))

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
        """When :meth:`sweep` may next drop a group for its age."""
        if self.group_deadline_s is None or not self._partial:
            return None
        return min(group.opened for group in self._partial.values()) + self.group_deadline_s

    def _selected(self) -> list[Group] | None:
        eligible: Callable[[Group], bool] = (
            (lambda group: not group.equal_rewards) if self.rule == NON_DUMMY else lambda _group: True
        )
        chosen: list[Group] = []
        tasks: set[str] = set()
        for group in self._complete:
            if not eligible(group) or (self.rule != EPISODES and group.task in tasks):
                continue
            chosen.append(group)
            tasks.add(group.task)
            if len(chosen) == self.batch_size:
                return chosen
        return None

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

    def complete(self) -> list[Group]:
        return list(self._complete)

    def partial(self) -> list[Group]:
        return list(self._partial.values())
