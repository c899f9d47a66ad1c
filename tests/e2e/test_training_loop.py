"""What a user does, with real processes: a server, a script, a model that is saved and loads again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ajet.envs.werewolves.replay import load
from tests.e2e.conftest import AGENT_ROLL

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

USER_SCRIPT = '''
"""Only public import paths. Trains, and ends."""
import asyncio, sys
from ajet.schema.task import Task, WorkflowTask, WorkflowOutput
from ajet.copilot.job import AgentJetJob
from ajet.task_reader import RouterTaskReader
from ajet.utils.thread_executors import PeriodicDrainThreadPoolExecutor
from ajet.tuner_lib.as_oai_baseurl_apikey import OpenaiBaseUrlAndApiKey
from ajet.default_config.ajet_config_schema import AjetTaskReader
from ajet.tuner_lib.experimental.swarm_client import SwarmClient
from tutorial.example_werewolves.start import ExampleWerewolves

job = AgentJetJob(
    base_yaml_config=sys.argv[2], algorithm="grpo", experiment_name="public_names",
    num_repeat=2, batch_size=3, max_env_worker=6, total_training_steps=2,
)
client = SwarmClient(sys.argv[1])
client.auto_sync_train_config_and_start_engine(job, force_restart=False)
dataset = RouterTaskReader(reader_type="random_dummy", reader_config=AjetTaskReader(type="random_dummy"))

def execute_agent(task: Task, api: OpenaiBaseUrlAndApiKey) -> WorkflowOutput:
    game = ExampleWerewolves(trainable_targets=["werewolf"])
    return asyncio.run(game.execute(WorkflowTask(task=task), api))

def rollout(task):
    episode_uuid, api = client.begin_episode(discard_episode_timeout=240)
    output = execute_agent(task, api)
    client.end_episode(task, episode_uuid, output)
    return output.reward

executor = PeriodicDrainThreadPoolExecutor(workers=job.num_repeat * job.batch_size, max_parallel=6, auto_retry=True)
for epoch in range(10000):
    for task in dataset.generate_training_tasks():
        for _ in range(job.num_repeat):
            executor.submit_with_periodic_drain(fn=rollout, task=task)
'''


def test_the_tutorial_script_trains_and_exits_0_and_its_checkpoint_loads(make_server, small_job, run_script, tmp_path):
    server = make_server()
    script = run_script(str(AGENT_ROLL), "--swarm-url", server.url, "--config", str(small_job(3)), cwd=tmp_path)
    output, _ = script.communicate(timeout=300)
    assert script.returncode == 0, output
    status = server.status()
    assert (status["state"], status["step"]) == ("FINISHED", 3)
    steps = server.steps()
    assert [s["step"] for s in steps] == [1, 2, 3]
    assert all(s["pool/episodes"] == 8 and s["pool/groups"] == 4 for s in steps)
    folder = Path(status["experiment_dir"])
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["digest"] for line in lines] == [s["digest"] for s in steps]
    from transformers import AutoModelForCausalLM, AutoTokenizer

    newest = sorted((folder / "checkpoints").glob("step_*"))[-1]
    model = AutoModelForCausalLM.from_pretrained(newest)
    assert model.config.model_type == "qwen2"
    assert AutoTokenizer.from_pretrained(newest).encode(" Player3", add_special_tokens=False)


def test_a_script_of_public_names_runs_unmodified_and_exits_0(make_server, small_job, run_script, tmp_path):
    server = make_server()
    path = tmp_path / "user.py"
    path.write_text(USER_SCRIPT)
    script = run_script(str(path), server.url, str(small_job(2)), cwd=tmp_path)
    output, _ = script.communicate(timeout=300)
    assert script.returncode == 0, output
    assert server.status()["step"] == 2


def test_a_killed_server_resumes_by_itself_and_the_client_only_waits(make_server, small_job, run_script, tmp_path):
    server = make_server()
    script = run_script(str(AGENT_ROLL), "--swarm-url", server.url, "--config", str(small_job(5)), cwd=tmp_path)
    server.wait_step(3)
    before = {s["step"]: s["digest"] for s in server.steps()}
    server.kill()
    server.start()
    output, _ = script.communicate(timeout=300)
    assert script.returncode == 0, output
    steps = server.steps()
    assert [s["step"] for s in steps] == [1, 2, 3, 4, 5]
    assert before == {s["step"]: s["digest"] for s in steps if s["step"] in before}
    status = server.status()
    assert status["state"] == "FINISHED"
    assert not [w for w in status["warnings"] if "DIVERGENCE" in w], status["warnings"]


def test_the_command_line_shows_and_stops_an_engine(make_server, small_job, run_script, tmp_path):
    server = make_server()
    script = run_script(str(AGENT_ROLL), "--swarm-url", server.url, "--config", str(small_job(1000)), cwd=tmp_path)
    server.wait_step(1)
    shown = run_script("-m", "ajet.cli", "status", "--json", "--swarm-url", server.url, cwd=tmp_path)
    assert json.loads(shown.communicate(timeout=60)[0])["experiment"] == "small"
    stopped = run_script("-m", "ajet.cli", "stop", "--swarm-url", server.url, cwd=tmp_path)
    assert "OFFLINE" in stopped.communicate(timeout=120)[0]
    assert stopped.returncode == 0
    assert server.status()["state"] == "OFFLINE"
    assert server.process is not None
    assert server.process.poll() is None
    script.kill()


def test_the_demo_trains_reports_and_runs_again_under_another_name(run_script, tmp_path, small_job):
    command = ["-m", "ajet.cli", "demo", "werewolves", "--config", str(small_job(2)), "--eval-games", "6"]
    for seed in ("0", "1"):
        output, _ = (demo := run_script(*command, "--seed", seed, cwd=tmp_path)).communicate(timeout=200)
        assert demo.returncode == 0, output
        folder = tmp_path / "saved_experiments" / f"werewolves-werewolf-seer-seed{seed}"
        summary = json.loads((folder / "summary.json").read_text())
        assert [row["step"] for row in summary["train"]] == [1, 2]
        assert all(row["games"] == 8 and row["win_rate"] for row in summary["train"])
        assert {role: r["games"] for role, r in summary["eval"]["final"].items()} == {"werewolf": 6, "seer": 6}
        assert summary["sampled_tokens"] >= summary["trained_tokens"] > 0
        assert (folder / "win_rate.png").exists()
        assert (folder / "checkpoints" / "step_000002" / "model.safetensors").exists()
        assert "Held-out deals" in output
        kept = summary["replays"]
        assert {which: len(paths) for which, paths in kept.items() if which != "training"} == {"initial": 6, "final": 6}
        assert kept["final"][-1] in output.replace("\n", "")
        for which, versions in (("initial", (0, 0)), ("final", (2, 2))):
            for path in kept[which]:
                replay = load(folder / path)
                assert (replay.policy_version, replay.episode.label.split(",")[0]) == (versions, f"{which} policy")
                assert all(x.call is not None for d in replay.decisions for x in d.exchanges)
        deals = [{load(folder / path).seed for path in kept[which]} for which in ("initial", "final")]
        assert deals[0] == deals[1]  # the same deals, to compare

    # A finished run is trained further where one says so; its first two steps stay what they were.
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    more = run_script(*command, "--seed", "1", "--continue", "--steps", "3", "--eval-games", "9", cwd=tmp_path)
    output, _ = more.communicate(timeout=200)
    assert more.returncode == 0, output
    assert "further, to step 3" in output
    again = json.loads((folder / "summary.json").read_text())
    assert [row["step"] for row in again["train"]] == [1, 2, 3]
    assert again["train"][:2] == summary["train"]
    assert [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()][:2] == steps
    assert {role: r["games"] for role, r in again["eval"]["final"].items()} == {"werewolf": 6, "seer": 6}
    assert again["wall_seconds"] > summary["wall_seconds"]
    assert {load(folder / path).policy_version for path in again["replays"]["final"]} == {(3, 3)}
    assert json.loads((folder / "until_step_000002" / "summary.json").read_text()) == summary


def test_a_person_plays_against_a_served_policy(tmp_path):
    lines = "\n".join(["3", "5", "7", "y", "I suspect Player2.", "1", "8", "0", "n", "9", "2", "4", "6"] * 60)
    command = ["play", "werewolves", "--role", "villager", "--seed", "5", "--policy", "ajet-tiny-werewolves"]
    game = subprocess.run(
        [sys.executable, "-m", "ajet.cli", *command, "--replay", str(tmp_path / "mine.json")],
        input=lines, capture_output=True, text=True, timeout=200, cwd=tmp_path,
    )  # fmt: skip
    assert game.returncode == 0, game.stdout + game.stderr
    replay = load(tmp_path / "mine.json")
    players = {s.role: s.player for s in replay.seats if s.player != "person"}
    assert {players["werewolf"], players["seer"]} == {"policy"}
    assert {players["witch"], players["hunter"]} == {"scripted"}
    spoken = [x for d in replay.decisions for x in d.exchanges if replay.seats[d.seat].player == "policy"]
    assert spoken
    assert all(x.call is not None for x in spoken)
    assert (replay.episode.kind, replay.episode.fate) == ("play", "eval")
    assert not list(tmp_path.glob("saved_experiments"))


def test_opposed_roles_live_in_one_game_are_followed_by_small_evaluations(run_script, tmp_path, small_job):
    command = [
        "-m",
        "ajet.cli",
        "demo",
        "werewolves",
        "--config",
        str(small_job(12)),
        "--eval-games",
        "4",
        "--live",
        "both",
    ]
    output, _ = (demo := run_script(*command, cwd=tmp_path)).communicate(timeout=300)
    assert demo.returncode == 0, output
    summary = json.loads(next(tmp_path.glob("saved_experiments/*/summary.json")).read_text())
    assert set(summary["train"][0]["win_rate"]) == {"werewolf", "seer"}
    assert summary["curve"]
    assert all(set(point["wins"]) == {"werewolf", "seer"} for point in summary["curve"])
