"""Claims about whatever may arrive: no 500, no hang, no change of state without a key.

Requests are drawn from ``/openapi.json`` (schemathesis, valid and invalid ones), from raw JSON and from raw bytes
(hypothesis), and sent to a real server over loopback. ``AJET_FUZZ_EXAMPLES`` is the number for each route (default: small,
for CI); the draw is the same each time unless ``AJET_FUZZ_SEED`` is set.
"""

from __future__ import annotations

import json
import os
import random
import socket
import sqlite3
from collections import Counter
from contextlib import closing

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from tests.integration.server.conftest import Swarm, job, renderer, serving  # noqa: F401 (a fixture)

EXAMPLES = int(os.environ.get("AJET_FUZZ_EXAMPLES", "25"))
SEED = int(os.environ.get("AJET_FUZZ_SEED", "1"))
ANSWER_S = 10.0
"""No request that asks for no waiting may take longer."""
ADMIN = "correct-horse-battery"
FEW = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)
STREAM = "/swarm/v1/events"


@pytest.fixture(scope="module")
def swarm(tmp_path_factory, renderer):  # noqa: F811
    with serving(tmp_path_factory.mktemp("fuzz"), renderer, admin_key=ADMIN) as running:
        running.start(job(rollout__max_env_worker=100_000, trainer_common__total_training_steps=100_000))
        yield running


def operations(swarm):
    document = swarm.http.get("/openapi.json").json()
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=swarm.url)
    return {f"{op.method.upper()} {op.path}": op for op in (found.ok() for found in schema.get_all_operations())}


def routes():
    from ajet.server.app import ROUTES
    from ajet.server.routes.chat import PATH

    return [f"{r.method} {r.path}" for r in ROUTES if r.path != STREAM] + [f"POST {PATH}"]


def impatient(case):
    """Ask for no waiting: how long a granted wait takes is not what is tested."""
    if isinstance(case.body, dict) and "wait_s" in case.body:
        case.body["wait_s"] = 0
    elif case.path == "/swarm/v1/episodes" and isinstance(case.body, dict):
        case.body["wait_s"] = 0.01
    if case.query:
        case.query = {**case.query, "wait_s": 0} if case.query.get("wait_s") not in (None, "") else case.query
        if "wait_s" not in case.query and {"wait_state", "wait_step", "wait_batch"} & set(case.query):
            case.query["wait_s"] = 0
    return case


def send(case, key, timeout=ANSWER_S):
    return case.call(headers={"authorization": f"Bearer {key}"} if key else {}, timeout=timeout)


def internal_errors(swarm):
    return swarm.app.engine.telemetry.counts["errors/internal"]


def modes():
    """Each route with requests that its description allows, and with others where it can tell them apart."""
    plain = {"GET /healthz", "GET /readyz"}
    return [
        pytest.param(route, mode, id=f"{route} {mode.value}")
        for route in routes()
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
        if mode is GenerationMode.POSITIVE or route not in plain
    ]


@pytest.mark.parametrize(("route", "mode"), modes())
def test_no_request_to_a_route_fails_or_hangs_it_and_every_answer_is_as_described(swarm: Swarm, route, mode):
    operation = operations(swarm)[route]
    if operation.path.startswith("/swarm/v1/e") and swarm.app.engine.state.value != "ROLLING":
        swarm.post("/engine/start")
        swarm.wait("ROLLING")
    turn = iter(range(1_000_000))
    seen: Counter[int] = Counter()
    begun = swarm.begin() if "ROLLING" in swarm.app.engine.state.value else None
    mutable = operation.method.upper() != "GET"

    @seed(SEED)
    @FEW
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case):
        nonlocal begun
        impatient(case)
        # Every other request is for an episode that is open: what is unknown is refused early.
        if begun is not None and case.path_parameters and next(turn) % 2:
            case.path_parameters["id"] = begun["episode_id"]
        chat = case.path == "/v1/chat/completions"
        answer = send(case, begun["api_key"] if chat and begun else ADMIN)
        seen[answer.status_code] += 1
        assert answer.status_code < 500 or answer.status_code == 503, (case.body, answer.content[:500])
        answer.request.headers.pop("authorization", None)
        if answer.status_code not in (404, 405):
            case.validate_response(answer, checks=[schemathesis.checks.CHECKS.get_one("response_schema_conformance")])
        if answer.status_code >= 400 and answer.content:
            assert set(answer.json()["error"]) >= {"type", "message", "param", "code"}
        if mutable and begun is not None and case.path_parameters and answer.status_code == 200:
            begun = swarm.begin()

    ask()
    assert internal_errors(swarm) == 0
    assert swarm.http.get("/healthz").status_code == 200
    print(route, mode.value, dict(seen))
    if swarm.app.engine.state.value in ("STOPPING", "OFFLINE"):
        swarm.wait("OFFLINE")
        swarm.post("/engine/start")
        swarm.wait("ROLLING")


