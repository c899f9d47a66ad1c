"""Claims about the asyncio client; what it shares with the blocking one is tested there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ajet.client import AsyncSwarmClient, StopTraining
from ajet.copilot.job import AgentJetJob
from ajet.schema.errors import EngineFailed, JobConflict, ServerUnreachable, TrainingFinished
from ajet.schema.task import Task, WorkflowOutput
from tests.unit.client.fake_swarm import FakeSwarm

TASK = Task(task_id="t1")
WON = WorkflowOutput(reward={"werewolf": 1.0})


@pytest.fixture
async def client(swarm: FakeSwarm) -> AsyncIterator[AsyncSwarmClient]:
    async with AsyncSwarmClient(swarm.url, verbose=False, retry_budget_s=20) as client:
        yield client


@pytest.mark.parametrize("fault", ["cut", "lost", "half", 503, 507])
async def test_lost_replies_neither_leak_nor_double(swarm: FakeSwarm, client: AsyncSwarmClient, fault: object) -> None:
    swarm.faults["POST /swarm/v1/episodes"] = [fault, fault]
    async with client.episode(TASK) as episode:
        swarm.faults["POST /swarm/v1/episodes/"] = [fault, fault]
        episode.output = WON
    assert list(swarm.ended) == list(swarm.granted) == [episode.episode_uuid]


async def test_200_tasks_share_one_client(swarm: FakeSwarm, client: AsyncSwarmClient) -> None:
    async def play() -> None:
        episode, api = await client.begin_episode(task=TASK)
        assert api.base_url == f"{swarm.url}/v1"
        await client.end_episode(TASK, episode, WON)

    await asyncio.gather(*(play() for _ in range(200)))
    assert len(swarm.ended) == 200


async def test_heartbeats_run_by_themselves_and_stop_with_the_last_episode(
    swarm: FakeSwarm, client: AsyncSwarmClient
) -> None:
    for _ in range(2):
        first, _ = await client.begin_episode(discard_episode_timeout=0.3)
        second, _ = await client.begin_episode(discard_episode_timeout=50)
        before = len(swarm.beats)
        await asyncio.to_thread(swarm.until, lambda before=before: len(swarm.beats) >= before + 2)
        assert set(swarm.beats[-1][1]) == {first, second}
        await client.abort_episode(first)
        await client.abort_episode(second)


async def test_training_finished_is_a_plain_exception_for_coroutines(
    swarm: FakeSwarm, client: AsyncSwarmClient
) -> None:
    swarm.state = "FINISHED"
    with pytest.raises(TrainingFinished) as caught:
        await client.begin_episode()
    assert not isinstance(caught.value, StopTraining)


async def test_a_cancelled_task_gives_its_episode_back(swarm: FakeSwarm, client: AsyncSwarmClient) -> None:
    began = asyncio.Event()

    async def play() -> None:
        async with client.episode(TASK):
            began.set()
            await asyncio.sleep(600)

    playing = asyncio.create_task(play())
    await began.wait()
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert swarm.open == set()


async def test_job_conflict_and_failure_are_the_same_errors(swarm: FakeSwarm, client: AsyncSwarmClient) -> None:
    swarm.state = "OFFLINE"
    await client.auto_sync_train_config_and_start_engine(AgentJetJob(num_repeat=3))
    assert await client.get_engine_status() == "ROLLING"
    with pytest.raises(JobConflict, match="num_repeat"):
        await client.sync_train_config(AgentJetJob(num_repeat=5))
    swarm.set_state("FAILED", "no memory")
    with pytest.raises(EngineFailed, match="no memory"):
        await client.wait_until("ROLLING")


async def test_the_budget_ends_in_a_named_error(swarm: FakeSwarm) -> None:
    swarm.faults["GET"] = ["cut"] * 1000
    async with AsyncSwarmClient(swarm.url, verbose=False, retry_budget_s=0.2) as client:
        with pytest.raises(ServerUnreachable):
            await client.get_status()


async def test_reads(swarm: FakeSwarm, client: AsyncSwarmClient, capsys: pytest.CaptureFixture[str]) -> None:
    episode, _ = await client.begin_episode()
    assert await client.can_continue_episode(episode)
    assert [entry["episode_id"] for entry in await client.get_episode_buffer()] == [episode]
    await client.print_rollout_stat()
    assert "ROLLING" in capsys.readouterr().out
    assert await client.get_global_step() == 0
    swarm.step, swarm.history = 1, [{"step": 1, "reward/mean": 0.5, "win_rate": 0.25}]
    await client.print_new_steps()
    assert capsys.readouterr().out == "step 1/25  reward 0.500  win rate 0.25\n"
    assert await client.get_steps() == swarm.history


async def test_closing_gives_open_episodes_back(swarm: FakeSwarm) -> None:
    async with AsyncSwarmClient(swarm.url, verbose=False) as client:
        await client.begin_episode()
    assert swarm.open == set()
