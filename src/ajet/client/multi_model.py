"""Episodes of several models that play one game, as a ``with`` block and as an ``async with`` block.

What is promised, and what no client can promise, is said in :mod:`ajet.client.together`, whose plans are performed here: by
threads (:class:`MultiModelEpisode`) or on an event loop (:class:`AsyncMultiModelEpisode`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ajet.client.several import at_once
from ajet.client.together import Ask, EpisodesTogether, Outputs, Plan, WhenFinished
from ajet.schema.task import Task

if TYPE_CHECKING:
    from ajet.client.swarm_client import SwarmClient

T = TypeVar("T")


class MultiModelEpisode(EpisodesTogether):
    """One game's episodes, one on each server; a ``with`` block that ends or aborts them together.

    Leaving the block ends the episodes where :meth:`end` was called or :attr:`output` was set, and aborts them
    otherwise, with the exception as the reason where one left the block.

    Arguments and attributes as of :class:`ajet.client.together.EpisodesTogether`.
    """

    CLIENT = "SwarmClient"

    def begin(self) -> MultiModelEpisode:
        """Begin all episodes; if one cannot be, the others are aborted.

        Raises:
            TrainingFinished: every model is finished (with ``when_finished="stop"``: one is).
            Whatever :meth:`SwarmClient.begin_episode` raises.
        """
        self._perform(self._beginning())
        return self

    def end(self, output: Outputs, task: Task | None = None) -> None:
        """Report the game to every server, each until it acknowledges.

        Args:
            output: one for all, whose reward is a dict by agent or tag of which each server takes its own agents'; or
                one for each name.
            task: where none was given at the beginning.

        Raises:
            InvalidRequest, IncompleteReward: a server would not take its result; nothing was ended, all are open.
            EpisodeGone: an episode had ended (expired, aborted); the others were aborted.
            EpisodesParted: some are recorded, and the others were not acknowledged; see :mod:`ajet.client.together`. Those
                that are still open may be ended by calling this again.
        """
        self._perform(self._ending(output, task))

    def abort(self, reason: str = "aborted by the client") -> None:
        """Abort what is open of them."""
        self._perform(self._aborting(reason))

    def __enter__(self) -> MultiModelEpisode:
        return self if self.episodes else self.begin()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._perform(self._leaving(error))

    def _perform(self, plan: Plan[T]) -> T:
        try:
            asks = next(plan)
            while True:
                try:
                    answers = self._answers(asks)
                except BaseException as err:  # Ctrl-C, while others answer: the plan says what becomes of what is open
                    asks = plan.throw(err)
                else:
                    asks = plan.send(answers)
        except StopIteration as done:
            return done.value

    def _answers(self, asks: Mapping[str, Ask]) -> dict[str, Any]:
        calls = {name: partial(getattr(self.clients[name], a.method), *a.arguments) for name, a in asks.items()}
        if len(calls) > 1:
            return at_once(calls)
        name, call = next(iter(calls.items()))
        try:
            return {name: call()}
        except BaseException as err:  # an answer like any other: the plan raises it
            return {name: err}


class AsyncMultiModelEpisode(EpisodesTogether):
    """:class:`MultiModelEpisode` for :class:`AsyncSwarmClient`, as an ``async with`` block.

    A task that is cancelled gives its episodes back.
    """

    CLIENT = "AsyncSwarmClient"

    async def begin(self) -> AsyncMultiModelEpisode:
        """See :meth:`MultiModelEpisode.begin`."""
        await self._perform(self._beginning())
        return self

    async def end(self, output: Outputs, task: Task | None = None) -> None:
        """See :meth:`MultiModelEpisode.end`."""
        await self._perform(self._ending(output, task))

    async def abort(self, reason: str = "aborted by the client") -> None:
        """Abort what is open of them."""
        await self._perform(self._aborting(reason))

    async def __aenter__(self) -> AsyncMultiModelEpisode:
        return self if self.episodes else await self.begin()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        await self._perform(self._leaving(error))

    async def _perform(self, plan: Plan[T]) -> T:
        try:
            asks = next(plan)
            while True:
                try:
                    answers = await self._answers(asks)
                except BaseException as err:  # this task is cancelled: the plan says what becomes of what is open
                    asks = plan.throw(err)
                else:
                    asks = plan.send(answers)
        except StopIteration as done:
            return done.value

    async def _answers(self, asks: Mapping[str, Ask]) -> dict[str, Any]:
        answers = asyncio.gather(
            *(getattr(self.clients[name], ask.method)(*ask.arguments) for name, ask in asks.items()),
            return_exceptions=True,
        )
        if all(ask.method == "abort_episode" for ask in asks.values()):
            answers = asyncio.shield(answers)  # a second cancellation must not keep an episode from being given back
        return dict(zip(asks, await answers, strict=True))


def begin_episodes(
    clients: Mapping[str, SwarmClient],
    task: Task | None = None,
    discard_episode_timeout: float = 240,
    episode_type: str = "train",
    when_finished: WhenFinished = "play_on",
) -> MultiModelEpisode:
    """Begin one episode on each server, or none; see :class:`MultiModelEpisode`."""
    return MultiModelEpisode(clients, task, discard_episode_timeout, episode_type, when_finished).begin()
