"""Who decides for a seat: a language model behind an endpoint, or a scripted player.

How a model is prompted and read is a :class:`Style`: short state prompts (:class:`Compact`), or one growing
conversation (:class:`~ajet.envs.werewolves.full.Conversation`).
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, Literal, Protocol

from ajet.envs.werewolves.board import Board
from ajet.envs.werewolves.compact import compact_prompt, parse_compact
from ajet.envs.werewolves.endpoint import Endpoint
from ajet.envs.werewolves.engine import Action, Game, Request
from ajet.envs.werewolves.recording import Record
from ajet.envs.werewolves.replies import ParsedReply, fallback
from ajet.envs.werewolves.scripted import ScriptedPlayer
from ajet.envs.werewolves.traffic import Traffic
from ajet.schema.errors import ConfigError, ContextLengthExceeded

Outcome = Literal["valid", "repaired", "fallback"]


class Style(Protocol):
    """How one seat's decisions are put to a model.

    Attributes:
        repairs: how often a model is asked again after a reply that could not be used.
    """

    repairs: int

    def messages(self, request: Request) -> list[dict[str, Any]]:
        """The chat messages that ask for this decision."""
        ...

    def repair(self, problem: str) -> list[dict[str, Any]]:
        """The messages that ask again."""
        ...

    def parse(self, text: str, request: Request) -> ParsedReply:
        """What a reply asks for."""
        ...

    def remember(self, reply: dict[str, Any]) -> None:
        """Take note of the assistant message as it came."""
        ...


class Compact:
    """A fresh state prompt for each call; nothing is remembered and nothing repaired."""

    repairs = 0

    def __init__(self, game: Game, board: Board) -> None:
        self.game, self.board = game, board

    def messages(self, request: Request) -> list[dict[str, Any]]:
        return compact_prompt(self.game, self.board, request)

    def repair(self, problem: str) -> list[dict[str, Any]]:
        raise NotImplementedError("compact prompts have no repair turns")

    def parse(self, text: str, request: Request) -> ParsedReply:
        return ParsedReply(parse_compact(text, request))

    def remember(self, reply: dict[str, Any]) -> None:
        pass


class Scripted:
    """A scripted player as a :class:`~ajet.envs.werewolves.play.Player`."""

    def __init__(self, player: ScriptedPlayer) -> None:
        self.player = player

    async def act(self, request: Request) -> Action:
        return self.player.act(request)


class ModelPlayer:
    """A seat whose decisions come from an endpoint.

    Args:
        style: how the model is asked.
        endpoint: whom to ask, shared by the players of a game.
        api_key: says to the endpoint who is speaking.
        temperature: sent with each call, or left to the endpoint.
        rng: chooses where a fallback must name somebody.

    Attributes:
        outcomes: decisions by :data:`Outcome`: read at once, after a repair turn, or not at all.
        calls: replies that came, repair turns included.
        traffic: what its calls cost.
        record: told of each prompt and reply, for a replay; set before the game, or None.
    """

    def __init__(
        self, style: Style, endpoint: Endpoint, api_key: str, *, temperature: float | None = None, rng: random.Random
    ) -> None:
        self.style, self.endpoint = style, endpoint
        self._api_key, self._temperature, self._rng = api_key, temperature, rng
        self.record: Record | None = None
        self.outcomes: Counter[str] = Counter()
        self.calls = 0
        self.traffic = Traffic()

    @property
    def truncated(self) -> int:
        """Replies that were cut off by a token limit."""
        return self.traffic.truncated

    async def act(self, request: Request) -> Action:
        """Ask the model. A bad reply, or a prompt that became too long, never ends the game.

        Raises:
            InfrastructureFault: the endpoint failed for good.
            ConfigError: not even this seat's first prompt fits the model: no game can be played so.
        """
        try:
            action, outcome = await self._decide(request)
        except ContextLengthExceeded as error:
            if not self.calls:
                raise ConfigError(
                    f"The first prompt of a player does not fit the model {self.endpoint.model!r}: {error} "
                    "Raise rollout.max_model_len, or use prompt_style='compact' with a model that was taught it."
                ) from error
            action, outcome = None, "fallback"
        self.outcomes[outcome] += 1
        return action if action is not None else fallback(request, self._rng)

    async def _decide(self, request: Request) -> tuple[Action | None, Outcome]:
        messages = self.style.messages(request)
        for attempt in range(1 + self.style.repairs):
            try:
                reply = await self.endpoint.chat(messages, self._api_key, self._temperature, self.traffic)
            except ContextLengthExceeded as error:
                if self.record is not None:
                    self.record(request, messages, None, ParsedReply(None, str(error)))
                raise
            self.calls += 1
            self.style.remember(reply)
            parsed = self.style.parse(reply["content"], request)
            if self.record is not None:
                self.record(request, messages, reply, parsed)
            if parsed.action is not None:
                return parsed.action, "repaired" if attempt else "valid"
            if attempt < self.style.repairs:
                messages = self.style.repair(parsed.problem)
        return None, "fallback"
