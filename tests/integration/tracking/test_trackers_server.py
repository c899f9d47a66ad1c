"""Claims about trackers of a real server: a kill loses and doubles nothing, a missing one is refused, a broken one costs
no training."""

import httpx
import pytest

from ajet.tracking import names
from tests.fakes.tracker_files import READERS
from tests.faults.processes import Server, until
from tests.integration.server.conftest import DEADLINE_S, Swarm, job, renderer, serve  # noqa: F401


@pytest.fixture
def killable(tmp_path):
    made = Server(tmp_path, tmp_path / "server.out", ["-m", "tests.fakes.serve_fake", str(tmp_path / "exp"), "{port}"])
    yield made
    made.stop()


def test_a_killed_server_goes_on_in_the_same_run_and_reports_no_step_twice(killable, tmp_path):
    with httpx.Client(base_url=killable.url, timeout=DEADLINE_S + 5) as http:
        swarm = Swarm(killable.url, None, None, [], http)  # type: ignore[arg-type]
        killable.start()
        until(killable.status, what="the server's start")
        # Without a checkpoint in between, the next life trains step 1 again.
        swarm.start(job(trainer_common__logger=["console", "tensorboard"], trainer_common__save_freq=9))
        swarm.play_batch()
        swarm.wait_step(1)
        # The log has its line a moment after the step is on record; a kill in between costs that line.
        until(lambda: "step 1 of 3, reward/mean" in (tmp_path / "server.out").read_text(), 60, "the log's line")
        killable.kill()
        killable.start()
        until(killable.status, what="the server's second start")
        swarm.wait("ROLLING")
        for step in (2, 3):
            swarm.play_batch()
            swarm.wait_step(step)
        history = [(s["step"], s["reward/mean"]) for s in swarm.get("/metrics/history").json()["steps"]]
        until(lambda: swarm.status()["trackers"][0]["step"] == 3, 60, "the tracker's last step")
        assert b'ajet_tracker_failures_total{tracker="tensorboard"} 0.0' in http.get("/metrics").content
    killable.stop()
    assert len(list((tmp_path / "exp" / "trackers" / "tensorboard").iterdir())) == 1
    assert READERS["tensorboard"](tmp_path / "exp" / "trackers") == history
    assert [step for step, _ in history] == [1, 2, 3]
    said = (tmp_path / "server.out").read_text()
    assert [said.count(f"step {step} of 3, reward/mean") for step in (1, 2, 3)] == [1, 1, 1]


def test_a_tracker_that_is_not_installed_is_told_when_the_engine_is_started(serve, monkeypatch):  # noqa: F811
    monkeypatch.setitem(names._NEEDS, "trackio", ("a_module_that_nobody_has",))
    with serve() as swarm:
        swarm.http.put("/swarm/v1/job", json={"job": job(trainer_common__logger="trackio")}).raise_for_status()
        refused = swarm.post("/engine/start")
        assert refused.status_code == 400
        assert "Run: pip install a_module_that_nobody_has" in refused.json()["error"]["message"]
        assert swarm.status()["state"] == "OFFLINE"


def test_training_goes_on_while_a_tracker_fails(serve, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path / "blocked" / "runs"))
    (tmp_path / "blocked").write_text("a file")
    with serve(exp_dir=tmp_path / "exp") as swarm:
        swarm.start(job(trainer_common__logger="tensorboard"))
        for step in (1, 2, 3):
            swarm.play_batch()
            swarm.wait_step(step)
        swarm.wait("FINISHED")
        until(lambda: swarm.status()["trackers"][0]["failures"], 60, "the failure")
        found = swarm.status()
        assert found["trackers"][0]["step"] == 0
        assert [w for w in found["warnings"] if w.startswith("Tracker tensorboard does not work")] == found["warnings"]
