"""Claims about what peers may do to a server: slow, large, many, nested, compressed, foreign."""

import concurrent.futures
import json
import math
import os
import socket
import stat
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from ajet.server import connection
from tests.integration.server.conftest import DEADLINE_S, QUICK, job

TIGHT = replace(
    QUICK,
    header_s=0.3,
    body_s=30.0,
    write_s=0.5,
    connections=40,
    waiting_per_client=2,
    waiting_begins=3,
    long_polls=2,
    event_streams=2,
    chats_per_episode=2,
)


@pytest.fixture
def tight(serve, monkeypatch):
    monkeypatch.setattr(connection, "WINDOW_S", 0.15)
    monkeypatch.setattr(connection, "LINGER_S", 0.3)
    with serve(limits=TIGHT) as swarm:
        swarm.start(job(rollout__max_env_worker=1))
        yield swarm


def dial(swarm):
    port = int(swarm.url.rpartition(":")[2])
    peer = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
    return peer


def all_of(peer):
    """Everything until the server closes."""
    data = b""
    while True:
        try:
            piece = peer.recv(1 << 16)
        except ConnectionResetError:
            return data
        if not piece:
            return data
        data += piece


def say(swarm, data):
    with dial(swarm) as peer:
        peer.sendall(data)
        return all_of(peer)


def alive(swarm):
    assert swarm.http.get("/healthz").status_code == 200


# ── slow peers ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTT",
        b"GET /healthz HTTP/1.1\r\nx: y\r\n",
        b"\r\n\r\nPOST /swarm/v1/heartbeat HTTP/1.1\r\nhost: a",
    ],
)
def test_a_head_that_never_comes_whole_is_answered_408_and_closed(tight, head):
    assert say(tight, head).startswith(b"HTTP/1.1 408 ")
    alive(tight)


def test_a_second_head_on_a_kept_connection_is_timed_too(tight):
    with dial(tight) as peer:
        peer.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert b"200" in peer.recv(1 << 16)
        peer.sendall(b"GET /healthz HTTP/1.1\r\nx: ")
        assert b" 408 " in all_of(peer)


@pytest.mark.parametrize("length", [b"content-length: 100", b"transfer-encoding: chunked"])
def test_a_body_that_trickles_is_given_up(tight, length):
    assert say(tight, b"POST /swarm/v1/heartbeat HTTP/1.1\r\nhost: localhost\r\n" + length + b"\r\n\r\n").startswith(
        b"HTTP/1.1 408 "
    )
    with dial(tight) as peer:
        peer.sendall(b"POST /swarm/v1/heartbeat HTTP/1.1\r\nhost: localhost\r\n" + length + b"\r\n\r\n")
        deadline = time.monotonic() + DEADLINE_S
        peer.settimeout(0.02)
        answer = b""
        while not answer:
            assert time.monotonic() < deadline
            try:
                peer.sendall(b"1\r\n \r\n" if b"chunked" in length else b" ")
                answer = peer.recv(1 << 16)
            except TimeoutError:
                continue
        assert b" 408 " in answer
    alive(tight)


def test_a_peer_that_does_not_read_its_answers_is_cut_off(tight):
    with dial(tight) as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deadline = time.monotonic() + DEADLINE_S
        request = b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n"

        def ask_and_never_read():
            while time.monotonic() < deadline:
                peer.settimeout(deadline - time.monotonic())
                peer.sendall(request * 50)

        with pytest.raises(ConnectionError):
            ask_and_never_read()
    alive(tight)


def test_more_connections_than_allowed_are_told_so(tight):
    peers = [dial(tight) for _ in range(60)]
    try:
        refused = 0
        for peer in peers[::-1]:
            peer.settimeout(0.3)
            try:
                refused += peer.recv(100).startswith(b"HTTP/1.1 503 ")
            except TimeoutError:
                break
        assert refused >= 15
    finally:
        for peer in peers:
            peer.close()
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            alive(tight)
            break
        except (AssertionError, httpx.TransportError):
            assert time.monotonic() < deadline


# ── large and odd requests ───────────────────────────────────────────────────────────────────────────────────────────


def status_of(answer):
    return int(answer.split(b" ", 2)[1]) if answer else None


