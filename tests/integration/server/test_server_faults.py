"""Claims about deaths and restarts: of the backbone, of the server, of the disk."""

import asyncio
import concurrent.futures
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import openai
import pytest

from ajet.backbone.protocol import BackboneDied
from ajet.default_config.schema import AjetConfig
from ajet.pool import journal_read
from ajet.server.training import build_batch
from tests.fakes.backbone import FakeBackbone
from tests.integration.server.conftest import DEADLINE_S, QUICK, Swarm, job


@pytest.fixture
def rolling(serve):
    with serve() as swarm:
        swarm.start()
        yield swarm


# ── the backbone dies ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_call_under_a_dying_backbone_waits_and_is_answered_by_the_next(rolling):
    rolling.backbone.hold = rolling.call(asyncio.Event)
    begun = rolling.begin()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        saying = pool.submit(rolling.say, begun)
        rolling.call(lambda: asyncio.wait_for(rolling.backbone.generating.wait(), 10))
        first = rolling.backbone
        rolling.loop.call_soon_threadsafe(first.die)
        assert saying.result(DEADLINE_S).choices[0].message.content
    assert len(rolling.backbones) == 2
    assert len(rolling.get(f"/episodes/{begun['episode_id']}").json()["calls"]) == 1


def test_a_backbone_that_dies_in_an_update_trains_the_same_batch_again(rolling):
    rolling.backbone.hold_train = rolling.call(asyncio.Event)
    played = rolling.play_batch()
    rolling.wait("UPDATING")
    first = rolling.backbone
    rolling.loop.call_soon_threadsafe(first.die)
    rolling.wait_step(1)
    assert first.trained == []
    assert [[row.episode for row in batch.rows] for batch in rolling.backbone.trained] == [played]


def test_a_restarted_backbone_continues_from_checkpoint_and_journal(serve):
    with serve() as swarm:
        swarm.start(job(trainer_common__save_freq=2, trainer_common__total_training_steps=9))
        for step in range(1, 4):
            swarm.play_batch()
            swarm.wait_step(step)
        swarm.wait("ROLLING")
        digest = swarm.backbone.digest
        swarm.loop.call_soon_threadsafe(swarm.backbone.die)
        swarm.call(lambda: swarm.app.engine.changed.wait_until(lambda: len(swarm.backbones) == 2, DEADLINE_S))
        swarm.wait("ROLLING")
        # Step 2 was saved, so step 3 alone was re-applied.
        assert [batch.step for batch in swarm.backbone.trained] == [3]
        assert swarm.backbone.digest == digest
        assert swarm.status()["warnings"] == []


def test_repeated_deaths_without_progress_fail_with_the_cause(serve):
    def dead():
        return FakeBackbone(
            start_error=__import__("ajet.backbone.protocol", fromlist=["x"]).BackboneDied("out of memory")
        )

    with serve(make=dead) as swarm:
        swarm.http.put("/swarm/v1/job", json={"job": job()})
        swarm.post("/engine/start")
        found = swarm.wait("FAILED")
        assert "died 5 times" in found["failure"]
        assert "out of memory" in found["failure"]
        assert len(swarm.backbones) == QUICK.backbone_deaths
        refused = swarm.post("/episodes", {"client_id": "c", "request_id": "r", "wait_s": 1})
        assert (refused.status_code, refused.json()["error"]["code"]) == (500, "engine_failed")


def test_an_engine_can_be_started_again_after_it_failed(serve):
    broken = [True]

    def make():
        return FakeBackbone(start_error=ValueError("no such model") if broken[0] else None)

    with serve(make=make) as swarm:
        swarm.http.put("/swarm/v1/job", json={"job": job()})
        swarm.post("/engine/start")
        assert "no such model" in swarm.wait("FAILED")["failure"]
        broken[0] = False
        swarm.post("/engine/start").raise_for_status()
        swarm.wait("ROLLING")


