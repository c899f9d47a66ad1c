"""Claims about the model API, made with the real OpenAI SDK."""

import asyncio
from pathlib import Path

import httpx
import openai
import pytest

from tests.fakes.backbone import FakeBackbone


def texts(renderer, *pieces):
    """A script that answers with these texts in turn, then the stop token."""
    turn = iter(pieces)

    def script(ids, sampling, session):
        return [*renderer.tokenizer.encode(next(turn), add_special_tokens=False), sampling.stop_token_ids[0]]

    return script


@pytest.fixture
def rolling(serve):
    with serve() as swarm:
        swarm.start()
        yield swarm


def user(text):
    return [{"role": "user", "content": text}]


def test_chat_with_usage_and_logprobs(rolling, renderer):
    rolling.backbone.script = texts(renderer, "I vote")
    reply = rolling.say(rolling.begin(), logprobs=True, top_logprobs=2)
    assert reply.choices[0].message.content == "I vote"
    assert reply.choices[0].finish_reason == "stop"
    entries = reply.choices[0].logprobs.content
    assert "".join(e.token for e in entries) == "I vote"
    assert len(entries) == reply.usage.completion_tokens - 1
    assert entries[0].logprob == -0.5
    assert len(entries[0].top_logprobs) == 2
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def test_left_out_sampling_follows_the_job_and_given_is_honoured(rolling):
    begun = rolling.begin()
    rolling.say(begun)
    rolling.say(begun, temperature=0.3, seed=7, max_completion_tokens=5)
    left_out, given = rolling.backbone.samplings
    assert (left_out.temperature, left_out.max_tokens, left_out.seed) == (0.9, 64, None)
    assert (given.temperature, given.max_tokens, given.seed) == (0.3, 5, 7)
    calls = rolling.get(f"/episodes/{begun['episode_id']}").json()["calls"]
    assert [c["temperature"] for c in calls] == [0.9, 0.3]


def test_a_stop_string_ends_the_reply_before_it(rolling, renderer):
    rolling.backbone.script = texts(renderer, "one two END three")
    begun = rolling.begin()
    reply = rolling.say(begun, stop=["END", "zzz"])
    assert reply.choices[0].message.content == "one two "
    assert reply.choices[0].finish_reason == "stop"
    assert rolling.backbone.cancelled == 1
    call = rolling.get(f"/episodes/{begun['episode_id']}").json()["calls"][0]
    assert renderer.decode(call["reply_ids"]) == "one two END"
    assert len(call["logprobs"]) == len(call["reply_ids"])


def test_n_replies_are_all_recorded_as_branches(rolling):
    begun = rolling.begin()
    reply = rolling.say(begun, n=3, seed=10)
    assert [c.index for c in reply.choices] == [0, 1, 2]
    assert sorted(s.seed for s in rolling.backbone.samplings) == [10, 11, 12]
    assert len(rolling.get(f"/episodes/{begun['episode_id']}").json()["calls"]) == 3


def test_streaming_sends_text_as_it_comes_and_usage_at_the_end(rolling, renderer):
    rolling.backbone.script = texts(renderer, "grüß dich 🐺")
    begun = rolling.begin()
    with rolling.openai(begun) as client:
        chunks = list(
            client.chat.completions.create(
                model="policy", messages=user("hi"), stream=True, stream_options={"include_usage": True}
            )
        )
    pieces = [c.choices[0].delta.content for c in chunks if c.choices and c.choices[0].delta.content]
    assert "".join(pieces) == "grüß dich 🐺"
    assert len(pieces) > 3
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage.completion_tokens > 0
    assert len(rolling.get(f"/episodes/{begun['episode_id']}").json()["calls"]) == 1


def test_streaming_never_shows_any_part_of_a_stop_string(rolling, renderer):
    rolling.backbone.script = texts(renderer, "go on EN and END of it")
    with rolling.openai(rolling.begin()) as client:
        chunks = client.chat.completions.create(model="m", messages=user("hi"), stream=True, stop="END")
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "go on EN and "


