"""Claims about the blocking client, each against a server that misbehaves."""

from __future__ import annotations

import gc
import itertools
import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ajet.client import StopTraining, SwarmClient
from ajet.client.report import rollout_text
from ajet.copilot.job import AgentJetJob
from ajet.schema.errors import (
    ConfigError,
    DiskRefused,
    EngineFailed,
    EngineUnavailable,
    EpisodeGone,
    InvalidKey,
    InvalidRequest,
    JobConflict,
    ServerUnreachable,
    TrainingFinished,
)
from ajet.schema.task import Task, WorkflowOutput
from tests.unit.client.fake_swarm import FakeSwarm

TASK = Task(task_id="t1")
WON = WorkflowOutput(reward=1.0)


def test_an_episode_is_begun_and_ended(swarm: FakeSwarm, client: SwarmClient) -> None:
    episode, api = client.begin_episode(task=TASK)
    assert swarm.granted[episode]["task_id"] == "t1"
    assert client.can_continue_episode(episode)
    client.end_episode(TASK, episode, WON)
    assert swarm.ended[episode]["output"]["reward"] == 1.0
    assert not client.can_continue_episode(episode)
    assert api.episode_uuid == episode


def test_base_url_is_the_address_that_the_client_uses(swarm: FakeSwarm, client: SwarmClient) -> None:
    _, api = client.begin_episode()
    assert api.base_url == f"{swarm.url}/v1"


@pytest.mark.parametrize("fault", ["cut", "lost", "half", 503, 507, 429, 502])
def test_a_begin_whose_reply_is_lost_leaks_no_lease(swarm: FakeSwarm, client: SwarmClient, fault: object) -> None:
    swarm.faults["POST /swarm/v1/episodes"] = [fault, fault]
    episode, _ = client.begin_episode()
    assert swarm.open == {episode}


@pytest.mark.parametrize("fault", ["cut", "lost", "half", 503, 507, 429])
def test_an_end_whose_reply_is_lost_counts_once(swarm: FakeSwarm, client: SwarmClient, fault: object) -> None:
    episode, _ = client.begin_episode()
    swarm.faults[f"POST /swarm/v1/episodes/{episode}/end"] = [fault, fault, fault]
    client.end_episode(TASK, episode, WON)
    assert list(swarm.ended) == [episode]


def test_two_begins_of_one_client_are_two_episodes(swarm: FakeSwarm, client: SwarmClient) -> None:
    assert client.begin_episode()[0] != client.begin_episode()[0]


def test_retry_after_is_honoured(swarm: FakeSwarm, client: SwarmClient) -> None:
    swarm.retry_after = "0.4"
    swarm.faults["GET /swarm/v1/status"] = [429]
    started = time.monotonic()
    client.get_status()
    assert time.monotonic() - started >= 0.4


def test_no_server_within_the_budget_is_a_named_error_that_says_where() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    client = SwarmClient(url, verbose=False, retry_budget_s=0.3)
    started = time.monotonic()
    with pytest.raises(ServerUnreachable, match=url):
        client.get_status()
    assert 0.3 <= time.monotonic() - started < 3


def test_a_zero_budget_asks_once(swarm: FakeSwarm) -> None:
    swarm.faults["GET /swarm/v1/status"] = [503]
    with pytest.raises(ServerUnreachable, match="told to"):
        SwarmClient(swarm.url, verbose=False, retry_budget_s=0).get_status()
    assert swarm.requests == ["GET /swarm/v1/status"]


def test_a_full_disk_that_outlives_the_budget_is_the_cause(swarm: FakeSwarm) -> None:
    client = SwarmClient(swarm.url, verbose=False, retry_budget_s=0.002)
    episode, _ = client.begin_episode()
    swarm.faults["POST /swarm/v1/episodes/"] = [507] * 100
    with pytest.raises(ServerUnreachable) as caught:
        client.end_episode(TASK, episode, WON)
    assert isinstance(caught.value.__cause__, DiskRefused)


def test_a_full_disk_is_waited_for_longer_than_a_silent_server(swarm: FakeSwarm) -> None:
    client = SwarmClient(swarm.url, verbose=False, retry_budget_s=0.2)
    episode, _ = client.begin_episode()
    swarm.faults["POST /swarm/v1/episodes/"] = [507] * 6
    began = time.monotonic()
    client.end_episode(TASK, episode, WON)
    assert time.monotonic() - began > 0.4


