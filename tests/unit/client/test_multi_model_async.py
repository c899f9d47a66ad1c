"""Claims about one game's episodes on several servers from coroutines; what is shared with threads is tested in test_several."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ajet.client import AsyncMultiModelEpisode, AsyncSwarmClient, SwarmClient, begin_episodes
from ajet.schema.errors import ConfigError, EpisodeGone, EpisodesParted, IncompleteReward, TrainingFinished
from ajet.schema.task import Task, WorkflowOutput
from tests.unit.client.fake_swarm import FakeSwarm

TASK = Task(task_id="t1")
WON = WorkflowOutput(reward={"wolf": 1.0, "seer": 0.0})
Pair = tuple[FakeSwarm, FakeSwarm]
Clients = dict[str, AsyncSwarmClient]


@pytest.fixture
async def clients(swarms: Pair) -> AsyncIterator[Clients]:
    made = {
        name: AsyncSwarmClient(swarm.url, verbose=False, retry_budget_s=5)
        for name, swarm in zip(("wolf", "seer"), swarms, strict=True)
    }
    yield made
    for client in made.values():
        await client.close()


async def test_games_of_coroutines_end_together_with_one_output_or_one_each(swarms: Pair, clients: Clients) -> None:
    async def play(output) -> None:
        async with AsyncMultiModelEpisode(clients, TASK) as game:
            assert {name: api.base_url for name, api in game.apis.items()} == {
                name: f"{client.server_url}/v1" for name, client in clients.items()
            }
            game.output = output

    each = {"wolf": WorkflowOutput(reward=1.0), "seer": WorkflowOutput(reward=0.25)}
    await asyncio.gather(*(play(each if n % 2 else WON) for n in range(20)))
    rewards = [sorted(str(end["output"]["reward"]) for end in swarm.ended.values()) for swarm in swarms]
    assert rewards == [["1.0"] * 10 + [str(WON.reward)] * 10, ["0.25"] * 10 + [str(WON.reward)] * 10]
    assert [swarm.open for swarm in swarms] == [set(), set()]


async def test_an_exception_or_no_output_aborts_both(swarms: Pair, clients: Clients) -> None:
    with pytest.raises(RuntimeError):
        async with AsyncMultiModelEpisode(clients, TASK):
            raise RuntimeError("the board fell off the table")
    async with AsyncMultiModelEpisode(clients, TASK):
        pass
    for swarm in swarms:
        told, silent = swarm.aborted.values()
        assert told == "RuntimeError: the board fell off the table"
        assert silent.startswith("no output")
        assert not swarm.ended


async def test_a_cancelled_game_gives_both_episodes_back(swarms: Pair, clients: Clients) -> None:
    began = asyncio.Event()

    async def play() -> None:
        async with AsyncMultiModelEpisode(clients, TASK):
            began.set()
            await asyncio.sleep(600)

    playing = asyncio.create_task(play())
    await began.wait()
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert [swarm.open for swarm in swarms] == [set(), set()]
    assert [len(swarm.aborted) for swarm in swarms] == [1, 1]


async def test_a_game_that_is_cancelled_while_it_begins_gives_the_first_episode_back(
    swarms: Pair, clients: Clients
) -> None:
    first, second = swarms
    second.capacity = 0
    playing = asyncio.create_task(AsyncMultiModelEpisode(clients, TASK).begin())
    await asyncio.to_thread(first.until, lambda: first.open)
    await asyncio.to_thread(second.until, lambda: "POST /swarm/v1/episodes" in second.requests)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert first.open == set()
    assert [reason.split(":")[0] for reason in first.aborted.values()] == ["partner_not_begun"]


async def test_a_result_that_one_server_would_refuse_ends_neither(swarms: Pair, clients: Clients) -> None:
    swarms[1].refuse_result = "no reward for Player3"
    async with AsyncMultiModelEpisode(clients, TASK) as game:
        with pytest.raises(IncompleteReward):
            await game.end(WON)
        assert [len(s.open) for s in swarms] == [1, 1]
        swarms[1].refuse_result = None
        await game.end(WON)
    assert [len(s.ended) for s in swarms] == [1, 1]


async def test_a_lease_that_expired_aborts_its_partner(swarms: Pair, clients: Clients) -> None:
    first, second = swarms
    game = await AsyncMultiModelEpisode(clients, TASK).begin()
    second.open.discard(game.episodes["seer"])
    second.aborted[game.episodes["seer"]] = "expired: no sign of life"
    with pytest.raises(EpisodeGone):
        async with game:
            await game.end(WON)
    assert not first.ended
    assert [reason.split(":")[0] for reason in first.aborted.values()] == ["partner_gone"]


async def test_a_server_that_stays_away_parts_them_and_gets_no_reward(swarms: Pair, clients: Clients) -> None:
    _, second = swarms
    async with AsyncSwarmClient(second.url, verbose=False, retry_budget_s=0.3) as impatient:
        game = await AsyncMultiModelEpisode({**clients, "seer": impatient}, TASK).begin()
        second.faults[f"POST /swarm/v1/episodes/{game.episodes['seer']}/end"] = ["cut"] * 1000
        with pytest.raises(EpisodesParted) as caught:
            async with game:
                game.output = WON
    assert (caught.value.details["ended"], list(caught.value.details["lost"])) == (["wolf"], ["seer"])
    assert not second.ended
    assert [reason.split(":")[0] for reason in second.aborted.values()] == ["parted"]


async def test_a_finished_model_plays_on_untrained_until_all_are_finished(swarms: Pair, clients: Clients) -> None:
    first, second = swarms
    first.finish_after, second.finish_after = 1, 2
    for _ in range(2):
        async with AsyncMultiModelEpisode(clients, TASK) as game:
            game.output = WON
    assert game.finished == {"wolf"}
    with pytest.raises(TrainingFinished):
        await AsyncMultiModelEpisode(clients, TASK).begin()
    assert [[e["kind"] for e in s.granted.values()] for s in swarms] == [["train", "eval"], ["train", "train"]]


async def test_clients_of_the_other_kind_are_refused_with_what_to_use(clients: Clients, swarms: Pair) -> None:
    with pytest.raises(ConfigError, match="AsyncMultiModelEpisode"):
        begin_episodes(clients, TASK)  # type: ignore[arg-type]
    with SwarmClient(swarms[0].url, verbose=False) as blocking, pytest.raises(ConfigError, match="begin_episodes"):
        AsyncMultiModelEpisode({**clients, "wolf": blocking}, TASK)
