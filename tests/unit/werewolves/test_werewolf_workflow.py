"""Whole episodes against a policy served over HTTP."""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
import subprocess
import sys
from itertools import pairwise
from typing import Any, ClassVar

import pytest

import ajet.envs.werewolves.endpoint as endpoint_module
import ajet.envs.werewolves.limits as limits_module
import ajet.envs.werewolves.workflow as workflow_module
from ajet.envs.werewolves import ExampleWerewolves
from ajet.envs.werewolves.engine import Game
from ajet.envs.werewolves.full import rules_text
from ajet.envs.werewolves.presets import board_options
from ajet.schema.endpoint import EpisodeKey, OpenaiBaseUrlAndApiKey
from ajet.schema.errors import ConfigError, InfrastructureFault
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from tests.unit.werewolves.fake_openai import Answer, Call, Server, failure, refused_url, replies, serve

TINY, BIG = "ajet-tiny-werewolves", "a-real-model"
_NAMES = re.compile(r"Player[1-9][0-9]?")


@pytest.fixture(autouse=True)
def _quick_and_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module, "FIRST_WAIT_S", 0.001)
    for name in ("AJET_OPPONENT_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def legal_reply(call: Call) -> str:
    """Something legal for either style, the same for the same prompt."""
    text = call.prompt.split("\n")
    question = text[-1]
    if "poison" in question or "Save" in question:
        return '{"save": false, "poison": null}' if "{" in question else "save: no"
    if "Who to kill" in question or '"kill"' in question:
        return "kill: nobody"
    if "protect" in question:
        return "protect: nobody"
    if "Who to check" in question or '"check"' in question:
        return "check: " + _NAMES.findall(question if "{" in question else call.prompt.split("Others:")[1])[0]
    if "shoot" in question:
        return "shoot: nobody"
    if question in ("Speak and vote.", "Vote.") or '"vote"' in question:
        return "vote: nobody"
    return "I have no idea."


WOLVES = 6
"""A deal in which the wolves are live."""


def task_of(number: int | None, **metadata: Any) -> Task:
    return Task(
        task_id=f"task-{number}", metadata={**({} if number is None else {"random_number": number}), **metadata}
    )


async def episode(
    url: str,
    task: Task,
    *,
    model: str = TINY,
    uuid: str = "ep1",
    workflow: ExampleWerewolves | None = None,
    **options: Any,
) -> WorkflowOutput:
    api = OpenaiBaseUrlAndApiKey(url, f"ajet-ep.{uuid}.signed", uuid, model)
    workflow = workflow or ExampleWerewolves(**options)
    return await asyncio.wait_for(workflow.execute(WorkflowTask(task=task, episode_uuid=uuid), api), 30)


def speakers(server: Server) -> dict[str, str]:
    """Agent → tag of everyone who called."""
    keys = [EpisodeKey.parse(call.key) for call in server.calls]
    assert {key.episode for key in keys} == {"ep1"}
    return {key.agent: key.tag for key in keys}


def roles_of(output: WorkflowOutput, *wanted: str) -> dict[str, str]:
    return {f"Player{i + 1}": r for i, r in enumerate(output.metadata["roles"]) if r in wanted}


# ── who is live, and how they speak ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("model", [TINY, BIG])
@pytest.mark.parametrize(("number", "side"), [(3, "werewolf"), (4, "seer"), (5, "seer")])
async def test_sides_alternate_with_the_deal_and_each_player_speaks_as_an_agent_of_its_role(model, number, side):
    async with serve(legal_reply) as server:
        output = await episode(server.url, task_of(number), model=model)
    assert speakers(server) == roles_of(output, side)
    assert set(output.reward) == set(roles_of(output, side))
    won = 1.0 if output.metadata["winner"] == ("wolf" if side == "werewolf" else "good") else 0.0
    won = 0.5 if output.metadata["winner"] == "draw" else won
    assert set(output.reward.values()) == {won}
    assert output.is_success is (won == 1.0)
    assert output.log_metrics["reply/valid"] == 1.0
    assert output.log_metrics[f"win/{side}"] == float(won == 1.0)


async def test_with_both_live_wolves_and_seer_are_rewarded_for_their_own_side():
    async with serve(legal_reply) as server:
        output = await episode(server.url, task_of(WOLVES), live="both")
    assert speakers(server) == roles_of(output, "werewolf", "seer")
    by_role = {role: {output.reward[a] for a in roles_of(output, role)} for role in ("werewolf", "seer")}
    assert output.metadata["winner"] in ("wolf", "good")
    assert by_role["werewolf"] != by_role["seer"]
    assert sum(v for values in by_role.values() for v in values) == 1.0
    assert output.is_success is (output.metadata["winner"] == "wolf")


@pytest.mark.parametrize(
    "targets", [["werewolf"], ["seer"], ["witch", "hunter"], ["villager"], ["seer", "witch", "hunter", "villager"]]
)
async def test_targets_of_one_side_are_live_in_every_deal(targets):
    for number in (6, 7):
        async with serve(legal_reply) as server:
            output = await episode(server.url, task_of(number), trainable_targets=targets)
        assert set(speakers(server).items()) <= set(roles_of(output, *targets).items())
        assert set(output.reward) == set(speakers(server))
        assert output.reward


async def test_a_role_given_as_a_string_is_one_role():
    assert [r.value for r in ExampleWerewolves("seer").targets] == ["seer"]


@pytest.mark.parametrize(
    "options",
    [
        {"trainable_targets": ["wolf"]}, {"trainable_targets": []}, {"trainable_targets": None}, {"prompt_style": "long"},
        {"live": "all"}, {"language": "fr"}, {"opponents": "god"},
        {"big_external_opponent_llm_url": "http://x/v1"}, {"big_external_opponent_llm_name": "m"},
    ],
)  # fmt: skip
def test_unknown_roles_and_options_are_refused_with_the_known_ones(options):
    with pytest.raises(ConfigError) as caught:
        ExampleWerewolves(**options)
    if "trainable_targets" in options:
        assert "hunter, seer, villager, werewolf, witch" in str(caught.value)


@pytest.mark.parametrize(
    ("model", "style", "compact"),
    [(TINY, "auto", True), (BIG, "auto", False), (BIG, "compact", True), (TINY, "full", False)],
)
async def test_the_style_goes_by_the_models_name_or_as_told(model, style, compact):
    async with serve(legal_reply) as server:
        await episode(server.url, task_of(WOLVES), model=model, prompt_style=style)
    lengths = {len(call.body["messages"]) for call in server.calls}
    assert (lengths == {2}) is compact
    assert all(call.body["model"] == model for call in server.calls)
    assert any(call.prompt.endswith("Speak and vote.") for call in server.calls) is compact


async def test_chinese_prompts_work_over_a_whole_game():
    def answer(call: Call) -> str:
        if "kill" in call.prompt:
            return "<think>想</think>刀：空刀"
        return '{"say": "我是村民。", "vote": "弃票"}'

    async with serve(answer) as server:
        output = await episode(server.url, task_of(WOLVES), model=BIG, language="zh")
    assert output.log_metrics["reply/valid"] == 1.0
    assert "狼人" in server.calls[0].body["messages"][0]["content"]


async def test_a_full_conversation_grows_by_the_reply_as_sent_and_one_message():
    thoughts = iter(range(10**6))

    def answer(call: Call) -> str:
        return f"<think> {next(thoughts)} </think>\n {legal_reply(call)}"

    async with serve(answer) as server:
        await episode(server.url, task_of(WOLVES), model=BIG)
    for agent in speakers(server):
        talks = [c.body["messages"] for c in server.calls if EpisodeKey.parse(c.key).agent == agent]
        assert len(talks) > 2
        for before, after in pairwise(talks):
            assert after[: len(before)] == before
            assert [m["role"] for m in after[len(before) :]] == ["assistant", "user"]
            assert re.fullmatch(r"<think> \d+ </think>\n .*", after[-2]["content"])


async def test_games_in_threads_with_loops_of_their_own_do_not_disturb_each_other():
    """As rollout scripts run them."""
    async with serve(legal_reply) as server:
        outputs = await asyncio.gather(
            *(
                asyncio.to_thread(lambda n=n: asyncio.run(episode(server.url, task_of(n, paired=True))))
                for n in range(8)
            )
        )
        alone = [await episode(server.url, task_of(n, paired=True)) for n in range(8)]
    assert outputs == alone


async def test_temperature_is_sent_only_if_given():
    for temperature in (None, 0.7):
        async with serve(legal_reply) as server:
            await episode(server.url, task_of(WOLVES), temperature=temperature)
        assert {call.body.get("temperature") for call in server.calls} == {temperature}
        assert all(("temperature" in call.body) == (temperature is not None) for call in server.calls)


# ── the deal ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("draws", ["common", "own"])
async def test_episodes_of_a_task_share_the_deal_and_by_default_all_that_is_drawn(draws):
    async with serve(lambda call: "vote: nobody") as server:
        outputs = [await episode(server.url, task_of(WOLVES), uuid=f"ep{n}", group_draws=draws) for n in range(8)]
    assert len({tuple(o.metadata["roles"]) for o in outputs}) == 1
    assert (len({json.dumps([o.metadata, o.log_metrics]) for o in outputs}) == 1) == (draws == "common")


async def test_the_order_of_speech_differs_between_episodes_that_draw_their_own():
    orders = set()
    for n in range(8):
        async with serve(legal_reply) as server:
            await episode(server.url, task_of(WOLVES), uuid=f"ep{n}", group_draws="own")
        first_day = [EpisodeKey.parse(c.key).agent for c in server.calls if "Day 1." in c.prompt]
        orders.add(tuple(first_day[:3]))
    assert len(orders) > 1


async def test_paired_episodes_play_the_same_where_the_policy_does():
    async with serve(legal_reply) as server:
        outputs = [
            await episode(server.url, task_of(WOLVES, paired=True, split="eval"), uuid=f"ep{n}") for n in range(4)
        ]
    assert len({json.dumps(o.model_dump()) for o in outputs}) == 1


def test_held_out_deals_lie_outside_those_of_training():
    seeds = {s: {ExampleWerewolves.deal_seed(task_of(n, split=s)) for n in range(1000)} for s in ("eval", "train")}
    assert not seeds["eval"] & seeds["train"]
    assert ExampleWerewolves.deal_seed(task_of(3)) in seeds["train"]
    deals = {s: [Game(f"{s}-{n}").roles for n in range(60)] for s in seeds}
    assert deals["eval"] != deals["train"]


def test_a_task_without_a_number_is_dealt_from_its_id_the_same_in_every_process():
    here = ExampleWerewolves.deal_seed(Task(task_id="a-task"))
    code = (
        "from ajet.envs.werewolves import ExampleWerewolves as E; from ajet.schema.task import Task;"
        "print(E.deal_seed(Task(task_id='a-task')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": "99", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout.strip() == here
    assert here != ExampleWerewolves.deal_seed(Task(task_id="b-task"))


# ── replies that cannot be used ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("model", "tries"), [(TINY, 1), (BIG, 3)])
async def test_a_model_of_nonsense_plays_to_the_end_and_pays_the_format_penalty(model, tries):
    async with serve(lambda call: "<think>hm\nhm") as server:
        output = await episode(server.url, task_of(WOLVES), model=model)
    base = {"wolf": 1.0, "good": 0.0, "draw": 0.5}[output.metadata["winner"]]
    assert set(output.reward.values()) == {base - 0.5}
    assert output.log_metrics["reply/fallback"] == 1.0
    last_prompt: dict[str, int] = {}
    for call in server.calls:
        last_prompt[call.key] = last_prompt.get(call.key, 0) + 1
    assert all(n % tries == 0 for n in last_prompt.values())


async def test_the_penalty_falls_on_the_player_who_sent_the_bad_replies_by_their_share():
    bad: list[str] = []

    def answer(call: Call) -> str:
        agent = EpisodeKey.parse(call.key).agent
        bad.append(agent) if not bad else None
        return "nonsense" if agent == bad[0] and "Speak and vote." in call.prompt else legal_reply(call)

    async with serve(answer) as server:
        output = await episode(server.url, task_of(WOLVES), format_penalty=0.4)
    culprit = bad[0]
    mine = [call for call in server.calls if EpisodeKey.parse(call.key).agent == culprit]
    share = sum("Speak and vote." in call.prompt for call in mine) / len(mine)
    assert 0 < share < 1
    base = 1.0 if output.metadata["winner"] == "wolf" else 0.0
    assert output.reward[culprit] == pytest.approx(base - 0.4 * share)
    assert {v for agent, v in output.reward.items() if agent != culprit} == {base}


async def test_prompts_that_became_too_long_cost_only_the_format_penalty():
    heard: set[str] = set()

    def answer(call: Call) -> Answer | str:
        if call.key in heard:
            return failure(400, "context_length_exceeded")
        heard.add(call.key)
        return legal_reply(call)

    async with serve(answer) as server:
        output = await episode(server.url, task_of(WOLVES))
    assert set(output.reward) == set(speakers(server))
    assert 0 < output.log_metrics["reply/fallback"] < 1


async def test_a_model_too_small_for_the_first_prompt_is_an_error_of_the_configuration():
    async with serve(replies(failure(400, "context_length_exceeded"))) as server:
        with pytest.raises(ConfigError, match="max_model_len"):
            await episode(server.url, task_of(WOLVES))


async def test_a_live_player_who_was_never_asked_leaves_the_reward_empty():
    def static(call: Call) -> str:
        if '"poison"' in call.prompt:
            return f"poison: Player{seat}"
        return legal_reply(call)

    seat = Game(ExampleWerewolves.deal_seed(task_of(WOLVES))).roles.index("hunter") + 1
    async with serve(legal_reply) as server, serve(static) as others:
        output = await episode(
            server.url, task_of(WOLVES), model=BIG, trainable_targets=["hunter"],
            big_external_opponent_llm_name="static", big_external_opponent_llm_url=others.url,
        )  # fmt: skip
    assert server.calls == []
    assert output.reward == {}
    assert output.metadata["roles"][seat - 1] == "hunter"


# ── what is reported ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_metrics_are_finite_numbers_of_live_roles_only():
    for number, mine, other in ((WOLVES, "werewolf", "seer"), (5, "seer", "werewolf")):
        async with serve(legal_reply) as server:
            output = await episode(server.url, task_of(number))
        assert all(type(v) is float and math.isfinite(v) for v in output.log_metrics.values())
        names = set(output.log_metrics)
        assert not [n for n in names if n.startswith((f"{other}/", f"win/{other}"))]
        assert [n for n in names if n.startswith("win/")] == [f"win/{mine}"]
        assert {f"{mine}/abstain", f"{mine}/survival", f"{mine}/valid", f"{mine}/truncated"} <= names
        assert {"game/days", "reply/valid", "reply/repaired", "reply/fallback"} <= names
        replies = {name: value for name, value in output.log_metrics.items() if name.startswith("reply/")}
        assert all(0 <= share <= 1 for share in replies.values()), replies


async def test_metadata_says_what_was_played():
    async with serve(legal_reply) as server:
        output = await episode(server.url, task_of(WOLVES))
    assert set(output.metadata) == {"seed", "roles", "winner", "end_cause", "days"}
    json.dumps(output.metadata)
    assert output.metadata["roles"] == [r.value for r in Game(output.metadata["seed"]).roles]


# ── static opponents ─────────────────────────────────────────────────────────────────────────────────────────────


async def with_static(server: Server, url: str, **options: Any) -> WorkflowOutput:
    return await episode(
        server.url,
        task_of(WOLVES),
        big_external_opponent_llm_name="static",
        big_external_opponent_llm_url=url,
        **options,
    )


async def test_a_static_model_plays_every_other_seat_with_its_own_key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "second-choice")
    monkeypatch.setenv("AJET_OPPONENT_API_KEY", "from-environment")
    for given, key in ((None, "from-environment"), ("given", "given")):
        async with serve(legal_reply) as server, serve(legal_reply) as others:
            output = await with_static(server, others.url, big_external_opponent_llm_api_key=given)
        assert {call.key for call in others.calls} == {key}
        assert {call.body["model"] for call in others.calls} == {"static"}
        assert speakers(server) == roles_of(output, "werewolf")
        systems = {call.body["messages"][0]["content"].split("\n")[0] for call in others.calls}
        assert len(systems) == 6
        assert not [s for s in systems if "werewolf." in s]
        assert output.log_metrics["static/fallback"] == 0.0


async def test_a_static_model_that_is_busy_or_broken_for_a_while_only_delays_the_game():
    trouble = [failure(429, retry_after="0"), failure(500), Answer(hang_up=True), Answer(raw=b"oops")]

    def static(call: Call) -> Answer | str:
        return trouble.pop() if trouble else legal_reply(call)

    async with serve(legal_reply) as server, serve(static) as others:
        output = await with_static(server, others.url)
    assert output.reward
    assert output.log_metrics["static/retries"] == 4.0


@pytest.mark.parametrize("kind", ["error", "hang", "refused", "unauthorised"])
async def test_a_static_model_that_stays_broken_voids_the_game(kind):
    answer = {"error": failure(500), "hang": Answer(hang=True), "unauthorised": failure(401)}.get(kind, "")
    async with serve(legal_reply) as server, serve(replies(answer)) as others:
        url = refused_url() if kind == "refused" else others.url
        with pytest.raises(InfrastructureFault, match="static endpoint"):
            await with_static(server, url, external_budget_s=0.05, external_timeout_s=0.1)


async def test_games_share_one_bound_on_calls_to_a_static_model():
    async with serve(legal_reply) as server, serve(legal_reply) as others:
        workflow = ExampleWerewolves(
            big_external_opponent_llm_name="static", big_external_opponent_llm_url=others.url, external_concurrency=2
        )
        await asyncio.gather(*(episode(server.url, task_of(WOLVES), workflow=workflow) for _ in range(4)))
        assert 1 <= others.most_busy <= 2


# ── the policy's endpoint ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("status", "code"), [(410, "episode_gone"), (401, "invalid_api_key"), (409, "engine_state"), (500, "engine_failed")]
)
async def test_an_episode_that_is_gone_voids_the_game_and_names_the_cause(status, code):
    async with serve(replies(failure(status, code))) as server:
        with pytest.raises(InfrastructureFault, match=f"policy endpoint.*{code}"):
            await episode(server.url, task_of(WOLVES))
        assert len(server.calls) == 1