def head(line, *headers, close=True):
    lines = [line, b"host: localhost", *([b"connection: close"] if close else []), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n"


POST = b"POST /swarm/v1/heartbeat HTTP/1.1"
ODD = {
    "endless header": (head(b"GET /healthz HTTP/1.1", b"x: " + b"a" * 300_000), {413, 431}),
    "many headers": (head(b"GET /healthz HTTP/1.1", *[b"x%d: y" % i for i in range(9000)]), {413, 431}),
    "endless url": (head(b"GET /" + b"a" * 300_000 + b" HTTP/1.1"), {414, 431}),
    "long url": (head(b"GET /healthz?" + b"a" * 9_000 + b" HTTP/1.1"), {414}),
    "url of bytes": (head(b"GET /\xff\xfe HTTP/1.1"), {400, 404}),
    "no http": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n", {400}),
    "http/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400, 404, 405, 505}),
    "two lengths": (head(POST, b"content-length: 3", b"content-length: 2") + b"{}1", {400}),
    "length and chunks": (head(POST, b"content-length: 3", b"transfer-encoding: chunked") + b"0\r\n\r\n", {400}),
    "negative length": (head(POST, b"content-length: -1"), {400}),
    "endless length": (head(POST, b"content-length: " + b"9" * 40), {400, 413}),
    "large length": (head(POST, b"content-length: 999999999999"), {413}),
    "gzip": (head(POST, b"content-encoding: gzip", b"content-length: 3") + b"\x1f\x8b\x08", {415}),
    "brotli, chunked": (head(POST, b"content-encoding: br", b"transfer-encoding: chunked") + b"0\r\n\r\n", {415}),
    "a websocket": (
        head(b"GET /healthz HTTP/1.1", b"connection: upgrade, close", b"upgrade: websocket", close=False),
        {200},
    ),
    "host that is none": (head(b"GET /swarm/v1/status HTTP/1.1", b"host: [").replace(b"localhost", b"[::"), {400, 403}),
    "origin that is none": (head(b"GET /swarm/v1/status HTTP/1.1", b"origin: http://[::"), {403}),
    "NUL in a header": (head(b"GET /healthz HTTP/1.1", b"x: a\0b"), {400}),
    "deep JSON": (head(POST, b"content-length: 200000") + b"[" * 200_000, {422}),
    "a long number": (head(POST, b"content-length: 9015") + b'{"client_id": ' + b"1" * 9_000 + b"}", {422}),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_requests_are_refused_in_our_shape_and_the_server_lives(tight, name):
    data, expected = ODD[name]
    answer = say(tight, data)
    assert status_of(answer) in expected, answer[:300]
    if status_of(answer) >= 400:
        assert set(json.loads(answer.partition(b"\r\n\r\n")[2])["error"]) >= {"type", "message", "code"}
    alive(tight)


def counted(parts, seen):
    for part in parts:
        seen.append(1)
        yield part


def test_a_chunked_body_without_a_length_is_bounded(tight):
    def endless():
        while True:
            yield b" " * (1 << 20)

    sent = []
    try:
        answer = httpx.post(f"{tight.url}/swarm/v1/heartbeat", content=counted(endless(), sent), timeout=DEADLINE_S)
        assert answer.status_code == 413
    except httpx.TransportError:
        pass  # closed while it was still sending
    assert 32 <= len(sent) < 20_000
    alive(tight)


def test_what_follows_a_chunked_body_is_not_kept(tight):
    body = b"2\r\n{}\r\n0\r\n" + b"".join(b"x%d: y\r\n" % i for i in range(50_000)) + b"\r\n"
    answer = say(tight, head(POST, b"transfer-encoding: chunked") + body)
    assert status_of(answer) == 422


def chat(swarm, begun, body):
    return swarm.http.post(
        "/v1/chat/completions", content=body, headers={"authorization": f"Bearer {begun['api_key']}"}
    )


def user(text):
    return {"role": "user", "content": text}


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages": [{"role": "user", "content": [' + b"[" * 900 + b"]" * 900 + b"]}]}",
        b'{"messages": [{"role": "user", "content": "a"}], "tools": [{"a": ' + b"[" * 500 + b"]" * 500 + b"}]}",
        b'{"messages": [{"role": "user", "content": "a", "b": ' + b'{"c":' * 500 + b"1" + b"}" * 500 + b"}]}",
        json.dumps({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": a}}]}]})
        if (a := "[" * 100_000)
        else b"",
        json.dumps({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": a}}]}]})
        if (a := '{"x": "\\ud800"}')
        else b"",
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": [{"role": "user", "content": "a"}], "seed": ' + b"9" * 5000 + b"}",
        b'{"messages": [{"role": "user", "content": "a"}], "temperature": 1e999}',
        b'{"messages": [{"role": "user", "content": "a"}], "temperature": NaN}',
        json.dumps({"messages": [user("a")] * 5000}).encode(),
        json.dumps({"messages": [user("a")], "stop": ["x"] * 100}).encode(),
        json.dumps({"messages": [user("a")], "n": 1000}).encode(),
        json.dumps({"messages": [user("a")], "n": 1e300}).encode(),
    ],
)
def test_nested_huge_and_many_in_a_chat_call_are_refused_not_failed(tight, body):
    begun = tight.begin()
    answer = chat(tight, begun, body)
    # A tool call that cannot be read may be sampled as the text it is.
    assert answer.status_code in (200, 400, 413), answer.text
    assert tight.app.engine.telemetry.counts["errors/internal"] == 0


def test_a_prompt_of_megabytes_is_refused_without_holding_others_up(tight):
    begun = tight.begin()
    body = json.dumps({"messages": [user("word " * 600_000)]}).encode()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(chat, tight, begun, body)
        slowest = 0.0
        while not asked.done():
            started = time.monotonic()
            alive(tight)
            slowest = max(slowest, time.monotonic() - started)
        answer = asked.result()
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert slowest < 2.0


# ── crowds ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def held(swarm, count, ask):
    """``count`` requests at once, each in its own connection; the statuses of those that came back soon."""
    pool = concurrent.futures.ThreadPoolExecutor(count)
    asked = [pool.submit(ask, i) for i in range(count)]
    deadline = time.monotonic() + DEADLINE_S
    while not any(one.done() for one in asked):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return pool, asked


def test_waiting_begins_are_bounded_for_each_client_and_in_all(tight):
    first = tight.begin()

    def begin(client):
        body = {"client_id": client, "request_id": tight.fresh("w"), "wait_s": 2}
        return httpx.post(f"{tight.url}/swarm/v1/episodes", json=body, timeout=DEADLINE_S)

    pool, asked = held(tight, 3, lambda _: begin("greedy"))
    with pool:
        assert sorted(one.result().status_code for one in asked) == [202, 202, 429]
    pool, asked = held(tight, 4, lambda i: begin(f"c{i}"))
    with pool:
        answers = [one.result() for one in asked]
        assert sorted(a.status_code for a in answers) == [202, 202, 202, 429]
        assert {a.headers.get("retry-after") for a in answers if a.status_code == 429} == {"1"}
    assert tight.post(f"/episodes/{first['episode_id']}/abort", {"request_id": "x"}).status_code == 200


def test_long_polls_and_event_streams_are_bounded_and_given_back(tight):
    def poll(_):
        query = {"wait_state": "FAILED", "wait_s": 1.5}
        return httpx.get(f"{tight.url}/swarm/v1/status", params=query, timeout=DEADLINE_S).status_code

    pool, asked = held(tight, 3, poll)
    with pool:
        assert sorted(one.result() for one in asked) == [200, 200, 429]
    assert poll(0) == 200
    with httpx.Client(base_url=tight.url, timeout=DEADLINE_S) as http:
        with http.stream("GET", "/swarm/v1/events"), http.stream("GET", "/swarm/v1/events"):
            assert http.get("/swarm/v1/events").status_code == 429
        deadline = time.monotonic() + DEADLINE_S
        while True:
            with http.stream("GET", "/swarm/v1/events") as answer:
                if answer.status_code == 200:
                    break
            assert time.monotonic() < deadline


def test_calls_in_flight_of_one_episode_are_bounded(tight):
    import asyncio

    begun = tight.begin()
    tight.backbone.hold = tight.call(asyncio.Event)
    body = json.dumps({"messages": [user("a")]}).encode()
    key = {"authorization": f"Bearer {begun['api_key']}"}
    url = f"{tight.url}/v1/chat/completions"
    pool, asked = held(tight, 3, lambda _: httpx.post(url, content=body, headers=key, timeout=DEADLINE_S))
    tight.loop.call_soon_threadsafe(tight.backbone.hold.set)
    with pool:
        assert sorted(one.result().status_code for one in asked) == [200, 200, 429]


# ── numbers and names ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "output",
    [
        b'{"reward": NaN}',
        b'{"reward": Infinity}',
        b'{"reward": -1e999}',
        b'{"reward": 1e7}',
        b'{"reward": {"main": NaN}}',
        b'{"reward": "NaN"}',
        b'{"reward": 1' + b"0" * 400 + b"}",
        b'{"reward": 1, "log_metrics": {"x": NaN}}',
        b'{"reward": 1, "log_metrics": {"x": 1e999}}',
        b'{"reward": 1, "log_metrics": {"' + b"x" * 200 + b'": 1}}',
        json.dumps({"reward": 1, "log_metrics": {str(i): 1 for i in range(300)}}).encode(),
        b'{"reward": 1, "is_success": 3}',
        b'{"reward": 1, "metadata": ' + b'{"a":' * 500 + b"1" + b"}" * 500 + b"}",
    ],
)
def test_results_that_are_no_numbers_are_refused_with_the_field_and_the_episode_lives(tight, output):
    begun = tight.begin()
    body = b'{"request_id": "e", "task": {"task_id": "t"}, "output": ' + output + b"}"
    answer = tight.http.post(f"/swarm/v1/episodes/{begun['episode_id']}/end", content=body)
    assert answer.status_code in (400, 422), answer.text
    error = answer.json()["error"]
    assert "output" in (error["param"] or "") or "recursion" in error["message"]
    assert len(answer.content) < 5_000
    assert tight.end(begun["episode_id"], "t").status_code == 200


