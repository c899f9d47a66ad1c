"""Mistakes before the first episode: addresses, keys, installing, starting, the job."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.processes import ROOT, Server, free_port, until
from tests.mistakes.scripts import CHAT, CLIENT, POST, START
from tests.mistakes.stranger import stranger
from tests.mistakes.world import TUTORIAL, Seen, Starter, ajet_swarm, python, run, running, script

KEY = "a-key-for-the-tests"
JOB_FILES = {
    "unknown key": "ajet:\n  rollout: {num_repeats: 4}\n",
    "wrong type": "ajet:\n  data:\n    train_batch_size: many\n",
    "no yaml": "ajet:\n  rollout:\n\tnum_repeat: 4\n",
}
JOBS = {
    "no file": "AgentJetJob('nowhere.yaml')",
    "collection rule": "AgentJetJob(swarm_mode_sample_collection_method='enough_tasks')",
    "mini batches": "AgentJetJob(batch_size=2, num_repeat=2, mini_batch_num=100)",
    "lengths": "AgentJetJob(max_prompt_length=3000, max_response_length=3000, max_response_length_in_one_turn=64, max_model_len=4096)",
}
ENGINES = {
    "no gpu": "n_gpu=8",
    "one device": "nnodes=2",
    "no model": "model='/no/such/model'",
    "hub name": "model='Qwen/Qwen2.5-7B-Instruct'",
    "folder without a model": "model=sys.argv[2]",
    "wrong kind of model": "model=sys.argv[2]",
}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """``ajet-swarm start`` as it is, on a host without GPUs."""
    folder = tmp_path_factory.mktemp("real")
    made = Server(folder / "exp", folder / "server.out", environment={"CUDA_VISIBLE_DEVICES": ""})
    made.start()
    until(made.status, what="the server's start")
    yield made
    made.stop()


@pytest.fixture(scope="module")
def locked(odd: Callable[..., Server]) -> Server:
    """One that demands a key."""
    made = odd(environment={"AJET_SWARM_KEY": KEY})
    until(made.status, what="the server's start")
    return made


# ── reaching the server ──────────────────────────────────────────────────────────────────────────────────────────────


def test_no_server(user: Starter, tmp_path: Path) -> None:
    user.commands(tmp_path, "status", "--swarm-url", f"http://127.0.0.1:{free_port()}").shows("no server")


def test_the_tutorial_without_a_server_says_how_to_start_one_and_waits(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with running([*python(TUTORIAL), "--swarm-url", url], tmp_path) as child:
        child.wait_for("tutorial without a server")
        child.interrupt().shows("tutorial without a server")


@pytest.mark.parametrize("url", ["localhost:10086", "http://127.0.0.1:99999"])
def test_no_address(url: str, user: Starter, tmp_path: Path) -> None:
    user.commands(tmp_path, "status", "--swarm-url", url).shows("no address")


def test_unknown_host(user: Starter, tmp_path: Path) -> None:
    user.commands(tmp_path, "status", "--swarm-url", "http://no-such-host.invalid:10086").shows("unknown host")


def test_another_program_and_a_proxy(user: Starter, tmp_path: Path) -> None:
    with stranger(404, b"<h1>not here</h1>") as url:
        user.commands(tmp_path, "status", "--swarm-url", url).shows("another program")
        env = {"HTTP_PROXY": url, "http_proxy": url, "NO_PROXY": "", "no_proxy": ""}
        user.commands(tmp_path, "status", "--swarm-url", "http://192.0.2.1:10086", env=env).shows(
            "proxy before the server"
        )


def test_a_proxy_before_the_agents(server: Server, user: Starter, tmp_path: Path) -> None:
    with stranger(502, b"no way") as url:
        env = {"HTTP_PROXY": url, "http_proxy": url, "NO_PROXY": "", "no_proxy": ""}
        body = CLIENT + CHAT + "episode, api = client.begin_episode()\nchat(api)"
        user.runs(script(tmp_path, body), server.url, env=env).shows("proxy before the agents", tracebacks=1)


def test_no_key(locked: Server, user: Starter, tmp_path: Path) -> None:
    user.commands(tmp_path, "status", "--swarm-url", locked.url).shows("no key")


def test_wrong_key(locked: Server, user: Starter, tmp_path: Path) -> None:
    user.runs(script(tmp_path, CLIENT), locked.url, env={"AJET_SWARM_KEY": "another-key"}).shows("wrong key")


@pytest.mark.parametrize("version", ["0.0.1", "9.9.9"])
def test_other_version(version: str, odd: Callable[..., Server], user: Starter, tmp_path: Path) -> None:
    made = odd("--version", version)
    until(made.status, what="the server's start")
    # What a server of another version does not know, it refuses; the versions are said with it.
    body = START + (
        "import ajet.default_config.load\n"
        "tree = AgentJetJob(**SMALL).config.model_dump()\ntree['rollout']['of_another_version'] = 1\n"
        "class Job:\n    def model_dump(self, **_): return tree\n"
        "ajet.default_config.load.check_config = lambda _: None\n"
        "SwarmClient(url).auto_sync_train_config_and_start_engine(Job())"
    )
    seen = user.runs(script(tmp_path, body), made.url)
    seen.shows("other version")
    assert f"The server is AgentJet {version} and" in seen.output
    assert "unknown key rollout.of_another_version" in seen.output


# ── installing and starting ──────────────────────────────────────────────────────────────────────────────────────────


def test_old_python(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    says = "import sys; sys.version_info = (3, 9, 18)"
    old.write_text(f"#!/bin/sh\nshift\nexec '{sys.executable}' -c \"{says}\n$1\"\n")  # as make asks it: -c PROGRAM
    old.chmod(0o755)
    done = subprocess.run(
        ["make", "-C", str(ROOT), f"PYTHON={old}", f"VENV={tmp_path / 'venv'}", "werewolves"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    Seen(done.stdout + done.stderr, done.returncode).shows("old python")


def test_client_only(tmp_path: Path) -> None:
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "uvicorn.py").write_text("raise ModuleNotFoundError('no uvicorn here', name='uvicorn')\n")
    path = os.pathsep.join([str(tmp_path / "without"), str(ROOT / "src"), str(ROOT)])
    seen = run(ajet_swarm("start", "--swarm-port", free_port()), tmp_path, {"PYTHONPATH": path})
    seen.shows("client only")


def test_port_in_use(server: Server, user: Starter, tmp_path: Path) -> None:
    user.commands(tmp_path, "start", "--swarm-port", server.port).shows("port in use")


def test_two_servers(server: Server, user: Starter, tmp_path: Path) -> None:
    user.commands(tmp_path, "start", "--swarm-port", free_port(), "--exp-dir", server.exp_dir).shows("two servers")


def test_two_demos(server: Server, tmp_path: Path) -> None:
    (tmp_path / "werewolves-seer-seed0").mkdir()
    (tmp_path / "werewolves-seer-seed0" / "server").symlink_to(server.exp_dir)
    seen = run(
        ajet_swarm("demo", "werewolves", "--trainable", "seer", "--exp-dir", tmp_path, "--eval-games", 0), tmp_path
    )
    seen.shows("two demos")


def test_folder_not_writable(user: Starter, tmp_path: Path) -> None:
    (tmp_path / "a-file").touch()
    user.commands(tmp_path, "start", "--swarm-port", free_port(), "--exp-dir", tmp_path / "a-file" / "exp").shows(
        "folder not writable"
    )


# ── the job ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("key", JOB_FILES)
def test_a_file_is_refused_by_its_line(key: str, user: Starter, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB_FILES[key])
    user.runs(script(tmp_path, START + "AgentJetJob('job.yaml')"), "-").shows(key)
    user.commands(tmp_path, "start", "--swarm-port", free_port(), "--config", "job.yaml").shows(key)


@pytest.mark.parametrize("key", JOBS)
def test_a_job_is_refused_when_it_is_made(key: str, user: Starter, tmp_path: Path) -> None:
    user.runs(script(tmp_path, START + JOBS[key]), "-").shows(key)


@pytest.mark.parametrize("key", ENGINES)
def test_a_job_that_this_server_cannot_run(key: str, real: Server, user: Starter, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    if key == "wrong kind of model":
        (folder / "config.json").write_text('{"model_type": "bert", "architectures": ["BertModel"]}')
    body = (
        START
        + f"""
