"""Claims about the passive client, through the real ``openai`` SDK and a real server over a fake backbone."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import openai
import pytest

from ajet.passive import PassiveClient, PlainEndpoint
from ajet.passive.settings import Bounds
from tests.faults.processes import free_port, until
from tests.integration.passive.conftest import standing_in
from tests.integration.server.conftest import DEADLINE_S, job

TOOLS: Any = [{"type": "function", "function": {"name": "vote", "parameters": {"type": "object"}}}]


def pooled(swarm) -> int:
    return swarm.status()["pool"]["episodes_finished"]


def settled(swarm, **wanted: int) -> dict[str, int]:
    """Drops, as soon as they are what is wanted."""
    until(
        lambda: swarm.status()["drops"] == wanted and not swarm.status()["leases"]["open_train"],
        DEADLINE_S,
        str(wanted),
    )
    return swarm.status()["drops"]


def test_one_request_is_a_group_and_the_best_answer_is_returned(swarm, stand_in, judge):
    reply = stand_in.say("who?")
    (asked, answers), = judge.seen  # fmt: skip
    assert asked.question == "who?"
    assert [len(a.text) for a in answers] in ([1, 2], [2, 1])
    assert reply.choices[0].message.content == "dd"
    assert (reply.model, reply.choices[0].finish_reason, reply.usage.completion_tokens) == ("gpt-x", "stop", 3)
    until(lambda: pooled(swarm) == 2, what="both ends")
    (group,) = swarm.get("/pool").json()["groups"]
    assert (group["finished"], group["complete"], group["reward_mean"]) == (2, True, 1.5)
    assert stand_in.stats() == {"trained": 1}


def test_requests_train_the_model_step_by_step(swarm, stand_in):
    for _ in range(2):
        stand_in.say()
    assert swarm.wait_step(1)["policy_version"] == 1
    for _ in range(2):
        stand_in.say()
    assert swarm.wait_step(2)["policy_version"] == 2


def test_a_finished_training_is_served_on_untrained(serve, judge):
    with serve() as swarm:
        swarm.start(job(trainer_common__total_training_steps=1))
        with standing_in(PassiveClient(swarm.url, judge, verbose=False)) as stand_in:
            for _ in range(2):
                stand_in.say()
            swarm.wait("FINISHED")
            assert stand_in.say().choices[0].message.content
            until(lambda: stand_in.stats().get("untrained/training_finished"), what="the count")


def test_a_stream_is_the_best_answer_in_chunks(swarm, stand_in):
    with stand_in.sdk() as client:
        chunks = list(
            client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "x"}], stream=True,
                stream_options={"include_usage": True},
            )
        )  # fmt: skip
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "dd"
    assert [c.choices[0].finish_reason for c in chunks if c.choices] == [None, "stop"]
    assert chunks[-1].usage.completion_tokens == 3
    until(lambda: pooled(swarm) == 2, what="both ends")


@pytest.mark.parametrize("stream", [False, True])
def test_tool_calls_pass_through(swarm, stand_in, renderer, stream):
    call = '<tool_call>\n{"name": "vote", "arguments": {"who": 3}}\n</tool_call>'
    ids = renderer.tokenizer.encode(call, add_special_tokens=False)
    swarm.backbone.script = lambda _ids, sampling, _session: [*ids, *sampling.stop_token_ids[:1]]
    if stream:
        with stand_in.sdk() as client:
            chunks = list(
                client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "x"}], tools=TOOLS, stream=True
                )
            )
        (called,) = chunks[0].choices[0].delta.tool_calls
        assert chunks[-1].choices[0].finish_reason == "tool_calls"
    else:
        choice = stand_in.say(tools=TOOLS).choices[0]
        (called,) = choice.message.tool_calls
        assert choice.finish_reason == "tool_calls"
    assert (called.function.name, json.loads(called.function.arguments)) == ("vote", {"who": 3})


def test_n_answers_are_the_best_n(stand_in):
    assert [choice.message.content for choice in stand_in.say(n=2).choices] == ["dd", "d"]
    with pytest.raises(openai.BadRequestError, match="num_repeat"):
        stand_in.say(n=3)


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        (lambda _answers: 1 / 0, "judge_failed"),
        (lambda _answers: None, "judge_undecided"),
        (lambda _answers: [1.0], "judge_wrong"),
        (lambda _answers: [float("nan")] * 2, "judge_wrong"),
        (lambda _answers: "good", "judge_wrong"),
    ],
)
def test_a_judge_that_fails_trains_nothing_and_the_application_is_answered(swarm, stand_in, judge, says, reason):
    judge.says = says
    assert stand_in.say().choices[0].message.content in ("d", "dd")
    settled(swarm, aborted=2)
    assert stand_in.stats() == {"untrained": 1, f"untrained/{reason}": 1}
    assert pooled(swarm) == 0


def test_a_judge_that_takes_too_long_is_not_waited_for(swarm):
    async def slow(_asked, _answers):
        await asyncio.sleep(3600)

    with standing_in(PassiveClient(swarm.url, slow, bounds=Bounds(judge_s=0.1), verbose=False)) as stand_in:
        assert stand_in.say().choices[0].message.content in ("d", "dd")
        assert stand_in.stats()["untrained/judge_timeout"] == 1
        settled(swarm, aborted=2)


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"top_p": 0.5}])
def test_what_cannot_be_trained_is_served_as_asked_by_an_eval_episode(swarm, stand_in, sampling):
    assert stand_in.say(**sampling).choices[0].message.content
    (name, value), = sampling.items()  # fmt: skip
    assert getattr(swarm.backbone.samplings[-1], name) == value
    assert stand_in.stats() == {"untrained": 1, f"untrained/{name}": 1}
    settled(swarm, aborted=2)
    assert pooled(swarm) == 0


def test_a_field_that_is_to_be_ignored_is_left_out_counted_and_the_request_trained(swarm, judge):
    with standing_in(PassiveClient(swarm.url, judge, ignore=["temperature"], verbose=False)) as stand_in:
        stand_in.say(temperature=0)
        assert stand_in.stats() == {"ignored/temperature": 1, "trained": 1}
        assert swarm.backbone.samplings[-1].temperature > 0


def test_a_request_at_fault_gets_the_servers_own_error(swarm, stand_in):
    with pytest.raises(openai.BadRequestError) as caught:
        stand_in.say("word " * 5000)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="messages"), stand_in.sdk() as client:
        client.chat.completions.create(model="m", messages=[])
    assert stand_in.post(messages="x").status_code == 400
    assert stand_in.http.post("/v1/chat/completions", content=b"{").status_code == 400
    assert stand_in.http.post("/v1/embeddings", json={}).json()["error"]["code"] == "not_found"
    settled(swarm, aborted=2)


def test_the_application_that_hangs_up_leaves_no_open_episode(swarm, stand_in):
    swarm.backbone.hold = swarm.call(_never)
    body = {"messages": [{"role": "user", "content": "x"}]}
    for stream in (False, True):
        with pytest.raises(httpx.TimeoutException):
            httpx.post(f"{stand_in.url}/v1/chat/completions", json={**body, "stream": stream}, timeout=0.5)
    settled(swarm, aborted=4)
    until(lambda: stand_in.stats().get("left") == 2, what="the count")


async def _never() -> asyncio.Event:
    return asyncio.Event()


# ── where the swarm server cannot ────────────────────────────────────────────────────────────────────────────────────


class _Plain(BaseHTTPRequestHandler):
    """A plain endpoint that answers, streams, or refuses."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Quiet."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append((asked, self.headers.get("authorization")))  # type: ignore[attr-defined]
        if self.server.refuse:  # type: ignore[attr-defined]
            return self._send(429, "application/json", b'{"error": {"message": "quota", "code": "insufficient_quota"}}')
        chunk = {"id": "p", "object": "chat.completion.chunk", "created": 1, "model": asked["model"]}
        if asked.get("stream"):
            said = {**chunk, "choices": [{"index": 0, "delta": {"role": "assistant", "content": "plain"}}]}
            return self._send(200, "text/event-stream", f"data: {json.dumps(said)}\n\ndata: [DONE]\n\n".encode())
        message = {"role": "assistant", "content": "plain"}
        whole = {
            **chunk,
            "object": "chat.completion",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        }
        return self._send(200, "application/json", json.dumps(whole).encode())

    def _send(self, status: int, media: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", media)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def plain() -> Iterator[Any]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Plain)
    server.asked, server.refuse = [], False  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    server.endpoint = PlainEndpoint(f"http://127.0.0.1:{server.server_address[1]}/v1", "small", "secret")  # type: ignore[attr-defined]
    yield server
    server.shutdown()
    server.server_close()


def test_without_a_server_the_plain_endpoint_answers_and_streams(plain, judge):
    passive = PassiveClient(f"http://127.0.0.1:{free_port()}", judge, fallback=plain.endpoint, verbose=False)
    with standing_in(passive) as stand_in:
        response = stand_in.post(model="gpt-x", messages=[{"role": "user", "content": "x"}])
        assert (response.headers["x-ajet-served"], response.status_code) == ("fallback", 200)
        assert stand_in.say().choices[0].message.content == "plain"
        with stand_in.sdk() as client:
            said = [{"role": "user", "content": "x"}]
            chunks = list(client.chat.completions.create(model="m", messages=said, stream=True))
        assert chunks[0].choices[0].delta.content == "plain"
        assert plain.asked[0][0]["model"] == "small"
        assert plain.asked[0][1] == "Bearer secret"
        plain.refuse = True
        with pytest.raises(openai.RateLimitError, match="quota"):
            stand_in.say()
        assert stand_in.stats() == {"fallback": 4}
        assert not judge.seen


def test_without_a_server_or_another_endpoint_a_503_says_why(judge):
    port = free_port()
    with standing_in(PassiveClient(f"http://127.0.0.1:{port}", judge, verbose=False)) as stand_in:
        for stream in (False, True):
            with pytest.raises(openai.InternalServerError) as caught:
                stand_in.say(stream=stream)
            assert caught.value.status_code == 503
            assert f"127.0.0.1:{port}" in str(caught.value)
            assert "No fallback endpoint is configured" in str(caught.value)
        assert stand_in.stats() == {"unserved": 2}


def test_an_engine_that_is_offline_or_failed_is_named(serve, judge):
    with (
        serve() as swarm,
        standing_in(PassiveClient(swarm.url, judge, verbose=False)) as stand_in,
        pytest.raises(openai.InternalServerError, match="OFFLINE"),
    ):
        stand_in.say()


def test_a_server_that_is_full_is_not_waited_for_without_end(swarm, judge, plain):
    swarm.post("/engine/stop")
    swarm.wait("OFFLINE")
    swarm.start(job(rollout__max_env_worker=3))
    for _ in range(2):
        swarm.begin()  # somebody else's
    bounds = Bounds(begin_s=0.3)
    with standing_in(
        PassiveClient(swarm.url, judge, fallback=plain.endpoint, bounds=bounds, verbose=False)
    ) as stand_in:
        assert stand_in.say().choices[0].message.content == "plain"
        until(lambda: swarm.status()["leases"]["open_train"] == 2, what="the half group's end")
        assert pooled(swarm) == 0


def test_a_key_that_the_swarm_server_does_not_know_is_said(serve, judge):
    with serve(admin_key="admin-key") as swarm:
        swarm.http.put("/swarm/v1/job", json={"job": job()}).raise_for_status()
        swarm.post("/engine/start").raise_for_status()
        passive = PassiveClient(swarm.url, judge, api_key="wrong", verbose=False)
        with standing_in(passive) as stand_in, pytest.raises(openai.InternalServerError, match="key"):
            stand_in.say()


# ── who may, and how many ────────────────────────────────────────────────────────────────────────────────────────────


def test_only_the_key_opens_the_endpoint(swarm, judge):
    with standing_in(PassiveClient(swarm.url, judge, verbose=False), key="open-sesame") as stand_in:
        with pytest.raises(openai.AuthenticationError):
            stand_in.say(key="any")
        assert stand_in.say(key="open-sesame").choices
        assert httpx.get(f"{stand_in.url}/passive/stats").status_code == 401
        assert httpx.get(f"{stand_in.url}/v1/models").status_code == 401
        assert httpx.get(f"{stand_in.url}/healthz").json() == {"ok": True}


def test_without_a_key_no_web_page_gets_in(stand_in):
    for headers in ({"origin": "https://evil.example"}, {"host": "evil.example"}):
        response = stand_in.http.post("/v1/chat/completions", json={}, headers=headers)
        assert response.status_code == 403, headers


def test_the_served_model_is_listed(stand_in):
    with stand_in.sdk() as client:
        assert len(list(client.models.list())) == 1


def test_more_requests_than_may_wait_are_told_to_come_again(swarm, judge):
    swarm.backbone.hold = hold = swarm.call(_never)
    bounds = Bounds(max_requests=2, max_waiting=1)
    with standing_in(PassiveClient(swarm.url, judge, bounds=bounds, verbose=False)) as stand_in:
        with ThreadPoolExecutor(3) as pool:
            running = [pool.submit(stand_in.say) for _ in range(3)]
            until(lambda: stand_in.passive._waiting == 1, what="the third waits")
            with pytest.raises(openai.RateLimitError):
                stand_in.say()
            assert swarm.status()["leases"]["open_train"] == 4
            swarm.loop.call_soon_threadsafe(hold.set)
            assert all(one.result(DEADLINE_S).choices for one in running)
        assert stand_in.stats() == {"refused/rate_limited": 1, "trained": 3}


def test_requests_that_compete_for_the_last_episodes_never_hold_half_a_group_each(swarm, judge):
    swarm.post("/engine/stop")
    swarm.wait("OFFLINE")
    swarm.start(job(rollout__max_env_worker=2, trainer_common__total_training_steps=100))
    with standing_in(PassiveClient(swarm.url, judge, bounds=Bounds(begin_s=DEADLINE_S), verbose=False)) as stand_in:
        with ThreadPoolExecutor(8) as pool:
            assert all(reply.choices for reply in pool.map(lambda _: stand_in.say(), range(16)))
        assert stand_in.stats() == {"trained": 16}


def test_the_port_that_is_taken_and_the_address_without_a_key_are_refused(judge, monkeypatch):
    from ajet.passive.command import serve as serve_passive
    from ajet.schema.errors import ConfigError

    monkeypatch.delenv("AJET_PASSIVE_KEY", raising=False)
    client = PassiveClient("http://127.0.0.1:1", judge, verbose=False)
    with pytest.raises(ConfigError, match="AJET_PASSIVE_KEY"):
        serve_passive(client, "0.0.0.0", 0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="Choose another --port"):
            serve_passive(client, "127.0.0.1", taken.getsockname()[1])
