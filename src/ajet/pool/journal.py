"""The durable log of one experiment: SQLite in WAL mode, one writer thread, group commit.

Promises:

- What :meth:`Journal.append` has resolved is on disk: it survives ``kill -9``, and with ``sync="full"`` a power loss.
- One append is one atom: all of its records are kept, or none.
- Where the disk refuses (full, failing, read-only) the append raises :class:`DiskRefused`, nothing of it is kept,
  what was there before stays whole, and later appends work again as soon as the disk does.
- Where the file is damaged the append raises :class:`JournalDamaged`; nothing mends that by itself, and it is said once.
- Appends become durable in the order in which they were made.

Used from one event loop. Reads are in :mod:`ajet.pool.journal_read`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ajet.pool.disk_health import SLOW_S, DiskHealth, is_damage
from ajet.pool.filesystem import free_bytes, refuse_network_filesystem
from ajet.pool.journal_sql import INSERT_CALL, compact_slice, write_record
from ajet.pool.journal_write import open_for_writing
from ajet.pool.lock import take_lock
from ajet.pool.records import CallRecorded, MetaSet, Record, pack_call
from ajet.schema.errors import AjetError, DiskRefused, JournalDamaged

log = logging.getLogger("ajet.journal")

RESERVE_BYTES = 1 << 20
GROUP_LIMIT = 4096
PROBE_S = 0.5
ROOMY_BYTES = 1 << 30
"""With so much free space the write-ahead log takes its room in advance."""
SAY_SLOW_EVERY_S = 30.0


@dataclass
class _Append:
    records: tuple[Record, ...]
    done: asyncio.Future[None] | None


@dataclass
class _Control:
    run: Callable[[sqlite3.Connection], bool]
    """Returns True while it has more to do; appends that wait go in between."""
    done: asyncio.Future[None] | None


class Journal:
    """Writer of one experiment's journal.

    Args:
        path: the database file. Its folder must exist and must not be on a network file system.
        sync: ``full`` or ``normal`` (see :class:`ajet.default_config.schema.JournalConfig`); ``off`` keeps nothing
            safe and exists to measure what safety costs.
        on_disk: called on the event loop with (ok, error) whenever the disk starts or stops refusing, and when the file
            turns out to be damaged (then :attr:`health` says so).
        on_slow: called on the event loop with the seconds of a write that took :data:`~ajet.pool.disk_health.SLOW_S` or
            longer, at most every :data:`SAY_SLOW_EVERY_S`.

    Raises:
        ConfigError: another process has it open, it is of a newer version, or it lies on a network file system.
        DiskRefused: the file cannot be created. JournalDamaged: it is not what a journal wrote.
    """

    def __init__(
        self,
        path: Path,
        *,
        sync: Literal["full", "normal", "off"] = "full",
        on_disk: Callable[[bool, str | None], None] | None = None,
        on_slow: Callable[[float], None] | None = None,
    ) -> None:
        self.path = Path(path)
        self._sync: Literal["full", "normal", "off"] = sync
        self._on_disk = on_disk
        self._on_slow = on_slow
        self.health = DiskHealth()
        self._said_slow = -SAY_SLOW_EVERY_S
        refuse_network_filesystem(self.path.parent)
        self._lock_file = take_lock(self.path)
        self._reserve = self.path.with_suffix(".reserve")
        self._roomy = False
        self._stale = False
        """The connection must be opened anew before it is used again."""
        self.commits = 0
        self.records = 0
        self._queue: queue.SimpleQueue[list[_Append] | _Control | None] = queue.SimpleQueue()
        self._pending: list[_Append] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._writable: asyncio.Event | None = None
        try:
            self._db = self._open()
        except AjetError:
            self._lock_file.close()
            raise
        except sqlite3.OperationalError as err:
            self._lock_file.close()
            raise DiskRefused(f"The journal {self.path} cannot be opened: {err}") from err
        except sqlite3.Error as err:  # not the disk: what is on it
            self._lock_file.close()
            raise self._damaged(err) from err
        with contextlib.suppress(OSError):
            self._fill_reserve()
        self._thread = threading.Thread(target=self._run, name="ajet-journal", daemon=True)
        self._thread.start()

    @property
    def disk_error(self) -> str | None:
        """What the disk said when it refused the last write; None while it takes writes."""
        return self.health.error

    def _damaged(self, err: sqlite3.Error) -> JournalDamaged:
        return JournalDamaged(
            f"The journal {self.path} is damaged ({err}). Run `ajet-swarm doctor` on its folder, which says what to do."
        )

    # ── called on the event loop ─────────────────────────────────────────────────────────────────────────────────

    def append(self, *records: Record) -> asyncio.Future[None]:
        """Write ``records`` as one atom. The future resolves when they are durable.

        Raises (through the future):
            DiskRefused: nothing was written; the same append may be tried again later.
            JournalDamaged: nothing was written, and nothing will be.
        """
        loop = self._bind()
        future: asyncio.Future[None] = loop.create_future()
        if not self._pending:
            # One hand-over to the writer for everything this turn of the loop appends.
            loop.call_soon(self._hand_over)
        self._pending.append(_Append(records, future))
        return future

    def _hand_over(self) -> None:
        if self._pending:
            self._queue.put(self._pending)
            self._pending = []

    async def writable(self) -> None:
        """Return when the disk takes writes (at once while it does)."""
        self._bind()
        assert self._writable is not None
        await self._writable.wait()

    def compact(self, step: int) -> asyncio.Future[None]:
        """Remove the calls of episodes trained up to ``step``, and of those that will never be trained.

        Call it only with a step whose weights a verified checkpoint holds. Runs in slices between appends.
        """
        loop = self._bind()
        future: asyncio.Future[None] = loop.create_future()
        self._hand_over()
        self._queue.put(_Control(lambda db: compact_slice(db, step, self._roomy), future))
        return future

    async def execute(self, run: Callable[[sqlite3.Connection], None]) -> None:
        """Run ``run`` on the writer's connection, outside any transaction (maintenance and fault injection)."""
        future: asyncio.Future[None] = self._bind().create_future()
        self._hand_over()
        self._queue.put(_Control(lambda db: bool(run(db)), future))
        await future

    def close(self) -> None:
        """Write what waits, and close. Blocks."""
        if self._thread.is_alive():
            self._hand_over()
            self._queue.put(None)
            self._thread.join()
        self._db.close()
        self._lock_file.close()

    def size_bytes(self) -> int:
        """Bytes on disk, write-ahead log included."""
        total = 0
        for path in (self.path, Path(f"{self.path}-wal")):
            with contextlib.suppress(OSError):
                total += path.stat().st_size
        return total

    def _bind(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._writable = asyncio.Event()
            if self.disk_error is None:
                self._writable.set()
        return self._loop

    # ── the writer thread ────────────────────────────────────────────────────────────────────────────────────────

    def _open(self) -> sqlite3.Connection:
        self._roomy = (free_bytes(self.path.parent) or 0) >= ROOMY_BYTES
        return open_for_writing(self.path, self._sync, presize=self._roomy)

    def _run(self) -> None:
        stopping = False
        while not stopping:
            try:
                item = self._queue.get(timeout=PROBE_S if self.disk_error else None)
            except queue.Empty:
                self._probe()
                continue
            group: list[_Append] = []
            control: _Control | None = None
            while True:
                if item is None:
                    stopping = True
                elif isinstance(item, _Control):
                    control = item
                else:
                    group += item
                if stopping or control is not None or len(group) >= GROUP_LIMIT:
                    break
                try:
                    item = self._queue.get_nowait()
                except queue.Empty:
                    break
            if group:
                self._commit(group)
            if control is not None:
                self._control(control, stopping)

    def _commit(self, group: list[_Append]) -> None:
        error: AjetError | None = None
        results: list[tuple[asyncio.Future[None] | None, BaseException | None]] = []
        self.health.begin()
        try:
            try:
                self._transaction([record for item in group for record in item.records])
            finally:
                if self.health.end() >= SLOW_S and time.monotonic() - self._said_slow >= SAY_SLOW_EVERY_S:
                    self._said_slow = time.monotonic()
                    self._call(self._on_slow, self.health.write_s)
            self.records += sum(len(item.records) for item in group)
        except (sqlite3.IntegrityError, ValueError, TypeError, OverflowError) as err:
            # One append of the group is at fault: find it, and keep the others.
            if len(group) > 1:
                for item in group:
                    self._commit([item])
                return
            results.append((group[0].done, err))
        except sqlite3.Error as err:
            if is_damage(err):
                error = self._damaged(err)
                self._found_damaged(error)
            else:
                error = DiskRefused(
                    f"The disk under {self.path.parent} refuses writes ({err}). Nothing was recorded; free some space and "
                    "send the request again."
                )
                error.retry_after = 1.0
                self._refused(str(err))
        self.commits += 1
        if not results:
            results = [(item.done, error) for item in group]
        if error is None and self.disk_error is not None:
            self._probe()
        self._resolve(results)

    def _transaction(self, records: list[Record]) -> None:
        if self._stale:
            self._reopen()
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        try:
            if all(type(record) is CallRecorded for record in records):
                db.executemany(INSERT_CALL, [(r.n, pack_call(r.call)) for r in records])  # type: ignore[union-attr]
            else:
                for record in records:
                    write_record(db, record)
            db.execute("COMMIT")
        except BaseException:
            try:
                if db.in_transaction:
                    db.execute("ROLLBACK")
            except sqlite3.Error:
                # After a failed fsync nothing that is cached can be trusted: read the file anew.
                self._stale = True
            raise

    def _reopen(self) -> None:
        """Raises :class:`sqlite3.Error`; it is then tried again before the next transaction."""
        self._stale = True
        with contextlib.suppress(sqlite3.Error):
            self._db.close()
        self._db = self._open()
        self._stale = False

    def _control(self, control: _Control, stopping: bool) -> None:
        error: BaseException | None = None
        more = False
        self.health.begin()
        try:
            if self._stale:
                self._reopen()
            more = control.run(self._db)
        except Exception as err:
            error = err
            if isinstance(err, sqlite3.Error) and is_damage(err):
                error = self._damaged(err)
                self._found_damaged(error)
            with contextlib.suppress(sqlite3.Error):
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
        self.health.end()
        if more and not stopping:
            self._queue.put(control)
        else:
            self._resolve([(control.done, error)])

    def _resolve(self, results: list[tuple[asyncio.Future[None] | None, BaseException | None]]) -> None:
        self._call(_settle, results)

    # ── the disk's weather ───────────────────────────────────────────────────────────────────────────────────────

    def _refused(self, error: str) -> None:
        if self.health.refuse(error):
            # Room for the words that say so. A read-only or failing disk keeps the file, and that must not end the writer.
            with contextlib.suppress(OSError):
                self._reserve.unlink(missing_ok=True)
            log.error("the disk under %s refuses writes: %s", self.path.parent, error)
            self._tell(False, error)

    def _found_damaged(self, error: JournalDamaged) -> None:
        if self.health.damaged is None:
            self.health.damaged = error.message
            log.error("%s", error.message)
            self._call(self._on_disk, False, error.message)

    def _probe(self) -> None:
        """Whether the disk takes writes again; if so, say it."""
        try:
            self._transaction([MetaSet("probe", "1")])
            self._fill_reserve()
        except (sqlite3.Error, OSError) as err:
            self.health.refuse(str(err))
            return
        log.warning("the disk under %s takes writes again", self.path.parent)
        self.health.take()
        self._tell(True, None)

    def _fill_reserve(self) -> None:
        if self._reserve.exists() and self._reserve.stat().st_size >= RESERVE_BYTES:
            return
        try:
            with self._reserve.open("wb") as file:
                file.write(b"\0" * RESERVE_BYTES)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            self._reserve.unlink(missing_ok=True)
            raise

    def _tell(self, ok: bool, error: str | None) -> None:
        def tell() -> None:
            assert self._writable is not None
            if ok:
                self._writable.set()
            else:
                self._writable.clear()
            if self._on_disk is not None:
                self._on_disk(ok, error)

        self._call(tell)

    def _call(self, function: Callable[..., None] | None, *arguments: Any) -> None:
        """Have the event loop call it, where there still is one."""
        if function is None or self._loop is None or self._loop.is_closed():
            return
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)


def _settle(results: list[tuple[asyncio.Future[None] | None, BaseException | None]]) -> None:
    for future, error in results:
        if future is None or future.done():
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