def facts(swarm):
    """All that a request could have changed."""
    experiment = swarm.app.engine.experiment
    with closing(sqlite3.connect(f"file:{experiment.journal.path}?mode=ro", uri=True)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        counts = {name: db.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in sorted(tables)}
        tallies = dict(db.execute("SELECT name, n FROM tally"))
    registry = experiment.registry
    return {
        "journal": counts,
        "tallies": tallies,
        "open": sorted(registry.open),
        "waiting": registry.leases.waiting("train") + registry.leases.waiting("eval"),
        "pool": sorted(registry.numbers),
        "job": swarm.app.engine.job,
        "state": swarm.app.engine.state,
        "step": experiment.step,
    }


@pytest.mark.parametrize("route", [*routes(), f"GET {STREAM}"])
def test_without_its_key_a_route_changes_and_tells_nothing(swarm: Swarm, route):
    from ajet.server.app import ROUTES

    access = {f"{r.method} {r.path}": r.access for r in ROUTES}.get(route, "chat")
    operation = operations(swarm)[route]
    begun = swarm.begin()
    forged = begun["api_key"][:-6] + "aaaaaa"
    keys = [None, "wrong", ADMIN[:-1], ADMIN + "x", forged, "Bearer", "ajet-ep.x.y"]
    if access == "admin":
        keys.append(begun["api_key"])
    if access == "chat":
        keys.append(ADMIN)
    swarm.call(lambda: swarm.app.engine.experiment.journal.execute(lambda db: None))
    before = facts(swarm)
    turn = iter(range(1_000_000))

    @seed(SEED)
    @FEW
    @given(case=operation.as_strategy(generation_mode=GenerationMode.POSITIVE))
    def ask(case):
        if case.path_parameters and "\0" not in str(case.path_parameters):
            case.path_parameters["id"] = begun["episode_id"]
        answer = send(case, keys[next(turn) % len(keys)])
        if access == "open":
            assert answer.status_code in (200, 503)
        else:
            assert answer.status_code in (401, 404, 405), answer.content[:300]
            assert begun["episode_id"] not in answer.text

    ask()
    swarm.call(lambda: swarm.app.engine.experiment.journal.execute(lambda db: None))
    assert facts(swarm) == before
    swarm.post(f"/episodes/{begun['episode_id']}/abort", {"request_id": "x"})


# ── JSON of any shape ────────────────────────────────────────────────────────────────────────────────────────────────

TEXT = st.text(max_size=30)
LEAF = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=-(10**30), max_value=10**30),
    st.floats(),
    TEXT,
    st.sampled_from(["", "\0", "\ud7ff", "<|im_end|>", "<tool_call>", "{{ 7*7 }}", "../..", "a" * 5000]),
)
JSON = st.recursive(LEAF, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4))
CALL = st.fixed_dictionaries(
    {"function": st.fixed_dictionaries({}, optional={"name": JSON, "arguments": JSON})},
    optional={"id": JSON, "type": JSON},
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool", "developer", "function", "nobody"])},
    optional={
        "content": st.one_of(TEXT, st.none(), st.lists(st.fixed_dictionaries({"type": JSON, "text": JSON})), JSON),
        "tool_calls": st.one_of(st.lists(CALL, max_size=3), JSON),
        "reasoning_content": JSON,
        "name": JSON,
        "tool_call_id": JSON,
    },
)
CHAT = st.fixed_dictionaries(
    {"messages": st.lists(MESSAGE, max_size=6)},
    optional={
        name: st.one_of(usual, JSON)
        for name, usual in {
            "model": st.sampled_from(["policy", "frozen", ""]),
            "temperature": st.floats(0, 2),
            "top_p": st.floats(0, 1),
            "max_tokens": st.integers(1, 100),
            "max_completion_tokens": st.integers(1, 100),
            "n": st.integers(1, 4),
            "stream": st.booleans(),
            "stream_options": st.just({"include_usage": True}),
            "stop": st.lists(TEXT, max_size=3),
            "seed": st.integers(),
            "logprobs": st.booleans(),
            "top_logprobs": st.integers(0, 20),
            "tools": st.lists(st.fixed_dictionaries({"type": JSON, "function": JSON}), max_size=2),
            "tool_choice": st.sampled_from(["auto", "none", "required"]),
            "response_format": st.just({"type": "text"}),
        }.items()
    },
)


def as_json(value):
    return json.dumps(value, ensure_ascii=random.random() < 0.5).encode("utf-8", "surrogatepass")