def test_an_abort_on_a_full_disk_keeps_to_its_own_budget(swarm: FakeSwarm) -> None:
    client = SwarmClient(swarm.url, verbose=False, retry_budget_s=0.3)
    episode, _ = client.begin_episode()
    swarm.faults["POST /swarm/v1/episodes/"] = [507] * 1000
    began = time.monotonic()
    client.abort_episode(episode)
    assert time.monotonic() - began < 5


def test_a_server_that_comes_back_is_waited_for_and_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    first = FakeSwarm()
    port = first.http.server_address[1]
    first.close()
    back: list[FakeSwarm] = []
    timer = threading.Timer(1.5, lambda: back.append(FakeSwarm(port)))
    timer.start()
    client = SwarmClient(first.url, retry_budget_s=20)
    assert client.get_engine_status() == "ROLLING"
    timer.join()
    back[0].close()
    assert "waiting for http://127.0.0.1" in capsys.readouterr().err


def test_begin_waits_on_the_server_for_capacity(swarm: FakeSwarm, client: SwarmClient) -> None:
    swarm.capacity = 1
    first, _ = client.begin_episode()
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(client.begin_episode)
        swarm.until(lambda: swarm.requests.count("POST /swarm/v1/episodes") >= 3)
        assert not second.done()
        client.abort_episode(first)
        assert second.result(10)[0] in swarm.open
    assert len({begin["request_id"] for begin in swarm.granted.values()}) == 2, "a waiting begin keeps its request id"


