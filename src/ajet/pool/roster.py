"""Which clients take part in training just now, in which shares, and which update each has agreed to.

Promises (property-tested):

- A client takes part from its first train episode until it says goodbye or gives no sign of life for ``silence_s``;
  one that comes back takes part again.
- An agreement belongs to one update (``step``); agreeing again changes nothing, and an agreement outlives its client.
- :meth:`Roster.agreed` never holds without an agreement, and with ``every`` only if all who take part have agreed.

Pure and synchronous; ``now`` is a monotonic clock in seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

FORMER = 10_000
"""Clients that left and are remembered, so that a sign of life brings them back."""


@dataclass(eq=False)
class Participant:
    """One client. ``shares``: those it has begun episodes for. ``agreed``: the last update it agreed to; 0: none."""

    client: str
    shares: tuple[str, ...] = ()
    agreed: int = 0
    present: bool = True
    seen: float = 0.0


@dataclass
class Roster:
    """See the module. ``changes`` grows whenever somebody comes, goes or agrees."""

    silence_s: float
    changes: int = 0
    _all: dict[str, Participant] = field(default_factory=dict)

    def join(self, client: str, share: str, now: float) -> Participant | None:
        """``client`` begins a train episode. Returns it where that changed anything."""
        one = self._all.get(client)
        if one is None:
            one = self._all[client] = Participant(client, present=False)
        one.seen = now
        if one.present and share in one.shares:
            return None
        one.present = True
        if share not in one.shares:
            one.shares = (*one.shares, share)
        self.changes += 1
        return one

    def restore(self, client: str, shares: tuple[str, ...], agreed: int, present: bool, now: float) -> None:
        """As it was on record."""
        self._all[client] = Participant(client, shares, agreed, present, now)
        self.changes += 1

    def sign(self, client: str, now: float) -> Participant | None:
        """A sign of life. Returns the client where that brought it back."""
        one = self._all.get(client)
        if one is None:
            return None
        one.seen = now
        if one.present or not one.shares:
            return None
        one.present = True
        self.changes += 1
        return one

    def agree(self, client: str, step: int, now: float) -> Participant:
        """``client`` agrees to update ``step``. To agree alone is not to take part."""
        one = self._all.get(client)
        if one is None:
            one = self._all[client] = Participant(client, present=False)
        one.seen = now
        if step > one.agreed:
            one.agreed = step
            self.changes += 1
        return one

    def leave(self, client: str) -> Participant | None:
        """``client`` says goodbye. Returns it where it took part."""
        one = self._all.get(client)
        if one is None or not one.present:
            return None
        one.present = False
        self.changes += 1
        self._forget()
        return one

    def silent(self, now: float, lease_seen: Callable[[str], float | None]) -> list[str]:
        """Clients whose time is over.

        Args:
            lease_seen: a client → when its open episodes last showed life (a chat call is a sign, too).
        """
        found = []
        for one in self.present():
            if now - one.seen >= self.silence_s:
                seen = lease_seen(one.client)
                if seen is not None:
                    one.seen = max(one.seen, min(seen, now))
                if now - one.seen >= self.silence_s:
                    found.append(one.client)
        return found

    def next_silent(self) -> float | None:
        """Nobody's time is over before this; None where nobody takes part."""
        seen = [one.seen for one in self.present()]
        return min(seen) + self.silence_s if seen else None

    def shift(self, seconds: float) -> None:
        """Let the clock have stood still for ``seconds``."""
        for one in self._all.values():
            one.seen += seconds

    def agreed(self, step: int, *, every: bool) -> bool:
        """Whether update ``step`` is agreed to: by all who take part (``every``), or by anyone."""
        if not any(one.agreed >= step for one in self._all.values()):
            return False
        return not every or all(one.agreed >= step for one in self.present())

    # ── reads ────────────────────────────────────────────────────────────────────────────────────────────────────

    def get(self, client: str) -> Participant | None:
        return self._all.get(client)

    def present(self) -> list[Participant]:
        return [one for one in self._all.values() if one.present]

    def shares(self) -> frozenset[str]:
        """Shares that somebody takes part in."""
        return frozenset(share for one in self.present() for share in one.shares)

    def agreements(self, step: int) -> list[str]:
        """Who has agreed to update ``step``."""
        return [one.client for one in self._all.values() if one.agreed >= step]

    def _forget(self) -> None:
        gone = [one.client for one in self._all.values() if not one.present]
        for client in gone[: max(0, len(gone) - FORMER)]:
            del self._all[client]
