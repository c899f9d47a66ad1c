"""Claims about random conversations: what is trained is what was sampled, and prompts are what the template writes.

A few hundred examples by default; ``AJET_FIDELITY_EXAMPLES=10000`` is the long run.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from ajet.pool.records import pack_call, unpack_call
from ajet.trajectory import Branch, Call, ChatRenderer, EpisodeTrajectory, build_rows
from ajet.trajectory.template import arguments_value, content_text
from tests.fakes import templates
from tests.fakes.chat_model import QWEN_TEMPLATE, save_tokenizer
from tests.fakes.conversations import Mind, Step, requests, sample, steps

EXAMPLES = int(os.environ.get("AJET_FIDELITY_EXAMPLES", "300"))
WIDE = (10**6, 10**6, 10**6)
FAMILIES = {"plain": QWEN_TEMPLATE, **templates.FAMILIES}


@pytest.fixture(scope="module", params=list(FAMILIES))
def model(request, tmp_path_factory) -> ChatRenderer:
    directory = tmp_path_factory.mktemp(request.param)
    return ChatRenderer(save_tokenizer(directory, FAMILIES[request.param], templates.ADDED))


def as_the_template_wants(messages):
    """What a careful user would pass to ``apply_chat_template``."""
    found = []
    for message in messages:
        plain = {k: v for k, v in message.items() if v is not None}
        plain["content"] = content_text(message.get("content"))
        if plain.get("tool_calls"):
            plain["tool_calls"] = [
                {**c, "function": {**c["function"], "arguments": arguments_value(c["function"]["arguments"])}}
                for c in plain["tool_calls"]
            ]
        found.append(plain)
    return found


class Episode:
    """Plays steps against a trajectory, as the server does, and remembers what the backbone saw and returned."""

    def __init__(self, renderer: ChatRenderer) -> None:
        self.renderer = renderer
        self.trajectory = EpisodeTrajectory(renderer)
        self.minds: dict[str, Mind] = {}
        self.returned: dict[str, tuple[list[int], list[int], list[float], list[int]]] = {}
        self.respelled: set[str] = set()

    def play(self, step: Step) -> None:
        mind = self.minds.setdefault(step.agent, Mind())
        wanted = requests(mind, step)
        tools = mind.tools
        prepared = [self.trajectory.prepare(step.agent, step.agent, messages, tools) for messages in wanted]
        for k, (messages, ready) in enumerate(zip(wanted, prepared, strict=True)):
            self.check_prompt(messages, tools, ready)
            for choice in range(step.choices):
                self.reply(replace(step, seed=step.seed + k + choice), mind, messages, tools, ready, choice)
        mind.sent = wanted[-1]

    def check_prompt(self, messages, tools, ready) -> None:
        written = self.renderer.tokenizer.apply_chat_template(
            as_the_template_wants(messages), tools=tools or None, add_generation_prompt=True, tokenize=False
        )
        text = self.renderer.tokenizer.decode(ready.ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if ready.parent is None:
            assert text == written
            return
        known = self.trajectory.full_ids(ready.parent)
        assert ready.ids == known + ready.delta
        if ready.respelled or ready.parent in self.respelled:
            end = self.renderer.tokenizer.decode(ready.delta, skip_special_tokens=False)
            assert written.endswith(end)
            if not tools and "think" not in text:
                assert "".join(text.split()) == "".join(written.split())
        else:
            assert text == written

    def reply(self, step: Step, mind: Mind, messages, tools, ready, choice: int) -> None:
        ids = sample(self.renderer, step)
        n = len(self.returned)
        logprobs = [-(n + 1) - i / 1024 for i in range(len(ids))]
        versions = [step.version + (i > 3) for i in range(len(ids))]
        as_stream = step.streamed and not tools
        message = self.streamed(ids) if as_stream else self.renderer.parse(ids, tools).message
        call = self.trajectory.record(
            ready, call_id=f"c1-{n}", reply_ids=ids, logprobs=logprobs, versions=versions, temperature=0.5 + n / 64,
            finish_reason="stop" if ids[-1] in self.renderer.stop_token_ids else "length", message=message,
            created=float(n), choice=choice,
        )  # fmt: skip
        self.returned[call.call_id] = (ready.ids, ids, logprobs, versions)
        if ready.respelled or ready.parent in self.respelled:
            self.respelled.add(call.call_id)
        mind.histories.append([*messages, message])

    def streamed(self, ids):
        """The message a client puts together from a stream, which must be the one on record."""
        decoder, splitter = self.renderer.stream_decoder(), self.renderer.reply_splitter()
        pieces = [piece for i in ids for piece in splitter.push(decoder.push([i]))]
        pieces += [*splitter.push(decoder.flush()), *splitter.flush()]
        message = {"role": "assistant", "content": "".join(text for name, text in pieces if name == "content")}
        thought = "".join(text for name, text in pieces if name == "reasoning_content")
        if thought:
            message["reasoning_content"] = thought
        assert message == self.renderer.message_of(self.renderer.decode(ids))
        return message


def trained_tokens(rows, agent):
    return Counter(
        (int(i), float(lp), int(v), float(temperature))
        for row in rows
        if row.agent == agent
        for s in row.samples
        for i, lp, v, temperature, t in zip(
            s.ids_T, s.logprobs_T, s.versions_T, s.temperature_T, s.trained_T, strict=True
        )
        if t
    )


@given(steps())
@settings(max_examples=EXAMPLES // len(FAMILIES) + 1, deadline=None, suppress_health_check=list(HealthCheck))
def test_trained_is_what_was_sampled_and_prompts_are_what_the_template_writes(model, plan):
    episode = Episode(model)
    for step in plan:
        episode.play(step)
    calls = list(episode.trajectory.calls.values())
    # Ids, log-probs and versions are those the backbone returned; the context is what it saw.
    for call in calls:
        prompt, ids, logprobs, versions = episode.returned[call.call_id]
        assert (call.reply_ids, call.logprobs, call.versions) == (ids, logprobs, versions)
        assert episode.trajectory.full_ids(call.call_id) == prompt + ids
    # The journal gives the same trajectory back.
    again = EpisodeTrajectory(model)
    for call in calls:
        kept = unpack_call(pack_call(call))
        assert (kept.reply_ids, kept.branch, kept.fork, kept.parent) == (
            call.reply_ids, call.branch, call.fork, call.parent,
        )  # fmt: skip
        again.restore(kept)
    assert {c: again.full_ids(c) for c in again.calls} == {c: episode.trajectory.full_ids(c) for c in again.calls}
    # Every sampled token is trained once, on a path the backbone saw.
    rows, dropped = build_rows("e", "t", calls, 1.0, limits=WIDE)
    assert not dropped
    for agent in episode.minds:
        want = Counter(
            (i, float(np.float32(lp)), v, float(np.float32(call.temperature)))
            for call in calls
            if call.agent == agent
            for i, lp, v in zip(call.reply_ids, call.logprobs, call.versions, strict=True)
        )
        assert trained_tokens(rows, agent) == want
    paths = {tuple(prompt + ids) for prompt, ids, _, _ in episode.returned.values()}
    assert all(tuple(s.ids_T.tolist()) in paths for row in rows for s in row.samples)
    # Every branch has a cause, and a place where it left the agent's last request.
    for call in calls:
        assert Branch(call.branch)
        if call.branch in (
            "history_edited",
            "messages_removed",
            "system_changed",
            "tools_changed",
            "template_unstable",
        ):
            assert call.fork is not None
            assert call.fork["had"] != call.fork["has"], call.fork
    assert isinstance(calls[0], Call)


@given(steps(6))
@settings(max_examples=max(20, EXAMPLES // 20), deadline=None, suppress_health_check=list(HealthCheck))
def test_a_restored_episode_goes_on_as_if_nothing_had_happened(model, plan):
    """Whatever was answered before a restart may be extended after it."""
    episode = Episode(model)
    for step in plan:
        episode.play(step)
    again = EpisodeTrajectory(model)
    for call in episode.trajectory.calls.values():
        again.restore(unpack_call(pack_call(call)))
    for agent, mind in episode.minds.items():
        for history in mind.histories:
            messages = [*history, {"role": "user", "content": "and now?"}]
            before = episode.trajectory.prepare(agent, agent, messages, mind.tools)
            after = again.prepare(agent, agent, messages, mind.tools)
            assert (after.ids, after.parent, after.delta) == (before.ids, before.parent, before.delta)
