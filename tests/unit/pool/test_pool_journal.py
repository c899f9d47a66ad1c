"""Claims about the journal: durable, atomic, in order, and unharmed by a disk that refuses."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing

import pytest

from ajet.pool import journal as journal_module
from ajet.pool import journal_read, journal_sql
from ajet.pool.filesystem import refuse_network_filesystem
from ajet.pool.journal import Journal
from ajet.pool.journal_write import WAL_BYTES
from ajet.pool.records import (
    BatchFormed,
    CallRecorded,
    Counted,
    Done,
    Dropped,
    JobSet,
    LeaseOpened,
    StepDone,
    pack_call,
    unpack_call,
)
from ajet.schema.errors import ConfigError, DiskRefused, JournalDamaged
from ajet.trajectory.calls import Call


def lease(n, kind="train", task=None):
    return LeaseOpened(n, f"ep-{n}", "c", f"r{n}", kind, task, 60.0, 1.0, 0)


def call(n, k=1, size=5, parent=None):
    ids = list(range(size))
    return Call(
        f"c{n}-{k}",
        "a",
        "main",
        parent,
        [1, 2, 3],
        ids,
        [-0.5] * size,
        [0] * size,
        0.7,
        "stop",
        "key",
        "first",
        2.0,
        {"role": "assistant", "content": "x"},
    )


def end(n, task="t", fate="pooled"):
    body = {"task": task, "reward": 1.0, "rewards": {"main": [1.0]}, "version": 0, "answer": {}}
    return Done(n, f"ep-{n}", f"end{n}", "end", fate, "ended", 3.0, body)


def whole(path):
    """Whether SQLite finds the file sound, and every record is what was written."""
    with journal_read.reading(path) as db:
        journal_read.check_bodies(db)
        return db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


@pytest.fixture
async def journal(tmp_path):
    opened = Journal(tmp_path / "journal.sqlite")
    yield opened
    opened.close()


def full(db, on=True):
    pages = db.execute("PRAGMA page_count").fetchone()[0] if on else 1 << 30
    db.execute(f"PRAGMA max_page_count={pages}")


async def test_what_was_appended_is_restored(journal):
    await journal.append(JobSet({"a": 1}, 0.0))
    for n in range(1, 7):
        await journal.append(lease(n))
        await journal.append(CallRecorded(n, call(n)), CallRecorded(n, call(n, 2, parent=f"c{n}-1")))
    await journal.append(end(1))
    await journal.append(end(3))
    await journal.append(end(2))
    await journal.append(Done(4, "ep-4", "x", "abort", "silent", "gone", 3.0), Counted("drop/silent"))
    await journal.append(end(5), Dropped(5, "policy_lag"))
    await journal.append(BatchFormed(1, 1, -1, ((3, "ep-3"),), 4.0))
    found = journal_read.restore(journal.path)
    assert found.job == {"a": 1}
    assert [opened.lease.episode for opened in found.open] == ["ep-6"]
    assert found.open[0].calls == [call(6), call(6, 2, parent="c6-1")]
    assert [done.episode for _, done in found.pooled] == ["ep-1", "ep-2"]
    assert (found.next_n, found.step, found.tallies) == (7, 0, {"drop/silent": 1})
    assert found.unfinished.members == ((3, "ep-3"),)
    await journal.append(StepDone(1, "d", {"x": 1.0}, {"ep-3/a": 0.5}, 5.0))
    assert journal_read.restore(journal.path).step == 1
    record = journal_read.episode(journal.path, "ep-3")
    assert (record.step, record.advantages, record.done.fate) == (1, {"a": 0.5}, "pooled")
    assert [e.lease.episode for e in journal_read.batch_episodes(journal.path, found.unfinished)] == ["ep-3"]


def test_a_call_survives_packing_exactly():
    import numpy as np

    logprobs = [float(np.float32(x)) for x in (-0.1, -1e-8, -37.5)]
    one = Call(
        "c",
        "ä",
        "t",
        None,
        [0, 2**31 - 1],
        [5, 6, 7],
        logprobs,
        [3, 3, 4],
        0.7,
        "length",
        "k",
        "b",
        1.5,
        {"content": "🐺"},
    )
    assert unpack_call(pack_call(one)) == one


async def test_many_appends_share_a_commit(journal):
    await journal.append(lease(1))
    before = journal.commits
    await asyncio.gather(*(journal.append(CallRecorded(1, call(1, k))) for k in range(500)))
    assert journal.commits - before <= 3
    kept = journal_read.restore(journal.path).open[0].calls
    assert [c.call_id for c in kept] == [f"c1-{k}" for k in range(500)]


async def test_an_append_is_one_atom_and_a_faulty_one_hurts_no_neighbour(journal):
    await journal.append(lease(1), end(1))
    good = journal.append(lease(2))
    bad = journal.append(lease(3), end(1))
    also_good = journal.append(lease(4))
    await good
    await also_good
    with pytest.raises(sqlite3.IntegrityError):
        await bad
    assert [opened.lease.n for opened in journal_read.restore(journal.path).open] == [2, 4]


async def test_an_episode_can_end_once_and_be_in_one_batch_only(journal):
    await journal.append(lease(1), lease(2), end(1), end(2), BatchFormed(1, 1, 0, ((1, "ep-1"),), 0.0))
    for twice in (end(1), BatchFormed(2, 1, 0, ((1, "ep-1"),), 0.0), BatchFormed(1, 1, 0, ((2, "ep-2"),), 0.0)):
        with pytest.raises(sqlite3.IntegrityError):
            await journal.append(twice)


async def test_a_full_disk_refuses_cleanly_and_recovers_by_itself(tmp_path):
    told = []
    journal = Journal(tmp_path / "journal.sqlite", on_disk=lambda ok, error: told.append(ok))
    await journal.append(lease(1), CallRecorded(1, call(1)))
    await journal.execute(full)
    with pytest.raises(DiskRefused):
        await journal.append(lease(2), *(CallRecorded(2, call(2, k, 4000)) for k in range(20)))
    assert journal.disk_error is not None
    assert not (tmp_path / "journal.reserve").exists()
    assert [o.lease.n for o in journal_read.restore(journal.path).open] == [1]
    await journal.execute(lambda db: full(db, False))
    await asyncio.wait_for(journal.writable(), 5)
    assert journal.disk_error is None
    assert (tmp_path / "journal.reserve").exists()
    await journal.append(lease(2), *(CallRecorded(2, call(2, k, 4000)) for k in range(20)))
    assert told == [False, True]
    journal.close()
    assert len(journal_read.restore(journal.path).open[1].calls) == 20


async def test_a_failing_device_is_a_refusal_and_the_file_is_read_anew(journal, monkeypatch):
    await journal.append(lease(1))
    real = journal._db

    class Failing:
        def __getattr__(self, name):
            return getattr(real, name)

        def execute(self, sql, *args):
            if sql in ("COMMIT", "ROLLBACK"):
                raise sqlite3.OperationalError("disk I/O error")
            return real.execute(sql, *args)

    journal._db = Failing()
    with pytest.raises(DiskRefused):
        await journal.append(lease(2))
    await asyncio.wait_for(journal.writable(), 5)
    await journal.append(lease(3))
    assert [o.lease.n for o in journal_read.restore(journal.path).open] == [1, 3]


async def test_compaction_removes_calls_of_the_trained_and_the_dropped_only(journal):
    for n in range(1, 6):
        await journal.append(lease(n), CallRecorded(n, call(n, size=2000)))
    await journal.append(
        end(1), end(2), end(3), BatchFormed(1, 1, 0, ((1, "ep-1"),), 0.0), BatchFormed(2, 1, 0, ((2, "ep-2"),), 0.0)
    )
    await journal.append(Done(4, "ep-4", "x", "abort", "aborted", "gone", 0.0))
    await journal.compact(1)
    left = {n: len(journal_read.episode(journal.path, f"ep-{n}").calls) for n in range(1, 6)}
    assert left == {1: 0, 2: 1, 3: 1, 4: 0, 5: 1}
    one, two = journal_read.batches_after(journal.path, 0)
    assert journal_read.compacted_calls_missing(journal.path, one)
    assert not journal_read.compacted_calls_missing(journal.path, two)


@pytest.mark.parametrize("roomy", [False, True])
async def test_compaction_gives_space_back(tmp_path, monkeypatch, roomy):
    monkeypatch.setattr(journal_module, "ROOMY_BYTES", 0 if roomy else 1 << 60)
    journal = Journal(tmp_path / "journal.sqlite")
    log = tmp_path / "journal.sqlite-wal"
    room = log.stat().st_size
    assert (room >= WAL_BYTES) == roomy, "with much free space the log takes its room at once"
    members = []
    for n in range(1, 60):
        await journal.append(lease(n), *(CallRecorded(n, call(n, k, 500)) for k in range(20)), end(n))
        members.append((n, f"ep-{n}"))
    await journal.append(BatchFormed(1, 59, 0, tuple(members), 0.0))
    await journal.execute(lambda db: bool(db.execute("PRAGMA wal_checkpoint").fetchall()) and None)
    before = journal.path.stat().st_size
    await journal.compact(1)
    assert journal.path.stat().st_size < before / 4
    left = log.stat().st_size
    assert (WAL_BYTES <= left <= room) if roomy else not left, "its room stays, and is written over"
    assert whole(journal.path)
    journal.close()


async def test_a_second_server_is_refused(journal):
    with pytest.raises(ConfigError, match="Another server"):
        Journal(journal.path)


async def test_a_newer_schema_is_refused(tmp_path):
    journal = Journal(tmp_path / "journal.sqlite")
    await journal.execute(lambda db: db.execute("PRAGMA user_version=99") and None)
    journal.close()
    with pytest.raises(ConfigError, match="newer AgentJet"):
        Journal(tmp_path / "journal.sqlite")


def test_a_network_file_system_is_named(tmp_path, monkeypatch):
    from pathlib import Path

    monkeypatch.setattr(Path, "read_text", lambda self: f"server:/x {tmp_path} nfs4 rw 0 0\n/dev/sda / ext4 rw 0 0\n")
    with pytest.raises(ConfigError, match="nfs4"):
        refuse_network_filesystem(tmp_path)


WRITER = """
import asyncio, sys
from pathlib import Path
from ajet.pool.journal import Journal
from ajet.pool.records import CallRecorded
from tests.unit.pool.test_pool_journal import call, lease

