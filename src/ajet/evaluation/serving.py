"""A server on loopback for the time of an evaluation: one model as the policy, others frozen beside it.

Nothing is trained and nothing is kept: its experiment lies in a temporary folder. All candidates are asked through one
eval episode by their frozen names, so that no call costs a write to disk.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from ajet.client import SwarmClient
from ajet.copilot.job import AgentJetJob
from ajet.default_config.schema import AjetConfig
from ajet.evaluation.candidates import Candidate
from ajet.schema.endpoint import OpenaiBaseUrlAndApiKey
from ajet.schema.errors import EngineFailed, error_from_body

LEASE_S = 3600.0
START_S = 60.0
STOP_S = 20.0


@dataclass(frozen=True)
class Served:
    """What is served.

    Attributes:
        api: opens the model API. models: candidate's key → name to ask for.
    """

    api: OpenaiBaseUrlAndApiKey
    models: Mapping[str, str]


def job_for(candidates: Mapping[str, Candidate], parallel: int) -> AgentJetJob:
    """A job that serves ``candidates``: the first as the initial model, the others beside it, limits as in its own run."""
    first, *others = candidates
    own = candidates[first].job or next((c.job for c in candidates.values() if c.job is not None), None) or AjetConfig()
    job = AgentJetJob(model=str(candidates[first].path), experiment_name="evaluation", logging="console")
    config = job.config
    config.model.dtype = own.model.dtype
    config.model.served_name = candidates[first].model_name
    config.model.frozen = {key: str(candidates[key].path) for key in others}
    config.rollout = own.rollout.model_copy(
        update={
            "name": "auto", "max_env_worker": max(4, parallel), "num_repeat": 2, "tensor_model_parallel_size": 1,
            "max_num_seqs": max(own.rollout.max_num_seqs, parallel),
        }
    )  # fmt: skip
    config.data = own.data.model_copy()
    common = config.trainer_common
    common.n_gpus_per_node = 0 if own.trainer_common.n_gpus_per_node == 0 else None
    common.seed, common.cpu_threads = own.trainer_common.seed, own.trainer_common.cpu_threads
    common.use_kl_loss = False
    config.journal.sync = "normal"
    return job


@contextmanager
def serve(candidates: Mapping[str, Candidate], parallel: int) -> Iterator[Served]:
    """Serve for the time of the block.

    Raises:
        EngineFailed: the server ended, or a model could not be loaded; with its last words.
    """
    with tempfile.TemporaryDirectory(prefix="ajet-eval-") as folder:
        port = _free_port()
        log = Path(folder) / "server.out"
        command = [sys.executable, "-m", "ajet.cli", "start", "--swarm-port", str(port), "--exp-dir", f"{folder}/exp"]
        with log.open("wb") as out:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )  # fmt: skip
        try:
            _await_listening(child, port, log)
            with SwarmClient(f"http://127.0.0.1:{port}", verbose=False) as client:
                client.auto_sync_train_config_and_start_engine(job_for(candidates, parallel))
                episode, api = client.begin_episode(discard_episode_timeout=LEASE_S, episode_type="eval")
                first, *others = candidates
                served = Served(api, {first: "frozen", **{key: f"frozen:{key}" for key in others}})
                _load(served)
                yield served
                client.abort_episode(episode, "the evaluation is over")
        finally:
            if child.poll() is None:
                child.terminate()
                try:
                    child.wait(STOP_S)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()


def _load(served: Served) -> None:
    """Ask each model for one token, so that one that cannot be served is known before a game begins."""
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
    headers = {"Authorization": f"Bearer {served.api.api_key}"}
    with httpx.Client(base_url=served.api.base_url, headers=headers, timeout=LEASE_S, trust_env=False) as http:
        for name in served.models.values():
            answer = http.post("/chat/completions", json={**body, "model": name})
            if answer.is_error:
                raise error_from_body(answer.status_code, answer.json())


def _await_listening(child: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:  # nothing can wake us from another process's listen()
        if child.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
                return
        if child.poll() is not None or time.monotonic() > deadline:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            raise EngineFailed(f"The evaluation's server did not come up:\n{tail}")
        time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
