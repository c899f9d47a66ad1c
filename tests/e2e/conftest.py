"""A real server (its own process, the real embedded backbone) and small jobs for it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

ROOT = Path(__file__).parents[2]
AGENT_ROLL = ROOT / "tutorial" / "example_werewolves_swarm" / "agent_roll.py"


class Server:
    """`ajet-swarm start` as a child process that can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        log = (self.folder / "server.out").open("ab")
        command = [sys.executable, "-m", "ajet.cli", "start", "--swarm-port", str(self.port)]
        self.process = subprocess.Popen([*command, "--exp-dir", str(self.folder / "exp")], stdout=log, stderr=log)
        log.close()
        deadline = time.monotonic() + 60
        while True:
            try:
                httpx.get(f"{self.url}/healthz", timeout=2)
                return
            except httpx.HTTPError:
                assert self.process.poll() is None, (self.folder / "server.out").read_text()[-3000:]
                assert time.monotonic() < deadline, "the server did not come up"

    def kill(self) -> None:
        """SIGKILL; its backbone goes with it by itself."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()

    def status(self, **wait: Any) -> dict[str, Any]:
        return httpx.get(f"{self.url}/swarm/v1/status", params=wait, timeout=120).json()

    def wait_step(self, step: int, timeout_s: float = 120) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.status(wait_step=step, wait_s=20)["step"] >= step:
                return
        raise AssertionError(f"step {step} was not reached: {self.status()}")

    def steps(self) -> list[dict[str, Any]]:
        return httpx.get(f"{self.url}/swarm/v1/metrics/history", timeout=30).json()["steps"]


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[Any]:
    servers: list[Server] = []

    def make(name: str = "server") -> Server:
        folder = tmp_path / name
        folder.mkdir()
        server = Server(folder)
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
        env = {**os.environ, "PYTHONUNBUFFERED": "1"}
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
