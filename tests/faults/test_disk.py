"""A full disk is weather: runs on a small tmpfs that fills and is freed, with the real server and backbone."""

import asyncio
import contextlib
import json
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import httpx
import openai
import pytest
from transformers import AutoModelForCausalLM

from ajet import AgentJetJob, SwarmClient, Task, WorkflowOutput
from ajet.checkpoint import CheckpointStore
from ajet.pool import journal_read
from ajet.pool.journal import Journal
from ajet.pool.records import CallRecorded, Dropped
from ajet.schema.errors import DiskRefused
from ajet.server.replaying import replay_journal
from tests.faults import small_disk
from tests.faults.processes import Server, serving, small_job, until
from tests.unit.pool.test_pool_journal import call, end, lease, whole

STEPS, GROUPS, REPEAT = 9, 2, 2
NAME = "disk"


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


def job() -> AgentJetJob:
    made = small_job(NAME, groups=GROUPS, repeat=REPEAT, steps=STEPS, save_freq=1)
    made.config.trainer_common.optim.lr = 1e-3
    made.config.checkpoint.keep_last, made.config.checkpoint.keep_best = 2, 0
    return made


def play(client: SwarmClient, task: str, reward: float, before_end: Callable[[], None] | None = None) -> None:
    episode, api = client.begin_episode()
    with openai.OpenAI(base_url=api.base_url, api_key=api.api_key, max_retries=50) as sdk:
        for turn in range(3):
            said = [{"role": "user", "content": f"say {task} {turn}"}]
            sdk.chat.completions.create(model="policy", max_tokens=8, messages=said)  # type: ignore[arg-type]
    if before_end:
        before_end()
    client.end_episode(Task(task_id=task, main_query=""), episode, WorkflowOutput(reward=reward))


def train(server: Server, weather: "Weather", journal: Path) -> dict[int, tuple[int, bytes]]:
    """The whole run; every call that was ever in the journal, also those that compaction removed since."""
    calls: dict[int, tuple[int, bytes]] = {}
    with SwarmClient(server.url, verbose=False) as client:
        client.auto_sync_train_config_and_start_engine(job())
        for step in range(STEPS):
            weather.before_step(step)
            for group in range(GROUPS):
                for member in range(REPEAT):
                    fills = weather.while_collecting if (step, group, member) == (2, 1, 0) else None
                    play(client, f"{step}-{group}", float(member), fills)
                    with closing(journal_read.connect(journal)) as db:
                        calls.update({k: (n, body) for k, n, body in db.execute("SELECT k, n, body FROM call")})
            status = client.get_status(wait_step=step + 1, wait_s=120)
            assert status["step"] == step + 1, status
            weather.wait()
    return calls


class Weather:
    """Fills the disk at three kinds of moments and frees it when the server has said so."""

    def __init__(self, disk: Path, server: Server) -> None:
        self.disk, self.server = disk, server
        self.seen: dict[str, str] = {}
        self.threads: list[threading.Thread] = []

    def while_collecting(self) -> None:
        """Every answer needs the journal."""
        small_disk.fill(self.disk)
        self._free_when("collection", lambda now: now["disk"]["error"])

    def before_step(self, step: int) -> None:
        if step in (3, 4, 5) and "a save" not in self.seen:
            self._at("a save", step, lambda names: any(name.startswith(".tmp-") for name in names))
        if step in (6, 7):
            # Compaction starts as soon as a checkpoint is whole.
            self._at("compaction", step, lambda names: f"step_{step + 1:06d}" in names)

    def wait(self) -> None:
        """Return when the disk is free again and nothing is about to fill it."""
        while self.threads:
            self.threads.pop().join(90)

    def _at(self, name: str, step: int, moment: Callable[[list[str]], bool]) -> None:
        """Fill as soon as the folder of checkpoints looks like it, if it does before the step's checkpoint is whole."""
        folder, whole = self.disk / "server" / NAME / "checkpoints", f"step_{step + 1:06d}"

        def look() -> str | None:
            names = [p.name for p in folder.iterdir()]
            return "now" if moment(names) else "missed" if whole in names else None

        def wait() -> None:
            if until(look, 60, name, every_s=0.0005) == "now":
                small_disk.fill(self.disk)
                self.seen.setdefault(name, "filled")
                self._free_when(name, lambda now: now["checkpoint"]["error"] or now["disk"]["error"], 3.0)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        self.threads.append(thread)

    def _free_when(self, name: str, said: Callable[[dict], str | None], at_most_s: float = 30.0) -> None:
        def wait() -> None:
            deadline = time.monotonic() + at_most_s
            while time.monotonic() < deadline:
                words = said(self.server.status() or {"disk": {"error": None}, "checkpoint": {"error": None}})
                if words:
                    self.seen[name] = words
                    break
                time.sleep(0.05)
            small_disk.free(self.disk)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        self.threads.append(thread)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_run_whose_disk_fills_three_times_is_the_run_it_would_have_been(disk, tmp_path):
    log = tmp_path / "server.log"
    experiment = disk / "server" / NAME
    with serving(disk / "server", log) as server:
        weather = Weather(disk, server)
        calls = await asyncio.to_thread(train, server, weather, experiment / "journal.sqlite")
        until(lambda: server.state() == "FINISHED", what="the end of training")
        assert (server.status() or {})["disk"]["ok"]
    assert "refuses" in log.read_text()
    assert {"collection", "a save", "compaction"} <= weather.seen.keys(), weather.seen
    assert "full" in weather.seen["collection"]
    assert "No space" in weather.seen["a save"] or "MiB free" in weather.seen["a save"], weather.seen
    checkpoints = CheckpointStore(experiment / "checkpoints").all()
    assert [c.step for c in checkpoints][-1] == STEPS
    for checkpoint in checkpoints:
        AutoModelForCausalLM.from_pretrained(checkpoint.path)
    lines = [json.loads(line)["step"] for line in (experiment / "metrics.jsonl").read_text().splitlines()]
    assert lines == list(range(1, STEPS + 1))
    # The same batches on a disk that never filled: the journal, its removed calls put back, trained in one go.
    again = tmp_path / "again.sqlite"
    shutil.copy(experiment / "journal.sqlite", again)
    with closing(sqlite3.connect(again)) as db:
        assert db.execute("SELECT count(*) FROM compacted").fetchone()[0] > 0
        kept = {k for (k,) in db.execute("SELECT k FROM call")}
        db.executemany("INSERT INTO call VALUES(?,?,?)", [(k, *call) for k, call in calls.items() if k not in kept])
        db.execute("DELETE FROM compacted")
        db.commit()
    replayed = await replay_journal(again)
    assert (replayed.start, replayed.steps, replayed.diverged) == (0, STEPS, [])
    assert replayed.digest == checkpoints[-1].digest


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
