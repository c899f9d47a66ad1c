"""Two servers train two roles of one game: real servers, the tutorial's script, and a kill in the middle."""

from __future__ import annotations

from pathlib import Path

import pytest

from ajet.pool import journal_read
from ajet.pool.records import unpack_call
from tests.faults import processes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]
SCRIPT = processes.ROOT / "tutorial" / "two_models" / "werewolves.py"


def test_two_servers_train_two_roles_of_one_game_and_a_kill_loses_nothing(make_server, small_job, run_script, tmp_path):
    wolves, seer = make_server("wolves"), make_server("seer")
    job = small_job(2, journal={"keep": "all"})
    script = run_script(
        str(SCRIPT), "--wolves-url", wolves.url, "--seer-url", seer.url, "--config", str(job), cwd=tmp_path
    )
    processes.until(
        lambda: script.poll() is not None or (seer.status() or {}).get("step"), what="the seer's first step"
    )
    before = {s["step"]: s["digest"] for s in seer.steps()}
    seer.kill()
    seer.start()
    output, _ = script.communicate(timeout=150)
    assert script.returncode == 0, output
    assert "werewolf: FINISHED, step 2" in output
    assert "seer: FINISHED, step 2" in output

    for server, role in ((wolves, "werewolf"), (seer, "seer")):
        status = server.status()
        assert not [w for w in status["warnings"] if "DIVERGENCE" in w], status["warnings"]
        assert "silent" not in status["drops"], status["drops"]
        path = next(Path(server.exp_dir).rglob("journal.sqlite"))
        with journal_read.reading(path) as db:
            calls = [unpack_call(body) for (body,) in db.execute("SELECT body FROM call")]
        assert {call.tag for call in calls} == {role}
        batches = [journal_read.batch_episodes(path, batch) for batch in journal_read.batches_after(path, 0)]
        assert [len(episodes) for episodes in batches] == [8, 8]
        trained = [episode for episodes in batches for episode in episodes]
        assert len({e.lease.episode for e in trained}) == 16
        assert all(e.calls and list(e.done.body["rewards"]) == [role] for e in trained)
    assert before == {s["step"]: s["digest"] for s in seer.steps() if s["step"] in before}
