"""A real server (its own process, the real embedded backbone) and small jobs for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.faults import processes

AGENT_ROLL = processes.ROOT / "tutorial" / "example_werewolves_swarm" / "agent_roll.py"


class Server(processes.Server):
    """With the questions that these tests ask."""

    def start(self) -> None:
        super().start()
        processes.until(self.status, what="the server's start")

    def wait_step(self, step: int, timeout_s: float = 120) -> None:
        def reached() -> bool:
            return ((self.status(wait_step=step, wait_s=20) or {}).get("step") or 0) >= step

        processes.until(reached, timeout_s, f"step {step}")

    def steps(self) -> list[dict[str, Any]]:
        return httpx.get(f"{self.url}/swarm/v1/metrics/history", timeout=30).json()["steps"]


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[Any]:
    servers: list[Server] = []

    def make(name: str = "server") -> Server:
        folder = tmp_path / name
        folder.mkdir()
        server = Server(folder / "exp", folder / "server.out")
        servers.append(server)
        server.start()
        return server

    yield make
    for server in servers:
        server.stop()


@pytest.fixture
def small_job(tmp_path: Path) -> Any:
    """Writes the shipped Werewolves job, made small: 4 deals of 2 games a step."""

    def write(steps: int, **experiment: Any) -> Path:
        tree = yaml.safe_load((AGENT_ROLL.parent / "werewolves.yaml").read_text())
        job = tree["ajet"]
        job["experiment_name"] = "small"
        job["rollout"].update(num_repeat=2, max_env_worker=8)
        job["data"]["train_batch_size"] = 4
        job["trainer_common"].update(total_training_steps=steps, save_freq=2, mini_batch_num=1)
        job.update(experiment)
        path = tmp_path / "small.yaml"
        path.write_text(yaml.safe_dump(tree))
        return path

    return write


@pytest.fixture
def run_script() -> Iterator[Any]:
    """Starts a user's script as a child process."""
    children: list[subprocess.Popen[str]] = []

    def run(*command: str, cwd: Path) -> subprocess.Popen[str]:
        env = {**processes.environment(), "PYTHONUNBUFFERED": "1"}
        child = subprocess.Popen(
            [sys.executable, *command], cwd=cwd, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        children.append(child)
        return child

    yield run
    for child in children:
        if child.poll() is None:
            child.kill()
        child.wait()
        if child.stdout:
            child.stdout.close()
