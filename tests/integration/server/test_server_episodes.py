"""Claims about leases, ends, aborts and idempotency, over HTTP."""

import asyncio
import concurrent.futures
import threading

import openai
import pytest

from tests.integration.server.conftest import DEADLINE_S, job


@pytest.fixture
def rolling(serve):
    with serve() as swarm:
        swarm.start()
        yield swarm


def drops(swarm):
    return swarm.status()["drops"]


def expire_now(swarm, seconds):
    """Let the leases' clock run ahead."""

    async def ahead():
        registry = swarm.app.engine.experiment.registry
        registry.leases.shift(-seconds)
        await registry.expire()

    swarm.call(ahead)


def test_begin_waits_for_a_place_and_gets_it_when_one_is_freed(serve):
    with serve() as swarm:
        swarm.start(job(rollout__max_env_worker=1))
        first = swarm.begin()
        late = swarm.post("/episodes", {"client_id": "c", "request_id": "x", "wait_s": 0.05})
        assert (late.status_code, late.json()["reason"]) == (202, "capacity")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(swarm.begin)
            leases, changed = swarm.app.engine.experiment.registry.leases, swarm.app.engine.changed
            while not leases.waiting("train"):
                swarm.call(lambda: changed.wait_until(lambda: leases.waiting("train") == 1, 0.02))
            swarm.post(f"/episodes/{first['episode_id']}/abort", {"request_id": "a"})
            assert waiting.result(DEADLINE_S)["episode_id"] != first["episode_id"]


def test_eval_takes_no_place_from_training(serve):
    with serve() as swarm:
        swarm.start(job(rollout__max_env_worker=1))
        swarm.begin(kind="train")
        swarm.begin(kind="eval")
        leases = swarm.status()["leases"]
        assert (leases["open_train"], leases["open_eval"]) == (1, 1)


def test_begin_retried_after_a_lost_reply_gets_the_same_episode(rolling):
    first = rolling.begin(request_id="same")
    assert rolling.begin(request_id="same") == first
    assert rolling.status()["leases"]["open_train"] == 1


def test_a_begin_repeated_after_a_restart_gets_its_first_answer_though_that_episode_has_ended(serve):
    with serve() as swarm:
        swarm.start()
        ended = swarm.begin(request_id="first")
        swarm.say(ended)
        assert swarm.end(ended["episode_id"], "t").status_code == 200
        still_open = swarm.begin(request_id="second")
    with serve() as swarm:
        swarm.wait("ROLLING")
        assert swarm.begin(request_id="first")["episode_id"] == ended["episode_id"]
        assert swarm.begin(request_id="second")["episode_id"] == still_open["episode_id"]
        assert swarm.begin(request_id="third")["episode_id"] not in (ended["episode_id"], still_open["episode_id"])
        assert swarm.end(ended["episode_id"], "t").status_code == 410


def test_a_begin_whose_client_hangs_up_gives_its_place_in_the_queue_back(serve):
    with serve() as swarm:
        swarm.start(job(rollout__max_env_worker=1))
        swarm.begin()
        import httpx

        with pytest.raises(httpx.ReadTimeout):
            swarm.post("/episodes", {"client_id": "c", "request_id": "gone", "wait_s": 20}, timeout=0.2)
        leases = swarm.app.engine.experiment.registry.leases
        swarm.call(lambda: swarm.app.engine.changed.wait_until(lambda: leases.waiting("train") == 0, 0.5))
        assert leases.waiting("train") == 0


def test_a_repeated_end_returns_the_first_answer_and_trains_once(rolling):
    begun = rolling.begin()
    rolling.say(begun)
    first = rolling.end(begun["episode_id"], "t", 1.0, request="e")
    again = rolling.end(begun["episode_id"], "t", 1.0, request="e")
    other = rolling.end(begun["episode_id"], "t", 5.0, request="f")
    assert (first.status_code, again.status_code, other.status_code) == (200, 200, 410)
    assert first.json() == again.json()
    assert rolling.status()["pool"]["episodes_finished"] == 1


def test_concurrent_ends_of_one_episode_are_one_end(rolling):
    begun = rolling.begin()
    rolling.say(begun)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        same = [pool.submit(rolling.end, begun["episode_id"], "t", 1.0, "same") for _ in range(8)]
        answers = [f.result(DEADLINE_S) for f in same]
    assert {a.status_code for a in answers} == {200}
    assert len({a.text for a in answers}) == 1
    assert rolling.status()["pool"]["episodes_finished"] == 1


