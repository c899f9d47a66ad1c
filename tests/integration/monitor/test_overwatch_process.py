"""Claims about ``ajet-swarm overwatch`` as a process, beside a real server that comes, is killed and comes back."""

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time

import httpx
import pytest

from tests.faults.processes import ROOT, Server, environment, until

DEADLINE_S = 60.0
_ESCAPES = re.compile(rb"\x1b(\[[0-9;?<>=]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[PX^_].*?\x1b\\|[()#].|[ -~])", re.S)


def fake_server(folder):
    return Server(folder, folder / "server.out", ["-m", "tests.fakes.serve_fake", str(folder / "exp"), "{port}"])


def start(server):
    server.start()
    until(server.status, what="the server's start")


@pytest.fixture
def server(tmp_path):
    made = fake_server(tmp_path)
    yield made
    made.stop()


def command(url, *options):
    return [sys.executable, "-m", "ajet.cli", "overwatch", "--swarm-url", url, *options]


def once(url, **changes):
    kept = {k: v for k, v in environment().items() if k not in ("AJET_SWARM_KEY", "COLUMNS")}
    return subprocess.run(
        command(url, "--once"), capture_output=True, cwd=ROOT, timeout=DEADLINE_S, env={**kept, **changes}
    )


def play(url):
    """A job, a finished episode of task ``deal-1``, and one that runs."""
    job = {
        "experiment_name": "watched",
        "rollout": {"num_repeat": 2, "max_model_len": 2000, "max_response_length_in_one_turn": 64},
        "data": {"train_batch_size": 2, "max_prompt_length": 1000, "max_response_length": 1000},
        "trainer_common": {"total_training_steps": 3},
    }
    with httpx.Client(base_url=url + "/swarm/v1", timeout=DEADLINE_S) as http:
        http.put("/job", json={"job": job}).raise_for_status()
        http.post("/engine/start").raise_for_status()
        http.get("/status", params={"wait_state": "ROLLING", "wait_s": 30}).raise_for_status()
        for n in range(2):
            body = {"client_id": "laptop", "request_id": f"b{n}", "task_id": "deal-1", "wait_s": 30}
            begun = http.post("/episodes", json=body).json()
            http.post(
                f"{url}/v1/chat/completions", json={"model": "policy", "messages": [{"role": "user", "content": "hi"}]},
                headers={"authorization": f"Bearer {begun['api_key']}"},
            ).raise_for_status()  # fmt: skip
            if n == 0:
                end = {"request_id": "e", "task": {"task_id": "deal-1"}, "output": {"reward": 1.0}}
                http.post(f"/episodes/{begun['episode_id']}/end", json=end).raise_for_status()


def test_once_prints_one_plain_frame_of_a_running_server(server):
    start(server)
    play(server.url)
    done = once(server.url, FORCE_COLOR="1")
    said = done.stdout.decode()
    assert (done.returncode, done.stderr) == (0, b"")
    assert "\x1b" not in said
    for words in ("ROLLING", "watched", "0 of 3", "0 of 2 groups ready", "deal-1", "1 of 2, 1 running", "laptop", "ok"):
        assert words in said, said
    assert re.search(r"1 open, 1 call, idle \d+ of 240 s", said)
    plain = once(server.url, PYTHONIOENCODING="ascii", COLUMNS="80")
    assert plain.returncode == 0
    assert plain.stdout.isascii()
    assert max(len(line) for line in plain.stdout.splitlines()) <= 80


def test_status_is_short_with_times_to_read_and_json_is_the_answer_itself(server):
    start(server)
    play(server.url)
    words = [sys.executable, "-m", "ajet.cli", "status", "--swarm-url", server.url]
    env = {k: v for k, v in environment().items() if k != "COLUMNS"}
    said = subprocess.run(
        words, capture_output=True, text=True, cwd=ROOT, timeout=DEADLINE_S, env=env, check=True
    ).stdout
    assert re.search(r"^ROLLING     since \d\d:\d\d:\d\d \([\d.]+ s\)", said, re.M), said
    for part in ("0 of 3", "0 of 2 groups ready", "1 of 128 running", "disk        ok", "dropped     nothing", "speed"):
        assert part in said, said
    assert "e+09" not in said
    assert len(said.splitlines()) < 15
    whole = subprocess.run([*words, "--json"], capture_output=True, cwd=ROOT, timeout=DEADLINE_S, env=env, check=True)
    printed, answered = json.loads(whole.stdout), server.status()
    assert set(printed) == set(answered)
    same = set(answered) - {"now", "speeds", "disk", "leases"}
    assert {key: printed[key] for key in same} == {key: answered[key] for key in same}


