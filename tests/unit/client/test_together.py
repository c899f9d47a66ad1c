"""Claims about clients that train together: throttle policies, agreement, callbacks, debug clients, auto training."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from ajet.client import (
    AsyncDebugSwarmClient,
    AsyncSwarmClient,
    DebugSwarmClient,
    SwarmClient,
    SwarmThrottlePolicy,
    auto_train_with_dataset,
)
from ajet.schema.errors import ConfigError, InvalidRequest
from ajet.schema.task import Task, WorkflowOutput
from tests.unit.client.fake_swarm import FakeSwarm

TASK = Task(task_id="t1")
WON = WorkflowOutput(reward=1.0)


def update(swarm: FakeSwarm, step: int) -> None:
    with swarm.lock:
        swarm.batch_step = step
        swarm.lock.notify_all()


def test_what_is_not_asked_for_is_not_sent_so_an_older_server_will_do(swarm: FakeSwarm, client: SwarmClient) -> None:
    episode, _ = client.begin_episode()
    assert not {"share", "throttle", "debug"} & set(swarm.granted[episode])
    client.can_continue_episode(episode)
    policy = SwarmThrottlePolicy(expected_batch_size=4, expected_num_repeat=2, current_task_id="t1")
    episode, _ = client.begin_episode(throttle_policy=policy)
    sent = swarm.granted[episode]["throttle"]
    assert sent == {"expected_batch_size": 4, "expected_num_repeat": 2, "current_task_id": "t1"}
    with pytest.raises(InvalidRequest, match="ratio"):
        client.begin_episode(throttle_policy={"ratio": 0.5})


async def test_an_episodes_block_takes_a_throttle_policy_as_begin_episode_does(swarm: FakeSwarm, client) -> None:
    policy = SwarmThrottlePolicy(ratio=2.0, expected_batch_size=4)
    with client.episode(TASK, throttle_policy=policy) as episode:
        episode.output = WON
    async with (
        AsyncSwarmClient(swarm.url, verbose=False) as other,
        other.episode(TASK, throttle_policy=policy) as their,
    ):
        their.output = WON
    sent = [swarm.granted[one.episode_uuid]["throttle"] for one in (episode, their)]
    assert sent == [{"ratio": 2.0, "expected_batch_size": 4}] * 2


def test_a_client_that_counts_shows_life_between_episodes_and_says_goodbye(swarm: FakeSwarm) -> None:
    swarm.beat_s = 0.02
    with SwarmClient(swarm.url, verbose=False, share="math") as client:
        episode, _ = client.begin_episode()
        assert swarm.granted[episode]["share"] == "math"
        client.end_episode(TASK, episode, WON)
        before = len(swarm.beats)
        swarm.until(lambda: [episodes for _, episodes in swarm.beats[before:]].count([]) >= 2)
    assert swarm.goodbyes == [client.client_id]


def test_a_client_that_only_looked_says_no_goodbye(swarm: FakeSwarm) -> None:
    with SwarmClient(swarm.url, verbose=False) as looker:
        looker.get_status()
    with SwarmClient(swarm.url, verbose=False) as player:
        episode, _ = player.begin_episode()
        player.end_episode(TASK, episode, WON)
    assert swarm.goodbyes == [player.client_id]


def test_episodes_that_an_older_server_leaves_open_at_the_goodbye_are_aborted_one_by_one(swarm: FakeSwarm) -> None:
    swarm.knows_goodbye = False
    with SwarmClient(swarm.url, verbose=False) as client:
        episodes = {client.begin_episode()[0] for _ in range(3)}
    assert set(swarm.aborted) == episodes


@pytest.mark.parametrize("fault", ["cut", "lost", "half", 503, 507])
def test_an_agreement_whose_reply_is_lost_is_for_the_same_update(swarm: FakeSwarm, client: SwarmClient, fault) -> None:
    swarm.batch_step = 4
    swarm.faults["POST /swarm/v1/agree"] = [fault, fault]
    assert client.agree_sync_weight()["step"] == 5
    assert {body["step"] for body in swarm.agreements} == {5}


def test_callbacks_are_called_once_for_each_update_whatever_the_connection_does(swarm: FakeSwarm, client) -> None:
    swarm.batch_step = 7
    told: list[int] = []
    plain: list[str] = []
    seen = threading.Semaphore(0)

    def with_number(step):
        told.append(step)
        seen.release()
        if step == 8:
            raise RuntimeError("a bug")

    client.add_entering_weight_sync_callback(lambda: plain.append("called"))
    client.add_entering_weight_sync_callback(with_number)
    update(swarm, 8)
    assert seen.acquire(timeout=10)
    swarm.faults["GET /swarm/v1/status"] = ["cut", "lost", 503, "half"]
    update(swarm, 9)
    update(swarm, 11)
    for _ in range(3):
        assert seen.acquire(timeout=10)
    assert told == [8, 9, 10, 11]
    assert plain == ["called"] * 4
    swarm.experiment_dir = "/another"  # whose updates up to now are not ours
    update(swarm, 30)
    swarm.until(lambda: swarm.status_queries[-1].get("wait_batch") == "31")
    update(swarm, 31)
    assert seen.acquire(timeout=10)
    assert told == [8, 9, 10, 11, 31]


async def test_callbacks_of_the_asyncio_client_may_be_coroutines(swarm: FakeSwarm) -> None:
    async with AsyncSwarmClient(swarm.url, verbose=False) as client:
        told: asyncio.Queue[int] = asyncio.Queue()

        async def entering(step):
            await told.put(step)
            raise RuntimeError("a bug")

        await client.add_entering_weight_sync_callback(entering)
        update(swarm, 2)
        assert [await asyncio.wait_for(told.get(), 10) for _ in range(2)] == [1, 2]
        assert (await client.agree_sync_weight())["step"] == 3


def test_a_debug_client_aborts_what_it_plays_and_checks_it(swarm: FakeSwarm) -> None:
    with DebugSwarmClient(swarm.url, verbose=False) as client:
        episode, _ = client.begin_episode(task=TASK)
        assert swarm.granted[episode]["debug"] is True
        client.end_episode(TASK, episode, WON)
        with client.episode(TASK) as other:
            other.output = WON
        third, _ = client.begin_episode()
        with pytest.raises(InvalidRequest, match="reward is None"):
            client.end_episode(TASK, third, WorkflowOutput())
        assert not client.agree_sync_weight()["counted"]
    assert swarm.ended == {}
    assert swarm.agreements == []
    assert set(swarm.aborted) == {episode, other.episode_uuid, third}


async def test_so_does_its_asyncio_twin(swarm: FakeSwarm) -> None:
    async with AsyncDebugSwarmClient(swarm.url, verbose=False) as client:
        async with client.episode(TASK) as episode:
            episode.output = WON
        assert not (await client.agree_sync_weight())["counted"]
    assert (swarm.ended, set(swarm.aborted)) == ({}, {episode.episode_uuid})


def test_auto_training_plays_every_task_so_often_and_returns_when_training_is_finished(
    swarm: FakeSwarm, client
) -> None:
    swarm.finish_after, swarm.num_repeat = 12, 2
    tasks = [Task(task_id=f"t{n}") for n in range(3)]

    async def agent(task, api):
        return WON

    stats = auto_train_with_dataset(tasks, client, agent, local_grpo_n=2, remote_batch_size=3)
    assert stats["succeeded"] >= 12
    ended = [body["task"]["task_id"] for body in swarm.ended.values()]
    assert {task: ended.count(task) for task in ("t0", "t1", "t2")} == {"t0": 4, "t1": 4, "t2": 4}
    assert swarm.open == set()


def test_auto_training_says_what_is_wrong_at_once(swarm: FakeSwarm, client: SwarmClient) -> None:
    swarm.num_repeat = 2
    with pytest.raises(ConfigError, match="no tasks"):
        auto_train_with_dataset([], client, lambda task, api: WON)
    with pytest.raises(ConfigError, match="Set local_grpo_n to 2"):
        auto_train_with_dataset([TASK], client, lambda task, api: WON, local_grpo_n=8)
    with pytest.raises(ConfigError, match="SwarmClient"):
        auto_train_with_dataset([TASK], AsyncSwarmClient(swarm.url), lambda task, api: WON)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="WorkflowOutput"):
        auto_train_with_dataset([TASK], client, lambda task, api: 1.0, remote_batch_size=1)
    assert swarm.ended == {}
    deadline = time.monotonic() + 10
    while swarm.open and time.monotonic() < deadline:
        time.sleep(0.01)
    assert swarm.open == set()
