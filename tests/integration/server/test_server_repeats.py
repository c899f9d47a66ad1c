"""Claims about chat calls that are asked twice: one request, one sampled answer, restarts included."""

import asyncio
import concurrent.futures

import httpx
import openai
import pytest

from ajet.schema.errors import DiskRefused
from tests.integration.server.conftest import DEADLINE_S


def letters(ids, sampling, session):
    """A different reply each time."""
    letters.count += 1
    return [65 + letters.count % 26, *sampling.stop_token_ids[:1]]


letters.count = 0


@pytest.fixture
def rolling(serve):
    with serve() as swarm:
        swarm.start()
        swarm.backbone.script = letters
        yield swarm


def ask(swarm, begun, text="hello", **headers):
    """One raw chat request; the answer's JSON."""
    answer = httpx.post(
        f"{swarm.url}/v1/chat/completions",
        json={"model": "policy", "messages": [{"role": "user", "content": text}]},
        headers={"authorization": f"Bearer {begun['api_key']}", **{k.replace("_", "-"): v for k, v in headers.items()}},
        timeout=DEADLINE_S,
    )
    return answer.json()


def calls(swarm, begun):
    return swarm.get(f"/episodes/{begun['episode_id']}").json()["calls"]


def test_equal_requests_without_a_mark_are_two_calls(rolling):
    begun = rolling.begin()
    assert ask(rolling, begun)["id"] != ask(rolling, begun)["id"]
    assert len(calls(rolling, begun)) == 2


def test_the_same_idempotency_key_gets_the_same_answer(rolling):
    begun = rolling.begin()
    first = ask(rolling, begun, Idempotency_Key="one")
    assert ask(rolling, begun, Idempotency_Key="one") == first
    assert ask(rolling, begun, Idempotency_Key="two")["id"] != first["id"]
    assert len(calls(rolling, begun)) == 2


def test_an_idempotency_key_belongs_to_one_body(rolling):
    begun = rolling.begin()
    ask(rolling, begun, Idempotency_Key="one")
    refused = ask(rolling, begun, "another", Idempotency_Key="one")
    assert refused["error"]["param"] == "Idempotency-Key"
    assert "error" in ask(rolling, begun, Idempotency_Key="x" * 300)
    assert len(calls(rolling, begun)) == 1


def test_concurrent_repeats_of_one_key_are_sampled_once(rolling):
    begun = rolling.begin()
    rolling.backbone.hold = rolling.call(asyncio.Event)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(ask, rolling, begun, Idempotency_Key="one") for _ in range(8)]
        rolling.call(lambda: asyncio.wait_for(rolling.backbone.generating.wait(), 10))
        rolling.loop.call_soon_threadsafe(rolling.backbone.hold.set)
        answers = [one.result(DEADLINE_S) for one in asked]
    assert len({answer["id"] for answer in answers}) == 1
    assert len(calls(rolling, begun)) == 1


def test_a_repeat_whose_first_attempt_hung_up_is_sampled(rolling):
    begun = rolling.begin()
    rolling.backbone.hold = rolling.call(asyncio.Event)
    url, key = f"{rolling.url}/v1/chat/completions", f"Bearer {begun['api_key']}"
    body = {"model": "policy", "messages": [{"role": "user", "content": "hello"}]}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(url, json=body, headers={"authorization": key, "idempotency-key": "one"}, timeout=0.3)
    rolling.loop.call_soon_threadsafe(rolling.backbone.hold.set)
    assert ask(rolling, begun, Idempotency_Key="one")["choices"][0]["message"]["content"]
    assert len(calls(rolling, begun)) == 1


def test_a_marked_retry_gets_the_answer_whose_reply_was_lost(rolling):
    begun = rolling.begin()
    first = ask(rolling, begun, x_stainless_retry_count="0")
    assert ask(rolling, begun, x_stainless_retry_count="1") == first
    assert ask(rolling, begun, "another", x_stainless_retry_count="1")["id"] != first["id"]
    assert len(calls(rolling, begun)) == 2