def test_once_without_a_server_says_so_in_one_line_and_exits_1(server):
    done = once(server.url)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode() == (
        f"ajet-swarm: No answer from {server.url}: Connection refused. "
        f"Nothing listens there. Start the server (ajet-swarm start --swarm-port {server.port}), or correct the address.\n"
    )


def test_a_wrong_key_is_one_line_and_the_right_one_opens(server, monkeypatch):
    monkeypatch.setenv("AJET_SWARM_KEY", "the-right-key")
    server.start()
    until(lambda: once(server.url, AJET_SWARM_KEY="the-right-key").returncode == 0, every_s=0.2)
    for key in ({"AJET_SWARM_KEY": "a-wrong-key"}, {}):
        done = once(server.url, **key)
        assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (1, b"", 1)
        assert b"AJET_SWARM_KEY" in done.stderr
        assert b"a-wrong-key" not in done.stderr


def test_without_a_terminal_it_says_to_use_once(server):
    done = subprocess.run(
        command(server.url), capture_output=True, stdin=subprocess.DEVNULL, cwd=ROOT, env=environment()
    )
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"--once" in done.stderr


class Terminal:
    """A pseudo-terminal of 80×24 with overwatch in it."""

    def __init__(self, url):
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = subprocess.Popen(
            command(url, "--refresh-interval", "0.2"), stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT,
            start_new_session=True, env={**environment(), "TERM": "xterm-256color"},
        )  # fmt: skip
        os.close(theirs)
        self._written = b""

    def read_until(self, words):
        """Read what is drawn until ``words`` come; forget what came up to them."""
        deadline = time.monotonic() + DEADLINE_S
        while (at := (said := self.text()).find(words)) < 0:
            assert time.monotonic() < deadline, f"no {words!r} in {said[-3000:]!r}"
            self._read(0.2)
        self._written = said[at + len(words) :].encode()
        return said

    def text(self):
        return _ESCAPES.sub(b"", self._written).decode(errors="replace")

    def _read(self, wait_s):
        if select.select([self._ours], [], [], wait_s)[0]:
            with contextlib.suppress(OSError):
                self._written += os.read(self._ours, 65536)

    def press(self, key):
        os.write(self._ours, key)

    def wait(self):
        deadline = time.monotonic() + DEADLINE_S
        while self.process.poll() is None and time.monotonic() < deadline:
            self._read(0.05)
        return self.process.poll()

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)


def test_it_starts_before_the_server_outlives_it_and_goes_on_until_q(server):
    terminal = Terminal(server.url)
    try:
        terminal.read_until(f"waiting for {server.url}: Connection refused")
        start(server)
        terminal.read_until("OFFLINE")
        play(server.url)
        terminal.read_until("ROLLING")
        terminal.read_until("deal-1")
        server.kill()
        terminal.read_until("lost the server at ")
        start(server)
        body = {"client_id": "desk", "request_id": "b9", "task_id": "deal-9", "wait_s": 30}
        assert httpx.post(server.url + "/swarm/v1/episodes", json=body, timeout=DEADLINE_S).status_code == 201
        terminal.read_until("deal-9")
        terminal.press(b"q")
        assert terminal.wait() == 0
    finally:
        terminal.close()


def test_a_wrong_key_ends_the_terminal_view_with_one_line(server, monkeypatch):
    monkeypatch.setenv("AJET_SWARM_KEY", "the-right-key")
    server.start()
    until(lambda: once(server.url, AJET_SWARM_KEY="the-right-key").returncode == 0, every_s=0.2)
    monkeypatch.setenv("AJET_SWARM_KEY", "a-wrong-key")
    terminal = Terminal(server.url)
    try:
        assert terminal.wait() == 1
        terminal.read_until("ajet-swarm: This is not the server's admin key.")
    finally:
        terminal.close()