def test_tool_calls_come_back_as_tool_calls(rolling, renderer):
    call = '<tool_call>\n{"name": "vote", "arguments": {"who": 3}}\n</tool_call>'
    rolling.backbone.script = texts(renderer, call, call)
    tools = [{"type": "function", "function": {"name": "vote", "parameters": {"type": "object"}}}]
    begun = rolling.begin()
    reply = rolling.say(begun, tools=tools)
    assert reply.choices[0].finish_reason == "tool_calls"
    assert reply.choices[0].message.tool_calls[0].function.name == "vote"
    with rolling.openai(begun) as client:
        chunks = list(client.chat.completions.create(model="m", messages=user("x"), tools=tools, stream=True))
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    assert chunks[-1].choices[0].delta.tool_calls[0].function.name == "vote"


def test_a_growing_history_extends_its_timeline(rolling, renderer):
    rolling.backbone.script = texts(renderer, "first", "second")
    begun = rolling.begin()
    with rolling.openai(begun, "anna", "seer") as client:
        first = client.chat.completions.create(model="m", messages=user("a"))
        history = [*user("a"), first.choices[0].message.model_dump(exclude_none=True), *user("b")]
        client.chat.completions.create(model="m", messages=history)
    calls = rolling.get(f"/episodes/{begun['episode_id']}").json()["calls"]
    assert [(c["agent"], c["tag"], c["branch"]) for c in calls] == [
        ("anna", "seer", "first"),
        ("anna", "seer", "continues"),
    ]
    assert rolling.backbone.prompts[1][: len(rolling.backbone.prompts[0])] == rolling.backbone.prompts[0]


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"top_p": 0.9}, "top_p"),
        ({"temperature": 0}, "temperature"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"frequency_penalty": 1}, "frequency_penalty"),
        ({"extra_body": {"top_k": 5}}, "top_k"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_what_the_trainer_cannot_reproduce_is_refused_by_name(rolling, given, param):
    with pytest.raises(openai.BadRequestError) as caught:
        rolling.say(rolling.begin(), **given)
    assert caught.value.param == param
    assert caught.value.code == "unsupported_for_training"
    assert rolling.backbone.prompts == []


def test_eval_episodes_may_sample_otherwise_and_default_to_val_kwargs(rolling):
    begun = rolling.begin(kind="eval")
    rolling.say(begun)
    rolling.say(begun, top_p=0.5, extra_body={"top_k": 3})
    default, given = rolling.backbone.samplings
    assert default.temperature == 0.0
    assert (given.top_p, given.top_k) == (0.5, 3)


def test_the_frozen_model_is_served_and_not_recorded(rolling):
    begun = rolling.begin()
    with rolling.openai(begun) as client:
        client.chat.completions.create(model="frozen", messages=user("x"))
    assert rolling.backbone.models == ["frozen"]
    assert rolling.get(f"/episodes/{begun['episode_id']}").json()["calls"] == []


def test_frozen_checkpoints_are_served_by_name_and_by_step(rolling):
    folder = Path(rolling.get("/status").json()["experiment_dir"])
    for step in ("step_000003", "step_000004"):
        (folder / "checkpoints" / step).mkdir(parents=True)
    (folder / "checkpoints" / "step_000003" / "config.json").write_text("{}")
    begun = rolling.begin()
    with rolling.openai(begun) as client:
        for name in ("frozen:3", "frozen:step_000003"):
            client.chat.completions.create(model=name, messages=user("x"))
        assert "frozen:step_000003" in {m.id for m in client.models.list()}
        for name in ("frozen:4", "frozen:5", "frozen:../../etc", "frozen:", "frozen:/etc"):
            with pytest.raises(openai.NotFoundError, match="frozen:step_000003"):
                client.chat.completions.create(model=name, messages=user("x"))
    assert rolling.backbone.models == [f"frozen:{(folder / 'checkpoints' / 'step_000003').resolve()}"] * 2
    assert rolling.get(f"/episodes/{begun['episode_id']}").json()["calls"] == []


def test_a_prompt_too_long_is_the_openai_error(rolling):
    with pytest.raises(openai.BadRequestError) as caught:
        rolling.say(rolling.begin(), "long " * 3000)
    assert caught.value.code == "context_length_exceeded"


def test_errors_are_the_sdks_exceptions(rolling):
    begun = rolling.begin()
    with pytest.raises(openai.BadRequestError):
        rolling.say(begun, n=0)
    forged = {**begun, "api_key": begun["api_key"][:-3] + "abc"}
    with pytest.raises(openai.AuthenticationError):
        rolling.say(forged)
    rolling.post(f"/episodes/{begun['episode_id']}/abort", {"request_id": "a", "reason": "test"})
    with pytest.raises(openai.APIStatusError) as gone:
        rolling.say(begun)
    assert gone.value.status_code == 410
    assert "aborted: test" in str(gone.value)


def test_models_are_listed_for_an_episode_key(rolling):
    with rolling.openai(rolling.begin()) as client:
        assert {"policy", "frozen"} <= {m.id for m in client.models.list()}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("DELETE", "/swarm/v1/status", 405),
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/swarm/v1/episodes", 422),
    ],
)
def test_every_error_has_one_shape(rolling, method, path, status):
    answer = rolling.http.request(method, path, json={"nonsense": 1})
    assert answer.status_code == status
    assert set(answer.json()["error"]) >= {"type", "message", "param", "code"}


