"""One request's episodes: begun together, called at once, and ended with rewards or aborted whole.

Invariants: a group enters the server's pool with all its episodes or with none; whatever interrupts it (a failed call,
the application hanging up, this process being told to stop) aborts it with a reason; one group at a time begins its
episodes, so two of them never hold half of the last free ones each and wait for the other half.

Used on one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Coroutine, Sequence
from typing import Any

import httpx

from ajet.client import AsyncSwarmClient
from ajet.passive.endpoints import chat, words
from ajet.passive.judge import Answer, Asked
from ajet.schema.endpoint import OpenaiBaseUrlAndApiKey
from ajet.schema.errors import AjetError, InfrastructureFault
from ajet.schema.task import Task, WorkflowOutput

log = logging.getLogger("ajet.passive")
LONGEST_QUERY = 2000
"""Characters of the question that are kept as the task's."""


class Group:
    """The episodes of one request.

    Attributes:
        answers: of each episode in order; None where its calls failed by infrastructure.
        faults: why they failed.
    """

    def __init__(self, task: Task, episodes: Sequence[tuple[str, OpenaiBaseUrlAndApiKey]]) -> None:
        self.task = task
        self.episodes = list(episodes)
        self.answers: list[Answer | None] = [None] * len(self.episodes)
        self.faults: list[str] = []

    async def call(self, http: httpx.AsyncClient, body: dict[str, Any], budget_s: float) -> None:
        """Ask the model in every episode at once.

        Raises:
            AjetError: the request itself is at fault; what was still being sampled is cancelled.
        """

        async def one(index: int, api: OpenaiBaseUrlAndApiKey) -> None:
            try:
                self.answers[index] = await chat(http, api, body, budget_s)
            except AjetError as err:
                if not _weather(err):
                    raise
                self.faults.append(words(err))

        tasks = [asyncio.ensure_future(one(i, api)) for i, (_, api) in enumerate(self.episodes)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _weather(error: AjetError) -> bool:
    """Whether it is nobody's fault: the request may be served some other way."""
    return isinstance(error, InfrastructureFault) or error.retryable or error.http_status in (410, 500)


class Groups:
    """Begins groups and sees to their ends, which the application does not wait for."""

    def __init__(self, client: AsyncSwarmClient, episode_s: float) -> None:
        self._client = client
        self._episode_s = episode_s
        self._beginning = asyncio.Lock()
        self._later: set[asyncio.Task[None]] = set()

    async def begin(self, asked: Asked, size: int, kind: str, timeout_s: float) -> Group:
        """Begin ``size`` episodes of a new task, or none.

        Raises:
            asyncio.TimeoutError: they were not all granted in time.
            Whatever :meth:`AsyncSwarmClient.begin_episode` raises.
        """
        task = Task(task_id=f"passive-{uuid.uuid4().hex}", main_query=asked.question[:LONGEST_QUERY])
        return Group(task, await asyncio.wait_for(self._begin(task, size, kind), timeout_s))

    async def _begin(self, task: Task, size: int, kind: str) -> list[tuple[str, OpenaiBaseUrlAndApiKey]]:
        async with self._beginning:
            begins = [
                asyncio.ensure_future(self._client.begin_episode(self._episode_s, kind, task)) for _ in range(size)
            ]
            try:
                return await asyncio.gather(*begins)
            except BaseException:
                for begin in begins:
                    begin.cancel()
                for result in await asyncio.gather(*begins, return_exceptions=True):
                    if not isinstance(result, BaseException):
                        self._soon(self._abort(result[0], "passive_not_begun: the group could not be begun whole"))
                raise

    def end(self, group: Group, rewards: Sequence[float], best: int) -> None:
        """Report the rewards, behind the application's back."""
        for index, (episode, _) in enumerate(group.episodes):
            output = WorkflowOutput(
                reward=rewards[index], metadata={"passive": {"returned": index == best, "of": len(rewards)}}
            )
            self._soon(self._end(group.task, episode, output))

    def abort(self, group: Group, reason: str) -> None:
        """Give all episodes back."""
        for episode, _ in group.episodes:
            self._soon(self._abort(episode, reason))

    async def _end(self, task: Task, episode: str, output: WorkflowOutput) -> None:
        try:
            await self._client.end_episode(task, episode, output)
        except AjetError as err:
            log.error("the reward of episode %s was not taken: %s", episode, err.message)
            await self._abort(episode, f"passive_end_refused: {err.message}")

    async def _abort(self, episode: str, reason: str) -> None:
        try:
            await self._client.abort_episode(episode, reason[:500])
        except AjetError as err:
            log.error("episode %s could not be aborted: %s", episode, err.message)

    def _soon(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def settled(self, timeout_s: float) -> None:
        """Wait until all ends and aborts are acknowledged, at most ``timeout_s`` seconds."""
        if self._later:
            await asyncio.wait(set(self._later), timeout=timeout_s)