@pytest.mark.parametrize("metadata", [b'{"n": 1' + b"0" * 4000 + b"}", b'{"n": NaN}', b'{"\\u0000": "\\u0000"}'])
def test_metadata_of_any_kind_is_kept_or_refused(tight, metadata):
    begun = tight.begin()
    body = b'{"request_id": "e", "task": {"task_id": "t"}, "output": {"reward": 1, "metadata": ' + metadata + b"}}"
    answer = tight.http.post(f"/swarm/v1/episodes/{begun['episode_id']}/end", content=body)
    assert answer.status_code in (200, 400, 422), answer.text


@pytest.mark.parametrize("timeout", ["NaN", "Infinity", "-1", "0", "1e9", '"x"'])
def test_a_timeout_that_is_none_is_refused(tight, timeout):
    body = f'{{"client_id": "c", "request_id": "r", "discard_episode_timeout": {timeout}}}'
    assert tight.http.post("/swarm/v1/episodes", content=body).status_code == 422


@pytest.mark.parametrize(
    "name",
    ["..", "../x", "/etc", "a/b", "a\0b", "x" * 5000, ".", "a\u2215b", "\uff0e\uff0e", "CON\n", "", " a", "a\\b"],
)
def test_names_that_are_no_folder_reach_no_disk(tight, name, tmp_path):
    before = set(tmp_path.parent.iterdir())
    answer = tight.http.put("/swarm/v1/job", json={"job": job(experiment_name=name)})
    assert answer.status_code == 400
    assert "experiment_name" in answer.json()["error"]["message"]
    assert len(answer.content) < 10_000
    assert set(tmp_path.parent.iterdir()) == before
    for path in ("/swarm/v1/episodes/%2e%2e%2f%2e%2e%2fetc%2fpasswd", "/swarm/v1/episodes/..%00", "/swarm/v1/../x"):
        assert tight.http.get(path).status_code == 404