def test_training_finished_is_raised_and_ends_a_script_with_code_0(swarm: FakeSwarm, client: SwarmClient) -> None:
    swarm.state = "FINISHED"
    with pytest.raises(TrainingFinished) as caught:
        client.begin_episode()
    assert isinstance(caught.value, StopTraining)
    script = f"""
from ajet import SwarmClient
client = SwarmClient({swarm.url!r})
while True:
    client.begin_episode()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")


def test_eval_episodes_are_granted_after_training(swarm: FakeSwarm, client: SwarmClient) -> None:
    swarm.state = "FINISHED"
    episode, _ = client.begin_episode(episode_type="eval")
    assert swarm.granted[episode]["kind"] == "eval"


def test_an_engine_that_stays_offline_ends_a_begin_within_the_budget(swarm: FakeSwarm) -> None:
    swarm.state = "OFFLINE"
    with pytest.raises(EngineUnavailable, match="OFFLINE"):
        SwarmClient(swarm.url, verbose=False, retry_budget_s=0.2).begin_episode()


def test_a_failed_engine_is_named_with_its_cause(swarm: FakeSwarm, client: SwarmClient) -> None:
    swarm.set_state("FAILED", "the GPU fell off")
    with pytest.raises(EngineFailed, match="the GPU fell off"):
        client.begin_episode()
    with pytest.raises(EngineFailed, match=r"the GPU fell off.*force_restart"):
        client.auto_sync_train_config_and_start_engine(AgentJetJob())
    with pytest.raises(EngineFailed, match="the GPU fell off"):
        client.wait_until("ROLLING", timeout=5)


def test_auto_sync_starts_an_engine_and_joins_a_running_one(swarm: FakeSwarm, client: SwarmClient) -> None:
    swarm.state = "OFFLINE"
    job = AgentJetJob(num_repeat=3)
    client.auto_sync_train_config_and_start_engine(job)
    assert swarm.state == "ROLLING"
    assert swarm.job is not None
    assert swarm.job["rollout"]["num_repeat"] == 3
    client.auto_sync_train_config_and_start_engine(job)
    assert any("ROLLING" in query.get("wait_state", "") for query in swarm.status_queries), "it waits on the server"


def test_another_job_is_a_conflict_that_lists_the_difference(swarm: FakeSwarm, client: SwarmClient) -> None:
    swarm.state = "OFFLINE"
    client.auto_sync_train_config_and_start_engine(AgentJetJob(num_repeat=3))
    with pytest.raises(JobConflict, match=r"rollout\.num_repeat: 3 runs, 5 asked for") as refused:
        client.auto_sync_train_config_and_start_engine(AgentJetJob(num_repeat=5))
    assert f"`ajet-swarm stop --swarm-url {swarm.url}`" in refused.value.message
    client.auto_sync_train_config_and_start_engine(AgentJetJob(num_repeat=5), force_restart=True)
    assert swarm.job is not None
    assert swarm.job["rollout"]["num_repeat"] == 5


def test_wait_until_returns_when_the_state_comes_and_times_out_otherwise(swarm: FakeSwarm, client: SwarmClient) -> None:
    swarm.state = "BOOTING"
    with pytest.raises(EngineUnavailable, match="still BOOTING"):
        client.wait_until("ROLLING", timeout=0.1)
    threading.Timer(0.1, swarm.set_state, ["ROLLING"]).start()
    started = time.monotonic()
    assert client.wait_until("ROLLING", timeout=5) == "ROLLING"
    assert time.monotonic() - started < 2


def test_late_end_is_refused_with_the_reason(swarm: FakeSwarm, client: SwarmClient) -> None:
    episode, _ = client.begin_episode()
    with swarm.lock:
        swarm.open.discard(episode)
        swarm.gone[episode] = "expired after 240 s of silence"
    with pytest.raises(EpisodeGone, match="expired after 240 s"):
        client.end_episode(TASK, episode, WON)


def test_abort_is_idempotent_and_never_raises_for_an_absent_server(swarm: FakeSwarm) -> None:
    client = SwarmClient(swarm.url, verbose=False, retry_budget_s=0.1)
    episode, _ = client.begin_episode()
    client.abort_episode(episode, "first")
    client.abort_episode(episode, "second")
    assert swarm.aborted == {episode: "first"}
    other, _ = client.begin_episode()
    swarm.faults["POST /swarm/v1/episodes/"] = ["cut"] * 100
    client.abort_episode(other)


def test_an_end_without_task_id_or_reward_is_refused_before_it_is_sent(swarm: FakeSwarm, client: SwarmClient) -> None:
    episode, _ = client.begin_episode()
    with pytest.raises(InvalidRequest, match="task_id"):
        client.end_episode(Task(), episode, WON)
    with pytest.raises(InvalidRequest, match="reward"):
        client.end_episode(TASK, episode, WorkflowOutput())
    with pytest.raises(InvalidRequest, match="JSON"):
        client.end_episode(TASK, episode, WorkflowOutput(reward=1, metadata={"x": object()}))
    assert episode in swarm.open


def test_a_wrong_timeout_or_type_is_refused_by_name(client: SwarmClient) -> None:
    with pytest.raises(InvalidRequest, match="discard_episode_timeout"):
        client.begin_episode(discard_episode_timeout=-1)
    with pytest.raises(InvalidRequest, match="kind"):
        client.begin_episode(episode_type="test")


# ── the context manager ──────────────────────────────────────────────────────────────────────────────────────────────


def test_the_with_block_ends_by_output_or_by_end(swarm: FakeSwarm, client: SwarmClient) -> None:
    with client.episode(TASK) as episode:
        episode.output = WON
    with client.episode(TASK) as other:
        other.end(WON)
    assert set(swarm.ended) == {episode.episode_uuid, other.episode_uuid}


def test_the_with_block_aborts_on_an_exception_and_lets_it_through(swarm: FakeSwarm, client: SwarmClient) -> None:
    with pytest.raises(ValueError, match="broken"), client.episode(TASK) as episode:
        raise ValueError("broken")
    assert swarm.aborted[episode.episode_uuid] == "ValueError: broken"


def test_the_with_block_aborts_without_output(swarm: FakeSwarm, client: SwarmClient) -> None:
    with client.episode(TASK) as episode:
        pass
    assert "no output" in swarm.aborted[episode.episode_uuid]


def test_a_forgotten_output_is_said_once(swarm: FakeSwarm, capsys: pytest.CaptureFixture[str]) -> None:
    with SwarmClient(swarm.url) as client:
        for _ in range(3):
            with client.episode(TASK):
                pass
        with client.episode(TASK) as episode:
            episode.abort("on purpose")
    assert capsys.readouterr().err.count("episode.output = WorkflowOutput(reward=…)") == 1


def test_the_with_block_aborts_when_the_output_is_refused(swarm: FakeSwarm, client: SwarmClient) -> None:
    with pytest.raises(InvalidRequest), client.episode(Task()) as episode:
        episode.output = WON
    assert episode.episode_uuid in swarm.aborted


# ── heartbeats, threads, life ────────────────────────────────────────────────────────────────────────────────────────


def test_heartbeats_cover_all_open_episodes_at_a_third_of_the_smallest_timeout(
    swarm: FakeSwarm, client: SwarmClient
) -> None:
    slow, _ = client.begin_episode(discard_episode_timeout=100)
    quick, _ = client.begin_episode(discard_episode_timeout=0.6)
    swarm.until(lambda: len(swarm.beats) >= 4)
    times = [when for when, _ in swarm.beats]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert max(gaps) < 0.6
    assert min(gaps) > 0.1
    assert all(set(episodes) == {slow, quick} for _, episodes in swarm.beats)
    client.abort_episode(quick)
    client.abort_episode(slow)


def test_heartbeats_go_on_after_the_server_was_away(swarm: FakeSwarm, client: SwarmClient) -> None:
    swarm.faults["POST /swarm/v1/heartbeat"] = ["cut", 503, "half"]
    client.begin_episode(discard_episode_timeout=0.3)
    swarm.until(lambda: len(swarm.beats) >= 3)


def test_a_lease_that_the_heartbeat_finds_gone_cannot_continue(swarm: FakeSwarm, client: SwarmClient) -> None:
    episode, _ = client.begin_episode(discard_episode_timeout=0.3)
    with swarm.lock:
        swarm.open.discard(episode)
        swarm.gone[episode] = "expired"
    swarm.until(lambda: any(episode in episodes for _, episodes in swarm.beats))
    assert not client.can_continue_episode(episode)


def test_64_threads_share_one_client_and_keep_their_connections(swarm: FakeSwarm, client: SwarmClient) -> None:
    def play(n: int) -> str:
        episode, _ = client.begin_episode(task=TASK)
        client.end_episode(TASK, episode, WON)
        return episode

    with ThreadPoolExecutor(64) as pool:
        episodes = list(pool.map(play, range(512)))
    assert len(set(episodes)) == 512
    assert set(swarm.ended) == set(episodes)
    assert swarm.connections <= 70, "connections are kept alive"


def test_closing_the_client_gives_open_episodes_back(swarm: FakeSwarm) -> None:
    with SwarmClient(swarm.url, verbose=False) as client:
        episode, _ = client.begin_episode()
    assert "client closed" in swarm.aborted[episode]


def test_a_script_that_ends_by_an_exception_gives_its_episode_back(swarm: FakeSwarm) -> None:
    script = f"from ajet import SwarmClient; SwarmClient({swarm.url!r}).begin_episode(); c = SwarmClient({swarm.url!r}); c.begin_episode(); 1/0"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert len(swarm.aborted) == 2


def test_a_client_that_is_garbage_gives_its_episodes_back(swarm: FakeSwarm) -> None:
    client = SwarmClient(swarm.url, verbose=False)
    episode, _ = client.begin_episode()
    del client
    gc.collect()
    assert episode in swarm.aborted


def test_a_forked_child_is_another_client(swarm: FakeSwarm) -> None:
    script = f"""
