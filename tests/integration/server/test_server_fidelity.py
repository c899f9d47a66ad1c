"""Claims about tokens on their whole way: over HTTP, through the journal, into the batch that is trained."""

from __future__ import annotations

import logging
import os
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import openai
import pytest
from hypothesis import HealthCheck, given, settings

from ajet.server.chat import count_malformed
from ajet.server.telemetry import Telemetry
from ajet.trajectory import ChatRenderer
from tests.fakes import templates
from tests.fakes.backbone import FakeBackbone
from tests.fakes.chat_model import save_tokenizer
from tests.fakes.conversations import Mind, requests, sample, steps
from tests.integration.server.conftest import job, serving

EXAMPLES = int(os.environ.get("AJET_FIDELITY_EXAMPLES", "300")) // 20
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


class Recorder(FakeBackbone):
    """Remembers what it was asked and what it returned, with log-probs that are all different."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.returned: list[tuple[list[int], list[int], list[float]]] = []

    async def generate(self, ids, sampling, **options: Any):
        reply: tuple[list[int], list[float]] = ([], [])
        serial = len(self.returned)
        self.returned.append((ids, *reply))
        async for chunk in super().generate(ids, sampling, **options):
            start = len(reply[0])
            chunk.logprobs[:] = [-(serial % 97) - (start + i) / 1024 for i in range(len(chunk.ids))]
            reply[0].extend(chunk.ids)
            reply[1].extend(chunk.logprobs)
            yield chunk


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> ChatRenderer:
    """A model whose template keeps reasoning within a turn of tools and drops it later."""
    return ChatRenderer(save_tokenizer(tmp_path_factory.mktemp("thinking"), templates.THINKING, templates.ADDED))


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory, thinking: ChatRenderer):
    tree = job(
        rollout__max_model_len=100_000,
        data__train_batch_size=1,
        data__max_prompt_length=50_000,
        data__max_response_length=50_000,
        rollout__max_response_length_in_one_turn=400,
        trainer_common__total_training_steps=100_000,
        trainer_common__save_freq=100_000,
    )
    with serving(tmp_path_factory.mktemp("exp"), thinking, make=Recorder) as swarm:
        swarm.start(tree)
        yield swarm


def ask(swarm, begun, step, messages, tools) -> list[dict[str, Any]]:
    """One request with the OpenAI SDK; the messages as a client puts them together."""
    given = {"tools": tools} if tools else {}
    with swarm.openai(begun, step.agent) as client:
        if not step.streamed:
            answer = client.chat.completions.create(model="m", messages=messages, n=step.choices, **given)
            return [choice.message.model_dump(exclude_none=True) for choice in answer.choices]
        found: list[dict[str, Any]] = [{"role": "assistant", "content": ""} for _ in range(step.choices)]
        for chunk in client.chat.completions.create(model="m", messages=messages, n=step.choices, stream=True, **given):
            for choice in chunk.choices:
                message, delta = found[choice.index], choice.delta.model_dump(exclude_none=True)
                for part in ("content", "reasoning_content"):
                    if delta.get(part):
                        message[part] = message.get(part, "") + delta[part]
                if delta.get("tool_calls"):
                    message["tool_calls"] = [
                        {k: v for k, v in call.items() if k != "index"} for call in delta["tool_calls"]
                    ]
        return found


@given(steps(6))
@settings(max_examples=max(8, EXAMPLES), deadline=None, suppress_health_check=list(HealthCheck))
def test_the_batch_holds_every_sampled_token_once_as_the_backbone_returned_it(recording, thinking, plan):
    backbone: Any = recording.backbone
    backbone.returned.clear()
    begun = recording.begin()
    minds: dict[str, Mind] = {}
    for step in plan:
        mind = minds.setdefault(step.agent, Mind())
        backbone.script = lambda _ids, _sampling, _session, step=step: sample(thinking, step)
        for messages in requests(mind, step):
            replies = ask(recording, begun, step, messages, mind.tools)
            mind.histories += [[*messages, reply] for reply in replies]
            mind.sent = messages
    calls = recording.get(f"/episodes/{begun['episode_id']}").json()["calls"]
    assert sorted((c["reply_ids"], c["logprobs"]) for c in calls) == sorted((r, lp) for _, r, lp in backbone.returned)
    step_before = recording.status()["step"]
    returned = list(backbone.returned)
    task = f"task-{begun['episode_id']}"
    assert recording.end(begun["episode_id"], task).status_code == 200
    backbone.script = lambda _ids, sampling, _session: [80, sampling.stop_token_ids[0]]
    recording.play(task, 0.0)
    recording.wait_step(step_before + 1)
    rows = [row for row in backbone.trained[-1].rows if row.episode == begun["episode_id"]]
    trained = Counter(
        (int(i), float(lp))
        for row in rows
        for s in row.samples
        for i, lp, t in zip(s.ids_T, s.logprobs_T, s.trained_T, strict=True)
        if t
    )
    assert trained == Counter(
        (i, float(np.float32(lp))) for _, ids, lps in returned for i, lp in zip(ids, lps, strict=True)
    )
    seen = {tuple(prompt + ids) for prompt, ids, _ in returned}
    assert all(tuple(s.ids_T.tolist()) in seen for row in rows for s in row.samples)


def scripted(renderer, *texts):
    turn = iter(texts)
    return lambda _ids, sampling, _session: [
        *renderer.tokenizer.encode(next(turn), add_special_tokens=False),
        sampling.stop_token_ids[0],
    ]


@pytest.mark.parametrize("streamed", [False, True])
def test_reasoning_comes_apart_from_content_whole_or_streamed(recording, thinking, streamed):
    recording.backbone.script = scripted(thinking, "<think>\nwho lies?\n</think>\n\nPlayer 3.", "ok")
    begun = recording.begin(kind="eval")
    ask_messages = [{"role": "user", "content": "vote"}]
    with recording.openai(begun) as client:
        if streamed:
            deltas = [
                c.choices[0].delta
                for c in client.chat.completions.create(model="m", messages=ask_messages, stream=True)
            ]
            thought = "".join(getattr(d, "reasoning_content", None) or "" for d in deltas)
            text = "".join(d.content or "" for d in deltas)
        else:
            message = client.chat.completions.create(model="m", messages=ask_messages).choices[0].message
            thought, text = message.reasoning_content, message.content
    assert (thought, text) == ("\nwho lies?\n", "\n\nPlayer 3.")


def malformed(swarm) -> float:
    lines = [x for x in swarm.http.get("/metrics").text.splitlines() if 'reason="malformed_tool_calls"' in x]
    return float(lines[0].split()[-1]) if lines else 0.0


def test_a_broken_tool_call_is_content_and_counted_and_one_log_line(recording, thinking, caplog):
    before = malformed(recording)
    broken = '<tool_call>{"name": "look", "arguments": ' + "[" * 200
    recording.backbone.script = scripted(thinking, *[broken] * 5)
    begun = recording.begin(kind="eval")
    with caplog.at_level(logging.WARNING, logger="ajet.chat"):
        for _ in range(5):
            reply = recording.say(begun, tools=TOOLS)
            assert reply.choices[0].message.content == broken
            assert reply.choices[0].finish_reason == "stop"
            assert reply.choices[0].message.tool_calls is None
    assert malformed(recording) == before + 5
    assert len([r for r in caplog.records if "tool call that cannot be read" in r.message]) <= 1


def test_every_branch_is_counted_by_its_cause_and_shown_with_its_place(recording, thinking):
    recording.backbone.script = scripted(thinking, *["<think>hm</think>yes"] * 9)
    begun = recording.begin(kind="eval")
    with recording.openai(begun) as client:
        history: list[Any] = [{"role": "system", "content": "It is day 1."}, {"role": "user", "content": "hi"}]
        first = client.chat.completions.create(model="m", messages=history).choices[0].message
        history += [{"role": "assistant", "content": first.content}, {"role": "user", "content": "so?"}]
        client.chat.completions.create(model="m", messages=history)
        history[0] = {"role": "system", "content": "It is day 2."}
        client.chat.completions.create(model="m", messages=history)
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": [{"type": "image_url"}]}])
    calls = recording.get(f"/episodes/{begun['episode_id']}").json()["calls"]
    assert [call["branch"] for call in calls] == ["first", "reasoning_dropped", "system_changed"]
    assert calls[1]["fork"] == {"message": 2, "part": "reasoning_content", "had": "hm", "has": ""}
    assert (calls[2]["fork"]["message"], calls[2]["fork"]["had"], calls[2]["fork"]["has"]) == (
        0, "It is day 1.", "It is day 2.",
    )  # fmt: skip
    text = recording.http.get("/metrics").text
    assert 'ajet_timelines_total{reason="system_changed"}' in text


def test_a_model_that_makes_nothing_but_broken_calls_does_not_flood_the_log(caplog):
    engine = SimpleNamespace(telemetry=Telemetry())
    with caplog.at_level(logging.WARNING, logger="ajet.chat"):
        for _ in range(2500):
            count_malformed(engine, SimpleNamespace(id="e1"), "wolf")  # type: ignore[arg-type]
    assert engine.telemetry.counts["malformed_tool_calls"] == 2500
    assert len(caplog.records) == 4