async def main():
    journal = Journal(Path(sys.argv[1]))
    await journal.append(lease(1))
    async def worker(w):
        k = 0
        while True:
            k += 1
            await journal.append(CallRecorded(1, call(1, f"{w}-{k}")))
            print(f"c1-{w}-{k}", flush=True)
    await asyncio.gather(*(worker(w) for w in range(8)))
asyncio.run(main())
"""


def test_a_killed_process_loses_nothing_it_acknowledged(tmp_path):
    path = tmp_path / "journal.sqlite"
    command = [sys.executable, "-c", WRITER, str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ.copy())
    acknowledged = []
    deadline = time.monotonic() + 20
    while len(acknowledged) < 400 and time.monotonic() < deadline:
        acknowledged.append(process.stdout.readline().strip())
    process.send_signal(signal.SIGKILL)
    rest = process.stdout.read().split("\n")
    process.wait()
    acknowledged += [line for line in rest[:-1] if line]
    kept = {c.call_id for c in journal_read.restore(path).open[0].calls}
    assert len(acknowledged) >= 400
    assert set(acknowledged) <= kept
    assert whole(path)


async def test_a_journal_of_the_first_schema_is_brought_up_to_date(tmp_path):
    path = tmp_path / "journal.sqlite"
    journal = Journal(path)
    await journal.append(lease(1))
    await journal.append(CallRecorded(1, call(1)))
    journal.close()
    with closing(sqlite3.connect(path)) as db:
        # As schema 1 was: no checksums, no step beside a job, no shares.
        [(body,)] = db.execute("SELECT body FROM call").fetchall()
        db.execute("UPDATE call SET body = ?", (body[:-4],))
        db.execute("ALTER TABLE job DROP COLUMN step")
        db.execute("DROP INDEX lease_request")
        db.execute("ALTER TABLE lease DROP COLUMN share")
        db.execute("DROP TABLE client")
        db.execute("PRAGMA user_version=1")
        db.commit()
    Journal(path).close()  # opening migrates
    [kept] = journal_read.restore(path).open
    assert kept.calls == [call(1)]


async def test_a_changed_record_is_noticed(tmp_path):
    path = tmp_path / "journal.sqlite"
    journal = Journal(path)
    await journal.append(lease(1), CallRecorded(1, call(1)))
    journal.close()
    with closing(sqlite3.connect(path)) as db:
        [(body,)] = db.execute("SELECT body FROM call").fetchall()
        db.execute("UPDATE call SET body = ?", (body[:20] + bytes([body[20] ^ 1]) + body[21:],))
        db.commit()
    with pytest.raises(JournalDamaged, match="doctor"):
        journal_read.restore(path)


async def test_the_journal_of_a_long_run_stays_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(journal_sql, "KEEP_LEASES", 300)
    journal = Journal(tmp_path / "journal.sqlite", sync="normal")
    sizes = []
    for step in range(1, 41):
        members = range(step * 100, step * 100 + 50)
        for n in members:
            await journal.append(lease(n), CallRecorded(n, call(n, size=200)), end(n, task=f"t{step}"))
        dropped = range(step * 100 + 50, step * 100 + 60)
        for n in dropped:
            await journal.append(lease(n), end(n), Dropped(n, "policy_lag"), Counted("drop/policy_lag"))
        await journal.append(BatchFormed(step, 2, 0, tuple((n, f"ep-{n}") for n in members), 0.0))
        await journal.append(StepDone(step, f"d{step}", {"reward/mean": 0.5}, {f"ep-{n}/a": 1.0 for n in members}, 0.0))
        await journal.compact(step - 1)
        sizes.append(journal.size_bytes())
    assert max(sizes[20:]) < 1.3 * max(sizes[5:12])
    assert journal_read.episode(journal.path, "ep-100") is None  # an end for it is answered 404, and trains nothing
    assert journal_read.episode(journal.path, "ep-4000") is not None
    restored = journal_read.restore(journal.path)
    assert (restored.step, restored.next_n, restored.tallies) == (40, 4060, {"drop/policy_lag": 400})
    steps = journal_read.steps(journal.path)
    assert [s.digest for s in steps] == [f"d{n}" for n in range(1, 41)]
    assert steps[0].advantages == {}
    assert steps[-1].advantages
    journal.close()


async def test_a_disk_that_is_read_only_or_fails_is_refused_and_the_writer_lives(journal, monkeypatch):
    """As EROFS and EIO are: nothing can be written, and the reserve cannot be removed either."""

    def refused(*_args, **_kwargs):
        raise OSError(30, "Read-only file system")

    await journal.append(lease(1))
    monkeypatch.setattr(type(journal.path), "unlink", refused)
    await journal.execute(lambda db: db.execute("PRAGMA query_only=ON") and None)
    for _ in range(2):
        with pytest.raises(DiskRefused, match="readonly"):
            await asyncio.wait_for(journal.append(lease(2)), 10)
    assert journal.disk_error
    monkeypatch.undo()
    await journal.execute(lambda db: db.execute("PRAGMA query_only=OFF") and None)
    await asyncio.wait_for(journal.writable(), 10)
    await asyncio.wait_for(journal.append(lease(2)), 10)
    assert [kept.lease.n for kept in journal_read.restore(journal.path).open] == [1, 2]


async def test_a_connection_that_cannot_be_opened_anew_is_tried_again(journal, monkeypatch):
    await journal.append(lease(1))
    opens = journal._open
    failures = iter([sqlite3.OperationalError("unable to open database file")] * 2)

    def open_later():
        failure = next(failures, None)
        if failure is not None:
            raise failure
        return opens()

    monkeypatch.setattr(journal, "_open", open_later)
    journal._stale = True  # what a rollback that fails leaves behind
    with pytest.raises(DiskRefused, match="unable to open"):
        await asyncio.wait_for(journal.append(lease(2)), 10)
    await asyncio.wait_for(journal.writable(), 10)
    await asyncio.wait_for(journal.append(lease(2)), 10)
    assert [kept.lease.n for kept in journal_read.restore(journal.path).open] == [1, 2]


async def test_a_file_that_is_damaged_under_the_writer_is_said_once_and_is_no_full_disk(tmp_path):
    told: list[tuple[bool, str | None]] = []
    journal = Journal(tmp_path / "journal.sqlite", on_disk=lambda ok, error: told.append((ok, error)))
    for n in range(1, 60):
        await journal.append(lease(n), *[CallRecorded(n, call(n, k, size=2000)) for k in range(1, 4)])

    def forget(db: sqlite3.Connection) -> None:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        db.execute("PRAGMA cache_size=1")
        db.execute("PRAGMA shrink_memory").fetchall()

    await journal.execute(forget)
    with journal.path.open("r+b") as raw:
        raw.seek(4096)
        raw.write(b"\xa5" * (journal.path.stat().st_size - 4096))
    for _ in range(2):
        with pytest.raises(JournalDamaged, match="ajet-swarm doctor"):
            await journal.append(lease(90), CallRecorded(90, call(90, 1)))
    assert journal.disk_error is None, "it is not the disk that refuses"
    assert journal.health.damaged
    assert "damaged" in journal.health.damaged
    await asyncio.sleep(0)
    assert [ok for ok, _ in told] == [False]
    journal.close()


async def test_how_long_writes_take_and_that_one_does_not_come_back_can_be_seen(tmp_path):
    slow: list[float] = []
    journal = Journal(tmp_path / "journal.sqlite", on_slow=slow.append)
    await journal.append(lease(1))
    assert 0 < journal.health.write_s < 1
    assert journal.health.stalled_s() == 0
    held, freed = threading.Event(), threading.Event()

    def hold(_db: sqlite3.Connection) -> None:
        held.set()
        freed.wait(30)

    held_up = asyncio.ensure_future(journal.execute(hold))
    await asyncio.to_thread(held.wait, 30)
    waiting = journal.append(lease(2))
    first = journal.health.stalled_s()
    assert journal.health.stalled_s() > first > 0
    assert not waiting.done()
    freed.set()
    await asyncio.gather(held_up, waiting)
    assert journal.health.stalled_s() == 0
    assert slow == []
    journal.close()
