"""Calls of nine-player Werewolves, recorded while games are played, for samplers to replay.

Three wolves and a seer are the model's seats, as in the shipped example; the other five are scripted. A conversation is
all that one seat asks in one game, in order.

- ``compact``: the built-in model plays; each turn is a state prompt of its own, replies are as long as its replies were.
- ``full``: scripted players play all seats and answer in the form that the prompts for real models ask for; a turn adds
  what the seat has learned since, behind all that was said, so prompts grow over the whole game.

A replay puts what the replaying system itself sampled where the recorded reply stood (of the recorded length), so that
every system finds its own tokens in its own cache, as in a game.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

from ajet.backbone import model_dir
from ajet.default_config.schema import BUILTIN_MODEL, AjetConfig
from ajet.envs.werewolves.board import Board
from ajet.envs.werewolves.engine import Action, Game, Request
from ajet.envs.werewolves.full import Conversation as FullStyle
from ajet.envs.werewolves.full import seat_name
from ajet.envs.werewolves.play import Player, play_game
from ajet.envs.werewolves.players import Compact, ModelPlayer, Scripted
from ajet.envs.werewolves.rules import Role
from ajet.envs.werewolves.scripted import ScriptedPlayer
from ajet.envs.werewolves.traffic import Traffic
from ajet.trajectory import ChatRenderer

LIVE = (Role.WEREWOLF, Role.SEER)


@dataclass(frozen=True)
class Turn:
    """One call: ``ids`` behind all there was where ``grows``, else alone; and how many tokens the reply has."""

    ids: list[int]
    grows: bool
    reply: int


Conversation = list[Turn]


def record_compact(games: int, limit: int) -> list[Conversation]:
    """Play ``games`` games with the built-in model; seats whose prompts stay below ``limit`` tokens."""
    from ajet.backbone.embedded.engine import Engine
    from ajet.backbone.protocol import Sampling

    config = AjetConfig(model={"path": BUILTIN_MODEL})
    config.trainer_common.n_gpus_per_node, config.rollout.max_model_len = 0, limit
    engine = Engine(config)
    renderer = ChatRenderer(model_dir(BUILTIN_MODEL))
    found: dict[str, Conversation] = {}

    class Model:
        """The endpoint of a game: the engine itself, one call at a time."""

        async def chat(
            self, messages: list[dict[str, Any]], key: str, temperature: float | None, traffic: Traffic
        ) -> dict[str, Any]:
            ids = renderer.render(messages)
            engine.submit(0, ids, Sampling(max_tokens=32, stop_token_ids=renderer.stop_token_ids), "policy", False)
            chunks = []
            while engine.busy:
                chunks += engine.tick()
            reply = chunks[0][1].ids
            found.setdefault(key, []).append(Turn(ids, False, len(reply)))
            return {"role": "assistant", "content": renderer.decode(reply)}

    def seat_of(game: Game, board: Board, seat: int, rng: random.Random) -> Player:
        endpoint: Any = Model()
        return ModelPlayer(Compact(game, board), endpoint, f"{game.seed}/{seat}", rng=rng)

    _play(games, seat_of, one_call=True)
    return list(found.values())


def record_full(games: int, limit: int, repeat: int = 1) -> list[Conversation]:
    """Play ``games`` deals with scripted players; turns up to a context of ``limit`` tokens, of the built-in tokenizer.

    Each deal ``repeat`` times with players who draw otherwise, its games one after the other; of each game four seats.
    """
    renderer = ChatRenderer(model_dir(BUILTIN_MODEL))
    stop = renderer.tokenizer.eos_token
    recorders: list[_Recorder] = []

    class _Recorder:
        def __init__(self, game: Game, board: Board, seat: int, rng: random.Random) -> None:
            self.style, self.mind = FullStyle(game, seat), ScriptedPlayer(game, board, seat, rng)
            self.turns: Conversation = []
            self.said, self.context = "", 0
            recorders.append(self)

        async def act(self, request: Request) -> Action:
            messages = self.style.messages(request)
            action = self.mind.act(request)
            text = renderer.prompt(messages).text
            ids = renderer.tokenizer.encode(text[len(self.said) :], add_special_tokens=False)
            assert text.startswith(self.said), "the template rewrote the history"
            reply = full_reply(request, action)
            length = len(renderer.tokenizer.encode(reply + stop, add_special_tokens=False))
            self.context += len(ids) + length
            if self.context < limit:
                self.turns.append(Turn(ids, bool(self.turns), length))
            self.style.remember({"role": "assistant", "content": reply})
            self.said = text + reply + stop
            return action

    _play(games, _Recorder, one_call=False, repeat=repeat)
    return [r.turns for r in recorders if r.turns]


def full_reply(request: Request, action: Action) -> str:
    """``action`` in the form that the prompts for real models ask for."""
    target = None if action.target is None else seat_name(action.target, "en")
    kind = request.kind
    if kind in ("speak", "last_words"):
        return json.dumps({"say": action.say})
    if kind == "witch":
        return json.dumps({"save": action.save, "poison": target})
    verb = "vote" if kind == "day" else kind
    return json.dumps({"say": action.say, verb: target} if action.say else {verb: target})


def _play(
    games: int, seat_of: Callable[[Game, Board, int, random.Random], Player], one_call: bool, repeat: int = 1
) -> None:
    for n, again in product(range(games), range(repeat)):
        game = Game(f"replay-{n}")
        board, rng = Board(game), random.Random(f"players-{n}-{again}" if again else f"players-{n}")
        players: dict[int, Player] = {}
        for seat, role in enumerate(game.roles):
            own = random.Random(rng.random())
            if role in LIVE:
                players[seat] = seat_of(game, board, seat, own)
            else:
                players[seat] = Scripted(ScriptedPlayer(game, board, seat, own))
        if one_call:
            game.one_call = frozenset(i for i, role in enumerate(game.roles) if role in LIVE)
        asyncio.run(play_game(game, players))


def to_plain(conversations: list[Conversation]) -> list[list[list[Any]]]:
    """As JSON: ``[ids, grows, reply length]`` a turn."""
    return [[[turn.ids, turn.grows, turn.reply] for turn in c] for c in conversations]


def describe(conversations: list[Conversation]) -> dict[str, float]:
    """How much there is, and how long prompts and replies are."""
    prompts, replies = [], []
    for conversation in conversations:
        context = 0
        for turn in conversation:
            context = len(turn.ids) + (context if turn.grows else 0)
            prompts.append(context)
            replies.append(turn.reply)
            context += turn.reply
    calls = len(prompts)
    return {
        "conversations": len(conversations),
        "calls": calls,
        "reply_tokens": sum(replies),
        "prompt_tokens_mean": sum(prompts) / calls,
        "prompt_tokens_max": max(prompts),
        "reply_tokens_mean": sum(replies) / calls,
        "reply_tokens_max": max(replies),
    }
