"""A swarm server and its clients as real processes that can be killed, for the programs and tests of this folder."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from ajet import AgentJetJob

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 120.0
BACKBONE = b"ajet.backbone"
"""In the command line of a backbone's process."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment() -> dict[str, str]:
    """Ours, with the package and the tests importable."""
    path = os.pathsep.join(p for p in [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")] if p)
    return {**os.environ, "PYTHONPATH": path}


def python(arguments: list[str], log: Path, also: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    """A Python process in a group of its own, its output appended to ``log``; ``also``: more of its environment."""
    with log.open("ab") as out:
        return subprocess.Popen(
            [sys.executable, *arguments], stdout=out, stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True,
            env={**environment(), **(also or {})},
        )  # fmt: skip


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to one process, and wait for its end."""
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.wait()


def children(pid: int) -> list[int]:
    """Processes that ``pid`` started and that still run."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def until(holds: Callable[[], Any], deadline_s: float = DEADLINE_S, what: str = "it", every_s: float = 0.02) -> Any:
    """The first true value of ``holds``; an error with ``what`` past the deadline."""
    deadline = time.monotonic() + deadline_s
    while not (found := holds()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen within {deadline_s:g} s")
        time.sleep(every_s)
    return found


class Server:
    """``ajet-swarm start`` on one port and folder; started again after each kill.

    Args:
        exp_dir: its ``--exp-dir``.
        log: its output.
        command: arguments of the Python process, for another server than the real one; ``{port}`` is filled in.
        environment: more of it than ours.
    """

    def __init__(
        self, exp_dir: Path, log: Path, command: list[str] | None = None, environment: dict[str, str] | None = None
    ) -> None:
        self.environment = environment
        self.exp_dir, self.log, self.port = exp_dir, log, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = command or ["-m", "ajet.cli", "start", "--swarm-port", "{port}", "--exp-dir", str(exp_dir)]
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def start(self) -> None:
        self.process = python(
            [part.replace("{port}", str(self.port)) for part in self._command], self.log, self.environment
        )
        self.starts += 1

    def kill(self) -> None:
        """SIGKILL to the server alone; its backbone is to notice by itself."""
        assert self.process is not None
        kill(self.process)

    def backbone(self) -> int | None:
        """The pid of its backbone process, while there is one."""
        assert self.process is not None
        for pid in children(self.process.pid):
            with contextlib.suppress(OSError):
                if BACKBONE in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return pid
        return None

    def stop(self) -> None:
        """SIGTERM, and wait; SIGKILL past the deadline."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            kill(self.process)

    def status(self, **query: Any) -> dict[str, Any] | None:
        """``GET /status``; None while it does not answer."""
        try:
            wait_s = query.get("wait_s", 0.0)
            return httpx.get(f"{self.url}/swarm/v1/status", params=query, timeout=5 + wait_s).json()
        except (httpx.HTTPError, ValueError):
            return None

    def state(self) -> str | None:
        return (self.status() or {}).get("state")


@contextlib.contextmanager
def serving(exp_dir: Path, log: Path, environment: dict[str, str] | None = None) -> Iterator[Server]:
    """A server that answers; stopped at the end."""
    server = Server(exp_dir, log, environment=environment)
    server.start()
    try:
        until(server.status, what="the server's start")
        yield server
    finally:
        server.stop()


def small_job(name: str, *, groups: int, repeat: int, steps: int, save_freq: int) -> AgentJetJob:
    """The built-in model, replies of at most eight tokens: a step takes a moment."""
    made = AgentJetJob(
        experiment_name=name, model="ajet-tiny-werewolves", batch_size=groups, num_repeat=repeat, max_env_worker=64,
        n_gpu=0, total_training_steps=steps,
    )  # fmt: skip
    config = made.config
    config.rollout.max_model_len, config.rollout.max_response_length_in_one_turn = 512, 8
    config.data.max_prompt_length, config.data.max_response_length = 256, 256
    config.trainer_common.save_freq = save_freq
    return made
