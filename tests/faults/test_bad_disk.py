"""Disks that turn read-only, fail, are slow, hang or damage what lies on them, under the real server and backbone."""

import contextlib
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import openai
import pytest

from ajet import SwarmClient
from ajet.schema.errors import AjetError
from tests.faults.bad_disk import BadDisk
from tests.faults.processes import ROOT, environment, free_port, serving, until
from tests.faults.weather import NAME, Weather, a_run_that_is_refused_three_times, job, play

pytestmark = pytest.mark.skipif(
    not BadDisk.available(), reason="needs Linux and a C compiler, to stand in for the disk"
)


@pytest.fixture
def disk(tmp_path):
    return BadDisk(tmp_path / "disk", tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["readonly", "failing"])
async def test_a_run_whose_disk_refuses_for_a_while_is_the_run_it_would_have_been(disk, tmp_path, mode):
    with serving(disk.folder / "server", tmp_path / "server.log", disk.environment) as server:
        folder = disk.folder / "server" / NAME
        weather = Weather(folder, server, lambda: disk.be(mode), lambda: disk.be("well"))
        await a_run_that_is_refused_three_times(server, weather, tmp_path)
    said = weather.seen["a save"]
    assert ("Read-only" if mode == "readonly" else "Input/output") in said or "I/O" in said, weather.seen


class Watcher:
    """Asks for the status all the time, and keeps how long each answer took."""

    def __init__(self, url: str) -> None:
        self.seconds: list[float] = []
        self.answers: list[dict] = []
        self._url, self._over = url, threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def _ask(self) -> None:
        with httpx.Client(timeout=30) as http:
            while not self._over.is_set():
                began = time.monotonic()
                self.answers.append(http.get(f"{self._url}/swarm/v1/status").json())
                self.seconds.append(time.monotonic() - began)
                self._over.wait(0.02)

    def __enter__(self) -> "Watcher":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.alone
def test_a_disk_whose_every_fsync_takes_over_a_second_holds_up_only_what_is_recorded(disk, tmp_path):
    with (
        serving(disk.folder / "server", tmp_path / "server.log", disk.environment) as server,
        SwarmClient(server.url, verbose=False) as client,
    ):
        client.auto_sync_train_config_and_start_engine(job())
        disk.be("slow:1200")
        with Watcher(server.url) as watcher:
            for member in range(4):
                play(client, f"0-{member // 2}", float(member % 2))
            assert client.get_status(wait_step=1, wait_s=120)["step"] == 1
            until(lambda: (server.status() or {})["checkpoint"]["step"] == 1, what="the checkpoint")
        now = server.status() or {}
        disk.be("well")
        play(client, "1-0", 0.0)
    assert now["leases"]["open_train"] == 0
    assert now["drops"] == {}
    assert max(a["disk"]["write_s"] for a in watcher.answers) >= 1.2
    assert max(a["disk"]["stalled_s"] for a in watcher.answers) > 0.5
    assert any("is slow for its journal" in w for a in watcher.answers for w in a["warnings"])
    # An event loop that waited for one fsync would show here.
    assert statistics.median(watcher.seconds) < 0.2
    assert max(watcher.seconds) < 1.2, sorted(watcher.seconds)[-5:]


@pytest.mark.timeout(120)
def test_a_disk_that_hangs_loses_no_lease_and_its_answers_come_when_it_comes_back(disk, tmp_path):
    with (
        serving(disk.folder / "server", tmp_path / "server.log", disk.environment) as server,
        SwarmClient(server.url, verbose=False) as client,
    ):
        client.auto_sync_train_config_and_start_engine(job())
        episode, api = client.begin_episode(discard_episode_timeout=2)
        replies: list[str] = []

        def call() -> None:
            with openai.OpenAI(base_url=api.base_url, api_key=api.api_key, max_retries=50) as sdk:
                said = [{"role": "user", "content": "say it"}]
                made = sdk.chat.completions.create(model="policy", max_tokens=8, messages=said)  # type: ignore[arg-type]
                replies.append(made.id)

        disk.be("hang")
        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        assert until(lambda: (server.status() or {})["disk"]["stalled_s"] > 4, what="a word about the disk")
        metrics = httpx.get(f"{server.url}/metrics").text
        assert not replies, "answered before it was on disk"
        assert client.can_continue_episode(episode)
        disk.be("well")
        thread.join(60)
        assert len(replies) == 1
        assert client.can_continue_episode(episode)
        until(lambda: (server.status() or {})["disk"]["stalled_s"] == 0, what="the disk's return")
        client.abort_episode(episode)
    stalls = [line for line in metrics.splitlines() if line.startswith("ajet_disk_stalled_seconds ")]
    assert float(stalls[0].split()[1]) > 3, stalls


@pytest.mark.timeout(120)
def test_a_server_told_to_stop_on_a_disk_that_refuses_stops_and_goes_on_exactly_later(disk, tmp_path):
    log = tmp_path / "server.log"
    with (
        serving(disk.folder / "server", log, disk.environment) as server,
        SwarmClient(server.url, verbose=False) as client,
    ):
        made = job()
        made.config.trainer_common.save_freq = 100
        client.auto_sync_train_config_and_start_engine(made)
        for member in range(4):
            play(client, f"0-{member // 2}", float(member % 2))
        assert client.get_status(wait_step=1, wait_s=60)["step"] == 1
        disk.be("readonly")
        began = time.monotonic()
        assert server.process is not None
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(60)
        assert time.monotonic() - began < 30
        disk.be("well")
        server.start()
        until(lambda: server.state() == "ROLLING", what="going on")
        now = server.status() or {}
        assert now["step"] == 1
        assert now["warnings"] == [], now
    assert "re-applying the batch of step 1" in log.read_text()


@pytest.mark.timeout(120)
def test_a_journal_that_is_damaged_under_a_running_server_is_said_and_is_not_a_full_disk(disk, tmp_path):
    log = tmp_path / "server.log"
    with (
        serving(disk.folder / "server", log) as server,
        SwarmClient(server.url, verbose=False, retry_budget_s=5) as client,
    ):
        client.auto_sync_train_config_and_start_engine(job())
        path = disk.folder / "server" / NAME / "journal.sqlite"

        def overwrite() -> None:
            """As a stray copy or a broken file system would. What is in the server's own cache is not enough to train."""
            for file in (path, Path(f"{path}-wal")):
                with file.open("r+b") as raw:
                    raw.write(b"\xa5" * file.stat().st_size)

        for member in range(3):
            play(client, f"0-{member // 2}", float(member % 2))
        with contextlib.suppress(AjetError):
            play(client, "0-1", 1.0, overwrite)
        until(lambda: server.state() == "FAILED", what="saying so")
        now = server.status() or {}
        assert "damaged" in now["failure"], now
        assert "ajet-swarm doctor" in now["failure"], now
    assert "free some space" not in log.read_text()


def test_a_server_whose_folder_lies_on_a_read_only_mount_says_so_and_ends(tmp_path):
    mount = tmp_path / "ro"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "ro,size=1m", "ajet-test", str(mount)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no tmpfs can be mounted: run as root, or in a container that may")
    try:
        start = [
            sys.executable,
            "-m",
            "ajet.cli",
            "start",
            "--swarm-port",
            str(free_port()),
            "--exp-dir",
            str(mount / "experiments"),
        ]
        done = subprocess.run(
            start, capture_output=True, text=True, cwd=ROOT, env=environment(), timeout=60, check=False
        )
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=False)
    assert done.returncode != 0
    said = done.stderr + done.stdout
    assert "Read-only file system" in said
    assert "--exp-dir" in said
    assert "Traceback" not in said