job = AgentJetJob(**{{**SMALL, **dict({ENGINES[key]})}})
SwarmClient(url, retry_budget_s=1).auto_sync_train_config_and_start_engine(job)
"""
    )
    path = script(tmp_path, body)
    user.runs(path, real.url, folder).shows(key)
    if key == "no model":
        again = user.runs(path, real.url, folder)
        again.shows("no model")
        again.shows("failed before")


def test_a_name_that_another_model_was_trained_under(odd: Callable[..., Server], user: Starter, tmp_path: Path) -> None:
    made = odd()
    until(made.status, what="the server's start")
    model = shutil.copytree(ROOT / "src/ajet/envs/werewolves/tiny/model", tmp_path / "model")
    body = (
        CLIENT
        + POST
        + """
for n in range(4):
    episode, api = client.begin_episode()
    chat(api)
    client.end_episode(Task(task_id=str(n // 2)), episode, WorkflowOutput(reward=n % 2))
client.get_status(wait_step=1, wait_s=30)
client.stop_engine()
SMALL["model"] = sys.argv[2]
client.auto_sync_train_config_and_start_engine(AgentJetJob(**SMALL))
"""
    )
    body = body.replace('experiment_name="mistakes"', 'experiment_name="stale"')
    user.runs(script(tmp_path, body), made.url, model).shows("stale folder")