async def test_a_server_that_restarts_only_makes_the_game_wait():
    down = [failure(503, "engine_unavailable", retry_after="0"), Answer(hang_up=True)]
    async with serve(lambda call: down.pop() if down else legal_reply(call)) as server:
        output = await episode(server.url, task_of(WOLVES))
    assert output.reward
    assert output.log_metrics["policy/retries"] == 2.0


async def test_a_policy_that_does_not_come_back_voids_the_game():
    with pytest.raises(InfrastructureFault, match="policy endpoint"):
        await episode(refused_url(), task_of(WOLVES), policy_budget_s=0.05)


# ── other models at the table ────────────────────────────────────────────────────────────────────────────────────────


async def test_frozen_opponents_speak_through_the_same_server_under_their_name():
    async with serve(legal_reply) as server:
        output = await episode(server.url, task_of(WOLVES), frozen_opponents="frozen:step_000010")
    models = {EpisodeKey.parse(call.key).agent: call.body["model"] for call in server.calls}
    live = roles_of(output, "werewolf")
    assert {models[agent] for agent in live} == {TINY}
    assert {model for agent, model in models.items() if agent not in live} == {"frozen:step_000010"}
    assert len(models) == 9
    assert set(output.reward) == set(live)
    assert all(len(call.body["messages"]) == 2 for call in server.calls)  # the same prompts as the policy's


