"""The driver: plays a game with one player per seat. Knows neither models nor scripts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from ajet.envs.werewolves.engine import Action, Game, Request

Watch = Callable[[Game, Request, Action], None]


class Player(Protocol):
    """Who decides for one seat."""

    async def act(self, request: Request) -> Action: ...


def all_of(*watches: Watch | None) -> Watch:
    """One watch that tells several."""

    def watch(game: Game, request: Request, action: Action) -> None:
        for one in watches:
            if one is not None:
                one(game, request, action)

    return watch


async def play_game(game: Game, players: Mapping[int, Player], watch: Watch | None = None) -> Game:
    """Play to the end. Requests that may be answered at once are asked at once.

    Args:
        players: one per seat.
        watch: called with (game, request, action) for each decision, before it takes effect.

    Raises:
        Whatever a player raises; the others' pending decisions are cancelled first.
    """
    run = game.run()
    requests = next(run)
    while True:
        actions = await _ask(requests, players)
        if watch is not None:
            for request, action in zip(requests, actions, strict=True):
                watch(game, request, action)
        try:
            requests = run.send(actions)
        except StopIteration:
            return game


async def _ask(requests: list[Request], players: Mapping[int, Player]) -> list[Action]:
    if len(requests) == 1:
        return [await players[requests[0].player].act(requests[0])]
    tasks = [asyncio.ensure_future(players[r.player].act(r)) for r in requests]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
