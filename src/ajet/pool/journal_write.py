"""Opens the journal's database for its writer: schema, durability, and room for the write-ahead log."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Literal

from ajet.pool.journal_sql import MIGRATIONS, SCHEMA, SCHEMA_VERSION
from ajet.pool.records import seal
from ajet.schema.errors import ConfigError

WAL_PAGES = 4000
"""Pages after which what is in the write-ahead log goes to the database."""
WAL_BYTES = WAL_PAGES * 4120


def open_for_writing(path: Path, sync: Literal["full", "normal", "off"], *, presize: bool) -> sqlite3.Connection:
    """A connection that commits as ``sync`` says; a new file gets its tables, an older one is brought up to date.

    Args:
        presize: the write-ahead log takes its room in advance, where the disk lets it.

    Raises:
        ConfigError: it was written by a newer version. sqlite3.Error: the disk refuses, or the file is damaged.
    """
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=64)
    db.execute("PRAGMA auto_vacuum=INCREMENTAL")
    db.execute("PRAGMA journal_mode=WAL")
    db.execute(f"PRAGMA synchronous={ {'full': 'FULL', 'normal': 'NORMAL', 'off': 'OFF'}[sync] }")
    db.execute("PRAGMA busy_timeout=5000")
    db.execute(f"PRAGMA wal_autocheckpoint={WAL_PAGES}")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA_VERSION:
        raise ConfigError(
            f"The journal {path} was written by a newer AgentJet (schema {version}, this one reads "
            f"{SCHEMA_VERSION}). Upgrade AgentJet, or choose another experiment_name."
        )
    db.create_function("seal", 1, seal, deterministic=True)
    for older in range(version, SCHEMA_VERSION) if version else ():
        db.executescript(f"BEGIN IMMEDIATE; {MIGRATIONS[older]} PRAGMA user_version={older + 1}; COMMIT;")
    if version == 0:
        db.executescript(f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version={SCHEMA_VERSION}; COMMIT;")
    if presize and _size(Path(f"{path}-wal")) < WAL_BYTES:
        with contextlib.suppress(sqlite3.OperationalError):
            _presize_wal(db)
    return db


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _presize_wal(db: sqlite3.Connection) -> None:
    """Let the write-ahead log take its room now: an fsync of a file that does not grow costs about half.

    A transaction that is rolled back once it has outgrown the cache leaves the file behind, as long as it was, and nothing
    in it. Raises :class:`sqlite3.Error` where the disk refuses; nothing is harmed.
    """
    db.execute(f"PRAGMA journal_size_limit={WAL_BYTES}")
    (cache,) = db.execute("PRAGMA cache_size").fetchone()
    db.execute("PRAGMA cache_size=16")
    try:
        db.execute("BEGIN IMMEDIATE")
        try:
            db.execute("INSERT INTO meta VALUES('room', zeroblob(?))", (WAL_BYTES,))
        finally:
            db.execute("ROLLBACK")
    finally:
        db.execute(f"PRAGMA cache_size={cache}")
