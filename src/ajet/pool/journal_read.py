"""Reading a journal: what a restart needs, what a step trains, what one episode was.

Every function opens its own read-only connection, so it may run in any thread beside the writer, and sees the journal
at one moment. Rows for training are always built from here, never from memory: a re-applied batch is by construction the
batch that was trained. What is damaged raises :class:`JournalDamaged`; a disk that fails, :class:`DiskRefused`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from ajet.default_config.schema import AjetConfig
from ajet.pool.journal_sql import SCHEMA_VERSION
from ajet.pool.records import BatchFormed, ClientSet, Done, LeaseOpened, StepDone, unpack_body, unpack_call, unseal
from ajet.schema.errors import ConfigError, DiskRefused, JournalDamaged
from ajet.trajectory.calls import Call

_LEASE = "l.n, l.episode, l.client, l.request, l.kind, l.task, l.timeout_s, l.created, l.version, l.share"
_LEASE_WIDTH = 10
_DONE = "d.n, l.episode, d.request, d.how, d.fate, d.reason, d.created, d.body"


@dataclass(frozen=True)
class OpenEpisode:
    lease: LeaseOpened
    calls: list[Call]


@dataclass(frozen=True)
class Restored:
    """Everything a restarted server continues from.

    Attributes:
        open: leases without an end, with their calls in order.
        pooled: finished train episodes in no batch and not dropped, in the order of their ends.
        unfinished: the batch that was formed but whose step is not journaled.
        clients: who held episodes that have ended.
        evals: eval episodes that ended with a result since the last step.
        participants: who took part, or had agreed to an update.
    """

    job: dict[str, Any] | None
    meta: dict[str, str]
    tallies: dict[str, int]
    next_n: int
    step: int
    digest: str | None
    unfinished: BatchFormed | None
    open: list[OpenEpisode] = field(default_factory=list)
    pooled: list[tuple[LeaseOpened, Done]] = field(default_factory=list)
    clients: frozenset[str] = frozenset()
    participants: list[ClientSet] = field(default_factory=list)
    evals: list[Done] = field(default_factory=list)


@dataclass(frozen=True)
class BatchEpisode:
    """One member of a batch with what its rows are built from."""

    lease: LeaseOpened
    done: Done
    calls: list[Call]


@dataclass(frozen=True)
class EpisodeRecord:
    """All that is kept of one episode."""

    lease: LeaseOpened
    done: Done | None
    calls: list[Call]
    step: int | None
    dropped: str | None
    advantages: dict[str, float]


def check_bodies(db: sqlite3.Connection) -> None:
    """Verify the checksum of every body, and that the rest can be read. Raises as :func:`reading` does."""
    for query in ("SELECT body FROM call", "SELECT body FROM done", "SELECT advantages FROM step"):
        for (blob,) in db.execute(query):
            unseal(blob)
    for (tree,) in db.execute("SELECT tree FROM job"):
        AjetConfig.model_validate(orjson.loads(tree))
    for (metrics,) in db.execute("SELECT metrics FROM step"):
        orjson.loads(metrics)


def connect(path: Path) -> sqlite3.Connection:
    """A read-only connection."""
    db = sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
    db.execute("PRAGMA busy_timeout=5000")
    return db


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A read-only connection that sees the journal at one moment.

    Raises:
        JournalDamaged: SQLite, or a record, is not what was written.
        DiskRefused: the file cannot be opened or read just now.
    """
    try:
        with closing(connect(path)) as db:
            db.execute("BEGIN")
            yield db
    except sqlite3.OperationalError as err:
        if not str(err).startswith("no such"):
            raise DiskRefused(f"The journal {path} cannot be read ({err}). Check its disk, then try again.") from err
        raise _damaged(path, err) from err
    except (sqlite3.DatabaseError, orjson.JSONDecodeError, ValidationError) as err:
        raise _damaged(path, err) from err


def _damaged(path: Path, err: object) -> JournalDamaged:
    return JournalDamaged(
        f"The journal {path} is damaged ({err}). Run `ajet-swarm doctor` on its folder, which says what to do."
    )


