"""One open episode in memory: its trajectory and the requests that are in flight for it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from ajet.pool.leases import Lease
from ajet.pool.records import LeaseOpened
from ajet.schema.errors import EpisodeGone
from ajet.schema.wire import EndAnswer
from ajet.server.answers import Answers
from ajet.trajectory import Call, ChatRenderer, EpisodeTrajectory


@dataclass(eq=False)
class OpenEpisode:
    """Mutable; owned by the :class:`ajet.server.registry.Registry`.

    Attributes:
        ending: set once an end or abort is being written; from then on no call is recorded.
        answers: what has been answered, so that a repeated request gets it again.
        gone: why it is over, for requests that were in flight.
    """

    opened: LeaseOpened
    lease: Lease
    trajectory: EpisodeTrajectory
    renderer: ChatRenderer
    next_call: int = 0
    in_flight: set[asyncio.Task[object]] = field(default_factory=set)
    ending: asyncio.Task[EndAnswer] | asyncio.Task[str] | None = None
    ending_request: str | None = None
    gone: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    answers: Answers = field(default_factory=Answers)

    @property
    def id(self) -> str:
        return self.opened.episode

    @property
    def n(self) -> int:
        return self.opened.n

    @property
    def train(self) -> bool:
        return self.opened.kind == "train"

    def new_call_id(self) -> str:
        self.next_call += 1
        return f"c{self.n}-{self.next_call}"

    def check_open(self) -> None:
        """Raises :class:`EpisodeGone` once the episode is over or about to be."""
        if self.gone is not None:
            raise EpisodeGone(self.gone)
        if self.ending is not None:
            raise EpisodeGone(f"Episode {self.id} is being ended; it takes no further calls.")

    def forget(self, call: Call) -> None:
        """Take a call back that the journal refused: nothing may extend what is not on record."""
        self.answers.forget(call)
        kept = [c for c in self.trajectory.calls.values() if c.call_id != call.call_id]
        self.trajectory = EpisodeTrajectory(self.renderer)
        for other in kept:
            self.trajectory.restore(other)

    def restore(self, calls: list[Call]) -> None:
        for call in calls:
            self.trajectory.restore(call)
            self.answers.add([call])
            self.tags[call.agent] = call.tag
            self.next_call = max(self.next_call, int(call.call_id.rpartition("-")[2]))

    def close(self, why: str) -> None:
        """No more calls; those in flight are cancelled and answered with ``why``. The journal has the calls now."""
        self.gone = why
        self.trajectory, self.answers = EpisodeTrajectory(self.renderer), Answers()
        for task in list(self.in_flight):
            task.cancel()

    def newest_version(self) -> int:
        """The newest policy version that sampled any token here; that of the lease without one."""
        versions = [v for call in self.trajectory.calls.values() for v in call.versions]
        return max(versions, default=self.opened.version)
