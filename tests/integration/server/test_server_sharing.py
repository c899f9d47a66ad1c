"""Claims about clients that train together, over real HTTP: shares, holding back, agreement, eval and debug episodes."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import time

import pytest

from ajet.pool.groups import ALL_AGREE, ANY_AGREES
from tests.fakes.backbone import FakeBackbone
from tests.integration.server.conftest import DEADLINE_S, job

SHARES = {"swarm__shares": {"math": 40, "games": 60}, "data__train_batch_size": 5}


def play(swarm, client, task, share=None, **begin):
    begun = swarm.begin(client_id=client, **({"share": share} if share else {}), **begin)
    swarm.say(begun, f"task {task}")
    answer = swarm.end(begun["episode_id"], task, float(swarm.count % 7))
    assert answer.status_code == 200, answer.text
    return begun


def group(swarm, client, task, share):
    for _ in range(2):
        play(swarm, client, task, share)


def agree(swarm, client, step=None):
    answer = swarm.post("/agree", {"client_id": client, **({"step": step} if step else {})})
    assert answer.status_code == 200, answer.text
    return answer.json()


def silence(swarm, client):
    """Let ``client`` have been silent for too long."""

    async def pass_time():
        registry = swarm.app.engine.experiment.registry
        roster = registry.sharing.roster
        roster.get(client).seen -= roster.silence_s
        await registry.expire()

    swarm.call(pass_time)


def rest_of(swarm, step):
    return swarm.get("/metrics/history").json()["steps"][step - 1]


def test_a_batch_is_composed_by_the_shares_of_the_job_also_after_a_restart(serve):
    with serve() as swarm:
        swarm.start(job(**SHARES))
        for i in range(4):
            group(swarm, "a", f"m{i}", "math")
        for i in range(2):
            group(swarm, "b", f"g{i}", "games")
        shares = {one["share"]: one for one in swarm.status()["shares"]}
        assert {s: (one["seats"], one["ready"], one["live"]) for s, one in shares.items()} == {
            "math": (2, 4, True), "games": (3, 2, True),
        }  # fmt: skip
        assert swarm.status()["step"] == 0
    with serve() as swarm:  # who takes part, and for what each finished episode was, is on record
        swarm.count = 100
        swarm.wait("ROLLING")
        assert swarm.status()["step"] == 0
        group(swarm, "b", "g2", "games")
        swarm.wait_step(1)
        first = rest_of(swarm, 1)
        assert (first["share/math/groups"], first["share/games/groups"]) == (2, 3)
        means = first["share/math/reward/mean"], first["share/games/reward/mean"]
        assert (2 * means[0] + 3 * means[1]) / 5 == pytest.approx(first["reward/mean"])
        # The two that were too many are the next batch's: math is a batch ahead and is held back.
        group(swarm, "a", "m9", "math")
        held = swarm.post("/episodes", {"client_id": "a", "request_id": "h", "share": "math", "wait_s": 0.05})
        assert (held.status_code, held.json()["reason"]) == (202, "share")
        assert swarm.status()["held"] == {"share": 1}
        assert held.json()["state"] == "ROLLING"


def test_the_share_of_a_client_that_is_gone_is_lent(serve):
    with serve() as swarm:
        swarm.start(job(**SHARES))
        for i in range(3):
            group(swarm, "a", f"m{i}", "math")
        group(swarm, "b", "g0", "games")
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            held = threads.submit(group, swarm, "a", "m3", "math")
            _until(swarm, lambda: swarm.status()["held"])
            silence(swarm, "b")
            held.result(DEADLINE_S)  # there is room for it now, and the batch is whole
        swarm.wait_step(1)
        assert (rest_of(swarm, 1)["share/math/groups"], rest_of(swarm, 1)["share/games/groups"]) == (4, 1)
        group(swarm, "b", "g1", "games")  # it is back, and counts again
        assert {one["share"] for one in swarm.status()["shares"] if one["live"]} == {"math", "games"}


def test_a_goodbye_lends_the_share_at_once_and_a_wrong_name_is_refused(serve):
    with serve() as swarm:
        swarm.start(job(**SHARES))
        for i in range(3):
            group(swarm, "a", f"m{i}", "math")
        group(swarm, "b", "g0", "games")
        group(swarm, "b", "g1", "games")
        swarm.post("/heartbeat", {"client_id": "b", "episodes": [], "leaving": True})
        swarm.wait_step(1)
        for wrong in ({}, {"share": "maths"}):
            refused = swarm.post("/episodes", {"client_id": "c", "request_id": swarm.fresh(), "wait_s": 0, **wrong})
            assert refused.status_code == 400
            assert "games, math" in refused.json()["error"]["message"]


def test_a_client_that_said_goodbye_with_an_open_episode_stays_away(serve):
    with serve() as swarm:
        swarm.start(job(**SHARES))
        group(swarm, "a", "m0", "math")
        swarm.begin(client_id="b", share="games")
        swarm.post("/heartbeat", {"client_id": "b", "episodes": [], "leaving": True})
        swarm.post("/heartbeat", {"client_id": "b"})  # one that was on its way
        assert {one["share"] for one in swarm.status()["shares"] if one["live"]} == {"math"}
        assert swarm.status()["leases"]["open_train"] == 0


def test_shares_that_clients_declare_with_a_throttle_policy(serve):
    with serve() as swarm:
        swarm.start(job(data__train_batch_size=5, rollout__num_repeat=2))

        def throttle(size, task):
            return {"expected_batch_size": size, "expected_num_repeat": 2, "current_task_id": task, "ratio": 1.0}

        def whole(client, size, task):
            for _ in range(2):
                play(swarm, client, task, throttle=throttle(size, task))

        first = swarm.begin(client_id="a", throttle=throttle(2, "m0"))
        assert 0 < first["beat_s"] <= 30
        whole("b", 3, "g0")  # both are known now
        swarm.say(first)
        assert swarm.end(first["episode_id"], "m0", 1.0).status_code == 200
        play(swarm, "a", "m0", throttle=throttle(2, "m0"))
        play(swarm, "a", "m1", throttle=throttle(2, "m1"))
        # One group is there and one has begun: its second half is no new group, so it is not held back; a third is.
        play(swarm, "a", "m1", throttle=throttle(2, "m1"))
        body = {"client_id": "a", "request_id": "x", "throttle": throttle(2, "m2"), "wait_s": 0.05}
        assert swarm.post("/episodes", body).json()["reason"] == "share"
        whole("b", 3, "g1")
        whole("b", 3, "g2")
        swarm.wait_step(1)
        assert (rest_of(swarm, 1)["share/@a/groups"], rest_of(swarm, 1)["share/@b/groups"]) == (2, 3)
        assert swarm.post("/episodes", body | {"wait_s": DEADLINE_S}).status_code == 201


def test_any_client_may_agree_and_never_to_nothing(serve):
    with serve() as swarm:
        swarm.start(job(swarm_mode_sample_collection_method=ANY_AGREES))
        play(swarm, "a", "t0")
        assert "none yet" in agree(swarm, "a", 1)["message"]
        assert swarm.status()["step"] == 0  # half a group is nothing
        play(swarm, "b", "t0")
        swarm.wait_step(1)
        swarm.wait("ROLLING")
        again = agree(swarm, "a", 1)  # a repeat that comes late counts for no later update
        assert again["under_way"]
        play(swarm, "b", "t1")
        play(swarm, "b", "t1")
        assert swarm.status()["step"] == 1
        assert swarm.post("/agree", {"client_id": "a", "step": 3}).status_code == 400
        agree(swarm, "b")
        swarm.wait_step(2)


def test_all_clients_agree_and_what_was_agreed_outlives_the_server(serve):
    tree = job(swarm_mode_sample_collection_method=ALL_AGREE)
    with serve() as swarm:
        swarm.start(tree)
        for client in "ab":
            play(swarm, client, "t0")
        answer = agree(swarm, "a", 1)
        assert answer["waiting_for"] == ["b"]
    with serve() as swarm:
        swarm.count = 100
        swarm.wait("ROLLING")
        assert (swarm.status()["agreed"], swarm.status()["not_agreed"]) == (["a"], ["b"])
        assert agree(swarm, "a", 1)["agreed"] == ["a"]
        assert swarm.status()["step"] == 0
        agree(swarm, "b", 1)
        swarm.wait_step(1)
        # One that dies is not waited for; who has agreed is enough.
        swarm.wait("ROLLING")
        for client in "ab":
            play(swarm, client, "t1")
        agree(swarm, "a")
        assert swarm.status()["step"] == 1
        silence(swarm, "b")
        swarm.wait_step(2)


def test_agreement_changes_nothing_under_a_rule_that_asks_nobody(swarm):
    swarm.start()
    play(swarm, "a", "t0")
    play(swarm, "a", "t0")
    assert not agree(swarm, "a")["counted"]
    assert swarm.status()["step"] == 0


def test_eval_episodes_are_greedy_reported_and_never_trained(serve):
    with serve() as swarm:
        swarm.start()
        begun = swarm.begin(kind="eval")
        swarm.say(begun)
        assert swarm.backbone.samplings[-1].temperature == 0
        assert swarm.end(begun["episode_id"], "e", {"main": 0.25}, is_success=True).json()["fate"] == "eval"
        report = swarm.status()["eval"]
        assert (report["episodes"], report["reward"], report["success_rate"]) == (1, 0.25, 1.0)
        assert report["reward_by_tag"] == {"main": 0.25}
        assert "ajet_eval_reward 0.25" in swarm.get("/metrics").text
    with serve() as swarm:
        swarm.count = 100
        swarm.wait("ROLLING")
        assert swarm.status()["eval"] == report
        played = swarm.play_batch()
        swarm.wait_step(1)
        line = rest_of(swarm, 1)
        assert (line["eval/episodes"], line["eval/reward/mean"], line["eval/win_rate"]) == (1, 0.25, 1.0)
        assert swarm.status()["eval"]["episodes"] == 0
        assert [row.episode for row in swarm.backbone.trained[-1].rows] == played


def test_an_eval_call_waits_for_a_place_that_training_leaves_and_one_is_always_there(serve):
    made = FakeBackbone()
    with serve(make=lambda: made) as swarm, concurrent.futures.ThreadPoolExecutor(8) as threads:
        swarm.start(job(rollout__max_num_seqs=2))
        made.hold = swarm.call(_event)
        train = [threads.submit(swarm.say, swarm.begin()) for _ in range(2)]
        _until(swarm, lambda: made.active == 2)
        evals = [threads.submit(swarm.say, swarm.begin(kind="eval")) for _ in range(3)]
        _until(swarm, lambda: made.active == 3)  # one of them is never shut out; the others wait
        places = swarm.app.engine.experiment.places
        _until(swarm, lambda: len(places._waiting) == 2)
        assert (places.train, places.eval, made.active) == (2, 1, 3)
        swarm.call(lambda: made.hold.set())
        for one in [*train, *evals]:
            one.result(DEADLINE_S)
        assert (places.train, places.eval) == (0, 0)


async def _event():
    return asyncio.Event()


def _until(swarm, holds):
    async def turn():
        await asyncio.sleep(0.005)

    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline
        swarm.call(turn)


def test_a_debug_episode_cannot_be_ended_and_its_client_does_not_count(serve):
    with serve() as swarm:
        swarm.start(job(swarm_mode_sample_collection_method=ALL_AGREE))
        begun = swarm.begin(client_id="looker", debug=True)
        swarm.say(begun)
        refused = swarm.end(begun["episode_id"], "t0")
        assert refused.status_code == 400
        assert "abort" in refused.json()["error"]["message"]
        for _ in range(2):
            play(swarm, "a", "t0")
        agree(swarm, "a")
        swarm.wait_step(1)  # the looker is not waited for


@pytest.mark.parametrize("rule", [ANY_AGREES, ALL_AGREE])
def test_the_wire_names_who_takes_part_only_where_that_counts(serve, rule):
    with serve() as swarm:
        swarm.start()
        assert swarm.begin()["beat_s"] is None
    with serve() as swarm:
        swarm.wait("ROLLING")
        swarm.post("/engine/stop")
        swarm.wait("OFFLINE")
        swarm.start(job(swarm_mode_sample_collection_method=rule, experiment_name="other"))
        assert swarm.begin()["beat_s"] == 30
        assert swarm.begin(kind="eval")["beat_s"] is None
        paths = swarm.http.get("/openapi.json").json()
        assert "/swarm/v1/agree" in paths["paths"]
        assert "throttle" in json.dumps(paths["components"]["schemas"]["BeginRequest"])