def _done(row: tuple[Any, ...]) -> Done:
    return Done(*row[:7], body=unpack_body(row[7]))


def _calls(db: sqlite3.Connection, n: int) -> list[Call]:
    return [unpack_call(blob) for (blob,) in db.execute("SELECT body FROM call WHERE n = ? ORDER BY k", (n,))]


def restore(path: Path) -> Restored:
    """What a restarted server continues from."""
    with reading(path) as db:
        job = db.execute("SELECT tree FROM job ORDER BY id DESC LIMIT 1").fetchone()
        last = db.execute("SELECT step, digest FROM step ORDER BY step DESC LIMIT 1").fetchone()
        step, digest = last or (0, None)
        batches = [_batch(db, row) for row in db.execute("SELECT * FROM batch WHERE step > ? ORDER BY step", (step,))]
        leases = [
            LeaseOpened(*row)
            for row in db.execute(
                f"SELECT {_LEASE} FROM lease l LEFT JOIN done d USING(n) WHERE d.n IS NULL ORDER BY l.n"
            )
        ]
        pooled = [
            (LeaseOpened(*row[:_LEASE_WIDTH]), _done(row[_LEASE_WIDTH:]))
            for row in db.execute(
                f"""SELECT {_LEASE}, {_DONE} FROM done d JOIN lease l USING(n)
                    LEFT JOIN member m ON m.n = d.n LEFT JOIN dropped x ON x.n = d.n
                    WHERE d.fate = 'pooled' AND m.n IS NULL AND x.n IS NULL ORDER BY d.seq"""
            )
        ]
        return Restored(
            job=orjson.loads(job[0]) if job else None,
            meta=dict(db.execute("SELECT key, value FROM meta")),
            tallies=dict(db.execute("SELECT name, n FROM tally")),
            next_n=(db.execute("SELECT max(n) FROM lease").fetchone()[0] or 0) + 1,
            step=step,
            digest=digest,
            unfinished=batches[0] if batches else None,
            open=[OpenEpisode(lease, _calls(db, lease.n)) for lease in leases],
            pooled=pooled,
            clients=frozenset(c for (c,) in db.execute("SELECT DISTINCT client FROM lease JOIN done USING(n)")),
            evals=[
                _done(row)
                for row in db.execute(
                    f"""SELECT {_DONE} FROM done d JOIN lease l USING(n) WHERE d.fate = 'eval' AND d.created >
                        coalesce((SELECT max(created) FROM step), 0) ORDER BY d.seq"""
                )
            ],
            participants=[
                ClientSet(client, tuple(orjson.loads(shares)), agreed, bool(present))
                for client, shares, agreed, present in db.execute("SELECT * FROM client ORDER BY client")
            ],
        )


def _batch(db: sqlite3.Connection, row: tuple[Any, ...]) -> BatchFormed:
    step, num_repeat, min_version, created = row
    members = db.execute(
        "SELECT m.n, l.episode FROM member m JOIN lease l USING(n) WHERE m.step = ? ORDER BY m.place", (step,)
    ).fetchall()
    return BatchFormed(step, num_repeat, min_version, tuple(members), created)


def batches_after(path: Path, step: int) -> list[BatchFormed]:
    """Batches of later steps, in order."""
    with reading(path) as db:
        return [_batch(db, row) for row in db.execute("SELECT * FROM batch WHERE step > ? ORDER BY step", (step,))]


def batch_episodes(path: Path, batch: BatchFormed) -> list[BatchEpisode]:
    """The members of a batch, in its order, with their calls."""
    found: list[BatchEpisode] = []
    with reading(path) as db:
        for n, _ in batch.members:
            row = db.execute(
                f"SELECT {_LEASE}, {_DONE} FROM lease l JOIN done d USING(n) WHERE l.n = ?", (n,)
            ).fetchone()
            if row is None:
                raise _damaged(path, f"episode number {n} of step {batch.step} is missing")
            found.append(BatchEpisode(LeaseOpened(*row[:_LEASE_WIDTH]), _done(row[_LEASE_WIDTH:]), _calls(db, n)))
    return found