def test_the_openai_sdk_retry_after_a_lost_reply_is_one_call(rolling):
    """The reply is cut on its way: the SDK asks again by itself, and the server knows it for a repeat."""
    begun = rolling.begin()

    class LosesTheFirstReply(httpx.HTTPTransport):
        lost = 0

        def handle_request(self, request):
            answer = super().handle_request(request)
            if not self.lost:
                self.lost += 1
                answer.read()
                raise httpx.RemoteProtocolError("the reply was cut", request=request)
            return answer

    transport = LosesTheFirstReply()
    client = openai.OpenAI(
        base_url=rolling.url + "/v1",
        api_key=begun["api_key"],
        max_retries=2,
        http_client=httpx.Client(transport=transport, timeout=DEADLINE_S),
    )
    said = client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "hello"}])
    client.close()
    assert transport.lost == 1
    [call] = calls(rolling, begun)
    assert call["message"]["content"] == said.choices[0].message.content


def test_a_retry_after_an_error_is_sampled_even_beside_an_equal_answer(rolling):
    begun = rolling.begin()
    first = ask(rolling, begun)
    rolling.call(lambda: _refuse_once(rolling))
    assert "error" in ask(rolling, begun, x_stainless_retry_count="0")
    assert ask(rolling, begun, x_stainless_retry_count="1")["id"] != first["id"]
    assert ask(rolling, begun, x_stainless_retry_count="1")["id"] == first["id"]


def _refuse_once(swarm):
    """The next record is refused, as by a full disk."""
    journal = swarm.app.engine.experiment.journal
    append = journal.append

    def refuse(*records):
        journal.append = append
        future = asyncio.get_running_loop().create_future()
        future.set_exception(DiskRefused("full, says the test"))
        return future

    journal.append = refuse


def test_all_choices_of_a_request_are_repeated(rolling):
    begun = rolling.begin()
    with rolling.openai(begun) as client:
        asks = {"model": "policy", "messages": [{"role": "user", "content": "hi"}], "n": 3, "logprobs": True}
        headers = {"Idempotency-Key": "three"}
        first = client.chat.completions.create(**asks, extra_headers=headers)
        again = client.chat.completions.create(**asks, extra_headers=headers)
    assert again == first
    assert len(first.choices) == 3
    assert len(calls(rolling, begun)) == 3


def test_a_streamed_repeat_streams_the_same_text(rolling):
    begun = rolling.begin()
    texts = []
    with rolling.openai(begun) as client:
        for _ in range(2):
            stream = client.chat.completions.create(
                model="policy",
                messages=[{"role": "user", "content": "hi"}],
                stream=True,
                extra_headers={"Idempotency-Key": "s"},
            )
            texts.append("".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices))
    assert texts[0]
    assert texts[0] == texts[1]
    assert len(calls(rolling, begun)) == 1


def test_answers_are_repeated_after_a_restart(serve):
    with serve() as swarm:
        swarm.start()
        swarm.backbone.script = letters
        begun = swarm.begin()
        keyed = ask(swarm, begun, Idempotency_Key="one")
        plain = ask(swarm, begun, "plain")
    with serve() as swarm:
        swarm.wait("ROLLING")
        again = ask(swarm, begun, Idempotency_Key="one")
        assert (again["id"], again["choices"], again["usage"]) == (keyed["id"], keyed["choices"], keyed["usage"])
        assert ask(swarm, begun, "plain", x_stainless_retry_count="2")["id"] == plain["id"]
        assert "error" in ask(swarm, begun, "other", Idempotency_Key="one")
        assert len(calls(swarm, begun)) == 2


def test_agents_do_not_share_keys(rolling):
    begun = rolling.begin()
    with rolling.openai(begun, "anna") as anna, rolling.openai(begun, "bert") as bert:
        asks = {"model": "policy", "messages": [{"role": "user", "content": "hi"}]}
        ids = {
            client.chat.completions.create(**asks, extra_headers={"Idempotency-Key": "k"}).id for client in (anna, bert)
        }
    assert len(ids) == 2