import os, sys
from ajet import SwarmClient, Task, WorkflowOutput
client = SwarmClient({swarm.url!r})
mine, _ = client.begin_episode()
child = os.fork()
episode, _ = client.begin_episode()
client.end_episode(Task(task_id="t"), episode, WorkflowOutput(reward=1))
if not child:
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert client.can_continue_episode(mine), "the child's exit must not abort what is the parent's"
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert len(swarm.ended) == 2
    assert len({begin["client_id"] for begin in swarm.granted.values()}) == 2


# ── keys and weight ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_key_comes_from_the_environment_and_shows_nowhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = "secret-key-123"
    monkeypatch.setenv("AJET_SWARM_KEY", secret)
    server = FakeSwarm(key=secret)
    client = SwarmClient(server.url, retry_budget_s=0.1)
    client.get_status()
    _, api = client.begin_episode()
    with pytest.raises(InvalidKey) as caught:
        SwarmClient(server.url, api_key="wrong-key-456").get_status()
    server.close()
    server.faults["GET"] = ["cut"] * 9
    texts = [repr(client), repr(client.__dict__), str(client), str(caught.value), repr(caught.value), repr(api)]
    assert all(secret not in text and "wrong-key-456" not in text and api.api_key not in text for text in texts)
    printed = capsys.readouterr()
    assert secret not in printed.err + printed.out


