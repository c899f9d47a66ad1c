"""Leases: an episode's right to live.

Promises (property-tested):

- At most ``capacity`` train leases are open; eval leases are counted apart and take no place from training.
- Requests that cannot be granted wait in order of arrival; a freed place goes to the longest waiting, or to whom the
  caller picks.
- A lease ends exactly once, by :meth:`LeaseBook.close`; :meth:`LeaseBook.due` only says whose time is over.
- A lease with a request in flight (:meth:`LeaseBook.enter`) is not silent, but it does age.

Pure and synchronous. ``now`` is a monotonic clock in seconds; the caller owns the clock.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from ajet.schema.drops import DropReason

Kind = Literal["train", "eval"]


@dataclass(eq=False)
class Lease:
    """One open episode's lease. Mutable; owned by its :class:`LeaseBook`."""

    episode: str
    client: str
    kind: Kind
    timeout_s: float
    granted: float
    seen: float
    busy: int = 0

    def deadline(self, max_age_s: float) -> float:
        """When it ends if nothing happens until then."""
        oldest = self.granted + max_age_s
        return oldest if self.busy else min(oldest, self.seen + self.timeout_s)


@dataclass
class LeaseBook:
    """All open leases and the requests that wait for one.

    Args:
        capacity: train leases open at once (``max_env_worker``); the same again for eval.
        max_age_s: a lease ends at this age.
    """

    capacity: int
    max_age_s: float
    _leases: dict[str, Lease] = field(default_factory=dict)
    _waiting: dict[Kind, OrderedDict[str, None]] = field(
        default_factory=lambda: {"train": OrderedDict(), "eval": OrderedDict()}
    )
    _open: dict[Kind, int] = field(default_factory=lambda: {"train": 0, "eval": 0})
    _held: dict[Kind, int] = field(default_factory=lambda: {"train": 0, "eval": 0})
    _by_client: dict[str, dict[str, Lease]] = field(default_factory=dict)
    _heap: list[tuple[float, str]] = field(default_factory=list)

    # ── granting ─────────────────────────────────────────────────────────────────────────────────────────────────

    def enqueue(self, ticket: str, kind: Kind) -> None:
        """Take a place in the queue; a ticket that waits already keeps its place."""
        self._waiting[kind].setdefault(ticket, None)

    def withdraw(self, ticket: str, kind: Kind) -> bool:
        """Give a place in the queue up. False where the ticket does not wait (any more)."""
        if ticket not in self._waiting[kind]:
            return False
        del self._waiting[kind][ticket]
        return True

    def next_ticket(self, kind: Kind, pick: Callable[[Iterable[str]], str | None] | None = None) -> str | None:
        """Pop the ticket that is granted now, or None. Its place is held until :meth:`claim`.

        Args:
            pick: chooses from the waiting tickets, longest waiting first, or none of them; default: the first.
        """
        queue = self._waiting[kind]
        if not queue or self._open[kind] + self._held[kind] >= self.capacity:
            return None
        ticket = next(iter(queue)) if pick is None else pick(queue)
        if ticket is None:
            return None
        del queue[ticket]
        self._held[kind] += 1
        return ticket

    def claim(self, episode: str, client: str, kind: Kind, timeout_s: float, now: float) -> Lease:
        """Open the lease of a ticket that :meth:`next_ticket` gave."""
        self._held[kind] -= 1
        return self.grant(episode, client, kind, timeout_s, now)

    def grant(self, episode: str, client: str, kind: Kind, timeout_s: float, now: float) -> Lease:
        """Open a lease whatever the capacity (a journaled one is restored)."""
        if episode in self._leases:
            raise ValueError(f"episode {episode} has a lease already")
        lease = Lease(episode, client, kind, timeout_s, now, now)
        self._leases[episode] = lease
        self._open[kind] += 1
        self._by_client.setdefault(client, {})[episode] = lease
        heapq.heappush(self._heap, (lease.deadline(self.max_age_s), episode))
        return lease

    # ── life ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def get(self, episode: str) -> Lease | None:
        return self._leases.get(episode)

    def touch(self, episode: str, now: float) -> bool:
        """A sign of life. False where there is no such lease."""
        lease = self._leases.get(episode)
        if lease is None:
            return False
        lease.seen = now
        return True

    def enter(self, episode: str, now: float) -> bool:
        """A request of this episode is in flight: it is not silent until :meth:`leave`."""
        lease = self._leases.get(episode)
        if lease is None:
            return False
        lease.busy += 1
        lease.seen = now
        return True

    def leave(self, episode: str, now: float) -> None:
        lease = self._leases.get(episode)
        if lease is not None:
            lease.busy -= 1
            lease.seen = now
            if not lease.busy:
                heapq.heappush(self._heap, (lease.deadline(self.max_age_s), episode))

    def heartbeat(self, client: str, episodes: list[str] | None, now: float) -> tuple[int, list[str]]:
        """A client's sign of life for ``episodes``, or for all it holds where None.

        Returns:
            How many leases were touched, and which of ``episodes`` have no lease here or belong to another client.
        """
        own = self._by_client.get(client, {})
        if episodes is None:
            for lease in own.values():
                lease.seen = now
            return len(own), []
        gone = []
        alive = 0
        for episode in episodes:
            lease = own.get(episode)
            if lease is None:
                gone.append(episode)
            else:
                lease.seen = now
                alive += 1
        return alive, gone

    # ── end ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def close(self, episode: str) -> Lease | None:
        """End a lease and free its place. None where there is none (any more)."""
        lease = self._leases.pop(episode, None)
        if lease is None:
            return None
        self._open[lease.kind] -= 1
        own = self._by_client[lease.client]
        del own[episode]
        if not own:
            del self._by_client[lease.client]
        return lease

    def due(self, now: float) -> list[tuple[Lease, DropReason]]:
        """Leases whose time is over. They stay open until :meth:`close`; each is reported once per call."""
        found: list[tuple[Lease, DropReason]] = []
        again: list[tuple[float, str]] = []
        reported: set[str] = set()
        while self._heap and self._heap[0][0] <= now:
            _, episode = heapq.heappop(self._heap)
            lease = self._leases.get(episode)
            if lease is None or episode in reported:
                continue
            deadline = lease.deadline(self.max_age_s)
            if deadline > now:
                again.append((deadline, episode))
                continue
            reported.add(episode)
            aged = now >= lease.granted + self.max_age_s
            found.append((lease, DropReason.TOO_OLD if aged else DropReason.SILENT))
            again.append((deadline, episode))
        for entry in again:
            heapq.heappush(self._heap, entry)
        return found

    def next_deadline(self) -> float | None:
        """No lease can be due before this; None without leases."""
        while self._heap and self._heap[0][1] not in self._leases:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def shift(self, seconds: float) -> None:
        """Let the clocks have stood still for ``seconds`` (a full disk, a stalled server)."""
        for lease in self._leases.values():
            lease.granted += seconds
            lease.seen += seconds
        self._heap = [(lease.deadline(self.max_age_s), e) for e, lease in self._leases.items()]
        heapq.heapify(self._heap)

    # ── reads ────────────────────────────────────────────────────────────────────────────────────────────────────

    def __len__(self) -> int:
        return len(self._leases)

    def all(self) -> list[Lease]:
        return list(self._leases.values())

    def open(self, kind: Kind) -> int:
        return self._open[kind]

    def waiting(self, kind: Kind) -> int:
        return len(self._waiting[kind])

    def seen_of(self, client: str) -> float | None:
        """When a client's open episodes last showed life (one with a request in flight: now); None without any."""
        own = self._by_client.get(client)
        return max((math.inf if lease.busy else lease.seen for lease in own.values()), default=None) if own else None

    def clients(self) -> int:
        return len(self._by_client)
