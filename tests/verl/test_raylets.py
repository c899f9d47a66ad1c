"""Two Ray nodes (two raylets on this machine), one worker on each; and a cluster that has too little."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from ajet.backbone.verl.process import VerlBackbone
from ajet.schema.errors import ConfigError
from tests.faults import processes
from tests.verl.test_backbone import sampled


@pytest.fixture
def two_nodes(ray_folder, monkeypatch):
    """The address of a cluster of two nodes with one slot each."""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))  # the same for both nodes and for the driver
    port = processes.free_port()
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": processes.environment()["PYTHONPATH"]}
    common = [
        "--num-cpus=8",
        "--num-gpus=1",
        "--object-store-memory=200000000",
        "--block",
        "--node-ip-address=127.0.0.1",
    ]
    head = ["--head", f"--port={port}", f"--temp-dir={ray_folder}", "--include-dashboard=false"]
    started = []

    def start(arguments, name):
        log = Path(ray_folder) / f"{name}.log"
        command = [sys.executable, "-c", "import sys; from ray.scripts.scripts import main; sys.exit(main())", "start"]
        with log.open("w") as out:
            started.append(
                subprocess.Popen(
                    [*command, *arguments, *common], env=environment, stdout=out, stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )  # fmt: skip
        processes.until(lambda: "started" in log.read_text() or started[-1].poll() is not None, 90, name)
        assert started[-1].poll() is None, log.read_text()

    try:
        start(head, "head")
        start([f"--address=127.0.0.1:{port}"], "second")
        yield f"127.0.0.1:{port}"
    finally:
        for process in started:
            process.terminate()
        for process in started:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)


async def test_one_worker_on_each_of_two_nodes_trains_and_a_third_is_missed(two_nodes, job, tmp_path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    config = job(verl__ray_address=two_nodes, verl__cpu_workers=1, trainer_common__nnodes=2)
    backbone = VerlBackbone()
    try:
        info = await backbone.start(config.model_dump(mode="json"))
        assert info.device == "verl: 2 × cpu"
        first = await backbone.train_step(await sampled(backbone, 1))
        assert first.metrics["sampler/logprob_diff_max"] < 1e-4
        second = await backbone.train_step(await sampled(backbone, 2))
        assert second.digest != first.digest
        folder = tmp_path / "two"
        folder.mkdir()
        await backbone.save(str(folder))
        assert len(list((folder / "verl").glob("model_world_size_2_rank_*.pt"))) == 2
    finally:
        await backbone.close()
    config.trainer_common.nnodes = 3
    backbone = VerlBackbone()
    with pytest.raises(ConfigError, match="3 hosts with 1 GPUs each are asked for, and Ray has 2"):
        await backbone.start(config.model_dump(mode="json"))
    await backbone.close()