# ── secrets ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_secrets_are_in_no_answer_event_log_or_file(serve, tmp_path, capfd):
    admin = "correct-horse-battery"
    with serve(admin_key=admin) as swarm:
        from ajet.server import logs

        logs.set_up(tmp_path / "server.log")
        swarm.start()
        begun = swarm.begin()
        swarm.say(begun)
        texts = []
        forged = begun["api_key"][:-4] + "0000"
        for key in (admin, begun["api_key"], forged, "wrong-" + admin):
            for method, path in (("POST", "/v1/chat/completions"), ("GET", "/swarm/v1/status"), ("GET", "/nowhere")):
                answer = swarm.http.request(
                    method, path, content=b"{" + key.encode(), headers={"authorization": f"Bearer {key}"}
                )
                texts.append(answer.text if answer.status_code != 200 else "")
        texts.append(swarm.http.put("/swarm/v1/job", json={"job": {"experiment_name": "../" + "x"}}).text)
        swarm.end(begun["episode_id"], "t")
        for path in ("/swarm/v1/status", "/swarm/v1/pool", "/metrics", "/openapi.json", "/swarm/v1/job"):
            texts.append(swarm.http.get(path).text)
        texts.append(swarm.http.get(f"/swarm/v1/episodes/{begun['episode_id']}").text)
        texts += [event.model_dump_json() for event in swarm.app.events._recent]
        import logging

        logging.getLogger("ajet.server").warning("header Authorization: Bearer %s and %s", admin, begun["api_key"])
        signing = (tmp_path / ".server" / "secret").read_text()
    deadline = time.monotonic() + DEADLINE_S
    while "header Authorization" not in (tmp_path / "server.log").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    out = capfd.readouterr()
    texts += [out.out, out.err]
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "secret"]
    assert any(path.name == "server.log" for path in files)
    assert any(path.name == "journal.sqlite" for path in files)
    texts += [path.read_bytes().decode("latin-1") for path in files]
    signature = begun["api_key"].split(".")[2]
    for text in texts:
        for secret in (admin, signature, signing):
            assert secret not in text


