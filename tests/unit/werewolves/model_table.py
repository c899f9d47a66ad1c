"""Whole games in which every seat is a model behind an endpoint that answers at once, and a replay of each.

The model thinks aloud with a marker of its own in every private word, and says another aloud; what may be heard by whom
is kept, so that a test can look for what must not be anywhere.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from ajet.envs.werewolves.board import Board
from ajet.envs.werewolves.compact import compact_reply
from ajet.envs.werewolves.engine import Action, Game, Request
from ajet.envs.werewolves.full import Conversation
from ajet.envs.werewolves.play import play_game
from ajet.envs.werewolves.players import Compact, ModelPlayer
from ajet.envs.werewolves.recording import GameRecorder
from ajet.envs.werewolves.replay import EpisodeRef, Replay
from ajet.envs.werewolves.scripted import ScriptedPlayer

MARKER = re.compile(r"MARK\d+X")


@dataclass
class Sent:
    """What the endpoint was asked by one seat."""

    messages: list[dict[str, Any]]
    reply: dict[str, Any]


@dataclass
class ModelTable:
    """One game.

    Attributes:
        readers: marker → seats that may read it.
        sent: seat → its calls in order, as they reached the endpoint.
    """

    seed: int
    language: str = "en"
    compact: frozenset[int] = frozenset()
    readers: dict[str, frozenset[int]] = field(default_factory=dict)
    sent: dict[int, list[Sent]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.game = Game(self.seed)
        self.rng = random.Random(self.seed)
        self.board = Board(self.game)
        self.seats = range(len(self.game.roles))
        self.recorder = GameRecorder(self.game, self.language)  # type: ignore[arg-type]

    def marker(self, *readers: int) -> str:
        name = f"MARK{len(self.readers)}X"
        self.readers[name] = frozenset(readers)
        return name

    def sent_order(self) -> list[int]:
        """Seats in the order of their first private word."""
        return [min(r) for r in self.readers.values() if len(r) == 1]

    def play(self) -> Replay:
        players = {}
        for seat in self.seats:
            style = (
                Compact(self.game, self.board) if seat in self.compact else Conversation(self.game, seat, self.language)
            )  # type: ignore[arg-type]
            players[seat] = ModelPlayer(style, _Seat(self, seat), f"secret-key-{seat}", rng=self.rng)  # type: ignore[arg-type]
            players[seat].record = self.recorder.exchange
            self.recorder.sits(seat, "policy", "a-model")
        self.game.one_call = self.compact
        seated = {s: _Noting(players[s]) for s in self.seats}
        with ThreadPoolExecutor(1) as apart:  # a test's own event loop may be running here
            apart.submit(asyncio.run, play_game(self.game, seated, self.recorder.watch)).result()
        return self.recorder.replay(EpisodeRef(episode_id=f"ep-{self.seed}", task_id="t"), f"draws-{self.seed}")


class _Noting:
    """Passes a request on, and tells the model behind the seat what it is about."""

    def __init__(self, player: ModelPlayer) -> None:
        self.player = player

    async def act(self, request: Request) -> Action:
        self.player.endpoint.request = request  # type: ignore[attr-defined]
        return await self.player.act(request)


class _Seat:
    """An endpoint that plays one seat by script and answers as a model would, sometimes badly."""

    model = "a-model"
    retries = 0
    request: Request

    def __init__(self, table: ModelTable, seat: int) -> None:
        self.table, self.seat = table, seat
        self.bot = ScriptedPlayer(table.game, table.board, seat, random.Random(f"{table.seed}-{seat}"))

    async def chat(
        self, messages: list[dict[str, Any]], api_key: str, temperature: float | None, _traffic: Any = None
    ) -> dict[str, Any]:
        reply = self._reply()
        self.table.sent.setdefault(self.seat, []).append(Sent(json.loads(json.dumps(messages)), dict(reply)))
        return reply

    def _reply(self) -> dict[str, Any]:
        table, request, rng = self.table, self.request, self.table.rng
        action = self.bot.act(request)
        if self.seat in table.compact:
            return {"role": "assistant", "content": compact_reply(request, action) or "I have no idea."}
        thought = table.marker(self.seat)
        if rng.random() < 0.04:  # cut off inside its reasoning
            return {"role": "assistant", "content": f"<think>{thought} and then"}
        fields: dict[str, Any] = {}
        if request.kind == "witch":
            fields = {"save": action.save, "poison": None if action.target is None else action.target + 1}
        elif request.kind not in ("speak", "last_words"):
            fields[request.kind] = None if action.target is None else f"Player{action.target + 1}"
        if request.kind == "kill":
            fields["say"] = f"take {table.marker(*table.game.wolves)}"
        if request.kind in ("speak", "last_words"):
            fields["say"] = f"{action.say} {table.marker(*table.seats)}"
        style = rng.randrange(3)
        if rng.random() < 0.04:  # nothing that can be read; plain words alone would be a statement
            fields, style = {"mood": thought}, rng.randrange(2)
        if style == 0:
            return {"role": "assistant", "content": f"<think>{thought}</think>\n{json.dumps(fields)}"}
        if style == 1:
            return {"role": "assistant", "content": json.dumps(fields), "reasoning_content": thought}
        return {"role": "assistant", "content": f"I weigh {thought} first.\n\n{json.dumps(fields)}"}
