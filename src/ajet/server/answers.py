"""Chat calls that are asked again: what makes a request a repeat, and the first answer to it.

Promise: a repeat of a recorded call gets the recorded answer, also after a restart of the server. Nothing is sampled
twice for one request, so no reply that its agent never saw is trained.

What counts as a repeat, per (episode, agent):

- the same ``Idempotency-Key`` header. A repeat that comes while the first is still being sampled waits for it. The same
  key with another body is refused.
- without that header: a request with the same body whose ``x-stainless-retry-count`` (sent by the OpenAI SDKs) says that
  it is a retry. A retry of a request that got an *error* from this server is not a repeat of an answer, and is sampled.

Two requests with the same body and neither header are two requests: agents do ask twice on purpose.
Used on the event loop, by :mod:`ajet.server.chat` only.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ajet.schema.errors import InvalidRequest
from ajet.trajectory import Call

KEY_MAX = 255


@dataclass(frozen=True)
class Identity:
    """Of one chat request.

    Attributes:
        name: what its calls are recorded under: hash of the idempotency key, or else of the body.
        body: hash of the body.
        keyed: whether ``name`` comes from an idempotency key. retry: whether the client says that it asks again.
    """

    name: str
    body: str
    keyed: bool
    retry: bool


def identify(body: bytes, idempotency_key: str | None, retry_count: str | None) -> Identity:
    """The identity of a request from its bytes and headers.

    Raises:
        InvalidRequest: the idempotency key is empty or too long.
    """
    digest = _hash(body)
    if idempotency_key is None:
        return Identity(f"b:{digest}", digest, False, bool(retry_count) and retry_count != "0")
    if not idempotency_key or len(idempotency_key) > KEY_MAX:
        raise InvalidRequest(f"Idempotency-Key must have 1 to {KEY_MAX} characters.", param="Idempotency-Key")
    return Identity(f"k:{_hash(idempotency_key.encode())}:{digest}", digest, True, False)


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=12).hexdigest()


@dataclass
class Answers:
    """The answers one open episode has given."""

    _given: dict[tuple[str, str], list[list[Call]]] = field(default_factory=dict)
    """(agent, name) → answers not yet given a second time without a key, oldest first; an answer is its choices."""
    _keys: dict[tuple[str, str], str] = field(default_factory=dict)
    """(agent, hash of the idempotency key) → hash of its body."""
    _failed: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(agent, name) → requests that got an error, whose retry is to be sampled."""
    _pending: dict[tuple[str, str], asyncio.Future[None]] = field(default_factory=dict)

    def add(self, calls: Sequence[Call]) -> None:
        """An answer is on record: its calls, one for each choice, or some of them when read back from the journal."""
        for call in calls:
            if not call.request:
                continue
            groups = self._given.setdefault((call.agent, call.request), [])
            if call.choice == 0 or not groups:
                groups.append([])
            groups[-1].append(call)
            if call.request.startswith("k:"):
                _, key, body = call.request.split(":")
                self._keys[(call.agent, key)] = body

    def forget(self, call: Call) -> None:
        """The journal refused ``call``."""
        at = (call.agent, call.request)
        kept = [group for group in self._given.get(at, []) if all(c.call_id != call.call_id for c in group)]
        if kept:
            self._given[at] = kept
        else:
            self._given.pop(at, None)

    def failed(self, agent: str, identity: Identity) -> None:
        """The request got an error; its retry will be sampled."""
        if not identity.keyed:
            self._failed[(agent, identity.name)] += 1

    def known(self, agent: str, identity: Identity) -> list[Call] | None:
        """The answer to repeat, as its choices; None where the request is to be sampled.

        Raises:
            InvalidRequest: the idempotency key belongs to another body.
        """
        at = (agent, identity.name)
        if identity.keyed:
            key = identity.name.split(":")[1]
            if self._keys.get((agent, key), identity.body) != identity.body:
                raise InvalidRequest(
                    "This Idempotency-Key was used for another request. Take a new one for each request.",
                    param="Idempotency-Key",
                )
            groups = self._given.get(at)
            return groups[0] if groups else None
        if not identity.retry:
            return None
        if self._failed[at] > 0:
            self._failed[at] -= 1
            return None
        groups = self._given.get(at)
        if not groups:
            return None
        # Of several equal requests the oldest answer is repeated first, then the next: each to one retry.
        groups.append(groups.pop(0))
        return groups[-1]

    async def turn(self, agent: str, identity: Identity) -> asyncio.Future[None] | None:
        """Wait while the same keyed request is being answered; then hold its place (None: it needs none)."""
        if not identity.keyed:
            return None
        at = (agent, identity.name)
        while (pending := self._pending.get(at)) is not None:
            await asyncio.wait([pending])
        place = self._pending[at] = asyncio.get_running_loop().create_future()
        return place

    def leave(self, agent: str, identity: Identity, place: asyncio.Future[None] | None) -> None:
        """Give the place of :meth:`turn` up."""
        if place is not None:
            self._pending.pop((agent, identity.name), None)
            place.set_result(None)