def test_a_divergence_after_a_restart_is_said_loudly(rolling):
    rolling.play_batch()
    rolling.wait_step(1)
    rolling.wait("ROLLING")

    async def lie():
        async def other(directory):
            return type(rolling.backbone.info())(1, "fake", 1, "f" * 64, 400, 1 << 20)

        FakeBackbone.load, kept = lambda self, directory: other(directory), FakeBackbone.load
        rolling.backbone.die()
        await rolling.app.engine.changed.wait_until(lambda: rolling.app.engine.state.value == "BOOTING", 10)
        await rolling.app.engine.changed.wait_until(lambda: rolling.app.engine.state.value == "ROLLING", 10)
        FakeBackbone.load = kept

    rolling.call(lie)
    found = rolling.status()
    assert "DIVERGENCE" in found["last_error"]
    assert any("DIVERGENCE" in warning for warning in found["warnings"])


# ── stop and start ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_stop_saves_goes_offline_and_start_continues(serve):
    with serve() as swarm:
        tree = job(trainer_common__save_freq=10)
        swarm.start(tree)
        swarm.play_batch()
        swarm.wait_step(1)
        half = swarm.play("half", 0.0)
        assert swarm.post("/engine/stop").status_code == 200
        assert swarm.post("/engine/stop").status_code == 200
        swarm.wait("OFFLINE")
        assert swarm.status()["checkpoint"]["step"] == 1
        swarm.post("/engine/start").raise_for_status()
        swarm.wait("ROLLING")
        assert swarm.status()["step"] == 1
        rest = [swarm.play("half", 1.0), swarm.play("more", 0.0), swarm.play("more", 1.0)]
        swarm.wait_step(2)
        assert [row.episode for row in swarm.backbone.trained[0].rows] == [half, *rest]


def test_stop_finishes_the_update_that_runs(rolling):
    hold = rolling.call(asyncio.Event)
    rolling.backbone.hold_train = hold
    rolling.play_batch()
    rolling.wait("UPDATING")
    rolling.post("/engine/stop")
    rolling.loop.call_soon_threadsafe(hold.set)
    rolling.wait("OFFLINE")
    assert rolling.status()["step"] == 1


def test_a_game_in_progress_goes_on_after_a_server_restart(serve, renderer):
    with serve() as swarm:
        swarm.start()
        begun = swarm.begin(request_id="mine")
        reply = swarm.say(begun, "first", agent="anna")
        said = reply.choices[0].message.model_dump(exclude_none=True)
    with serve() as swarm:
        swarm.wait("ROLLING")
        assert swarm.begin(request_id="mine")["episode_id"] == begun["episode_id"]
        with swarm.openai(begun, "anna") as client:
            history = [{"role": "user", "content": "first"}, said, {"role": "user", "content": "second"}]
            client.chat.completions.create(model="m", messages=history)
        calls = swarm.get(f"/episodes/{begun['episode_id']}").json()["calls"]
        assert calls[1]["parent"] == calls[0]["call_id"]
        first = swarm.end(begun["episode_id"], "t", 1.0, request="e")
    with serve() as swarm:
        swarm.wait("ROLLING")
        assert swarm.end(begun["episode_id"], "t", 1.0, request="e").json() == first.json()
        assert swarm.end(begun["episode_id"], "t", 1.0, request="f").status_code == 410
        assert swarm.status()["pool"]["episodes_finished"] == 1


def test_a_finished_training_is_still_finished_after_a_restart(serve):
    with serve() as swarm:
        swarm.start(job(trainer_common__total_training_steps=1))
        swarm.play_batch()
        swarm.wait("FINISHED")
    with serve() as swarm:
        swarm.wait("FINISHED")
        begun = swarm.begin(kind="eval")
        assert swarm.say(begun).choices[0].message.content
        assert swarm.end(begun["episode_id"], "t").json()["fate"] == "eval"


