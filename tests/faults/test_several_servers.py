"""Episodes of two models and a kill at the worst moment: between the first acknowledgement and the second."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ajet import AgentJetJob, SwarmClient, Task, WorkflowOutput, begin_episodes
from tests.faults import processes
from tests.faults.processes import Server, until

TASK = Task(task_id="deal-1")
WON = WorkflowOutput(reward={"wolf": 1.0, "seer": 0.0})
LEASE_S = 3.0

CRASHING_CLIENT = f"""
import os, sys
from ajet import SwarmClient, Task, WorkflowOutput, begin_episodes
from tests.faults.test_several_servers import speak

class Away(SwarmClient):
    def end_episode(self, *args, **kw):
        print("ready", flush=True)
        sys.stdin.read()  # for ever: the other server is told, this one never

clients = {{"wolf": SwarmClient(sys.argv[1]), "seer": Away(sys.argv[2])}}
game = begin_episodes(clients, Task(task_id="deal-1"), discard_episode_timeout={LEASE_S})
speak(game)
game.end(WorkflowOutput(reward={{"wolf": 1.0, "seer": 0.0}}))
"""


def speak(game: Any) -> None:
    """One call of each model."""
    for name, api in game.apis.items():
        answer = httpx.post(
            f"{api.base_url}/chat/completions", json={"messages": [{"role": "user", "content": "hello"}]},
            headers={"authorization": f"Bearer {api.for_agent(name).api_key}"}, timeout=30,
        )  # fmt: skip
        answer.raise_for_status()


def pooled(server: Server) -> int:
    return ((server.status() or {}).get("pool") or {}).get("episodes_finished", 0)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    pair = []
    for name in ("wolf", "seer"):
        folder = tmp_path / name
        folder.mkdir()
        command = ["-m", "tests.fakes.serve_fake", str(folder / "exp"), "{port}"]
        pair.append(Server(folder, folder / "server.out", command))
        pair[-1].start()
    for server in pair:
        until(server.status, what="the server's start")
    clients = [SwarmClient(server.url, verbose=False) for server in pair]
    SwarmClient.async_and_start_multi_engine(
        [(client, AgentJetJob(experiment_name="x", n_gpu=0, batch_size=4, num_repeat=2)) for client in clients]
    )
    for client in clients:
        client.close()
    yield pair[0], pair[1]
    for server in pair:
        server.stop()


def test_a_server_killed_before_its_acknowledgement_takes_the_end_when_it_is_back(servers):
    wolf, seer = servers

    class KilledAfterTheCheck(SwarmClient):
        def check_episode(self, *args: Any) -> None:
            super().check_episode(*args)
            seer.kill()

    with SwarmClient(wolf.url, verbose=False) as first, KilledAfterTheCheck(seer.url, verbose=False) as second:
        game = begin_episodes({"wolf": first, "seer": second}, TASK)
        speak(game)
        ending = threading.Thread(target=game.end, args=(WON,), daemon=True)
        ending.start()
        until(lambda: pooled(wolf) == 1, what="the first acknowledgement")
        assert ending.is_alive()
        seer.start()
        ending.join(60)
        assert not ending.is_alive()
        assert [pooled(server) for server in servers] == [1, 1]
        assert second.get_episode(game.episodes["seer"])["reward"] == WON.reward


def test_a_client_killed_between_two_acknowledgements_leaves_one_result_and_one_counted_lease(servers):
    wolf, seer = servers
    client = subprocess.Popen(
        [sys.executable, "-c", CRASHING_CLIENT, wolf.url, seer.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env=processes.environment(), cwd=processes.ROOT,
    )  # fmt: skip
    assert client.stdout is not None
    assert client.stdout.readline() == b"ready\n"
    until(lambda: pooled(wolf) == 1, what="the first acknowledgement")
    client.send_signal(signal.SIGKILL)
    client.communicate()
    drops = until(lambda: (seer.status() or {}).get("drops"), LEASE_S + 30, "the end of the other lease")
    assert drops == {"silent": 1}
    assert [pooled(server) for server in servers] == [1, 0]
