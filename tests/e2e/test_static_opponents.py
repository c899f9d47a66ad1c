"""The static roles on an endpoint of somebody else: a second AgentJet server, and one that fails in every way."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ajet.client import SwarmClient
from ajet.copilot.job import AgentJetJob
from ajet.envs.werewolves.workflow import ExampleWerewolves
from ajet.schema.errors import AjetError, InfrastructureFault
from ajet.schema.task import Task, WorkflowTask

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
TINY = "ajet-tiny-werewolves"


def test_static_roles_play_on_a_second_server_with_a_frozen_model(make_server, small_job):
    ours, theirs = make_server("ours"), make_server("theirs")
    job = small_job(2)
    with SwarmClient(ours.url, verbose=False) as client, SwarmClient(theirs.url, verbose=False) as opponents:
        client.auto_sync_train_config_and_start_engine(AgentJetJob(base_yaml_config=str(job)))
        opponents.auto_sync_train_config_and_start_engine(AgentJetJob(base_yaml_config=str(job)))
        # An eval episode is a key to a model that nobody trains.
        _, static = opponents.begin_episode(discard_episode_timeout=3600, episode_type="eval")
        game = ExampleWerewolves(["werewolf"], static.model, static.base_url, static.api_key, external_concurrency=8)

        def play(n: int) -> dict[str, float]:
            task = Task(task_id=str(n // 2), metadata={"random_number": n // 2})
            with client.episode(task) as episode:
                output = asyncio.run(
                    game.execute(WorkflowTask(task=task, episode_uuid=episode.episode_uuid), episode.api)
                )
                episode.end(output)
            return output.log_metrics

        with ThreadPoolExecutor(8) as pool:
            played = list(pool.map(play, range(8)))
        ours.wait_step(1)
        assert all(m["static/retries"] == 0 for m in played)
        assert sum(m["static/fallback"] for m in played) / len(played) < 0.2
        assert theirs.status()["step"] == 0
        assert theirs.status()["speeds"]["sampled_tokens"] > 0


class Weather(ThreadingHTTPServer):
    """An OpenAI-compatible endpoint: 429 with Retry-After, 500, no answer at all; then, if it ``clears``, replies."""

    daemon_threads = True

    def __init__(self, clears: bool) -> None:
        self.clears, self.seen, self.hung = clears, itertools.count(), threading.Event()
        super().__init__(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: Weather

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        n = next(self.server.seen)
        kind = n % 4 if n < 40 or not self.server.clears else 3
        if kind == 3 and not self.server.clears:
            kind = 1
        if kind == 0:
            self._answer(429, {"error": {"message": "slow down"}}, {"Retry-After": "0.2"})
        elif kind == 1:
            self._answer(500, {"error": {"message": "oh no"}})
        elif kind == 2:
            self.server.hung.wait(1.5)  # longer than the caller waits
            self.close_connection = True
        else:
            choice = {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": '{"vote": null}'},
            }
            self._answer(200, {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]})

    def _answer(self, status: int, body: dict, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        for key, value in {"content-type": "application/json", **(headers or {})}.items():
            self.send_header(key, value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("clears", [True, False])
def test_a_failing_static_endpoint_never_becomes_a_reward(make_server, small_job, clears):
    server, weather = make_server(), Weather(clears)
    try:
        with SwarmClient(server.url, verbose=False) as client:
            client.auto_sync_train_config_and_start_engine(AgentJetJob(base_yaml_config=str(small_job(2))))
            game = ExampleWerewolves(
                ["werewolf"], "m", weather.url, external_budget_s=30 if clears else 1.0, external_timeout_s=0.5
            )

            def play(n: int) -> float | None:
                """Retries of the static endpoint in a finished game, None for a void one."""
                task = Task(task_id=str(n // 2), metadata={"random_number": n // 2})
                try:
                    with client.episode(task) as episode:
                        run = game.execute(WorkflowTask(task=task, episode_uuid=episode.episode_uuid), episode.api)
                        output = asyncio.run(run)
                        episode.end(output)
                except InfrastructureFault:
                    return None
                assert isinstance(output.reward, dict)
                assert all(
                    r in (0.0, 0.5, 1.0) or output.log_metrics["reply/fallback"] > 0 for r in output.reward.values()
                )
                return output.log_metrics["static/retries"]

            with ThreadPoolExecutor(4) as pool:
                results = list(pool.map(play, range(8)))
            if clears:
                assert None not in results
                assert sum(r for r in results if r is not None) > 0
                server.wait_step(1)
                assert server.steps()[0]["env/static/retries"] > 0
                assert "aborted" not in server.status()["drops"]
            else:
                assert results == [None] * 8
                status = server.status()
                assert status["step"] == 0
                assert status["drops"] == {"aborted": 8}
    except AjetError as error:  # pragma: no cover - a readable failure
        raise AssertionError(f"{type(error).__name__}: {error}") from error
    finally:
        weather.hung.set()
        weather.shutdown()
        weather.server_close()