def test_late_end_is_refused_and_not_trained(rolling):
    # Fault 13: a timed-out task is requeued, both attempts report.
    begun = rolling.begin(discard_episode_timeout=30)
    rolling.say(begun)
    expire_now(rolling, 31)
    late = rolling.end(begun["episode_id"], "t", 1.0)
    assert late.status_code == 410
    assert "no sign of life" in late.json()["error"]["message"]
    assert drops(rolling) == {"silent": 1}
    assert rolling.app.engine.experiment.registry.tally("late") == {"late_end": 1}
    assert rolling.status()["pool"]["episodes_finished"] == 0
    with pytest.raises(openai.APIStatusError) as gone:
        rolling.say(begun)
    assert gone.value.status_code == 410


def test_a_heartbeat_keeps_the_episodes_it_names_and_tells_of_the_gone(rolling):
    kept, forgotten = rolling.begin(discard_episode_timeout=30), rolling.begin(discard_episode_timeout=30)

    async def half():
        rolling.app.engine.experiment.registry.leases.shift(-20)

    rolling.call(half)
    beat = rolling.post("/heartbeat", {"client_id": "c1", "episodes": [kept["episode_id"]]}).json()
    assert (beat["alive"], beat["gone"]) == (1, {})
    expire_now(rolling, 20)
    both = [kept["episode_id"], forgotten["episode_id"], "ep-never"]
    beat = rolling.post("/heartbeat", {"client_id": "c1", "episodes": both}).json()
    assert beat["alive"] == 1
    assert "no sign of life" in beat["gone"][forgotten["episode_id"]]
    assert beat["gone"]["ep-never"] == "unknown here"


def test_a_call_in_flight_is_not_silence_and_old_age_is_counted_apart(rolling):
    rolling.backbone.hold = rolling.call(asyncio.Event)
    begun = rolling.begin(discard_episode_timeout=5)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        saying = pool.submit(rolling.say, begun)
        rolling.call(lambda: asyncio.wait_for(rolling.backbone.generating.wait(), 10))
        expire_now(rolling, 3600)
        assert drops(rolling) == {}
        expire_now(rolling, 4 * 3600)
        with pytest.raises(openai.APIStatusError) as gone:
            saying.result(DEADLINE_S)
    assert gone.value.status_code == 410
    assert drops(rolling) == {"max_age": 1}
    assert rolling.backbone.cancelled == 1


def test_abort_is_idempotent_counted_by_reason_and_frees_its_place(rolling):
    begun = rolling.begin()
    first = rolling.post(f"/episodes/{begun['episode_id']}/abort", {"request_id": "a", "reason": "RateLimit: 429"})
    again = rolling.post(f"/episodes/{begun['episode_id']}/abort", {"request_id": "b", "reason": "other"})
    assert first.status_code == again.status_code == 200
    assert first.json() == again.json()
    assert drops(rolling) == {"aborted": 1}
    assert rolling.app.engine.experiment.registry.tally("abort") == {"RateLimit": 1}
    assert rolling.status()["leases"]["open_train"] == 0
    begun = rolling.begin()
    rolling.say(begun)
    rolling.end(begun["episode_id"], "t")
    assert rolling.post(f"/episodes/{begun['episode_id']}/abort", {"request_id": "c"}).status_code == 410


