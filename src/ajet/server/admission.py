"""How episodes begin: requests wait in line for a lease, and each request id gets exactly one.

Promises:

- Journal first: a lease is answered only after its record is durable.
- A repeated request id gets the first grant again, also after a restart, and when that episode has ended; a request whose
  every waiter has gone gives its place up, so no lease is granted to nobody.
- A client that said goodbye is granted nothing any more.
- First come, first served, within ``max_env_worker``; between clients that share batches, as
  :mod:`ajet.server.sharing` says.

Used on the event loop only.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ajet.pool import journal_read
from ajet.pool.journal import Journal
from ajet.pool.leases import Lease, LeaseBook
from ajet.pool.records import LeaseOpened
from ajet.schema.errors import DiskRefused, EpisodeGone
from ajet.schema.wire import BeginRequest, EpisodeKind
from ajet.server.episode import OpenEpisode
from ajet.server.sharing import Sharing
from ajet.trajectory import ChatRenderer, EpisodeTrajectory

REMEMBERED = 20_000
"""Grants whose request id is kept after their episode ended."""


@dataclass
class Ticket:
    """A request that waits for a lease."""

    request: BeginRequest
    granted: asyncio.Future[OpenEpisode]
    waiters: int = 0
    granting: bool = False
    """Its lease is being written."""


def _nothing(_: OpenEpisode) -> None:
    pass


def _goodbye(client: str) -> EpisodeGone:
    return EpisodeGone(f"Client {client} was closed, so it can begin no episode. Make a new client.")


@dataclass
class Admission:
    """See the module.

    Args:
        may_grant: whether the engine's state allows a new episode of this kind now.
        version: the policy version now.

    Attributes:
        on_open: told of every granted episode, once its lease is durable.
        next_n: number of the next lease.
        former_clients: who held episodes before this server started; their repeats are looked up in the journal.
    """

    journal: Journal
    leases: LeaseBook
    renderer: ChatRenderer
    sharing: Sharing
    may_grant: Callable[[EpisodeKind], bool]
    version: Callable[[], int]
    on_open: Callable[[OpenEpisode], None] = _nothing
    next_n: int = 1
    former_clients: frozenset[str] = frozenset()
    _tickets: dict[str, Ticket] = field(default_factory=dict)
    _by_request: OrderedDict[tuple[str, str], OpenEpisode] = field(default_factory=OrderedDict)
    _grants: set[asyncio.Task[None]] = field(default_factory=set)
    _left: dict[str, None] = field(default_factory=dict)
    now: Callable[[], float] = time.monotonic

    def remember(self, episode: OpenEpisode) -> None:
        """Know the request that this episode answers."""
        self._by_request[(episode.opened.client, episode.opened.request)] = episode
        while len(self._by_request) > REMEMBERED + len(self.leases):
            self._by_request.popitem(last=False)

    async def begin(self, request: BeginRequest, wait_s: float) -> OpenEpisode | None:
        """Grant a lease, or None after ``wait_s``. A repeated request id gets the first grant again.

        Raises:
            InvalidRequest: see :meth:`Sharing.share_of`. DiskRefused: the lease could not be recorded.
            EpisodeGone: the client said goodbye.
        """
        if request.client_id in self._left:
            raise _goodbye(request.client_id)
        self.sharing.join(request)
        known = self._by_request.get((request.client_id, request.request_id))
        if known is not None:
            return known
        if request.client_id in self.former_clients:
            known = await self._of_before(request)
            if known is not None:
                return known
            if request.client_id in self._left:  # meanwhile
                raise _goodbye(request.client_id)
        key = f"{request.client_id}\0{request.request_id}"
        ticket = self._tickets.get(key)
        if ticket is None:
            ticket = self._tickets[key] = Ticket(request, asyncio.get_running_loop().create_future())
            self.leases.enqueue(key, request.kind)
        ticket.waiters += 1
        self.pump()
        try:
            return await asyncio.wait_for(asyncio.shield(ticket.granted), wait_s if wait_s > 0 else 0.001)
        except asyncio.TimeoutError:
            # What is being written is answered; else a lease would be open that its client was not told of.
            return await asyncio.shield(ticket.granted) if ticket.granting else None
        finally:
            ticket.waiters -= 1
            if not ticket.waiters and self._tickets.get(key) is ticket and not ticket.granted.done():
                self._withdraw(key, ticket)

    async def _of_before(self, request: BeginRequest) -> OpenEpisode | None:
        """What a client that is older than this server was granted for this request, where it has ended since."""
        found = await asyncio.to_thread(
            journal_read.ended_of_request, self.journal.path, request.client_id, request.request_id
        )
        if found is None:
            return self._by_request.get((request.client_id, request.request_id))
        opened, done = found
        lease = Lease(opened.episode, opened.client, request.kind, opened.timeout_s, self.now(), self.now())
        ended = OpenEpisode(opened, lease, EpisodeTrajectory(self.renderer), self.renderer, gone=done.reason)
        self.remember(ended)
        return ended

    def _withdraw(self, key: str, ticket: Ticket) -> None:
        """Nobody waits any more; unless its grant is being written, the place is given up."""
        if self.leases.withdraw(key, ticket.request.kind):
            del self._tickets[key]
            self.sharing.forget(key)

    def pump(self) -> None:
        """Grant what can be granted now."""
        for kind in ("train", "eval"):
            while self._tickets and self.may_grant(kind) and self.journal.disk_error is None:  # type: ignore[arg-type]
                pick = self._pick if kind == "train" and self.sharing.active else None
                key = self.leases.next_ticket(kind, pick)  # type: ignore[arg-type]
                if key is None:
                    break
                ticket = self._tickets[key]
                ticket.granting = True
                if kind == "train":
                    self.sharing.enter(key, self.sharing.share_of(ticket.request), ticket.request.told_task)
                task = asyncio.create_task(self._grant(key, ticket))
                self._grants.add(task)
                task.add_done_callback(self._grants.discard)

    def _pick(self, waiting: Iterable[str]) -> str | None:
        return self.sharing.pick(waiting, lambda key: self._tickets[key].request)

    async def _grant(self, key: str, ticket: Ticket) -> None:
        request = ticket.request
        opened = LeaseOpened(
            n=self.next_n,
            episode=f"ep-{secrets.token_hex(12)}",
            client=request.client_id,
            request=request.request_id,
            kind=request.kind,
            task=request.task_id or None,
            timeout_s=request.discard_episode_timeout,
            created=time.time(),
            version=self.version(),
            share=self.sharing.share_of(request),
        )
        self.next_n += 1
        self.sharing.rename(key, opened.episode)
        lease = self.leases.claim(opened.episode, opened.client, request.kind, opened.timeout_s, self.now())
        episode = OpenEpisode(opened, lease, EpisodeTrajectory(self.renderer), self.renderer)
        try:
            await self.journal.append(opened)
        except BaseException as err:
            self.leases.close(opened.episode)
            self.sharing.exit(opened.episode)
            self._tickets.pop(key, None)
            if not ticket.granted.done():
                ticket.granted.set_exception(
                    err if isinstance(err, Exception) else DiskRefused("The server is stopping.")
                )
                ticket.granted.exception()
            return
        self._tickets.pop(key, None)
        self.remember(episode)
        self.on_open(episode)
        lease.seen = self.now()
        if not ticket.granted.done():
            ticket.granted.set_result(episode)

    def refuse_waiting(self, kinds: tuple[EpisodeKind, ...], error: Callable[[], Exception]) -> None:
        """Answer all that wait for a lease of ``kinds`` with an error."""
        self._refuse(lambda request: request.kind in kinds, error)

    async def leave(self, client: str) -> None:
        """``client`` said goodbye. Returns when no grant of its is being written."""
        self._left[client] = None
        while len(self._left) > REMEMBERED:
            del self._left[next(iter(self._left))]
        self._refuse(lambda request: request.client_id == client, lambda: _goodbye(client))
        if any(ticket.request.client_id == client for ticket in self._tickets.values()) and self._grants:
            await asyncio.wait(self._grants)  # which, unlike gathering, does not cancel them where this is cancelled

    def has_left(self, client: str) -> bool:
        """Whether ``client`` said goodbye: what is still heard of it is no sign of life."""
        return client in self._left

    def _refuse(self, which: Callable[[BeginRequest], bool], error: Callable[[], Exception]) -> None:
        for key, ticket in list(self._tickets.items()):
            if which(ticket.request) and self.leases.withdraw(key, ticket.request.kind):
                del self._tickets[key]
                self.sharing.forget(key)
                if not ticket.granted.done():
                    ticket.granted.set_exception(error())
                    ticket.granted.exception()

    async def settled(self) -> None:
        """Return when every grant that was being written is decided."""
        await asyncio.gather(*self._grants, return_exceptions=True)