@pytest.mark.parametrize(
    "url", ["127.0.0.1:10086", "ftp://host", "http://", "http://user:password@host", "http://host?key=1"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SwarmClient(url)
    assert "password@" not in str(caught.value)


def test_importing_the_client_is_light() -> None:
    script = """
import sys, time
started = time.process_time()  # of the processor: a busy machine does not make an import heavier
import asyncio, httpx, pydantic, urllib.request
libraries = time.process_time() - started
import ajet.client
whole = time.process_time() - started
heavy = {m.split('.')[0] for m in sys.modules} & {'torch', 'fastapi', 'uvicorn', 'starlette', 'transformers', 'numpy', 'openai'}
print(whole / libraries, sorted(heavy))
"""
    runs = [
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True) for _ in range(3)
    ]
    outputs = [run.stdout.split(maxsplit=1) for run in runs]
    assert all(heavy.strip() == "[]" for _, heavy in outputs)
    assert min(float(ratio) for ratio, _ in outputs) < 2.4, "against the libraries it stands on"


def test_auto_start_refuses_an_address_of_another_machine() -> None:
    with pytest.raises(ConfigError, match="on this machine"):
        SwarmClient("http://swarm.example.org:10086", auto_start_swarm_server=True)


def test_auto_start_uses_what_listens_already(swarm: FakeSwarm) -> None:
    assert SwarmClient(swarm.url, verbose=False, auto_start_swarm_server=True).get_engine_status() == "ROLLING"


def test_auto_start_starts_a_server_and_stops_it_at_exit(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = f"""
from ajet import SwarmClient
print(SwarmClient("http://127.0.0.1:{port}", auto_start_swarm_server=True).get_engine_status())
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=tmp_path, env=environment
    )
    assert (done.returncode, done.stdout.split()[-1]) == (0, "OFFLINE"), done.stderr
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_stats_read_as_text(client: SwarmClient, capsys: pytest.CaptureFixture[str]) -> None:
    episode, _ = client.begin_episode()
    client.print_rollout_stat()
    assert "ROLLING" in capsys.readouterr().out
    assert client.get_rollout_stat()["state"] == "ROLLING"
    assert client.get_global_step() == 0
    assert [entry["episode_id"] for entry in client.get_episode_buffer()] == [episode]


def test_the_report_says_in_words_why_episodes_were_not_trained() -> None:
    drops = {"training_finished": 8, "aborted": 2, "of_a_newer_server": 1}
    said = rollout_text({"state": "FINISHED", "step": 5, "total_steps": 5, "policy_version": 5, "drops": drops})
    assert said.splitlines()[1:] == [
        "episodes not trained:",
        "  aborted 2: given back by its client: an exception, a forgotten output, Ctrl-C, a debug client; normal for games that still play when training ends",
        "  of_a_newer_server 1",
        "  training_finished 8: came after the batch of the last step, complete or not; normal at the end of a run",
    ]


def trained(swarm: FakeSwarm, steps: int) -> None:
    """``swarm`` is so far; every second step's episodes told whether they won."""
    swarm.step = steps
    swarm.history = [
        {"step": n, "reward/mean": n / 100, **({"win_rate": n / 10} if n % 2 else {})} for n in range(1, steps + 1)
    ]


def test_a_client_with_a_share_sees_the_reward_of_its_own(swarm: FakeSwarm, capsys: pytest.CaptureFixture[str]) -> None:
    swarm.step, swarm.history = 1, [
        {"step": 1, "reward/mean": 0.5, "pool/groups": 5, "share/math/groups": 2, "share/math/reward/mean": 0.125}
    ]  # fmt: skip
    for share in ("math", "games"):  # games gave nothing to that step
        with SwarmClient(swarm.url, share=share, verbose=False) as client:
            client.print_new_steps()
    assert capsys.readouterr().out.splitlines() == [
        "step 1/25  reward 0.500  math 0.125 (2 of 5 groups)", "step 1/25  reward 0.500",
    ]  # fmt: skip


def test_each_step_is_printed_once_and_of_a_run_that_is_joined_the_newest_first(
    swarm: FakeSwarm, client: SwarmClient, capsys: pytest.CaptureFixture[str]
) -> None:
    client.print_new_steps()
    assert capsys.readouterr().out == ""
    for steps in (1, 1, 3):
        trained(swarm, steps)
        client.print_new_steps()
    assert capsys.readouterr().out.splitlines() == [
        "step 1/25  reward 0.010  win rate 0.10", "step 2/25  reward 0.020", "step 3/25  reward 0.030  win rate 0.30",
    ]  # fmt: skip
    with SwarmClient(swarm.url, verbose=False) as other:
        other.print_new_steps()
    assert capsys.readouterr().out.splitlines() == ["step 3/25  reward 0.030  win rate 0.30"]
    swarm.experiment_dir = "/another"
    trained(swarm, 2)
    client.print_new_steps()
    assert capsys.readouterr().out.splitlines() == ["step 2/25  reward 0.020"]
    assert [step["step"] for step in client.get_steps(since=1)] == [2]