async def test_frozen_opponents_by_role_leave_the_others_scripted():
    async with serve(legal_reply) as server:
        output = await episode(server.url, task_of(WOLVES), frozen_opponents={"seer": "frozen"})
    assert speakers(server) == roles_of(output, "werewolf", "seer")
    assert {c.body["model"] for c in server.calls if EpisodeKey.parse(c.key).tag == "seer"} == {"frozen"}


@pytest.mark.parametrize("wrong", ["policy", {"wolf": "frozen"}, {"seer": "gpt"}])
def test_frozen_opponents_of_other_names_are_refused(wrong):
    with pytest.raises(ConfigError, match="frozen_opponents takes"):
        ExampleWerewolves(frozen_opponents=wrong)


def test_frozen_opponents_and_a_static_model_are_one_too_many():
    with pytest.raises(ConfigError, match="not both"):
        ExampleWerewolves(["seer"], "m", "http://x/v1", frozen_opponents="frozen")


async def test_held_out_games_carry_their_tallies_and_training_games_do_not():
    async with serve(legal_reply) as server:
        held_out = await episode(server.url, task_of(WOLVES, split="eval"))
        trained = await episode(server.url, task_of(WOLVES))
    total, n = held_out.metadata["measures"]["werewolf/survival"]
    assert n == 3
    assert held_out.log_metrics["werewolf/survival"] == pytest.approx(total / n)
    assert "measures" not in trained.metadata


