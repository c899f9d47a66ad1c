"""How the groups of a batch are divided between clients that train different tasks.

A *share* is a named part of every batch: of 100 groups, shares with weights 40 and 60 get 40 and 60. Where a share's part
is no whole number, what it got too little or too much of is carried over to its next batch.

Promises (property-tested):

- A batch is composed of exactly ``total`` groups, and no share gives more than it has.
- While the same shares take part and deliver, no share is ever a whole group behind its weight times the batches so far.
- A share that is waited for and has too little holds the batch back; one that is not gives what it has, and *lends* the
  rest to the others by their weights. What is lent is not owed back.
- The same calls give the same composition: ties go to the name that sorts first.

Pure; no clock, no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

DIGITS = 9
"""Decimals of what is carried over, so that it reads back from JSON as it was."""


@dataclass(frozen=True)
class Composition:
    """Of one batch.

    Attributes:
        seats: share → groups of this batch.
        missing: shares that are waited for and have too few.
        carry: share → groups owed to it (negative: had too many) once this batch is formed.
    """

    seats: dict[str, int]
    missing: frozenset[str]
    carry: dict[str, float]


@dataclass
class Shares:
    """Weights, and what is carried over between batches.

    Attributes:
        weights: share → weight above 0. A share without one gets ``rest``.
        carry: see :class:`Composition`.
    """

    weights: dict[str, float] = field(default_factory=dict)
    carry: dict[str, float] = field(default_factory=dict)
    rest: float = 1.0

    def weight(self, share: str) -> float:
        return self.weights.get(share, self.rest)

    def compose(self, total: int, available: Mapping[str, int], waited: Collection[str]) -> Composition:
        """The next batch of ``total`` groups.

        Args:
            available: share → complete groups it has. waited: shares that may still deliver.
        """
        contenders = sorted({*waited, *(share for share, n in available.items() if n)})
        lent: dict[str, int] = {}
        while True:
            rest = [share for share in contenders if share not in lent]
            targets = self._targets(total - sum(lent.values()), rest)
            seats = _whole(targets)
            short = [s for s in rest if available.get(s, 0) < seats[s]]
            gone = [s for s in short if s not in waited]
            if not gone:
                break
            lent.update((share, available.get(share, 0)) for share in gone)
        carry = {share: round(targets[share] - seats[share], DIGITS) for share in rest}
        return Composition({**lent, **seats}, frozenset(short), carry)

    def _targets(self, total: int, shares: Collection[str]) -> dict[str, float]:
        """Share → what it should get: its weight's part, and what is owed to it. They add up to ``total``."""
        if not shares:
            return {}
        weights = sum(self.weight(share) for share in shares)
        owed = sum(self.carry.get(share, 0.0) for share in shares) / len(shares)
        return {s: total * self.weight(s) / weights + self.carry.get(s, 0.0) - owed for s in shares}


def _whole(targets: Mapping[str, float]) -> dict[str, int]:
    """Whole numbers of the same sum, each next to its target; none below 0."""
    seats = {share: max(0, math.floor(target + 10**-DIGITS)) for share, target in targets.items()}
    left = round(sum(targets.values())) - sum(seats.values())
    for _ in range(left):
        share = max(sorted(seats), key=lambda s: targets[s] - seats[s])
        seats[share] += 1
    for _ in range(-left):
        share = min(sorted(s for s in seats if seats[s]), key=lambda s: targets[s] - seats[s])
        seats[share] -= 1
    return seats
