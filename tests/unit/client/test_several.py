"""Claims about several servers at once: engines started together, episodes begun, ended and aborted together."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from ajet.client import AsyncSwarmClient, PeriodicDrainThreadPoolExecutor, SwarmClient, begin_episodes, start_engines
from ajet.client.outcome import Outcome, outcome_of
from ajet.copilot.job import AgentJetJob
from ajet.schema.errors import (
    ConfigError,
    EnginesNotStarted,
    EpisodeGone,
    EpisodesParted,
    IncompleteReward,
    ServerUnreachable,
    TrainingFinished,
)
from ajet.schema.task import Task, WorkflowOutput
from tests.unit.client.fake_swarm import FakeSwarm

TASK = Task(task_id="t1")
WON = WorkflowOutput(reward={"wolf": 1.0, "seer": 0.0})


@pytest.fixture
def clients(swarms: tuple[FakeSwarm, FakeSwarm]) -> Iterator[dict[str, SwarmClient]]:
    made = {
        n: SwarmClient(s.url, verbose=False, retry_budget_s=5) for n, s in zip(("wolf", "seer"), swarms, strict=True)
    }
    yield made
    for client in made.values():
        client.close()


def jobs(clients: dict[str, SwarmClient]) -> list[tuple[SwarmClient, AgentJetJob]]:
    return [(client, AgentJetJob(experiment_name=name)) for name, client in clients.items()]


def test_engines_are_started_together_by_upstreams_name(swarms, clients) -> None:
    for swarm in swarms:
        swarm.state = "OFFLINE"
    SwarmClient.async_and_start_multi_engine(jobs(clients), force_restart=True)
    assert [swarm.state for swarm in swarms] == ["ROLLING", "ROLLING"]
    assert [swarm.job["experiment_name"] for swarm in swarms] == ["wolf", "seer"]


def test_the_name_is_found_where_users_of_the_client_look() -> None:
    from ajet.tuner_lib.experimental.swarm_client import SwarmClient as TheirClient
    from ajet.tuner_lib.experimental.swarm_client import async_and_start_multi_engine

    assert async_and_start_multi_engine is TheirClient.async_and_start_multi_engine is start_engines


def test_engines_boot_at_the_same_time(swarms, clients) -> None:
    for swarm in swarms:
        swarm.state = "OFFLINE"
    first, second = swarms
    seen: list[str] = []

    def both_were_told() -> None:
        first.until(lambda: first.state == "BOOTING")
        second.until(lambda: second.job is not None)
        seen.append("both")

    watcher = threading.Thread(target=both_were_told)
    watcher.start()
    start_engines(jobs(clients))
    watcher.join(10)
    assert seen == ["both"]


def test_one_engine_that_fails_is_named_with_its_cause_and_the_other_is_left_serving(swarms, clients) -> None:
    first, second = swarms
    first.state = "OFFLINE"
    second.set_state("FAILED", "no memory")
    with pytest.raises(EnginesNotStarted) as caught:
        start_engines(jobs(clients))
    assert caught.value.details["serving"] == [first.url]
    assert "no memory" in caught.value.details["failed"][second.url]
    for words in (second.url, "no memory", f"Left serving: {first.url}"):
        assert words in caught.value.message
    assert first.state == "ROLLING"


def test_a_job_that_no_server_takes_starts_no_engine(swarms, clients) -> None:
    for swarm in swarms:
        swarm.state = "OFFLINE"
    pairs = jobs(clients)
    pairs[1][1].config.rollout.max_model_len = 10
    with pytest.raises(ConfigError, match=clients["seer"].server_url):
        start_engines(pairs)
    assert [swarm.requests for swarm in swarms] == [[], []]


def test_two_jobs_for_one_server_are_refused(clients) -> None:
    (client, job), _ = jobs(clients)
    with pytest.raises(ConfigError, match="a server holds one model"):
        start_engines([(client, job), (client, job)])


def test_the_async_client_starts_engines_together(swarms) -> None:
    async def start() -> None:
        for swarm in swarms:
            swarm.state = "OFFLINE"
        async with AsyncSwarmClient(swarms[0].url, False) as first, AsyncSwarmClient(swarms[1].url, False) as second:
            await AsyncSwarmClient.async_and_start_multi_engine([(first, AgentJetJob()), (second, AgentJetJob())])

    asyncio.run(start())
    assert [swarm.state for swarm in swarms] == ["ROLLING", "ROLLING"]


def test_episodes_end_together_with_one_output(swarms, clients) -> None:
    with begin_episodes(clients, TASK) as game:
        assert {name: api.base_url for name, api in game.apis.items()} == {
            name: f"{client.server_url}/v1" for name, client in clients.items()
        }
        game.end(WON)
    for swarm, name in zip(swarms, clients, strict=True):
        assert swarm.ended[game.episodes[name]]["output"]["reward"] == WON.reward
        assert not swarm.open


def test_each_server_gets_its_own_output(swarms, clients) -> None:
    with begin_episodes(clients, TASK) as game:
        game.output = {"wolf": WorkflowOutput(reward=1.0), "seer": WorkflowOutput(reward=0.25)}
    assert [next(iter(s.ended.values()))["output"]["reward"] for s in swarms] == [1.0, 0.25]


def test_outputs_for_other_names_are_refused_and_nothing_ends(swarms, clients) -> None:
    with pytest.raises(ConfigError, match="seer, witch"), begin_episodes(clients, TASK) as game:
        game.end({"wolf": WON, "witch": WON})
    assert [len(s.aborted) for s in swarms] == [1, 1]
    assert [s.ended for s in swarms] == [{}, {}]


def test_an_exception_aborts_both(swarms, clients) -> None:
    with pytest.raises(RuntimeError), begin_episodes(clients, TASK):
        raise RuntimeError("the board fell off the table")
    for swarm in swarms:
        assert list(swarm.aborted.values()) == ["RuntimeError: the board fell off the table"]
        assert not swarm.ended


def test_where_the_second_cannot_begin_the_first_is_aborted(swarms, clients) -> None:
    first, second = swarms
    second.set_state("FAILED", "no memory")
    with pytest.raises(Exception, match="no memory"):
        begin_episodes(clients, TASK)
    assert len(first.granted) == 1
    assert [reason.split(":")[0] for reason in first.aborted.values()] == ["partner_not_begun"]
    assert not second.granted


def test_episodes_are_asked_for_in_one_order_whatever_the_callers(swarms, clients) -> None:
    """Each server has one free episode, and two games want both."""
    for swarm in swarms:
        swarm.capacity = 1
    orders = [clients, dict(reversed(clients.items()))]

    def play(order: dict[str, SwarmClient]) -> None:
        for _ in range(10):
            with begin_episodes(order, TASK) as game:
                game.end(WON)

    threads = [threading.Thread(target=play, args=(order,), daemon=True) for order in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [len(s.ended) for s in swarms] == [20, 20]


def test_a_result_that_one_server_would_refuse_ends_neither(swarms, clients) -> None:
    _, second = swarms
    second.refuse_result = "no reward for Player3"
    with begin_episodes(clients, TASK) as game:
        with pytest.raises(IncompleteReward):
            game.end(WON)
        assert [len(s.open) for s in swarms] == [1, 1]
        second.refuse_result = None
        game.end(WON)
    assert [len(s.ended) for s in swarms] == [1, 1]


def test_a_lease_that_expired_aborts_its_partner(swarms, clients) -> None:
    first, second = swarms
    game = begin_episodes(clients, TASK)
    second.open.discard(game.episodes["seer"])
    second.aborted[game.episodes["seer"]] = "expired: no sign of life"
    with pytest.raises(EpisodeGone), game:
        game.end(WON)
    assert not first.ended
    assert [reason.split(":")[0] for reason in first.aborted.values()] == ["partner_gone"]


@pytest.mark.parametrize("fault", ["cut", "lost", "half", 503])
def test_an_end_that_is_not_acknowledged_is_sent_again_and_counts_once(swarms, clients, fault) -> None:
    with begin_episodes(clients, TASK) as game:
        swarms[1].faults[f"POST /swarm/v1/episodes/{game.episodes['seer']}/end"] = [fault] * 3
        game.end(WON)
    assert [len(s.ended) for s in swarms] == [1, 1]


def test_a_server_that_stays_away_parts_them_with_names_and_no_reward(swarms, clients) -> None:
    _, second = swarms
    clients["seer"] = SwarmClient(second.url, verbose=False, retry_budget_s=0.3)
    game = begin_episodes(clients, TASK)
    second.faults[f"POST /swarm/v1/episodes/{game.episodes['seer']}/end"] = ["cut"] * 1000
    with pytest.raises(EpisodesParted) as caught, game:
        game.end(WON)
    assert caught.value.details["ended"] == ["wolf"]
    assert list(caught.value.details["lost"]) == ["seer"]
    assert isinstance(caught.value.__cause__, ServerUnreachable)
    assert outcome_of(caught.value) is Outcome.UNREACHABLE
    assert not second.ended
    assert [reason.split(":")[0] for reason in second.aborted.values()] == ["parted"]


def test_ending_again_after_a_lost_acknowledgement_ends_what_is_left(swarms, clients) -> None:
    _, second = swarms
    clients["seer"] = SwarmClient(second.url, verbose=False, retry_budget_s=0.3)
    game = begin_episodes(clients, TASK)
    end_of_seer = f"POST /swarm/v1/episodes/{game.episodes['seer']}/end"
    second.faults[end_of_seer] = ["lost"] * 1000
    with pytest.raises(EpisodesParted):
        game.end(WON)
    second.faults[end_of_seer] = []
    game.end(WON)
    assert [len(s.ended) for s in swarms] == [1, 1]


def test_a_finished_model_plays_on_untrained_until_all_are_finished(swarms, clients) -> None:
    first, second = swarms
    first.finish_after, second.finish_after = 2, 4

    def rollout() -> None:
        with begin_episodes(clients, TASK) as game:
            kinds.append(sorted(game.finished))
            game.end(WON)

    kinds: list[list[str]] = []
    with PeriodicDrainThreadPoolExecutor(workers=1, max_parallel=1) as executor:
        while not executor.finished:
            executor.submit(rollout)
    assert kinds == [[], [], ["wolf"], ["wolf"]]
    assert [e["kind"] for e in first.granted.values()] == ["train", "train", "eval", "eval"]
    assert {e["kind"] for e in second.granted.values()} == {"train"}


def test_stop_ends_with_the_first_that_is_finished(swarms, clients) -> None:
    swarms[1].finish_after = 0
    with pytest.raises(TrainingFinished):
        begin_episodes(clients, TASK, when_finished="stop")
    assert [len(s.open) for s in swarms] == [0, 0]
    assert len(swarms[0].aborted) == 1


def test_two_models_on_one_server_are_refused(clients) -> None:
    with pytest.raises(ConfigError, match="a server holds one model"):
        begin_episodes({"a": clients["wolf"], "b": clients["wolf"]}, TASK)


def test_ends_are_sent_at_the_same_time(swarms, clients) -> None:
    """A server that is slow to acknowledge does not keep the other from being told."""
    first, second = swarms
    game = begin_episodes(clients, TASK)
    first.faults[f"POST /swarm/v1/episodes/{game.episodes['wolf']}/end"] = [503] * 5
    ended = threading.Thread(target=game.end, args=(WON,))
    ended.start()
    second.until(lambda: second.ended)
    assert not first.ended
    ended.join(20)
    assert first.ended