@seed(SEED)
@settings(FEW, max_examples=EXAMPLES * 4)
@given(body=CHAT, retry=st.sampled_from([{}, {"idempotency-key": "one"}, {"x-stainless-retry-count": "1"}]))
def ask_chat(swarm, begun, body, retry):
    headers = {"authorization": f"Bearer {begun['api_key']}", **retry}
    answer = swarm.http.post("/v1/chat/completions", content=as_json(body), headers=headers, timeout=ANSWER_S)
    assert answer.status_code in (200, 400, 413), (body, answer.text[:500])
    if answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream"):
        assert '"error"' not in answer.text or '"code":"internal_error"' not in answer.text, body


@pytest.mark.parametrize("kind", ["train", "eval"])
def test_chat_calls_of_any_shape_are_answered_or_refused(swarm, kind):
    ask_chat(swarm, swarm.begin(kind=kind))
    assert internal_errors(swarm) == 0


def test_results_of_any_shape_are_recorded_or_refused(swarm):
    @seed(SEED)
    @settings(FEW, max_examples=EXAMPLES * 2)
    @given(
        task=st.one_of(st.fixed_dictionaries({"task_id": TEXT}, optional={"metadata": JSON, "x": JSON}), JSON),
        output=st.one_of(
            st.fixed_dictionaries(
                {"reward": st.one_of(st.floats(), st.dictionaries(TEXT, st.floats(), max_size=3), JSON)},
                optional={
                    "log_metrics": st.one_of(st.dictionaries(TEXT, st.floats(), max_size=3), JSON),
                    "metadata": JSON,
                    "is_success": JSON,
                },
            ),
            JSON,
        ),
    )
    def end(task, output):
        begun = swarm.begin()
        url = f"/swarm/v1/episodes/{begun['episode_id']}/end"
        body = {"request_id": "e", "task": task, "output": output}
        answer = swarm.http.post(url, content=as_json(body), timeout=ANSWER_S)
        assert answer.status_code in (200, 400, 422), (body, answer.text[:500])
        again = swarm.http.post(url, content=as_json(body), timeout=ANSWER_S)
        assert (again.status_code, again.text) == (answer.status_code, answer.text)
        if answer.status_code != 200:
            aborted = swarm.post(f"/episodes/{begun['episode_id']}/abort", {"request_id": "x"})
            assert aborted.status_code == 200

    end()
    assert internal_errors(swarm) == 0


# ── bytes of any kind ────────────────────────────────────────────────────────────────────────────────────────────────

REQUEST = (
    b"POST /swarm/v1/heartbeat HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer %s\r\ncontent-type: application/json\r\n"
    b"content-length: 18\r\nconnection: close\r\n\r\n"
    b'{"client_id": "c"}'
) % ADMIN.encode()


def test_bytes_of_any_kind_are_answered_or_cut_off(swarm):
    port = int(swarm.url.rpartition(":")[2])

    @seed(SEED)
    @settings(FEW, max_examples=EXAMPLES * 4)
    @given(
        cuts=st.lists(st.tuples(st.integers(0, len(REQUEST)), st.integers(0, 12), st.binary(max_size=12)), max_size=4),
        noise=st.one_of(st.just(b""), st.binary(max_size=300)),
    )
    def send_bytes(cuts, noise):
        data = REQUEST
        for at, length, new in cuts:
            data = data[:at] + new + data[at + length :]
        with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S) as peer:
            peer.sendall(data + noise)
            # The sender has said all it has to say; what is not whole yet never will be.
            peer.shutdown(socket.SHUT_WR)
            answer = b""
            try:
                while piece := peer.recv(1 << 16):
                    answer += piece
            except ConnectionResetError:
                pass
        assert not answer.startswith(b"HTTP/1.1 5"), (data, answer)

    send_bytes()
    assert internal_errors(swarm) == 0
    assert swarm.http.post("/swarm/v1/heartbeat", json={"client_id": "c"}).status_code == 200


def test_events_are_streamed_whatever_id_they_are_asked_after(swarm):
    for after, status in (
        ("0", 200),
        ("1", 200),
        ("-1", 400),
        ("x", 400),
        ("9" * 30, 400),
        ("\u0663", 400),
        ("\u00b2", 400),
        ("", 400),
    ):
        with swarm.http.stream("GET", STREAM, params={"after": after}) as answer:
            assert answer.status_code == status, after
            if status == 200:
                assert next(answer.iter_raw())
    with pytest.raises(httpx.ReadTimeout), swarm.http.stream("GET", STREAM, timeout=0.3) as answer:
        answer.read()
    assert internal_errors(swarm) == 0
