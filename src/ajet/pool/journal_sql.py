"""The journal's tables, and the statements that write and compact them. Used by the journal's writer thread only."""

from __future__ import annotations

import sqlite3

import orjson

from ajet.pool.records import (
    BatchFormed,
    CallRecorded,
    ClientSet,
    Counted,
    Done,
    Dropped,
    JobSet,
    LeaseOpened,
    Record,
    StepDone,
    pack_body,
    pack_call,
)

SCHEMA_VERSION = 4
COMPACT_LEASES = 200
VACUUM_PAGES = 1000
KEEP_LEASES = 100_000
"""Of so many of the newest leases it is remembered how they ended, so that a repeated end gets its first answer. Of older
ones, once their calls are gone, nothing is kept but the counts; an end for one of them finds no such episode."""
_NO_ADVANTAGES = pack_body({})

SCHEMA = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE tally(name TEXT PRIMARY KEY, n INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE job(id INTEGER PRIMARY KEY, created REAL NOT NULL, tree BLOB NOT NULL, step INTEGER NOT NULL DEFAULT 0);
CREATE TABLE lease(n INTEGER PRIMARY KEY, episode TEXT NOT NULL UNIQUE, client TEXT NOT NULL, request TEXT NOT NULL,
  kind TEXT NOT NULL, task TEXT, timeout_s REAL NOT NULL, created REAL NOT NULL, version INTEGER NOT NULL,
  share TEXT NOT NULL DEFAULT '');
CREATE INDEX lease_request ON lease(client, request);
CREATE TABLE call(k INTEGER PRIMARY KEY, n INTEGER NOT NULL, body BLOB NOT NULL);
CREATE INDEX call_n ON call(n);
CREATE TABLE done(seq INTEGER PRIMARY KEY, n INTEGER NOT NULL UNIQUE, request TEXT NOT NULL, how TEXT NOT NULL,
  fate TEXT NOT NULL, reason TEXT NOT NULL, created REAL NOT NULL, body BLOB NOT NULL);
CREATE TABLE batch(step INTEGER PRIMARY KEY, num_repeat INTEGER NOT NULL, min_version INTEGER NOT NULL,
  created REAL NOT NULL);
CREATE TABLE member(n INTEGER PRIMARY KEY, step INTEGER NOT NULL, place INTEGER NOT NULL);
CREATE INDEX member_step ON member(step);
CREATE TABLE dropped(n INTEGER PRIMARY KEY, reason TEXT NOT NULL);
CREATE TABLE step(step INTEGER PRIMARY KEY, digest TEXT NOT NULL, created REAL NOT NULL, metrics BLOB NOT NULL,
  advantages BLOB NOT NULL);
CREATE TABLE compacted(n INTEGER PRIMARY KEY);
CREATE TABLE client(client TEXT PRIMARY KEY, shares TEXT NOT NULL, agreed INTEGER NOT NULL, present INTEGER NOT NULL)
  WITHOUT ROWID;
"""

MIGRATIONS = {
    1: "ALTER TABLE job ADD COLUMN step INTEGER NOT NULL DEFAULT 0; UPDATE call SET body = seal(body); "
    "UPDATE done SET body = seal(body); UPDATE step SET advantages = seal(advantages);",
    2: "CREATE INDEX lease_request ON lease(client, request);",
    3: "ALTER TABLE lease ADD COLUMN share TEXT NOT NULL DEFAULT ''; CREATE TABLE client(client TEXT PRIMARY KEY, "
    "shares TEXT NOT NULL, agreed INTEGER NOT NULL, present INTEGER NOT NULL) WITHOUT ROWID;",
}
"""From an older schema to the next. ``seal`` is :func:`ajet.pool.records.seal`."""

INSERT_CALL = "INSERT INTO call(n, body) VALUES(?, ?)"


def write_record(db: sqlite3.Connection, record: Record) -> None:
    """Write one record inside the caller's transaction."""
    if isinstance(record, CallRecorded):
        db.execute(INSERT_CALL, (record.n, pack_call(record.call)))
    elif isinstance(record, Done):
        db.execute(
            "INSERT INTO done(n, request, how, fate, reason, created, body) VALUES(?,?,?,?,?,?,?)",
            (
                record.n,
                record.request,
                record.how,
                record.fate,
                record.reason,
                record.created,
                pack_body(record.body),
            ),
        )
    elif isinstance(record, LeaseOpened):
        db.execute(
            "INSERT INTO lease VALUES(?,?,?,?,?,?,?,?,?,?)",
            (
                record.n,
                record.episode,
                record.client,
                record.request,
                record.kind,
                record.task,
                record.timeout_s,
                record.created,
                record.version,
                record.share,
            ),
        )
    elif isinstance(record, Counted):
        db.execute(
            "INSERT INTO tally VALUES(?, ?) ON CONFLICT(name) DO UPDATE SET n = n + excluded.n",
            (record.name, record.by),
        )
    elif isinstance(record, Dropped):
        db.execute("INSERT INTO dropped VALUES(?, ?)", (record.n, record.reason))
    elif isinstance(record, BatchFormed):
        db.execute(
            "INSERT INTO batch VALUES(?,?,?,?)", (record.step, record.num_repeat, record.min_version, record.created)
        )
        db.executemany(
            "INSERT INTO member VALUES(?,?,?)", [(n, record.step, i) for i, (n, _) in enumerate(record.members)]
        )
    elif isinstance(record, StepDone):
        db.execute(
            "INSERT INTO step VALUES(?,?,?,?,?)",
            (
                record.step,
                record.digest,
                record.created,
                orjson.dumps(record.metrics),
                pack_body(record.advantages),
            ),
        )
    elif isinstance(record, ClientSet):
        if record.present or record.agreed:
            db.execute(
                "INSERT OR REPLACE INTO client VALUES(?,?,?,?)",
                (record.client, orjson.dumps(record.shares).decode(), record.agreed, record.present),
            )
        else:
            db.execute("DELETE FROM client WHERE client = ?", (record.client,))
    elif isinstance(record, JobSet):
        db.execute(
            "INSERT INTO job(created, tree, step) VALUES(?, ?, ?)",
            (record.created, orjson.dumps(record.tree), record.step),
        )
    else:
        db.execute("INSERT OR REPLACE INTO meta VALUES(?, ?)", (record.key, record.value))


def _forget_slice(db: sqlite3.Connection, step: int) -> bool:
    """Remove all that is left of some episodes whose calls are gone and that ended long ago. True while there is more."""
    db.execute("BEGIN IMMEDIATE")
    rows = db.execute(
        "SELECT n FROM compacted WHERE n <= (SELECT max(n) FROM lease) - ? LIMIT ?", (KEEP_LEASES, COMPACT_LEASES)
    ).fetchall()
    for table in ("lease", "done", "member", "dropped", "compacted"):
        db.executemany(f"DELETE FROM {table} WHERE n = ?", rows)
    old = db.execute(
        "SELECT step FROM step WHERE step <= ? AND length(advantages) > ? AND step NOT IN (SELECT step FROM member) LIMIT 50",
        (step, len(_NO_ADVANTAGES)),
    ).fetchall()
    db.executemany("UPDATE step SET advantages = ? WHERE step = ?", [(_NO_ADVANTAGES, number) for (number,) in old])
    db.execute("COMMIT")
    return bool(rows or old)


def compact_slice(db: sqlite3.Connection, step: int, keep_wal: bool) -> bool:
    """Remove one slice of needless calls, then of long forgotten episodes. True while there is more.

    Args:
        keep_wal: the write-ahead log keeps its room for what comes.
    """
    db.execute("BEGIN IMMEDIATE")
    rows = db.execute(
        """SELECT n FROM (
             SELECT n FROM member WHERE step <= :step
             UNION ALL SELECT n FROM dropped
             UNION ALL SELECT n FROM done WHERE fate != 'pooled')
           WHERE n NOT IN (SELECT n FROM compacted) LIMIT :limit""",
        {"step": step, "limit": COMPACT_LEASES},
    ).fetchall()
    db.executemany("DELETE FROM call WHERE n = ?", rows)
    db.executemany("INSERT INTO compacted VALUES(?)", rows)
    db.execute("COMMIT")
    if rows or _forget_slice(db, step):
        return True
    if db.execute("PRAGMA freelist_count").fetchone()[0]:
        db.executescript(f"PRAGMA incremental_vacuum({VACUUM_PAGES})")
        return True
    db.execute(f"PRAGMA wal_checkpoint({'RESTART' if keep_wal else 'TRUNCATE'})").fetchall()
    return False
