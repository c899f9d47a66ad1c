"""An episode as a ``with`` block, for the blocking and for the asyncio client."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ajet.client.advice import NO_OUTPUT
from ajet.schema.endpoint import OpenaiBaseUrlAndApiKey
from ajet.schema.errors import AjetError, EpisodeGone
from ajet.schema.task import Task, WorkflowOutput
from ajet.schema.throttle import SwarmThrottlePolicy

if TYPE_CHECKING:
    from ajet.client.async_client import AsyncSwarmClient
    from ajet.client.swarm_client import SwarmClient


class Episode:
    """One episode as a ``with`` block.

    Leaving the block ends the episode where :meth:`end` was called or :attr:`output` was set, and aborts it otherwise:
    with the exception as its reason where one left the block, which goes on.

    Attributes:
        episode_uuid: the episode's id.
        api: the endpoint that its agents call.
        output: set it instead of calling :meth:`end`.
    """

    episode_uuid: str
    api: OpenaiBaseUrlAndApiKey

    def __init__(
        self,
        client: SwarmClient,
        task: Task | None,
        timeout_s: float,
        episode_type: str,
        throttle_policy: SwarmThrottlePolicy | None,
    ) -> None:
        self._client = client
        self._arguments = (timeout_s, episode_type, task, throttle_policy)
        self._over = False
        self.task = task
        self.output: WorkflowOutput | None = None

    def __enter__(self) -> Episode:
        self.episode_uuid, self.api = self._client.begin_episode(*self._arguments)
        return self

    def end(self, output: WorkflowOutput, task: Task | None = None) -> None:
        """End the episode now. ``task`` where none was given at the beginning."""
        self._client.end_episode(task or self.task or Task(), self.episode_uuid, output)
        self._over = True

    def abort(self, reason: str = "aborted by the client") -> None:
        """Abort the episode now."""
        self._over = True
        self._client.abort_episode(self.episode_uuid, reason)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._over:
            return
        if error is not None:
            self.abort(abort_reason(error))
        elif self.output is None:
            self.abort(NO_OUTPUT)
        else:
            try:
                self.end(self.output)
            except AjetError as refused:
                if not isinstance(refused, EpisodeGone):
                    self.abort(abort_reason(refused))
                raise


class AsyncEpisode:
    """One episode as an ``async with`` block; see :class:`ajet.client.Episode`."""

    episode_uuid: str
    api: OpenaiBaseUrlAndApiKey

    def __init__(
        self,
        client: AsyncSwarmClient,
        task: Task | None,
        timeout_s: float,
        episode_type: str,
        throttle_policy: SwarmThrottlePolicy | None,
    ) -> None:
        self._client = client
        self._arguments = (timeout_s, episode_type, task, throttle_policy)
        self._over = False
        self.task = task
        self.output: WorkflowOutput | None = None

    async def __aenter__(self) -> AsyncEpisode:
        self.episode_uuid, self.api = await self._client.begin_episode(*self._arguments)
        return self

    async def end(self, output: WorkflowOutput, task: Task | None = None) -> None:
        """End the episode now. ``task`` where none was given at the beginning."""
        await self._client.end_episode(task or self.task or Task(), self.episode_uuid, output)
        self._over = True

    async def abort(self, reason: str = "aborted by the client") -> None:
        """Abort the episode now."""
        self._over = True
        await self._client.abort_episode(self.episode_uuid, reason)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._over:
            return
        if error is not None:
            # A cancelled task must still give its episode back, so the abort is shielded from that cancellation.
            await asyncio.shield(self.abort(abort_reason(error)))
        elif self.output is None:
            await self.abort(NO_OUTPUT)
        else:
            try:
                await self.end(self.output)
            except AjetError as refused:
                if not isinstance(refused, EpisodeGone):
                    await self.abort(abort_reason(refused))
                raise


def abort_reason(error: BaseException) -> str:
    """An exception as an abort's reason: counted by its class, shown with its message."""
    return f"{type(error).__name__}: {error}"[:500]