# ── the server is killed ─────────────────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def process(exp_dir: Path, *options: str):
    command = [sys.executable, "-m", "tests.fakes.serve_fake", str(exp_dir), "0", *options]
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=os.environ.copy()
    )
    try:
        assert running.stdout is not None
        url = running.stdout.readline().strip()
        assert url.startswith("http"), "the server did not start"
        with httpx.Client(base_url=url, timeout=DEADLINE_S + 5) as http:
            deadline = time.monotonic() + DEADLINE_S
            while True:
                with contextlib.suppress(httpx.TransportError):
                    http.get("/healthz").raise_for_status()
                    break
                assert time.monotonic() < deadline
            yield Swarm(url, None, None, [], http), running  # type: ignore[arg-type]
    finally:
        running.kill()
        running.wait()


def replayed_digest(journal: Path, tree: dict) -> list[str]:
    """The digest after each journaled batch, trained from the start in one go."""

    async def run():
        backbone, found = FakeBackbone(), []
        for formed in journal_read.batches_after(journal, 0):
            found.append(
                (await backbone.train_step(build_batch(journal, formed, AjetConfig.model_validate(tree)).batch)).digest
            )
        return found

    return asyncio.run(run())


def test_kill_between_acknowledged_end_and_update_trains_exactly_once(tmp_path):
    exp = tmp_path / "exps"
    tree = job(trainer_common__save_freq=100)
    with process(exp, "--hold-train") as (swarm, running):
        swarm.start(tree)
        open_one, late = swarm.begin(), swarm.begin()
        swarm.say(open_one), swarm.say(late)
        played = swarm.play_batch()
        swarm.wait("UPDATING")
        surplus = late["episode_id"]
        assert swarm.end(surplus, "surplus", 1.0).status_code == 200
        running.send_signal(signal.SIGKILL)
        running.wait()
    journal = exp / "exp" / "journal.sqlite"
    with process(exp) as (swarm, running):
        swarm.wait_step(1)
        swarm.wait("ROLLING")
        swarm.count = 1000
        for episode in played:
            found = swarm.get(f"/episodes/{episode}").json()
            assert (found["fate"], found["step"], found["advantages"]) == ("trained", 1, {"main": 0.5})
        assert swarm.status()["pool"]["episodes_finished"] == 1
        assert swarm.status()["leases"]["open_train"] == 1
        assert swarm.get(f"/episodes/{surplus}").json()["fate"] == "pooled"
        swarm.play("surplus", 0.0), swarm.play("x", 0.0), swarm.play("x", 1.0)
        swarm.wait_step(2)
        swarm.wait("ROLLING")
        running.send_signal(signal.SIGKILL)
        running.wait()
    steps = journal_read.steps(journal)
    assert [step.digest for step in steps] == replayed_digest(journal, tree)
    members = [episode for formed in journal_read.batches_after(journal, 0) for _, episode in formed.members]
    assert len(members) == len(set(members)) == 8
    with process(exp) as (swarm, _running):
        swarm.wait("ROLLING")
        assert swarm.status()["step"] == 2
        assert swarm.status()["warnings"] == []
    lines = (exp / "exp" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 2


def test_sigterm_saves_and_the_next_start_resumes(tmp_path):
    with process(tmp_path) as (swarm, running):
        swarm.start(job(trainer_common__save_freq=100))
        swarm.play_batch()
        swarm.wait_step(1)
        running.send_signal(signal.SIGTERM)
        assert running.wait(30) in (0, -signal.SIGTERM)
    assert (tmp_path / "exp" / "checkpoints" / "step_000001").is_dir()
    assert '"message": "engine ' in (tmp_path / "exp" / "server.log").read_text()
    with process(tmp_path) as (swarm, _running):
        swarm.wait("ROLLING")
        assert swarm.status()["step"] == 1


# ── the disk refuses ─────────────────────────────────────────────────────────────────────────────────────────────────


def fill(swarm, full: bool):
    """SQLite's own page limit stands in for a full disk: every write gets SQLITE_FULL."""

    def limit(db):
        pages = db.execute("PRAGMA page_count").fetchone()[0] if full else 1 << 30
        db.execute(f"PRAGMA max_page_count={pages}")

    swarm.call(lambda: swarm.app.engine.experiment.journal.execute(limit))


def test_a_full_disk_refuses_loses_nothing_and_recovers_by_itself(rolling):
    begun = rolling.begin(discard_episode_timeout=60)
    rolling.say(begun, "short", agent="anna")
    fill(rolling, True)
    answered = 1

    def say_until_refused():
        nonlocal answered
        while answered < 2000:
            rolling.say(begun, "x" * 1500, agent=f"a{answered}")
            answered += 1

    with pytest.raises(openai.APIStatusError) as full:
        say_until_refused()
    assert full.value.status_code == 507
    assert len(rolling.get(f"/episodes/{begun['episode_id']}").json()["calls"]) == answered
    late = rolling.end(begun["episode_id"], "t", 1.0, request="e", metadata={"blob": "x" * 100_000})
    assert (late.status_code, late.json()["error"]["code"]) == (507, "disk_refused")
    assert int(late.headers["retry-after"]) >= 1
    found = rolling.status()
    assert (found["state"], found["disk"]["ok"]) == ("ROLLING", False)
    assert "full" in found["disk"]["error"]

    async def an_hour_passes():
        registry = rolling.app.engine.experiment.registry
        registry.clock._disk_down_since -= 3600
        registry.leases.shift(-3600)

    rolling.call(an_hour_passes)
    fill(rolling, False)
    rolling.call(lambda: rolling.app.engine.experiment.journal.writable())
    assert rolling.status()["disk"]["ok"] is True
    assert rolling.end(begun["episode_id"], "t", 1.0, request="e", metadata={"blob": "x" * 100_000}).status_code == 200


def test_a_checkpoint_that_the_disk_refuses_is_tried_again(serve):
    with serve(make=lambda: FakeBackbone(save_error=OSError(28, "No space left on device"))) as swarm:
        swarm.start(job(trainer_common__save_freq=1, trainer_common__total_training_steps=2))
        swarm.play_batch()
        swarm.wait_step(1)
        swarm.wait("ROLLING")
        found = swarm.status()
        assert found["checkpoint"]["step"] is None
        assert "space" in found["checkpoint"]["error"]
        swarm.play_batch()
        swarm.wait("FINISHED")
        assert swarm.status()["checkpoint"]["step"] == 2
        assert swarm.status()["last_error"] is None


def test_a_backbone_that_dies_in_a_save_is_started_again_and_the_step_is_saved(serve):
    deaths = iter([BackboneDied("killed in mid-save"), None, None])
    with serve(make=lambda: FakeBackbone(save_error=next(deaths))) as swarm:
        swarm.start(job(trainer_common__save_freq=1, trainer_common__total_training_steps=2))
        swarm.play_batch()
        swarm.wait_step(1)
        swarm.wait("ROLLING")
        played = swarm.play_batch()
        swarm.wait("FINISHED")
        found = swarm.status()
        assert len(swarm.backbones) == 2
        assert found["checkpoint"]["step"] == 2
        assert [row.episode for row in swarm.backbone.trained[-1].rows] == played
        assert not [w for w in found["warnings"] if "DIVERGENCE" in w]


@pytest.mark.parametrize("jump_s", [-10 * 365 * 86400.0, 10 * 365 * 86400.0])
def test_the_machines_clock_may_jump(serve, monkeypatch, jump_s):
    """Leases, order and resumption hang on no wall clock."""
    true_time = time.time
    with serve() as swarm:
        swarm.start(job(trainer_common__total_training_steps=4))
        open_before = swarm.begin(discard_episode_timeout=30)
        swarm.play_batch()
        swarm.wait_step(1)
        monkeypatch.setattr(time, "time", lambda: true_time() + jump_s)
        swarm.say(open_before)
        swarm.play_batch()
        swarm.wait_step(2)
        assert swarm.end(open_before["episode_id"], "left").status_code == 200
    with serve() as swarm:
        swarm.wait("ROLLING")
        found = swarm.status()
        assert found["step"] == 2
        assert found["pool"]["episodes_finished"] == 1
        assert found["drops"] == {}
        monkeypatch.undo()
        swarm.play_batch()
        swarm.wait_step(3)
        assert not [w for w in swarm.status()["warnings"] if "DIVERGENCE" in w]