async def test_a_rotated_deal_moves_the_roles_on_by_a_seat():
    async with serve(legal_reply) as server:
        plain, turned = [await episode(server.url, task_of(WOLVES, rotation=r)) for r in (0, 1)]
    assert turned.metadata["roles"] == [plain.metadata["roles"][-1], *plain.metadata["roles"][:-1]]


async def test_cut_off_replies_and_refusals_are_counted():
    def answer(call: Call) -> Answer:
        return Answer(legal_reply(call), finish_reason="length")

    busy = iter([True, True, False])

    def static(call: Call) -> Answer | str:
        return failure(429, retry_after="0") if next(busy, False) else legal_reply(call)

    async with serve(answer) as server, serve(static) as others:
        output = await episode(
            server.url, task_of(WOLVES),
            big_external_opponent_llm_name="static", big_external_opponent_llm_url=others.url,
        )  # fmt: skip
    assert output.log_metrics["werewolf/truncated"] == 1.0
    assert output.log_metrics["static/truncated"] == 0.0
    assert output.log_metrics["static/rate_limited"] == 2.0
    assert output.log_metrics["static/calls"] == len(others.calls) - 2
    assert 0 < output.log_metrics["static/latency_s"] <= output.log_metrics["static/latency_max_s"]


# ── other boards ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("model", [TINY, BIG])
@pytest.mark.parametrize(
    "board", ["guard-12", {"board": "idiot-10", "idiot_again": "exiled"}, {"werewolf": 2, "seer": 1, "guard": 1, "villager": 3}]
)  # fmt: skip
async def test_another_board_is_played_from_the_same_options(model, board):
    async with serve(legal_reply) as server:
        output = await episode(server.url, task_of(WOLVES), model=model, options=board)
    played = board_options(board)
    assert sorted(output.metadata["roles"]) == sorted(role.value for role in played.roles)
    assert speakers(server) == roles_of(output, "werewolf")
    if model == BIG:
        assert rules_text(played, "en") in server.calls[0].body["messages"][0]["content"]


