"""A real server with ``backbone: verl``, real clients, Werewolves; then parts of it are killed, one after the other."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests.e2e.conftest import AGENT_ROLL, Server
from tests.faults import processes

pytestmark = [pytest.mark.timeout(1500)]
NOTICED_S, RECOVERED_S = 60.0, 240.0
"""Promised in docs/verl.md: until the loss is noticed, and until episodes are granted again on a small machine."""

# Only the process of a worker has such a title; Ray's own processes have their program's name.
VICTIMS = {
    "training worker": "ray::AjetWorker",
    "sampler replica": "ray::TorchServer",
    "raylet": "/raylet",
    "driver": "ajet.backbone.verl.driver",
}


def of_run(driver: int) -> dict[int, str]:
    """Processes of the driver's Ray (they inherit the name of its folder), and their command lines."""
    folder = next(
        v for v in Path(f"/proc/{driver}/environ").read_bytes().split(b"\0") if v.startswith(b"AJET_RAY_DIR=")
    )
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if folder in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return found


def victim(driver: int, mark: str) -> int:
    return next(pid for pid, line in sorted(of_run(driver).items()) if mark in line)


@pytest.fixture
def server(tmp_path):
    made = Server(tmp_path / "exp", tmp_path / "server.out", environment={"AJET_LOG_LEVEL": "INFO"})
    made.start()
    yield made
    made.stop()


@pytest.fixture
def job_file(tmp_path):
    tree = yaml.safe_load((AGENT_ROLL.parent / "werewolves.yaml").read_text())
    job = tree["ajet"]
    job.update(experiment_name="small", backbone="verl", verl={"cpu_workers": 2})
    job["rollout"].update(num_repeat=2, max_env_worker=8)
    job["data"]["train_batch_size"] = 4
    job["trainer_common"].update(save_freq=2, mini_batch_num=1, n_gpus_per_node=0, total_training_steps=12)
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def test_werewolves_trains_and_survives_the_loss_of_each_part(server, job_file, tmp_path):
    script = subprocess.Popen(
        [sys.executable, str(AGENT_ROLL), "--swarm-url", server.url, "--config", str(job_file)], cwd=tmp_path,
        env=processes.environment(), stdout=(tmp_path / "script.out").open("w"), stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        server.wait_step(3, RECOVERED_S)
        times = {}
        for name, mark in VICTIMS.items():
            driver = server.backbone()
            assert driver is not None
            before = (server.status() or {})["step"]
            started = time.monotonic()
            os.kill(victim(driver, mark), signal.SIGKILL)
            processes.until(lambda: server.state() not in ("ROLLING", "UPDATING"), NOTICED_S, f"noticing the {name}")
            noticed = time.monotonic() - started
            processes.until(lambda: server.state() == "ROLLING", RECOVERED_S, f"recovery from the {name}")
            times[name] = (round(noticed, 1), round(time.monotonic() - started, 1))
            print(f"{name}: noticed after {times[name][0]} s, episodes again after {times[name][1]} s", flush=True)
            assert server.state() != "FAILED"
            server.wait_step(before + 1, RECOVERED_S)
        assert script.poll() is None, (tmp_path / "script.out").read_text()[-2000:]
        steps = [s["step"] for s in server.steps()]
        assert steps == list(range(1, len(steps) + 1))
        status = server.status() or {}
        assert not [w for w in status.get("warnings", []) if "DIVERGENCE" in w], status
        driver = server.backbone()
        left = set(of_run(driver)) if driver else set()
    finally:
        script.kill()
        script.wait()
        server.stop()
    processes.until(
        lambda: (
            not [
                pid
                for pid in left
                if Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes()
            ]
        ),
        30,
        "the end of Ray's processes",
    )
    print(json.dumps(times))