def test_files_that_hold_secrets_are_for_their_owner_only(serve, tmp_path):
    with serve():
        assert stat.S_IMODE((tmp_path / ".server" / "secret").stat().st_mode) == 0o600
        assert stat.S_IMODE((tmp_path / ".server").stat().st_mode) == 0o700
    (tmp_path / ".server" / "secret").chmod(0o644)
    with serve():
        assert stat.S_IMODE((tmp_path / ".server" / "secret").stat().st_mode) == 0o600


def test_an_episodes_key_opens_no_other_episode_and_nothing_once_it_ended(serve):
    with serve() as swarm:
        swarm.start()
        one, two = swarm.begin(), swarm.begin()
        swarm.say(one)
        swap = two["api_key"].replace(two["episode_id"], one["episode_id"])
        body = json.dumps({"messages": [user("a")]}).encode()
        for key in (swap, one["api_key"][:-1], one["api_key"] + "0", "ajet-ep..", f"ajet-ep.{one['episode_id']}."):
            answer = chat(swarm, {"api_key": key}, body)
            assert answer.status_code == 401, key
        assert len(swarm.get(f"/episodes/{one['episode_id']}").json()["calls"]) == 1
        assert swarm.end(one["episode_id"], "t").status_code == 200
        for _ in range(2):
            assert chat(swarm, one, body).status_code == 410
    with serve() as swarm:
        swarm.wait("ROLLING")
        assert chat(swarm, one, body).status_code == 410
        assert chat(swarm, two, body).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1.evil.example"},
        {"origin": "http://localhost@evil.example"},
        {"host": "rebound.example:10086"},
        {"host": "127.0.0.1.evil.example"},
        {"host": "[::ffff:1.2.3.4]"},
        {"sec-fetch-site": "cross-site"},
    ],
)
def test_a_foreign_page_reaches_nothing_on_loopback(serve, headers):
    with serve() as swarm:
        before = swarm.get("/job").json()
        for method, path, body in (
            ("PUT", "/job", {"job": job()}),
            ("POST", "/engine/start", {}),
            ("GET", "/status", None),
            ("GET", "/events", None),
        ):
            answer = swarm.http.request(method, f"/swarm/v1{path}", json=body, headers=headers)
            assert answer.status_code == 403, (method, path, answer.text)
        assert swarm.get("/job").json() == before


def test_open_files_allow_the_connections(monkeypatch):
    from ajet.server.main import _with_open_files

    limits = _with_open_files(QUICK)
    import resource

    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert files == most
    assert 32 <= limits.connections <= max(32, files)
    assert not math.isinf(limits.connections)


def test_the_server_folder_of_another_kind_is_a_clear_error(tmp_path):
    from ajet.schema.errors import ConfigError
    from ajet.server.auth import Keys
    from ajet.server.settings import ServerSettings

    folder = tmp_path / ".server"
    folder.mkdir()
    Path(folder / "secret").write_text("not hex")
    os.chmod(folder / "secret", 0o600)
    with pytest.raises(ConfigError, match="secret"):
        Keys(ServerSettings(exp_dir=tmp_path))
