"""What a role's reward has been so far: a baseline for groups that have none of their own.

A group whose games all ended alike compares nothing, and verl's group estimators give it zero. With
``algorithm.running_baseline`` such a group is compared with the running mean of its tag's reward over the *earlier*
steps instead: games that are all won teach a role that mostly loses, and little one that mostly wins.

The state is pure data and part of what a checkpoint keeps, so re-applied batches find the baseline that they had.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

EPSILON = 1e-6


@dataclass(frozen=True)
class RunningBaseline:
    """Running first and second moment of the reward, by tag. Immutable: :meth:`after` answers the next one."""

    mean: Mapping[str, float] = field(default_factory=dict)
    square: Mapping[str, float] = field(default_factory=dict)

    def advantage(self, tag: str, reward: float, *, by_std: bool, largest_group: int) -> float:
        """Of each member of a group that all got ``reward``; 0 for a tag that has not been seen before.

        Args:
            by_std: divide by the tag's running deviation, as GRPO divides by the group's.
            largest_group: its size bounds the result to what GRPO can give one member of a mixed group of that size,
                (G - 1) / √G with verl's sample deviation, so that no group without contrast outweighs one with it.
        """
        if tag not in self.mean:
            return 0.0
        difference = reward - self.mean[tag]
        if not by_std:
            return difference
        deviation = math.sqrt(max(0.0, self.square[tag] - self.mean[tag] ** 2))
        size = max(2, largest_group)
        bound = (size - 1) / math.sqrt(size)
        return max(-bound, min(bound, difference / (deviation + EPSILON)))

    def after(self, rewards: Mapping[str, Sequence[float]], past: float) -> RunningBaseline:
        """The baseline once a batch has been seen.

        Args:
            rewards: tag → one reward per (episode, tag).
            past: weight of what was before, 0 to 1. A tag that is new begins with its batch's mean.
        """
        mean, square = dict(self.mean), dict(self.square)
        for tag, values in rewards.items():
            for moment, now in ((mean, fmean(values)), (square, fmean(v * v for v in values))):
                moment[tag] = past * moment[tag] + (1 - past) * now if tag in moment else now
        return RunningBaseline(mean, square)

    def to_state(self) -> dict[str, dict[str, float]]:
        """As JSON; floats come back bit by bit."""
        return {"mean": dict(self.mean), "square": dict(self.square)}

    @classmethod
    def from_state(cls, state: Mapping[str, Mapping[str, float]] | None) -> RunningBaseline:
        """From :meth:`to_state`; empty for a checkpoint that has none."""
        return cls(dict(state["mean"]), dict(state["square"])) if state else cls()