@pytest.mark.parametrize(("role", "board"), [("guard", "guard-12"), ("idiot", "idiot-12")])
async def test_the_new_roles_can_be_trained(role, board):
    async with serve(legal_reply) as server:
        output = await episode(server.url, task_of(WOLVES), trainable_targets=[role], options=board)
    assert set(speakers(server).items()) <= set(roles_of(output, role).items())
    assert output.log_metrics["reply/valid"] == 1.0 or not server.calls


def test_roles_that_are_not_on_the_board_cannot_be_trained():
    with pytest.raises(ConfigError, match="not guard"):
        ExampleWerewolves(["guard"])
    assert ExampleWerewolves(["guard"], options="guard-8").options.guard_self


def test_a_board_that_cannot_be_played_is_refused_before_any_game():
    with pytest.raises(ConfigError, match="6 to 12"):
        ExampleWerewolves(options={"werewolf": 1, "seer": 1, "villager": 1})


# ── static opponents under load ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("style", ["compact", "full"])
async def test_a_game_with_a_static_model_that_answers_429_half_of_the_time_finishes(style):
    coin = random.Random(11)

    def static(call: Call) -> Answer | str:
        return failure(429, retry_after="0") if coin.random() < 0.5 else legal_reply(call)

    async with serve(legal_reply) as server, serve(static) as others:
        output = await with_static(server, others.url, prompt_style=style)
        sent = len(others.calls)
    assert output.reward
    assert output.log_metrics["static/retries"] > sent / 3
    assert output.log_metrics["static/calls"] == sent - output.log_metrics["static/retries"]
    assert output.log_metrics["static/refused"] == 0.0  # a busy endpoint works: its circuit stays closed
    assert output.log_metrics["static/fallback"] == 0.0


