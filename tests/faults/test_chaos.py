"""A small round of :mod:`tests.faults.chaos`, and proof that its audit can fail."""

import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from ajet.pool.journal import Journal
from ajet.pool.records import BatchFormed, CallRecorded, Counted, Dropped, StepDone
from tests.faults import chaos
from tests.faults.audit import audit
from tests.unit.pool.test_pool_journal import call, end, lease


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [100, 117])
def test_chaos_loses_nothing(seed):
    """These seeds draw every fault between them."""
    found = chaos.run(seed=seed, kills=3, clients=8)
    assert found["ok"], found
    assert found["counts"]["acknowledged_calls"] > 20
    assert found["counts"]["steps"] > 0


@pytest.fixture
async def told(tmp_path):
    """A sound journal (one trained group, one drop, one waiting), and clients that were told what it holds."""
    journal = Journal(tmp_path / "journal.sqlite")
    for n in (1, 2, 3, 4):
        done = end(n, task="t")
        await journal.append(lease(n), CallRecorded(n, call(n)), replace(done, body={**done.body, "calls": 1}))
    await journal.append(Dropped(3, "policy_lag"), Counted("drop/policy_lag"))
    await journal.append(BatchFormed(1, 2, 0, ((1, "ep-1"), (2, "ep-2")), 0.0))
    await journal.append(StepDone(1, "d1", {}, {"ep-1/a": 1.0, "ep-2/a": -1.0}, 0.0))
    journal.close()
    lines = []
    for n in (1, 2, 3, 4):
        lines.append({"kind": "begin", "episode": f"ep-{n}"})
        lines.append({"kind": "call", "episode": f"ep-{n}", "id": f"chatcmpl-c{n}-1", "text": "x"})
        lines.append({"kind": "end", "episode": f"ep-{n}", "task": "t", "reward": 1.0})
    return tmp_path / "journal.sqlite", lines


def faults(found):
    return {key for key, value in found.items() if key != "counts" and value}


def tamper(path, *statements):
    with closing(sqlite3.connect(path)) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()


def test_the_audit_finds_nothing_in_a_sound_journal(told):
    path, lines = told
    found = audit(path, lines)
    assert faults(found) == set()
    assert found["counts"]["acknowledged_calls"] == 4


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        ("DELETE FROM call WHERE n = 4", "lost_calls"),
        ("DELETE FROM done WHERE n = 4", "lost_ends"),
        ("INSERT INTO member VALUES(3, 2, 0)", "trained_twice"),
        ("UPDATE step SET step = 3", "inconsistent"),
        ("DELETE FROM batch", "inconsistent"),
        ("UPDATE tally SET n = 2", "unexplained_drops"),
        ("UPDATE dropped SET reason = 'because'", "unexplained_drops"),
        ("DELETE FROM lease WHERE n = 1", "lost_calls"),
        ("INSERT INTO compacted VALUES(4)", "lost_calls"),
        ("UPDATE member SET n = 4 WHERE n = 2", "trained_twice"),
    ],
)
def test_the_audit_finds_what_is_missing_or_doubled(told, statement, fault):
    path, lines = told
    tamper(path, statement)
    assert fault in faults(audit(path, lines))


def test_the_audit_finds_an_episode_trained_by_two_steps(told):
    path, lines = told
    tamper(
        path,
        "INSERT INTO batch VALUES(2, 2, 0, 0)",
        "INSERT INTO step SELECT 2, 'd2', 0, metrics, advantages FROM step",
    )
    assert "trained_twice" in faults(audit(path, lines))


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ({"kind": "call", "episode": "ep-1", "id": "chatcmpl-c1-1", "text": "y"}, "lost_calls"),
        ({"kind": "call", "episode": "ep-1", "id": "chatcmpl-c1-2", "text": "x"}, "lost_calls"),
        ({"kind": "end", "episode": "ep-1", "task": "t", "reward": 0.5}, "lost_ends"),
        ({"kind": "end", "episode": "ep-9", "task": "t", "reward": 1.0}, "lost_ends"),
        ({"kind": "abort", "episode": "ep-1"}, "lost_ends"),
        ({"kind": "begin", "episode": "ep-9"}, "unexplained_drops"),
        ({"kind": "accepted_late", "episode": "ep-1", "what": "a second end"}, "trained_twice"),
    ],
)
def test_the_audit_finds_what_a_client_was_told_and_the_journal_does_not_have(told, line, fault):
    path, lines = told
    assert fault in faults(audit(path, [*lines, line]))
