"""The server is killed around an agreement: nothing agreed is lost, nothing counts twice, nobody is told twice."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from ajet import AgentJetJob, SwarmClient, Task, WorkflowOutput
from ajet.pool.groups import ALL_AGREE
from tests.faults import processes


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[Any]:
    servers: list[processes.Server] = []

    def make(*options: str, like: processes.Server | None = None) -> processes.Server:
        command = ["-m", "tests.fakes.serve_fake", str(tmp_path / "exp"), "{port}", *options]
        server = processes.Server(tmp_path / "exp", tmp_path / "server.out", command)
        if like is not None:
            server.port, server.url = like.port, like.url
        servers.append(server)
        server.start()
        processes.until(server.status, what="the server's start")
        return server

    yield make
    for server in servers:
        if server.process is not None:
            processes.kill(server.process)


def job(**options: Any) -> AgentJetJob:
    made = AgentJetJob(experiment_name="agree", num_repeat=2, batch_size=2, n_gpu=0, total_training_steps=9, **options)
    made.config.trainer_common.save_freq = 1
    return made


def play(client: SwarmClient, task: str) -> None:
    episode, api = client.begin_episode()
    with openai.OpenAI(base_url=api.base_url, api_key=api.api_key) as sdk:
        sdk.chat.completions.create(model="policy", messages=[{"role": "user", "content": task}])
    client.end_episode(Task(task_id=task), episode, WorkflowOutput(reward=1.0))


def whole(client: SwarmClient, task: str) -> None:
    for _ in range(2):
        play(client, task)


def steps(server: processes.Server) -> list[dict[str, Any]]:
    return httpx.get(f"{server.url}/swarm/v1/metrics/history", timeout=10).json()["steps"]


def test_an_agreement_outlives_sigkill_and_counts_for_its_own_update_only(make_server):
    server = make_server("--hold-train")
    with (
        SwarmClient(server.url, verbose=False, retry_budget_s=60) as anna,
        SwarmClient(server.url, verbose=False, retry_budget_s=60) as bert,
    ):
        anna.auto_sync_train_config_and_start_engine(job(swarm_mode_sample_collection_method=ALL_AGREE))
        whole(anna, "a0")
        whole(bert, "b0")
        assert anna.agree_sync_weight()["waiting_for"] == [bert.client_id]
        server.kill()  # one of two has agreed, and was told so
        server = make_server("--hold-train", like=server)
        processes.until(lambda: server.state() == "ROLLING", what="rolling")
        found = server.status()
        assert (found["agreed"], found["not_agreed"], found["batch_step"]) == ([anna.client_id], [bert.client_id], 0)
        bert.agree_sync_weight()
        processes.until(lambda: server.status()["batch_step"] == 1, what="the batch")
        server.kill()  # its batch is fixed, and its update under way
        server = make_server(like=server)
        processes.until(lambda: server.state() == "ROLLING", what="the update")
        [first] = steps(server)
        assert (first["step"], first["pool/groups"]) == (1, 2)
        # The old agreements are used up: another group alone moves nothing.
        whole(anna, "a1")
        found = server.status()
        assert (found["step"], found["batch_step"], found["agreed"]) == (1, 1, [])
        assert sorted(found["not_agreed"]) == sorted([anna.client_id, bert.client_id])
        anna.agree_sync_weight()
        bert.close()  # who said goodbye is not waited for
        processes.until(lambda: server.status()["step"] == 2, what="the second update")


def test_callbacks_are_called_once_for_each_update_though_the_server_is_killed(make_server):
    server = make_server()
    with SwarmClient(server.url, verbose=False, retry_budget_s=60) as client:
        client.auto_sync_train_config_and_start_engine(job())
        told: list[int] = []
        seen = threading.Semaphore(0)

        def entering(step: int) -> None:
            told.append(step)
            seen.release()

        client.add_entering_weight_sync_callback(entering)
        for round_number in range(4):
            for group in range(2):
                whole(client, f"{round_number}-{group}")
            processes.until(lambda s=server, n=round_number: (s.status() or {}).get("step") == n + 1, what="the update")
            if round_number in (0, 2):
                server.kill()
                server = make_server(like=server)
        for _ in range(4):
            assert seen.acquire(timeout=30)
        assert told == [1, 2, 3, 4]