def compacted_calls_missing(path: Path, batch: BatchFormed) -> bool:
    """Whether compaction removed calls that this batch needs, or all that was known of it."""
    if not batch.members:
        return True
    with reading(path) as db:
        marks = ",".join("?" * len(batch.members))
        query = f"SELECT 1 FROM compacted WHERE n IN ({marks}) LIMIT 1"
        return db.execute(query, [n for n, _ in batch.members]).fetchone() is not None


def steps(path: Path, since: int = 0) -> list[StepDone]:
    """Journaled steps after ``since``, in order."""
    with reading(path) as db:
        return [
            StepDone(step, digest, orjson.loads(metrics), unpack_body(advantages), created)
            for step, digest, created, metrics, advantages in db.execute(
                "SELECT step, digest, created, metrics, advantages FROM step WHERE step > ? ORDER BY step", (since,)
            )
        ]


def jobs(path: Path) -> list[tuple[int, AjetConfig]]:
    """Every job, oldest first, with the step after which it was in force."""
    with reading(path) as db:
        return [
            (after, AjetConfig.model_validate(orjson.loads(tree)))
            for after, tree in db.execute("SELECT step, tree FROM job ORDER BY id")
        ]


def check_version(path: Path) -> None:
    """Raises :class:`ConfigError` for a journal whose tables this AgentJet does not read, with what to do."""
    with reading(path) as db:
        version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA_VERSION:
        raise ConfigError(
            f"The journal {path} was written by a newer AgentJet (schema {version}, this one reads {SCHEMA_VERSION}). "
            "Upgrade AgentJet."
        )
    if 0 < version < SCHEMA_VERSION:
        raise ConfigError(
            f"The journal {path} is of schema {version}, this AgentJet reads {SCHEMA_VERSION}. Start its experiment once: "
            "the server brings the journal up to date."
        )


def meta(path: Path) -> dict[str, str]:
    """What is on record about the run itself."""
    with reading(path) as db:
        return dict(db.execute("SELECT key, value FROM meta"))


def step_digest(path: Path, step: int) -> str | None:
    with reading(path) as db:
        row = db.execute("SELECT digest FROM step WHERE step = ?", (step,)).fetchone()
        return row[0] if row else None


def ended_of_request(path: Path, client: str, request: str) -> tuple[LeaseOpened, Done] | None:
    """The episode that a client's begin was answered with, and how it ended; None where there is none, or it is open."""
    with reading(path) as db:
        row = db.execute(
            f"SELECT {_LEASE}, {_DONE} FROM lease l JOIN done d USING(n) WHERE client = ? AND l.request = ?",
            (client, request),
        ).fetchone()
        return (LeaseOpened(*row[:_LEASE_WIDTH]), _done(row[_LEASE_WIDTH:])) if row else None


def episode(path: Path, episode_id: str) -> EpisodeRecord | None:
    """All that is kept of one episode, or None."""
    with reading(path) as db:
        row = db.execute(f"SELECT {_LEASE} FROM lease l WHERE episode = ?", (episode_id,)).fetchone()
        if row is None:
            return None
        lease = LeaseOpened(*row)
        done = db.execute(f"SELECT {_DONE} FROM done d JOIN lease l USING(n) WHERE d.n = ?", (lease.n,)).fetchone()
        member = db.execute("SELECT step FROM member WHERE n = ?", (lease.n,)).fetchone()
        dropped = db.execute("SELECT reason FROM dropped WHERE n = ?", (lease.n,)).fetchone()
        advantages: dict[str, float] = {}
        if member:
            step = db.execute("SELECT advantages FROM step WHERE step = ?", member).fetchone()
            every = unpack_body(step[0]) if step else {}
            advantages = {k.partition("/")[2]: v for k, v in every.items() if k.partition("/")[0] == episode_id}
        return EpisodeRecord(
            lease,
            _done(done) if done else None,
            _calls(db, lease.n),
            member[0] if member else None,
            dropped[0] if dropped else None,
            advantages,
        )
