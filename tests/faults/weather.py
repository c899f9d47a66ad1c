"""A run on a disk that refuses at chosen moments, with the real server and backbone."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import openai
from transformers import AutoModelForCausalLM

from ajet import AgentJetJob, SwarmClient, Task, WorkflowOutput
from ajet.checkpoint import CheckpointStore
from ajet.pool import journal_read
from ajet.server.replaying import replay_journal
from tests.faults.processes import Server, small_job, until

STEPS, GROUPS, REPEAT = 12, 2, 2
NAME = "disk"


def job() -> AgentJetJob:
    made = small_job(NAME, groups=GROUPS, repeat=REPEAT, steps=STEPS, save_freq=1)
    made.config.trainer_common.optim.lr = 1e-3
    made.config.checkpoint.keep_last, made.config.checkpoint.keep_best = 2, 0
    return made


def play(
    client: SwarmClient, task: str, reward: float, before_end: Callable[[], None] | None = None, max_retries: int = 50
) -> None:
    """One episode of three calls."""
    episode, api = client.begin_episode()
    with openai.OpenAI(base_url=api.base_url, api_key=api.api_key, max_retries=max_retries) as sdk:
        for turn in range(3):
            said = [{"role": "user", "content": f"say {task} {turn}"}]
            sdk.chat.completions.create(model="policy", max_tokens=8, messages=said)  # type: ignore[arg-type]
    if before_end:
        before_end()
    client.end_episode(Task(task_id=task, main_query=""), episode, WorkflowOutput(reward=reward))


def train(server: Server, weather: Weather, journal: Path) -> dict[int, tuple[int, bytes]]:
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
    """Lets the disk refuse at three kinds of moments, and take writes again when the server has said so.

    Args:
        folder: the experiment's.
        refuse, take: change how the disk is.
        prepare: called some time before ``refuse``, which then has to be quick: a save takes milliseconds.
    """

    def __init__(
        self,
        folder: Path,
        server: Server,
        refuse: Callable[[], None],
        take: Callable[[], None],
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        self.folder, self.server, self.refuse, self.take, self.prepare = folder, server, refuse, take, prepare
        self.seen: dict[str, str] = {}
        self.threads: list[threading.Thread] = []

    def while_collecting(self) -> None:
        """Every answer needs the journal."""
        self.refuse()
        self._free_when("collection", lambda now: now["disk"]["error"])

    def before_step(self, step: int) -> None:
        if step in (3, 4, 5, 6, 7, 8) and "a save" not in self.seen:
            self.prepare()
            self._at("a save", step, lambda names: any(name.startswith(".tmp-") for name in names))
        if step in (9, 10):
            # Compaction starts as soon as a checkpoint is whole.
            self._at("compaction", step, lambda names: f"step_{step + 1:06d}" in names, silent=True)

    def wait(self) -> None:
        """Return when the disk is free again and nothing is about to fill it."""
        while self.threads:
            self.threads.pop().join(90)

    def _at(self, name: str, step: int, moment: Callable[[list[str]], bool], silent: bool = False) -> None:
        """Refuse as soon as the folder of checkpoints looks like it, if it does before the step's checkpoint is whole.

        ``silent``: nothing need be said of it in the status.
        """
        folder, whole = self.folder / "checkpoints", f"step_{step + 1:06d}"

        def look() -> str | None:
            names = [p.name for p in folder.iterdir()]
            return "now" if moment(names) else "missed" if whole in names else None

        def wait() -> None:
            if until(look, 60, name, every_s=0.0005) == "now":
                self.refuse()
                if silent:
                    self.seen.setdefault(name, "refused")
                self._free_when(name, lambda now: now["checkpoint"]["error"] or now["disk"]["error"], 3.0)
            else:
                self.take()

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
            self.take()

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        self.threads.append(thread)


async def a_run_that_is_refused_three_times(server: Server, weather: Weather, beside: Path) -> None:
    """A whole run through ``weather``; asserts that it is the run it would have been on a sound disk.

    Args:
        beside: a folder on another disk.
    """
    experiment = weather.folder
    calls = await asyncio.to_thread(train, server, weather, experiment / "journal.sqlite")
    until(lambda: server.state() == "FINISHED", what="the end of training")
    now = server.status() or {}
    assert now["disk"]["ok"], now["disk"]
    assert now["disk"]["since"] is None
    assert now["checkpoint"]["error"] is None
    assert now["checkpoint"]["refused"] == 0
    assert "refuses" in server.log.read_text()
    assert {"collection", "a save", "compaction"} <= weather.seen.keys(), weather.seen
    checkpoints = CheckpointStore(experiment / "checkpoints").all()
    assert [c.step for c in checkpoints][-1] == STEPS
    for checkpoint in checkpoints:
        AutoModelForCausalLM.from_pretrained(checkpoint.path)
    lines = [json.loads(line)["step"] for line in (experiment / "metrics.jsonl").read_text().splitlines()]
    assert lines == list(range(1, STEPS + 1))
    # The same batches on a disk that never refused: the journal, its removed calls put back, trained in one go.
    again = beside / "again.sqlite"
    with closing(journal_read.connect(experiment / "journal.sqlite")) as source, closing(sqlite3.connect(again)) as db:
        source.backup(db)
        assert db.execute("SELECT count(*) FROM compacted").fetchone()[0] > 0
        kept = {k for (k,) in db.execute("SELECT k FROM call")}
        db.executemany("INSERT INTO call VALUES(?,?,?)", [(k, *call) for k, call in calls.items() if k not in kept])
        db.execute("DELETE FROM compacted")
        db.commit()
    replayed = await replay_journal(again)
    assert (replayed.start, replayed.steps, replayed.diverged) == (0, STEPS, [])
    assert replayed.digest == checkpoints[-1].digest
