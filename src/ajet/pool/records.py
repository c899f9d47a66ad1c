"""What the journal keeps: one frozen record per fact, and how a call is packed.

``n`` is the lease's number: unique and growing within one journal, never reused. A lease ends by exactly one
:class:`Done`; a batch names its episodes once. The database's primary keys enforce both.
"""

from __future__ import annotations

import zlib
from array import array
from dataclasses import dataclass, field
from typing import Any, Literal

import msgpack

from ajet.schema.errors import JournalDamaged
from ajet.trajectory.calls import Call

DoneHow = Literal["end", "abort"]


@dataclass(frozen=True)
class JobSet:
    """A resolved configuration tree, in force for every step after ``step``."""

    tree: dict[str, Any]
    created: float
    step: int = 0


@dataclass(frozen=True)
class LeaseOpened:
    n: int
    episode: str
    client: str
    request: str
    kind: str
    task: str | None
    timeout_s: float
    created: float
    version: int
    share: str = ""
    """The part of a batch it is played for; "": none in particular."""


@dataclass(frozen=True)
class CallRecorded:
    n: int
    call: Call


@dataclass(frozen=True)
class Done:
    """How a lease ended.

    Attributes:
        fate: ``pooled`` / ``eval`` / ``no_calls`` / ``training_finished`` for an end; for an abort the counted reason.
        reason: the words shown to users.
        body: of an end: task, reward, rewards by tag, is_success, log_metrics, metadata, version, calls.
    """

    n: int
    episode: str
    request: str
    how: DoneHow
    fate: str
    reason: str
    created: float
    body: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Dropped:
    """A finished episode that left the pool untrained."""

    n: int
    reason: str


@dataclass(frozen=True)
class BatchFormed:
    """Step ``step`` trains exactly these leases, ``num_repeat`` to a group, in this order."""

    step: int
    num_repeat: int
    min_version: int
    members: tuple[tuple[int, str], ...]
    """(n, episode)"""
    created: float


@dataclass(frozen=True)
class StepDone:
    step: int
    digest: str
    metrics: dict[str, Any]
    advantages: dict[str, float]
    created: float


@dataclass(frozen=True)
class Counted:
    """Add ``by`` to a counter that survives restarts and compaction."""

    name: str
    by: int = 1


@dataclass(frozen=True)
class ClientSet:
    """A client as :class:`ajet.pool.roster.Roster` knows it; one that neither takes part nor has agreed is forgotten."""

    client: str
    shares: tuple[str, ...]
    agreed: int
    present: bool


@dataclass(frozen=True)
class MetaSet:
    key: str
    value: str


Record = JobSet | LeaseOpened | CallRecorded | Done | Dropped | BatchFormed | StepDone | Counted | ClientSet | MetaSet


def seal(payload: bytes) -> bytes:
    """``payload`` and its CRC-32: SQLite would not notice a flipped bit in it."""
    return payload + zlib.crc32(payload).to_bytes(4, "little")


def unseal(blob: bytes) -> bytes:
    """Inverse of :func:`seal`. Raises :class:`JournalDamaged`."""
    payload = blob[:-4]
    if zlib.crc32(payload).to_bytes(4, "little") != blob[-4:]:
        raise JournalDamaged(
            "A record of the journal has changed since it was written: the disk or a copy is at fault. Run `ajet-swarm doctor` "
            "on the experiment's folder."
        )
    return payload


def pack_body(body: Any) -> bytes:
    """Plain data, sealed."""
    return seal(msgpack.packb(body))  # type: ignore[arg-type]


def unpack_body(blob: bytes) -> Any:
    """Inverse of :func:`pack_body`. Raises :class:`JournalDamaged`."""
    return msgpack.unpackb(unseal(blob))


def pack_call(call: Call) -> bytes:
    """Ids as int32 and log-probs as float32 (what training reads), the rest as msgpack."""
    versions = call.versions
    same = versions[0] if versions and versions.count(versions[0]) == len(versions) else None
    return pack_body(
        (
            call.call_id,
            call.agent,
            call.tag,
            call.parent,
            array("i", call.prompt_delta).tobytes(),
            array("i", call.reply_ids).tobytes(),
            array("f", call.logprobs).tobytes(),
            array("i", versions).tobytes() if same is None else same,
            call.temperature,
            call.finish_reason,
            call.context_key,
            call.branch,
            call.created,
            call.message,
            call.request,
            call.choice,
            call.fork,
        )
    )


def unpack_call(blob: bytes) -> Call:
    """Inverse of :func:`pack_call`. Raises :class:`JournalDamaged`."""
    (
        call_id,
        agent,
        tag,
        parent,
        delta,
        reply,
        logprobs,
        versions,
        temperature,
        finish,
        key,
        branch,
        created,
        message,
        *rest,
    ) = unpack_body(blob)
    # Journals of earlier versions end sooner.
    later: list[Any] = [*rest, *["", 0, None][len(rest) :]]
    request, choice, fork = later
    reply_ids = _ints(reply)
    return Call(
        call_id=call_id,
        agent=agent,
        tag=tag,
        parent=parent,
        prompt_delta=_ints(delta),
        reply_ids=reply_ids,
        logprobs=array("f", logprobs).tolist(),
        versions=_ints(versions) if isinstance(versions, bytes) else [versions] * len(reply_ids),
        temperature=temperature,
        finish_reason=finish,
        context_key=key,
        branch=branch,
        created=created,
        message=message,
        request=request,
        choice=choice,
        fork=fork,
    )


def _ints(raw: bytes) -> list[int]:
    return array("i", raw).tolist()