async def test_what_a_static_model_took_and_cost_is_in_the_metrics():
    def static(call: Call) -> Answer:
        message = {"role": "assistant", "content": legal_reply(call)}
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        return Answer(raw=json.dumps({"choices": [{"message": message}], "usage": usage}).encode())

    async with serve(legal_reply) as server, serve(static) as others:
        output = await with_static(server, others.url, external_prices={"input": 1.0, "output": 4.0})
        free = await with_static(server, others.url)
    calls = output.log_metrics["static/calls"]
    assert output.log_metrics["static/prompt_tokens"] == 100 * calls
    assert output.log_metrics["static/completion_tokens"] == 10 * calls
    assert output.log_metrics["static/cost"] == pytest.approx(calls * (100 * 1.0 + 10 * 4.0) / 1e6)
    assert "static/cost" not in free.log_metrics


async def test_a_rate_limit_delays_the_game_and_nothing_else(monkeypatch):
    monkeypatch.setattr(limits_module, "WINDOW_S", 0.2)
    async with serve(legal_reply) as server, serve(legal_reply) as others:
        output = await with_static(server, others.url, external_requests_per_min=20)
        plain = await with_static(server, others.url)
    assert output.log_metrics["static/rate_wait_s"] > 0
    assert output.metadata == plain.metadata
    assert plain.log_metrics["static/rate_wait_s"] == 0.0