def test_a_client_that_goes_away_stops_its_generation_and_trains_nothing(rolling):
    hold = rolling.call(asyncio.Event)
    rolling.backbone.hold = hold
    begun = rolling.begin()
    with pytest.raises(openai.APITimeoutError), rolling.openai(begun) as client:
        client.with_options(timeout=0.3).chat.completions.create(model="m", messages=user("x"))
    rolling.call(lambda: asyncio.wait_for(rolling.backbone.cancelled_event.wait(), 10))
    rolling.backbone.hold = None
    assert rolling.get(f"/episodes/{begun['episode_id']}").json()["calls"] == []
    answer = rolling.end(begun["episode_id"], "t").json()
    assert answer["fate"] == "no_calls"


def test_a_stream_cut_by_its_client_is_not_recorded(rolling):
    begun = rolling.begin()
    rolling.backbone.script = lambda ids, sampling, session: [80] * 64
    rolling.backbone.latency_s = 0.0
    body = {"messages": user("x"), "stream": True}
    hold = rolling.call(asyncio.Event)

    class Slow(FakeBackbone):
        pass

    original = rolling.backbone.generate

    async def slow(ids, sampling, *, session, model="policy", stream=False):
        sent = 0
        async for chunk in original(ids, sampling, session=session, model=model, stream=stream):
            yield chunk
            sent += 1
            if sent == 3:
                await hold.wait()

    rolling.backbone.generate = slow
    headers = {"authorization": f"Bearer {begun['api_key']}"}
    with (
        httpx.Client(base_url=rolling.url) as http,
        http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer,
    ):
        next(answer.iter_raw())
    rolling.call(lambda: asyncio.wait_for(rolling.backbone.cancelled_event.wait(), 10))
    assert rolling.get(f"/episodes/{begun['episode_id']}").json()["calls"] == []


def test_a_call_waits_while_the_policy_is_updated(rolling):
    release = rolling.call(asyncio.Event)
    rolling.backbone.hold_train = release
    begun = rolling.begin()
    rolling.play_batch()
    rolling.wait("UPDATING")
    import concurrent.futures

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(rolling.say, begun)
        rolling.call(
            lambda: rolling.app.engine.changed.wait_until(lambda: rolling.app.engine.telemetry.in_flight == 1, 0.2)
        )
        assert not waiting.done()
        rolling.loop.call_soon_threadsafe(release.set)
        waiting.result(20)
    assert rolling.get(f"/episodes/{begun['episode_id']}").json()["calls"][0]["versions"][0] == 1


def test_malformed_bodies_are_400_not_500(rolling):
    begun = rolling.begin()
    headers = {"authorization": f"Bearer {begun['api_key']}"}
    for raw in (
        b"",
        b"{",
        b"[]",
        b'{"messages": 3}',
        b'{"messages": [{"role": "user", "content": 5}]}',
        b'{"messages": [{"role": "assistant", "tool_calls": [1]}]}',
        b"\xff\xfe",
    ):
        answer = rolling.http.post("/v1/chat/completions", content=raw, headers=headers)
        assert answer.status_code == 400, (raw, answer.text)
