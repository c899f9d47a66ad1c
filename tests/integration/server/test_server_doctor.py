"""Claims about ``ajet-swarm doctor``: what it says of whole, damaged and running experiments."""

import json
import sqlite3
import subprocess
import sys

import pytest

from ajet.schema.errors import ConfigError
from ajet.server.doctor import examine, experiments
from tests.integration.server.conftest import job


@pytest.fixture
def folder(serve, tmp_path):
    """An experiment of two steps, stopped; two episodes wait in its pool and one is open."""
    with serve() as swarm:
        swarm.start(job(trainer_common__total_training_steps=9))
        for step in (1, 2):
            swarm.play_batch()
            swarm.wait_step(step)
        swarm.play("waits", 0.5)
        swarm.begin()
        aborted = swarm.begin()["episode_id"]
        swarm.post(f"/episodes/{aborted}/abort", {"request_id": "a", "reason": "test"}).raise_for_status()
    return tmp_path / "exp"


def words(report, level):
    return [f"{finding.about} {finding.words}" for finding in report.findings if finding.level == level]


def doctor(path):
    return subprocess.run(
        [sys.executable, "-m", "ajet.cli", "doctor", str(path), "--json"], capture_output=True, text=True, timeout=60
    )


def test_a_whole_experiment_is_sound_and_described(folder):
    report = examine(folder)
    assert words(report, "bad") == []
    facts = report.facts
    assert (facts["steps"], facts["episodes_trained"], facts["episodes_waiting"], facts["episodes_open"]) == (
        2,
        8,
        1,
        1,
    )
    assert facts["drops"] == {"aborted": 1}
    assert facts["checkpoints"][-1] == 2
    assert facts["steps_to_apply_at_start"] == 0


def test_the_command_lists_a_folder_of_experiments_and_exits_zero(folder):
    ran = doctor(folder.parent)
    assert ran.returncode == 0, ran.stderr
    reports = json.loads(ran.stdout)["reports"]
    assert [r["name"] for r in reports] == [str(folder), "this machine"]


def test_it_reads_beside_a_running_server(serve, tmp_path):
    with serve() as swarm:
        swarm.start()
        swarm.play_batch()
        swarm.wait_step(1)
        report = examine(tmp_path / "exp")
        assert report.sound
        assert report.facts["server"] == "has it open"
        swarm.play_batch()
        swarm.wait_step(2)


@pytest.mark.parametrize("at", [100, 4096 + 10, "a call", "half"])
def test_a_damaged_journal_gets_a_verdict_and_no_traceback(folder, at):
    path = folder / "journal.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    raw = bytearray(path.read_bytes())
    if at == "half":
        del raw[len(raw) // 2 :]
    else:
        start = raw.index(b"assistant") if at == "a call" else at
        raw[start : start + 3] = b"\xa5" * 3
    path.write_bytes(raw)
    ran = doctor(folder)
    assert ran.returncode == 1
    assert "Traceback" not in ran.stderr
    assert "Copy the folder" in ran.stdout


def test_records_that_do_not_agree_are_named(folder):
    with sqlite3.connect(folder / "journal.sqlite") as db:
        db.execute("UPDATE tally SET n = 0 WHERE name = 'drop/aborted'")
        db.execute("DELETE FROM batch WHERE step = 1")
    bad = "\n".join(words(examine(folder), "bad"))
    assert "dropped as aborted" in bad
    assert "step 1 has no batch" in bad


def test_a_damaged_checkpoint_is_named_with_its_file(folder):
    newest = folder / "checkpoints" / "step_000002"
    victim = next(p for p in newest.iterdir() if p.name != "manifest.json")
    victim.write_bytes(victim.read_bytes() + b"x")
    [bad] = words(examine(folder), "bad")
    assert victim.name in bad
    assert "the one before" in bad


def test_a_run_that_cannot_go_on_is_said_so(folder):
    with sqlite3.connect(folder / "journal.sqlite") as db:
        [(step,)] = db.execute("SELECT max(step) FROM step").fetchall()
        db.execute("INSERT OR IGNORE INTO compacted SELECT n FROM member WHERE step = ?", (step,))
    for checkpoint in (folder / "checkpoints").iterdir():
        (checkpoint / "manifest.json").unlink()
    assert any("no longer holds the calls" in text for text in words(examine(folder), "bad"))


def test_no_experiment_is_a_clear_error(tmp_path):
    with pytest.raises(ConfigError, match="no experiment"):
        experiments(tmp_path)
