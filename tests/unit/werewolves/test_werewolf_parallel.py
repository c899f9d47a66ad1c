"""Games share nothing but what is meant to be shared, and are fast enough not to be noticed."""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ajet.envs.werewolves.board import Board
from ajet.envs.werewolves.engine import Action, Game, Request
from ajet.envs.werewolves.full import Conversation
from ajet.envs.werewolves.metrics import measure
from ajet.envs.werewolves.play import play_game
from ajet.envs.werewolves.presets import PRESETS, board_options
from ajet.envs.werewolves.scripted import ScriptedPlayer
from ajet.envs.werewolves.strengths import STRENGTHS, scripted_player
from benchmarks.game_speed import engine_game, games_per_second, scripted_game

GAMES = 200


class Talker:
    """A scripted player who is prompted in full, and steps aside before every answer, so that games interleave."""

    def __init__(self, game: Game, player: ScriptedPlayer, rng: random.Random) -> None:
        self.player, self.talk, self.rng = player, Conversation(game, player.seat), rng
        self.heard: list[str] = []

    async def act(self, request: Request) -> Action:
        self.heard.append(self.talk.messages(request)[-1]["content"])
        for _ in range(self.rng.randrange(4)):
            await asyncio.sleep(0)
        return self.player.act(request)


async def whole(seed: int) -> tuple[Any, ...]:
    """One game, board and strength by its seed; everything that happened and was said in it."""
    options = board_options(list(PRESETS)[seed % len(PRESETS)])
    game = Game(seed, options)
    board, rng = Board(game), random.Random(seed)
    seats = range(len(game.roles))
    strength = list(STRENGTHS)[seed % len(STRENGTHS)]
    bots = [scripted_player(game, board, i, random.Random(rng.random()), strength) for i in seats]
    players = {i: Talker(game, bots[i], random.Random(f"{seed}-{i}")) for i in seats}
    await play_game(game, players)
    heard = [players[i].heard for i in seats]
    return game.roles, game.winner, game.events, game.illegal, heard, measure(game)


def test_200_games_at_once_play_as_each_alone():
    async def together() -> list[tuple[Any, ...]]:
        return list(await asyncio.gather(*(whole(seed) for seed in range(GAMES))))

    at_once = asyncio.run(together())
    alone = [asyncio.run(whole(seed)) for seed in range(GAMES)]
    assert at_once == alone


def test_200_games_in_threads_of_their_own_play_as_each_alone():
    with ThreadPoolExecutor(32) as pool:
        at_once = list(pool.map(lambda seed: asyncio.run(whole(seed)), range(GAMES)))
    assert at_once == [asyncio.run(whole(seed)) for seed in range(GAMES)]


def test_the_game_plays_at_least_500_scripted_games_a_second_on_a_core():
    """CPU time, best of several rounds."""
    options = board_options(None)
    assert games_per_second(lambda seed: scripted_game(seed, options, "normal"), rounds=6, games=60) > 500
    assert games_per_second(lambda seed: engine_game(seed, options), rounds=6, games=60) > 1500
