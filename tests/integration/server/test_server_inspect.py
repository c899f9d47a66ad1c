"""Claims about looking at an episode: over HTTP, and with ``ajet-swarm inspect`` with and without a server."""

import os
import subprocess
import sys

from tests.integration.server.conftest import job


def inspect(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "ajet.cli", "inspect", *map(str, arguments)],
        capture_output=True, text=True, timeout=60, env={**os.environ, **environment},
    )  # fmt: skip


def test_a_trained_episode_shows_each_token_with_mask_log_prob_advantage_owner_and_version(swarm):
    swarm.start()
    episodes = swarm.play_batch()
    swarm.wait_step(1)
    found = swarm.get(f"/episodes/{episodes[0]}", params={"tokens": "true"}).json()
    assert (found["fate"], found["step"], found["branches"], found["dropped_tokens"]) == (
        "trained",
        1,
        {"first": 1},
        {},
    )
    (call,), (sample,) = found["calls"], found["samples"]
    assert found["advantages"] == {sample["agent"]: 0.5}
    prompt, reply = sample["pieces"]
    assert (prompt["ids"], reply["ids"]) == (call["prompt_delta"], call["reply_ids"])
    assert (prompt["call"], reply["call"], reply["trained"]) == (call["call_id"], call["call_id"], [True] * 5)
    assert (len(call["logprobs"]), call["versions"]) == (5, [0] * 5)
    assert "".join(prompt["texts"]).startswith("<|im_start|>user\ntask ")
    assert swarm.get(f"/episodes/{episodes[0]}").json()["samples"] == []


def test_an_aborted_episode_is_shown_untrained_and_truncation_is_counted(swarm):
    swarm.start(job(data__max_response_length=5, rollout__max_response_length_in_one_turn=5))
    begun = swarm.begin()
    with swarm.openai(begun) as client:
        history = [{"role": "user", "content": "hi"}]
        reply = client.chat.completions.create(model="m", messages=history).choices[0].message
        history += [reply.model_dump(exclude_none=True), {"role": "user", "content": "go on"}]
        client.chat.completions.create(model="m", messages=history)
    path = f"/episodes/{begun['episode_id']}"
    found = swarm.get(path, params={"tokens": "true"}).json()
    assert found["dropped_tokens"] == {"response_too_long": 5}
    first, second = (piece for piece in found["samples"][0]["pieces"] if piece["kind"] == "reply")
    assert (first["trained"], first["why"]) == ([True] * 5, None)
    assert (second["trained"], second["why"]) == ([False] * 5, "response_too_long")
    swarm.post(f"{path}/abort", {"request_id": "a", "reason": "enough"}).raise_for_status()
    found = swarm.get(path, params={"tokens": "true"}).json()
    assert (found["fate"], found["dropped_tokens"]) == ("aborted", {})
    assert found["samples"][0]["pieces"][1]["why"] == "not_trained"


def test_inspect_says_the_same_of_a_server_and_of_its_folder(swarm, tmp_path):
    swarm.start()
    begun = swarm.begin(kind="eval")
    with swarm.openai(begun, "anna", "seer") as client:
        history = [{"role": "user", "content": "It is noon."}]
        reply = client.chat.completions.create(model="m", messages=history).choices[0].message
        history += [reply.model_dump(exclude_none=True), {"role": "user", "content": "go on"}]
        client.chat.completions.create(model="m", messages=history)
        history[0] = {"role": "user", "content": "It is one."}
        client.chat.completions.create(model="m", messages=history)
    by_url = inspect(begun["episode_id"], AJET_SWARM_URL=swarm.url)
    by_last = inspect("last", "--swarm-url", swarm.url)
    assert by_url.returncode == 0, by_url.stderr
    assert by_url.stdout == by_last.stdout
    assert "anna (seer)" in by_url.stdout
    assert "It is noon." in by_url.stdout
    assert "\x1b" not in by_url.stdout
    table = inspect("--tokens", "--swarm-url", swarm.url)
    assert "anna/c1-1" in table.stdout
    forks = inspect("--detect", "--swarm-url", swarm.url)
    assert "history_edited × 1" in forks.stdout
    assert "had 'It is noon.'" in forks.stdout
    assert "has 'It is one.'" in forks.stdout
    survey = inspect("--detect", "--exp-dir", tmp_path / "exp", "--episodes", 5)
    assert survey.returncode == 0, survey.stderr
    assert survey.stdout == forks.stdout
    by_folder = inspect("--detect", "--exp-dir", tmp_path / "exp")
    assert by_folder.stdout == forks.stdout


def test_what_is_not_there_is_one_line(swarm, tmp_path):
    swarm.start()
    for answer in (inspect("ep-none", "--swarm-url", swarm.url), inspect("--exp-dir", tmp_path)):
        assert answer.returncode == 1
        assert answer.stderr.count("\n") == 1
    assert "There is no episode ep-none" in inspect("ep-none", "--swarm-url", swarm.url).stderr
