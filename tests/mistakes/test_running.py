"""What goes wrong while a run goes on: engines, memory, disks, other models, and Ctrl-C anywhere."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.processes import Server, free_port, until
from tests.mistakes.scripts import CHAT, CLIENT, POST, START
from tests.mistakes.stranger import stranger
from tests.mistakes.world import Starter, ajet_swarm, python, running, script

PLAY = """
import time
for n in range(4):
    episode, api = client.begin_episode()
    chat(api)
    client.end_episode(Task(task_id=str(n // 2)), episode, WorkflowOutput(reward=n % 2))
"""
WEREWOLVES = (
    START
    + """
SMALL.update(max_prompt_length=8000, max_response_length=8000, max_model_len=16000, experiment_name="opponents")
client = SwarmClient(url, retry_budget_s=1)
client.auto_sync_train_config_and_start_engine(AgentJetJob(**SMALL), force_restart=True)
from ajet import PeriodicDrainThreadPoolExecutor, WorkflowTask
from tutorial.example_werewolves.start import ExampleWerewolves
game = ExampleWerewolves(trainable_targets=["werewolf"], big_external_opponent_llm_name="m",
                         big_external_opponent_llm_url=sys.argv[2])
def rollout(task):
    episode, api = client.begin_episode(task=task)
    client.end_episode(task, episode, game.play(WorkflowTask(task=task, episode_uuid=episode), api))
with PeriodicDrainThreadPoolExecutor(workers=2, max_parallel=2) as executor:
    while not executor.finished:
        executor.submit_with_periodic_drain(fn=rollout, task=Task(task_id="t"))
"""
)


@pytest.fixture
def fresh(odd: Callable[..., Server]) -> Callable[..., Server]:
    """A server of one's own."""

    def start(*options: str) -> Server:
        made = odd(*options)
        until(made.status, what="the server's start")
        return made

    return start


def test_an_engine_that_nobody_starts_is_told_of_soon(fresh: Callable[..., Server], tmp_path: Path) -> None:
    body = START + "client = SwarmClient(url, retry_budget_s=4)\nclient.begin_episode()"
    with running(python(script(tmp_path, body), fresh().url), tmp_path) as child:
        child.wait_for("engine offline")
        child.end().shows("engine stays offline")


def test_a_backbone_that_the_kernel_killed(fresh: Callable[..., Server], tmp_path: Path) -> None:
    server = fresh("--no-patience")
    with running(python(script(tmp_path, CLIENT), server.url), tmp_path) as child:
        os.kill(until(server.backbone, what="the backbone's start"), signal.SIGKILL)
        child.end().shows("no memory")


def test_a_sampler_without_log_probs(fresh: Callable[..., Server], user: Starter, tmp_path: Path) -> None:
    body = CLIENT + CHAT + "episode, api = client.begin_episode()\nchat(api)"
    user.runs(script(tmp_path, body), fresh("--no-logprobs").url).shows("no log-probs", tracebacks=1)


def test_a_full_disk_is_told_of_and_waited_for(fresh: Callable[..., Server], tmp_path: Path) -> None:
    server = fresh()
    assert server.process is not None
    # A file may not grow: what a full disk comes to, for one process.
    grows = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
    body = (
        CLIENT
        + POST
        + f"""
import resource
episode, api = client.begin_episode()
chat(api)
resource.prlimit({server.process.pid}, resource.RLIMIT_FSIZE, (0, {grows[1]}))
client.end_episode(Task(task_id="t"), episode, WorkflowOutput(reward=1.0))
print("reported")
"""
    )
    with running(python(script(tmp_path, body), server.url), tmp_path) as child:
        child.wait_for("no disk")
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, grows)
        seen = child.end()
    assert (seen.code, seen.output.splitlines()[-1]) == (0, "reported")


def test_an_opponents_endpoint_that_is_away(server: Server, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}/v1"
    with running(python(script(tmp_path, WEREWOLVES), server.url, url), tmp_path) as child:
        child.wait_for("opponent down")
        child.interrupt().shows("opponent down")


def test_an_opponents_endpoint_that_refuses_the_key(server: Server, user: Starter, tmp_path: Path) -> None:
    answer = b'{"error": {"message": "Incorrect API key provided", "code": "invalid_api_key"}}'
    with stranger(401, answer) as url:
        user.runs(script(tmp_path, WEREWOLVES), server.url, f"{url}/v1").shows("opponent's key")


# ── Ctrl-C ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("state", ["OFFLINE", "ROLLING", "UPDATING", "FINISHED"])
def test_ctrl_c_at_a_server(state: str, user: Starter, tmp_path: Path) -> None:
    command = ["-m", "tests.mistakes.odd_server", str(tmp_path / "exp"), str(port := free_port())]
    body = CLIENT if state == "ROLLING" else CLIENT + POST + PLAY
    body = body.replace("n_gpu=0", "n_gpu=0, total_training_steps=1") if state == "FINISHED" else body
    hold = ["--hold-train"] if state == "UPDATING" else []
    with running([sys.executable, *command, *hold], tmp_path) as child:
        child.wait_for("swarm server at")
        if state != "OFFLINE":
            assert user.runs(script(tmp_path, body), f"http://127.0.0.1:{port}").code == 0
            child.wait_for(f"→ {state}")
        child.process.send_signal(signal.SIGINT)
        child.wait_for("ctrl-c at the server")
        if state == "UPDATING":  # it never ends here
            child.interrupt().shows("ctrl-c twice")
            return
        seen = child.end()
    assert seen.code == 0
    assert "Traceback" not in seen.output


def test_ctrl_c_at_a_server_that_boots(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("ajet:\n  trainer_common: {n_gpus_per_node: 0}\n")
    command = ["-m", "tests.mistakes.odd_server", str(tmp_path / "exp"), str(port := free_port()), "--no-patience"]
    with running([sys.executable, *command], tmp_path) as child:
        child.wait_for("swarm server at")
        with running(python(script(tmp_path, CLIENT), f"http://127.0.0.1:{port}"), tmp_path) as client:
            child.wait_for("→ BOOTING")
            seen = child.interrupt()
            left = client.end()
    assert (left.code, left.output.count("Traceback")) == (1, 0), left.output
    assert "BOOTING → STOPPING" in seen.output
    assert "ROLLING" not in seen.output, "the boot is not waited for"
    assert (seen.code, seen.output.count("Traceback")) == (0, 0)


def test_ctrl_c_while_a_result_is_reported(fresh: Callable[..., Server], tmp_path: Path) -> None:
    server = fresh()
    assert server.process is not None
    body = (
        CLIENT
        + POST
        + "episode, api = client.begin_episode()\nchat(api)\nprint('played', flush=True)\nimport signal\n"
        + (
            "signal.sigwait([signal.SIGUSR1])\nclient.end_episode(Task(task_id='t'), episode, WorkflowOutput(reward=1.0))"
        )
    )
    body = "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n" + body.lstrip()
    with running(python(script(tmp_path, body), server.url), tmp_path) as child:
        child.wait_for("played")
        server.process.send_signal(signal.SIGSTOP)
        try:
            child.process.send_signal(signal.SIGUSR1)
            child.interrupt().shows("ctrl-c in a script")
        finally:
            server.process.send_signal(signal.SIGCONT)


def test_ctrl_c_in_the_demo(tmp_path: Path) -> None:
    with running(ajet_swarm("demo", "werewolves", "--exp-dir", tmp_path, "--eval-games", 0), tmp_path) as child:
        child.wait_for("demo_client.log")
        child.interrupt().shows("ctrl-c in the demo")


def test_ctrl_c_in_an_evaluation_says_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    command = ajet_swarm("eval", "werewolves", "--policy", "ajet-tiny-werewolves", "--games", 900)
    with running(command, tmp_path, {"TMPDIR": str(tmp_path)}) as child:
        until(lambda: list(tmp_path.glob("ajet-eval-*/server.out")), what="the evaluation's server")
        seen = child.interrupt()
    assert (seen.code, seen.output.strip()) == (130, "")
    assert not list(tmp_path.glob("ajet-eval-*"))
