"""A process of scripted clients for the chaos trial: each writes down what it was told before it goes on.

``python -m tests.faults.chaos_client URL LOG SEED CLIENTS``. Lines of LOG are JSON, each fsynced: ``begin``, ``call``
(with the text that was answered), ``end`` (with its reward), ``abort``, ``refused`` (with the reason), ``left`` (an
episode abandoned on purpose), ``accepted_late`` (a request that had to be refused was not). Every second client is an
``AsyncSwarmClient``. Ends when the file LOG.stop exists, or when training is over.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import threading
import traceback
import uuid
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import openai

from ajet import AsyncSwarmClient, SwarmClient, Task, WorkflowOutput
from ajet.schema.errors import AjetError, EpisodeGone, TrainingFinished

T = TypeVar("T")
BUDGET_S = 240.0


class Record:
    """The log of one process; a line is on disk before ``write`` returns."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab")
        self._lock = threading.Lock()

    def write(self, kind: str, **fields: Any) -> None:
        with self._lock:
            self._file.write(json.dumps({"kind": kind, **fields}).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())


class FromThread:
    """An ``AsyncSwarmClient`` on an event loop in a thread of its own, called as a ``SwarmClient`` is."""

    def __init__(self, url: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._client = self._run(self._make(url))

    @staticmethod
    async def _make(url: str) -> AsyncSwarmClient:
        return AsyncSwarmClient(url, verbose=False, retry_budget_s=BUDGET_S, pool_size=4)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def begin_episode(self, *, discard_episode_timeout: float) -> tuple[str, Any]:
        return self._run(self._client.begin_episode(discard_episode_timeout=discard_episode_timeout))

    def end_episode(self, task: Task, episode: str, output: WorkflowOutput) -> None:
        self._run(self._client.end_episode(task, episode, output))

    def abort_episode(self, episode: str, reason: str) -> None:
        self._run(self._client.abort_episode(episode, reason))

    def close(self) -> None:
        self._run(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class ScriptedClient:
    """One client: begins, talks, ends or aborts or forgets, again and again."""

    def __init__(self, url: str, record: Record, seed: str, stop: Path, is_async: bool) -> None:
        self.client = (
            FromThread(url) if is_async else SwarmClient(url, verbose=False, retry_budget_s=BUDGET_S, pool_size=4)
        )
        self.record, self.draw, self.stop, self.seed = record, random.Random(seed), stop, seed
        self.episodes = 0

    def run(self) -> None:
        try:
            while not self.stop.exists():
                try:
                    self.episode()
                except EpisodeGone as gone:
                    self.record.write("refused", reason=gone.message)
        except TrainingFinished:
            self.record.write("finished")
        finally:
            self.client.close()

    def episode(self) -> None:
        uuid_, api = self.client.begin_episode(discard_episode_timeout=15)
        self.record.write("begin", episode=uuid_)
        self.episodes += 1
        task = Task(task_id=f"{self.seed}-{self.episodes // 2}", main_query="")
        agents = self.draw.sample(["anna", "bert", "carl"], self.draw.randint(1, 2))
        histories: dict[str, list[Any]] = {agent: [] for agent in agents}
        for _ in range(self.draw.randint(1, 5)):
            agent = self.draw.choice(agents)
            if not self.call(uuid_, api.for_agent(agent, "talker"), histories[agent]):
                return
        fate = self.draw.random()
        if fate < 0.06:
            self.client.abort_episode(uuid_, "the script says so")
            self.record.write("abort", episode=uuid_)
        elif fate < 0.09:
            # As a worker that hangs: the process lives on and its client beats for it, until the lease is too old.
            self.record.write("left", episode=uuid_)
        else:
            reward = round(self.draw.random(), 3)
            self.client.end_episode(task, uuid_, WorkflowOutput(reward=reward))
            self.record.write("end", episode=uuid_, task=task.task_id, reward=reward)
            if self.draw.random() < 0.15:
                self.too_late(task, uuid_, api, reward)

    def too_late(self, task: Task, episode: str, api: Any, reward: float) -> None:
        """An episode that has ended takes no other end, and no more calls."""
        try:
            self.client.end_episode(task, episode, WorkflowOutput(reward=reward + 1.0))
        except EpisodeGone as gone:
            self.record.write("refused", episode=episode, reason=gone.message)
        else:
            self.record.write("accepted_late", episode=episode, what="a second end")
        if self.call(episode, api.for_agent("anna", "talker"), []):
            self.record.write("accepted_late", episode=episode, what="a call after the end")

    def call(self, episode: str, api: Any, history: list[Any]) -> bool:
        """One chat call; False where the episode is gone."""
        history.append({"role": "user", "content": f"say {self.draw.randrange(10**6)}"})
        keyed = self.draw.random() < 0.5
        headers = {"Idempotency-Key": uuid.uuid4().hex} if keyed else {}
        with openai.OpenAI(base_url=api.base_url, api_key=api.api_key, max_retries=30, timeout=60) as sdk:
            try:
                said = sdk.chat.completions.create(
                    model="policy",
                    messages=history,
                    max_tokens=8,
                    extra_headers=headers,
                )
            except openai.APIStatusError as error:
                if error.status_code != 410:
                    raise
                self.record.write("refused", episode=episode, reason=str(error))
                return False
        text = said.choices[0].message.content
        self.record.write("call", episode=episode, id=said.id, text=text)
        history.append({"role": "assistant", "content": text or ""})
        return True


def main() -> int:
    url, log, seed, clients = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    record = Record(log)
    stop = Path(f"{log}.stop")
    failed: list[str] = []

    def run(number: int) -> None:
        try:
            ScriptedClient(url, record, f"{seed}-{number}", stop, is_async=number % 2 == 1).run()
        except (AjetError, openai.OpenAIError, OSError):
            failed.append(traceback.format_exc())

    threads = [threading.Thread(target=run, args=(n,)) for n in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for text in failed:
        print(text, file=sys.stderr)
        record.write("failed", error=text[-2000:])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