@pytest.mark.parametrize(
    ("task", "output", "status", "code"),
    [
        ("", {"reward": 1.0}, 400, "invalid_request"),
        ("  ", {"reward": 1.0}, 400, "invalid_request"),
        ("t", {"reward": None}, 400, "invalid_request"),
        ("t", {"reward": {"wolf": 1.0}}, 400, "incomplete_reward"),
        ("t", {"reward": 1e9}, 422, "invalid_request"),
        ("t", {"reward": 1.0, "log_metrics": {"x": 1e400}}, 400, "invalid_request"),
        ("other", {"reward": 1.0}, 400, "invalid_request"),
    ],
)
def test_a_result_that_cannot_be_trained_is_refused_and_the_episode_lives(rolling, task, output, status, code):
    import json

    begun = rolling.begin(task_id="t")
    rolling.say(begun, agent="w1")
    rolling.say(begun, agent="seer")
    body = json.dumps({"request_id": "e", "task": {"task_id": task}, "output": output})
    refused = rolling.http.post(f"/swarm/v1/episodes/{begun['episode_id']}/end", content=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (status, code), refused.text
    if code == "incomplete_reward":
        assert refused.json()["error"]["details"]["missing"] == ["w1", "seer"]
    assert rolling.end(begun["episode_id"], "t", {"w1": 1.0, "seer": 0.0}).json()["fate"] == "pooled"


def test_nan_rewards_are_refused(rolling):
    begun = rolling.begin()
    rolling.say(begun)
    for number in ("NaN", "Infinity", "-Infinity", '"nan"'):
        body = '{"request_id": "e", "task": {"task_id": "t"}, "output": {"reward": REWARD}}'.replace("REWARD", number)
        answer = rolling.http.post(f"/swarm/v1/episodes/{begun['episode_id']}/end", content=body)
        assert answer.status_code == 422, answer.text


def test_failed_and_empty_episodes_never_count_and_batches_stay_exact(rolling):
    # Faults 8 and 11: failed rollouts counted; "no suitable data" without a cause.
    batch = []
    for i in range(4):
        aborted = rolling.begin()
        rolling.say(aborted)
        rolling.post(f"/episodes/{aborted['episode_id']}/abort", {"request_id": "a", "reason": "boom"})
        empty = rolling.begin()
        assert rolling.end(empty["episode_id"], f"t{i // 2}").json()["fate"] == "no_calls"
        with pytest.raises(openai.BadRequestError):
            rolling.say(rolling.begin(), top_p=0.1)
        batch.append(rolling.play(f"t{i // 2}", float(i % 2)))
    rolling.wait_step(1)
    assert [row.episode for row in rolling.backbone.trained[0].rows] == batch
    assert all(row.trained_tokens for row in rolling.backbone.trained[0].rows)
    assert drops(rolling) == {"aborted": 4, "no_calls": 4}


def test_nothing_trainable_is_named_and_collecting_goes_on(serve):
    # Fault 11: the true cause is named and counted.
    with serve() as swarm:
        swarm.start(job(data__max_prompt_length=1, trainer_common__total_training_steps=1))
        swarm.play_batch()
        swarm.wait("ROLLING")
        events = swarm.app.engine
        swarm.call(lambda: events.changed.wait_until(lambda: bool(events.warnings), DEADLINE_S))
        found = swarm.status()
        assert found["step"] == 0
        assert found["drops"] == {"nothing_to_train": 4}
        assert found["dropped_tokens"]["prompt_too_long"] > 0
        assert "max_prompt_length" in found["warnings"][0]
        assert "prompt_too_long" in found["warnings"][0]


def test_rewards_that_never_differ_are_warned_about(serve):
    # Fault 12: looks like training, learns nothing.
    with serve() as swarm:
        swarm.start(job(trainer_common__total_training_steps=4))
        for step in range(1, 4):
            for task in ("a", "b"):
                for _ in range(2):
                    swarm.play(f"{task}{step}", -1.0)
            swarm.wait_step(step)
        metrics = swarm.status()["metrics"]
        assert metrics["advantage/main/zero_group_share"] == 1.0
        assert metrics["pool/equal_reward_groups"] == 2
        swarm.call(lambda: swarm.app.engine.changed.wait_until(lambda: bool(swarm.app.engine.warnings), DEADLINE_S))
        assert "looks like training" in swarm.status()["warnings"][0]


def test_the_non_dummy_rule_collects_in_place_of_equal_groups(serve):
    with serve() as swarm:
        rule = "rollout_until_finish_enough_non_dummy_tasks"
        swarm.start(job(swarm_mode_sample_collection_method=rule))
        for _ in range(2):
            swarm.play("dull", 1.0)
        good = swarm.play_batch("good")
        swarm.wait_step(1)
        assert [row.episode for row in swarm.backbone.trained[0].rows] == good
        assert drops(swarm) == {"equal_rewards": 2}


def test_task_ids_that_no_two_episodes_share_are_warned_about(serve, monkeypatch):
    monkeypatch.setattr("ajet.server.cycle.SCATTERED", 2)
    with serve() as swarm:
        swarm.start(job())
        size = swarm.status()["pool"]["groups_needed"]
        for n in range(2 * size):
            swarm.play(f"only-{n}", float(n % 2))
        engine = swarm.app.engine
        swarm.play("one-more", 0.0)  # the cycle has looked by the time that it looks again
        swarm.call(lambda: engine.changed.wait_until(lambda: bool(engine.warnings), DEADLINE_S))
        (found,) = swarm.status()["warnings"]
        assert "groups are begun and none is complete" in found
        assert "share its task_id" in found


def test_surplus_groups_train_next_within_the_lag_and_are_dropped_beyond_it(serve):
    with serve() as swarm:
        swarm.start(job(swarm__max_policy_lag=0))
        hold = swarm.call(asyncio.Event)
        swarm.backbone.hold_train = hold
        open_late = [swarm.begin() for _ in range(2)]
        for begun in open_late:
            swarm.say(begun)
        swarm.play_batch()
        swarm.wait("UPDATING")
        for begun, reward in zip(open_late, (0.0, 1.0), strict=True):
            assert swarm.end(begun["episode_id"], "late", reward).json()["fate"] == "pooled"
        swarm.loop.call_soon_threadsafe(hold.set)
        swarm.wait_step(1)
        swarm.play_batch()  # what lags too far is dropped before the next batch is formed
        swarm.wait_step(2)
        assert drops(swarm) == {"policy_lag": 2}
    with serve(exp_dir=swarm.app.engine.settings.exp_dir / "lag1") as swarm:
        swarm.start(job(swarm__max_policy_lag=1))
        hold = swarm.call(asyncio.Event)
        swarm.backbone.hold_train = hold
        late = [swarm.begin() for _ in range(2)]
        for begun in late:
            swarm.say(begun)
        swarm.play_batch()
        swarm.wait("UPDATING")
        for begun, reward in zip(late, (0.0, 1.0), strict=True):
            swarm.end(begun["episode_id"], "late", reward)
        swarm.loop.call_soon_threadsafe(hold.set)
        swarm.wait("ROLLING")
        swarm.play("now", 0.0), swarm.play("now", 1.0)
        swarm.wait_step(2)
        second = [row.episode for row in swarm.backbone.trained[1].rows]
        assert second[:2] == [b["episode_id"] for b in late]
        assert drops(swarm) == {}


def test_heartbeats_are_answered_while_large_results_arrive(rolling):
    # Fault 14, small: a burst of large ends starves nobody.
    begun = [rolling.begin() for _ in range(12)]
    for one in begun:
        rolling.say(one)
    big = "x" * 2_000_000
    slowest, stop = [0.0], threading.Event()

    def beat():
        import time

        import httpx

        with httpx.Client(base_url=rolling.url) as http:
            while not stop.is_set():
                started = time.monotonic()
                http.post("/swarm/v1/heartbeat", json={"client_id": "c1"}).raise_for_status()
                slowest[0] = max(slowest[0], time.monotonic() - started)

    beating = threading.Thread(target=beat)
    beating.start()
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        ends = [
            pool.submit(rolling.end, b["episode_id"], f"t{i}", 1.0, None, metadata={"log": big})
            for i, b in enumerate(begun)
        ]
        answers = [f.result(DEADLINE_S) for f in ends]
    stop.set()
    beating.join()
    assert {a.status_code for a in answers} == {200}
    assert slowest[0] < 2.0


def test_a_different_job_is_refused_with_the_difference(rolling):
    answer = rolling.http.put("/swarm/v1/job", json={"job": job(rollout__temperature=0.5)})
    assert answer.status_code == 409
    assert answer.json()["error"]["details"]["diff"] == {"rollout.temperature": [0.9, 0.5]}
    assert rolling.http.put("/swarm/v1/job", json={"job": job()}).json()["changed"] is False
    bad = rolling.http.put("/swarm/v1/job", json={"job": {"experiment_name": "../../etc"}})
    assert bad.status_code == 400
    assert "experiment_name" in bad.json()["error"]["message"]


def test_keys_open_what_they_should(serve):
    with serve(admin_key="correct horse") as swarm:
        swarm.start()
        begun = swarm.begin()
        for headers in (
            {"authorization": "Bearer wrong"},
            {"authorization": ""},
            {"authorization": f"Bearer {begun['api_key']}"},
        ):
            assert swarm.get("/status", headers=headers).status_code == 401
        assert swarm.http.get("/healthz", headers={"authorization": ""}).status_code == 200
        assert swarm.http.get("/metrics").status_code == 200


def test_without_a_key_only_this_machines_own_programs_are_served(rolling):
    assert rolling.get("/status", headers={"origin": "https://evil.example"}).status_code == 403
    assert rolling.get("/status", headers={"host": "evil.example"}).status_code == 403
    assert rolling.get("/status", headers={"origin": "http://localhost:3000"}).status_code == 200


def test_bodies_and_headers_are_bounded(rolling):
    huge = b'{"x": "' + b"a" * (33 << 20) + b'"}'
    assert rolling.http.post("/swarm/v1/heartbeat", content=huge).status_code == 413
    begun = rolling.begin()
    headers = {"authorization": f"Bearer {begun['api_key']}", "x-big": "a" * 40_000}
    answer = rolling.http.post("/v1/chat/completions", json={}, headers=headers)
    assert answer.status_code in (400, 413, 431)


def test_reads_tell_the_whole_story(rolling):
    rolling.play("solo", 1.0, is_success=True, log_metrics={"turns": 4})
    pool = rolling.get("/pool").json()
    assert [(g["task_id"], g["finished"], g["complete"]) for g in pool["groups"]] == [("solo", 1, False)]
    begun = rolling.begin(task_id="solo")
    assert [e["episode_id"] for e in rolling.get("/episodes").json()["episodes"]] == [begun["episode_id"]]
    assert 'ajet_engine_state{state="ROLLING"} 1.0' in rolling.http.get("/metrics").text
    document = rolling.http.get("/openapi.json").json()
    assert "/swarm/v1/episodes/{id}/end" in document["paths"]
    assert rolling.http.get("/readyz").status_code == 200


def test_a_job_for_more_gpus_than_there_are_is_refused_with_what_to_set(rolling, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    rolling.post("/engine/stop")
    rolling.wait("OFFLINE")
    wanted = job(trainer_common__n_gpus_per_node=8, experiment_name="eight")
    assert rolling.http.put("/swarm/v1/job", json={"job": wanted}).status_code == 200
    refused = rolling.http.post("/swarm/v1/engine/start")
    assert refused.status_code == 400
    assert "n_gpus_per_node: 0 (0 = the CPU)" in refused.json()["error"]["message"]


def test_a_check_says_what_an_end_would_say_and_records_nothing(rolling):
    begun = rolling.begin()
    path = f"/episodes/{begun['episode_id']}"
    rolling.say(begun, agent="Player1")

    def ask(verb, reward, task="t"):
        body = {"request_id": rolling.fresh(), "task": {"task_id": task}, "output": {"reward": reward}}
        return rolling.post(f"{path}/{verb}", body)

    refused = ask("check", {"Player2": 1.0})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "incomplete_reward")
    assert refused.json() == ask("end", {"Player2": 1.0}).json()
    taken = ask("check", {"Player1": 1.0})
    assert (taken.status_code, taken.json()) == (200, {"episode_id": begun["episode_id"], "calls": 1})
    assert rolling.status()["pool"]["episodes_finished"] == 0
    assert ask("end", {"Player1": 1.0}).status_code == 200
    assert ask("check", {"Player1": 1.0}).status_code == 410


def test_a_check_is_a_sign_of_life(rolling):
    begun = rolling.begin(discard_episode_timeout=240)
    expire_now(rolling, 200)
    body = {"request_id": "x", "task": {"task_id": "t"}, "output": {"reward": 1.0}}
    assert rolling.post(f"/episodes/{begun['episode_id']}/check", body).status_code == 200
    expire_now(rolling, 200)
    assert rolling.end(begun["episode_id"], "t").status_code == 200


def test_a_goodbye_gives_everything_of_the_client_back_also_what_it_was_never_told_of(serve):
    with serve() as swarm:
        swarm.start(job(rollout__max_env_worker=4))
        ended, known, untold = (swarm.begin(client_id="leaves") for _ in range(3))
        others = swarm.begin(client_id="stays")
        swarm.say(ended)
        assert swarm.end(ended["episode_id"], "t").status_code == 200
        swarm.begin(client_id="leaves", kind="eval")
        swarm.begin(client_id="leaves")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waits = pool.submit(
                swarm.post, "/episodes", {"client_id": "leaves", "request_id": "waits", "wait_s": DEADLINE_S}
            )
            leases, changed = swarm.app.engine.experiment.registry.leases, swarm.app.engine.changed
            while not leases.waiting("train"):
                swarm.call(lambda: changed.wait_until(lambda: leases.waiting("train") == 1, 0.02))
            goodbye = {"client_id": "leaves", "episodes": [known["episode_id"]], "leaving": True}
            answer = swarm.post("/heartbeat", goodbye)
            refused = waits.result(DEADLINE_S)
        assert answer.status_code == 200
        assert "client closed" in answer.json()["gone"][known["episode_id"]]
        assert (refused.status_code, refused.json()["error"]["code"]) == (410, "episode_gone")
        left = swarm.get("/episodes").json()["episodes"]
        assert [one["episode_id"] for one in left] == [others["episode_id"]]
        assert drops(swarm)["aborted"] == 3
        assert "client closed" in swarm.end(untold["episode_id"], "t").json()["error"]["message"]
        assert swarm.status()["pool"]["episodes_finished"] == 1, "what was acknowledged stands"
        late = swarm.post("/episodes", {"client_id": "leaves", "request_id": "late", "wait_s": 0})
        assert late.status_code == 410
        assert swarm.post("/heartbeat", goodbye).status_code == 200, "a repeat is fine"
