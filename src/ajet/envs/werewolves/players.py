"""Who decides for a seat: a language model, or a scripted player. And the driver that plays a game with them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any, Literal, Protocol

from ajet.envs.werewolves.board import Board
from ajet.envs.werewolves.compact import compact_prompt, parse_compact
from ajet.envs.werewolves.endpoint import Endpoint
from ajet.envs.werewolves.engine import Action, Game, Request
from ajet.envs.werewolves.full import Conversation, Language
from ajet.envs.werewolves.replies import ParsedReply, fallback, parse_reply
from ajet.envs.werewolves.scripted import ScriptedPlayer
from ajet.schema.errors import ContextLengthExceeded

MAX_REPAIRS = 2
"""Repair turns after a reply that could not be used (full prompts only)."""
Outcome = Literal["valid", "repaired", "fallback"]


class Player(Protocol):
    """One seat."""

    async def act(self, request: Request) -> Action: ...


class Scripted:
    """A scripted player as a :class:`Player`."""

    def __init__(self, player: ScriptedPlayer) -> None:
        self.player = player

    async def act(self, request: Request) -> Action:
        return self.player.act(request)


class ModelPlayer:
    """A seat whose decisions come from an endpoint.

    Args:
        style: ``compact``: a fresh state prompt a call, no repairs; ``full``: a growing conversation with repairs.
        rng: chooses where a fallback must name somebody.
    """

    def __init__(
        self,
        game: Game,
        board: Board,
        seat: int,
        endpoint: Endpoint,
        api_key: str,
        *,
        style: Literal["compact", "full"],
        language: Language = "en",
        temperature: float | None = None,
        rng: random.Random,
    ) -> None:
        self.game, self.board, self.seat = game, board, seat
        self.endpoint, self.api_key, self.temperature = endpoint, api_key, temperature
        self.conversation = Conversation(game, seat, language) if style == "full" else None
        self.rng = rng
        self.outcomes: Counter[str] = Counter()
        self.calls = 0

    async def act(self, request: Request) -> Action:
        """Ask the model. A bad reply never ends the game.

        Raises:
            InfrastructureFault: the endpoint failed for good.
        """
        try:
            action, outcome = await (self._full(request) if self.conversation else self._compact(request))
        except ContextLengthExceeded:
            action, outcome = None, "fallback"
        self.outcomes[outcome] += 1
        return action if action is not None else fallback(request, self.rng)

    async def _ask(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        reply = await self.endpoint.chat(messages, self.api_key, self.temperature)
        self.calls += 1
        return reply

    async def _compact(self, request: Request) -> tuple[Action | None, Outcome]:
        reply = await self._ask(compact_prompt(self.game, self.board, request))
        action = parse_compact(reply["content"], request)
        return action, "valid" if action is not None else "fallback"

    async def _full(self, request: Request) -> tuple[Action | None, Outcome]:
        conversation = self.conversation
        assert conversation is not None
        messages = conversation.ask(request)
        parsed = ParsedReply(None)
        for attempt in range(1 + MAX_REPAIRS):
            if attempt:
                messages = conversation.repair(parsed.problem)
            reply = await self._ask(messages)
            conversation.answered(reply)
            parsed = parse_reply(reply["content"], request)
            if parsed.action is not None:
                return parsed.action, "repaired" if attempt else "valid"
        return None, "fallback"


async def play_game(game: Game, players: dict[int, Player], watch: Any = None) -> Game:
    """Play to the end. Requests that may be answered at once are asked at once.

    Args:
        players: one per seat. watch: called with (game, request, action) for each decision, before it takes effect.
    """
    run = game.run()
    requests = next(run)
    while True:
        if len(requests) == 1:
            actions = [await players[requests[0].player].act(requests[0])]
        else:
            tasks = [asyncio.ensure_future(players[r.player].act(r)) for r in requests]
            try:
                actions = list(await asyncio.gather(*tasks))
            except BaseException:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                raise
        if watch is not None:
            for request, action in zip(requests, actions, strict=True):
                watch(game, request, action)
        try:
            requests = run.send(actions)
        except StopIteration:
            return game
