"""Claims about ``ajet-swarm doctor``: what it says of whole, damaged and running experiments."""

import json
import sqlite3
import subprocess
import sys
import threading

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


def overwrite(at):
    def damage(path):
        raw = bytearray(path.read_bytes())
        start = raw.index(at) if isinstance(at, bytes) else at
        raw[start : start + 3] = b"\xa5" * 3
        path.write_bytes(raw)

    return damage


def cut(share):
    return lambda path: path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])


def set_to(statement):
    def damage(path):
        with sqlite3.connect(path) as db:
            db.execute(statement)

    return damage


DAMAGE = {
    "its header": overwrite(100),
    "its second page": overwrite(4096 + 10),
    "a call": overwrite(b"assistant"),
    "cut in half": cut(0.5),
    "cut to a page": cut(4096 / 2**20),
    "emptied": cut(0),
    "another file": lambda path: path.write_bytes(b"no database" * 500),
    "removed": lambda path: path.unlink(),
    "a job that is no tree": set_to("UPDATE job SET tree = x'00ff'"),
    "a job of other keys": set_to("UPDATE job SET tree = '{\"no\": 1}'"),
    "a step's numbers": set_to("UPDATE step SET metrics = x'7b7b'"),
    "a result": set_to("UPDATE done SET body = x'00'"),
    "a newer version's": set_to("PRAGMA user_version = 99"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_journal_gets_a_verdict_and_no_traceback(folder, damage):
    path = folder / "journal.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    damage(path)
    ran = doctor(folder)
    assert ran.returncode == 1
    assert "Traceback" not in ran.stderr
    [bad] = [f for f in json.loads(ran.stdout)["reports"][0]["findings"] if f["level"] == "bad"]
    assert bad["about"] == "journal"
    assert any(word in bad["words"] for word in ("Copy the folder", "put a copy of it back", "goes on from", "Upgrade"))


@pytest.mark.parametrize("what", ["cut in half", "another file", "a job that is no tree", "a result"])
def test_a_server_on_a_damaged_journal_says_so_and_names_the_doctor(serve, folder, what):
    path = folder / "journal.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    DAMAGE[what](path)
    with serve() as swarm:
        found = swarm.status()
        assert "ajet-swarm doctor" in found["last_error"]
        assert found["state"] in ("OFFLINE", "FAILED")
        assert found["disk"]["ok"]


def test_a_server_whose_journal_is_gone_goes_on_from_its_checkpoint_and_says_so(serve, folder):
    for left in folder.glob("journal.*"):
        left.unlink()
    with serve() as swarm:
        found = swarm.wait("ROLLING")
        assert found["step"] == 2
        assert any("the journal does not have that step" in warning for warning in found["warnings"])


def test_a_journal_elsewhere_is_found_by_the_experiment_and_checked_alone_by_its_own_folder(serve, tmp_path):
    with serve() as swarm:
        swarm.start(job(journal__dir=str(tmp_path / "local"), trainer_common__total_training_steps=9))
        for step in (1, 2, 3):
            swarm.play_batch()
            swarm.wait_step(step)
    whole = examine(tmp_path / "exp")
    assert whole.sound
    assert (whole.facts["steps"], whole.facts["checkpoints"][-1]) == (3, 3)
    alone = examine(tmp_path / "local" / "exp")
    assert alone.sound
    assert any("name that folder" in text for text in words(alone, "note"))


def test_while_a_server_saves_and_prunes_nothing_is_taken_for_damage(serve, tmp_path):
    with serve() as swarm:
        swarm.start(job(trainer_common__total_training_steps=12, checkpoint__keep_last=1, checkpoint__keep_best=0))
        swarm.play_batch()
        swarm.wait_step(1)
        done = threading.Event()
        found = []

        def look():
            while not done.is_set():
                found.append(examine(tmp_path / "exp"))

        looking = threading.Thread(target=look)
        looking.start()
        for step in range(2, 9):
            swarm.play_batch()
            swarm.wait_step(step)
        done.set()
        looking.join(60)
    assert len(found) > 1
    assert [words(report, "bad") for report in found if not report.sound] == []


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
        (checkpoint / "manifest.json").write_text('{"files": {"state.json": 1}, "step": "x"}')
    assert any("no longer holds the calls" in text for text in words(examine(folder), "bad"))


def test_no_experiment_is_a_clear_error(tmp_path):
    with pytest.raises(ConfigError, match="no experiment"):
        experiments(tmp_path)