async def test_a_circuit_opened_by_one_game_spares_the_endpoint_the_next_and_says_so():
    async with serve(legal_reply) as server, serve(replies(failure(500))) as others:
        options = {"external_budget_s": 0.3, "external_breaker_failures": 2}
        for _ in range(2):
            with pytest.raises(InfrastructureFault, match=r"static endpoint.*The circuit is open.*fault 500"):
                await with_static(server, others.url, **options)
        assert len(others.calls) == 2


@pytest.mark.parametrize(
    "bad",
    [
        {"external_requests_per_min": 0}, {"external_tokens_per_min": 1.5}, {"external_concurrency": True},
        {"external_breaker_failures": -1}, {"external_prices": {"input": 1}},
    ],
)  # fmt: skip
def test_bounds_and_prices_that_are_none_are_refused(bad):
    with pytest.raises(ConfigError):
        ExampleWerewolves(**bad)


async def test_when_everybody_dies_at_once_announcement_result_and_rewards_agree(monkeypatch):
    """One wolf and one witch are left, and kill each other: a good win, also in what the wolves get for it."""
    monkeypatch.setattr(workflow_module, "Game", LastTwo)

    def answer(call: Call) -> str:
        if "Who to kill" in call.prompt:
            return f"kill: Player{LastTwo.witch + 1}"
        return f"poison: Player{LastTwo.wolf + 1}" if "poison" in call.prompt else legal_reply(call)

    async with serve(answer) as server:
        output = await episode(server.url, task_of(WOLVES), live="both", trainable_targets=["werewolf", "witch"])
    assert output.metadata["winner"] == "good"
    assert output.reward == {f"Player{LastTwo.wolf + 1}": 0.0, f"Player{LastTwo.witch + 1}": 1.0}
    assert (output.log_metrics["win/werewolf"], output.log_metrics["win/witch"]) == (0.0, 1.0)
    assert LastTwo.announced == [(1, (LastTwo.witch, LastTwo.wolf)), "good"]


class LastTwo(Game):
    """A game in which all but one wolf and the witch are dead when it begins."""

    wolf = witch = -1
    announced: ClassVar[list[Any]] = []

    def __post_init__(self) -> None:
        super().__post_init__()
        LastTwo.wolf, LastTwo.witch = min(self.wolves), self.roles.index("witch")  # type: ignore[arg-type]
        self.alive = [i in (self.wolf, self.witch) for i in range(len(self.roles))]
        LastTwo.announced = []

    def _tell(self, kind: Any, **fields: Any) -> None:
        super()._tell(kind, **fields)
        if kind == "deaths":
            self.announced.append((self.day, fields["players"]))
        if kind == "game_over":
            self.announced.append(fields["text"])
