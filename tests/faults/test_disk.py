"""A full disk is weather: runs on a small tmpfs that fills and is freed, with the real server and backbone."""

import asyncio
import contextlib
import json
import os
from pathlib import Path

import httpx
import pytest

from ajet import SwarmClient
from ajet.pool import journal_read
from ajet.pool.journal import Journal
from ajet.pool.records import CallRecorded, Dropped
from ajet.schema.errors import DiskRefused
from tests.faults import small_disk
from tests.faults.processes import Server, kill, python, serving, until
from tests.faults.weather import NAME, Weather, a_run_that_is_refused_three_times, job
from tests.unit.pool.test_pool_journal import call, end, lease, whole


@pytest.fixture
def disk(tmp_path):
    """An empty tmpfs of 48 MiB."""
    with small_disk.mounted(tmp_path / "disk", 48) as mounted:
        if not mounted:
            words = "no tmpfs can be mounted: run as root, or in a container that may"
            if os.environ.get("CI"):
                pytest.fail(words)
            pytest.skip(words)
        yield tmp_path / "disk"


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_run_whose_disk_fills_three_times_is_the_run_it_would_have_been(disk, tmp_path):
    with serving(disk / "server", tmp_path / "server.log") as server:
        weather = Weather(
            disk / "server" / NAME, server, lambda: small_disk.fill(disk), lambda: small_disk.free(disk),
            lambda: small_disk.narrow(disk, 12 << 20),
        )  # fmt: skip
        await a_run_that_is_refused_three_times(server, weather, tmp_path)
    assert "full" in weather.seen["collection"]
    assert "No space" in weather.seen["a save"] or "MiB free" in weather.seen["a save"], weather.seen


def test_a_server_that_starts_on_a_full_disk_waits_for_room_and_says_so(disk, tmp_path):
    log = tmp_path / "server.log"
    server = Server(disk / "server", log)
    (disk / "server").mkdir()
    small_disk.fill(disk)
    server.start()
    try:
        until(lambda: "waiting until there is room" in log.read_text(), what="a word about the disk")
        small_disk.free(disk)
        until(server.status, what="the server's start")
    finally:
        server.stop()


def test_an_experiment_is_resumed_by_itself_when_a_full_disk_has_room_again(disk, tmp_path):
    with serving(disk / "server", tmp_path / "server.log") as server, SwarmClient(server.url, verbose=False) as client:
        client.auto_sync_train_config_and_start_engine(job())
        episode, _ = client.begin_episode()
        server.kill()
        (disk / "server" / NAME / "journal.sqlite-shm").unlink(missing_ok=True)  # so that opening needs room
        (disk / "server" / NAME / "journal.reserve").unlink()
        small_disk.fill(disk)
        server.start()
        until(lambda: (server.status() or {}).get("last_error"), what="a word about the disk")
        abort = f"{server.url}/swarm/v1/episodes/{episode}/abort"
        assert httpx.post(abort, json={"request_id": "a", "reason": "x"}).status_code == 507
        small_disk.free(disk)
        until(lambda: server.state() == "ROLLING", what="serving again")
        assert client.can_continue_episode(episode)


def test_a_job_on_a_full_disk_is_refused_with_507_and_starts_when_there_is_room(disk, tmp_path):
    with serving(disk / "server", tmp_path / "server.log") as server:
        small_disk.fill(disk)
        refused = httpx.put(f"{server.url}/swarm/v1/job", json={"job": job().config.model_dump(mode="json")})
        assert refused.status_code == 200, refused.text
        refused = httpx.post(f"{server.url}/swarm/v1/engine/start")
        assert refused.status_code == 507, refused.text
        small_disk.free(disk)
        assert httpx.post(f"{server.url}/swarm/v1/engine/start").status_code == 200
        until(lambda: server.state() == "ROLLING", what="serving")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_demo_goes_through_a_disk_that_fills_in_training_and_again_at_the_end(disk, tmp_path):
    said = tmp_path / "demo.log"
    command = ["-m", "ajet.cli", "demo", "werewolves", "--steps", "3", "--eval-games", "4", "--exp-dir", str(disk)]
    demo = python(command, said)
    try:
        until(lambda: "step   1/3" in said.read_text(), what="the first step")
        small_disk.fill(disk)
        until(lambda: "refuses writes" in said.read_text(), what="a word about the disk")
        small_disk.free(disk)
        until(lambda: "evaluating the final policy" in said.read_text(), what="the end of training")
        small_disk.fill(disk)
        [run] = [folder for folder in disk.iterdir() if folder.is_dir()]
        until(lambda: "waiting until" in said.read_text(), what="its wait")
        assert demo.poll() is None, said.read_text()
        small_disk.free(disk)
        assert demo.wait(120) == 0, said.read_text()
    finally:
        kill(demo)
    summary = json.loads((run / "summary.json").read_text())
    assert [row["step"] for row in summary["train"]] == [1, 2, 3]
    assert all(result["games"] == 4 for when in summary["eval"].values() for result in when.values())
    assert (run / "win_rate.png").stat().st_size > 0


async def test_compaction_on_a_full_disk_harms_nothing_and_is_made_up_for(disk):
    journal = Journal(disk / "journal.sqlite")
    for n in range(1, 40):
        calls = [CallRecorded(n, call(n, k, size=2000)) for k in range(1, 4)]
        await journal.append(lease(n), *calls, end(n, task=f"t{n}"), Dropped(n, "policy_lag"))
    kept = (await _calls(journal.path)).keys()
    small_disk.fill(disk)
    while journal.disk_error is None:  # the write-ahead log has some room of its own
        with contextlib.suppress(DiskRefused):
            await journal.append(CallRecorded(1, call(1, 9, size=2000)))
    [failed] = await asyncio.gather(journal.compact(1), return_exceptions=True)
    assert failed is None or "full" in str(failed)
    assert kept <= (await _calls(journal.path)).keys() or not await _calls(journal.path)
    assert whole(journal.path)
    small_disk.free(disk)
    await journal.writable()
    await journal.compact(1)
    assert await _calls(journal.path) == {}
    journal.close()


async def _calls(path: Path) -> dict[int, int]:
    def read() -> dict[int, int]:
        with journal_read.connect(path) as db:
            return dict(db.execute("SELECT n, count(*) FROM call GROUP BY n"))

    return await asyncio.to_thread(read)
