"""Games with chosen seats and chosen decisions, for the rules tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ajet.envs.werewolves.engine import Action, Event, Game, Request
from ajet.envs.werewolves.rules import BoardOptions, Role

LETTERS = {
    "w": Role.WEREWOLF,
    "s": Role.SEER,
    "i": Role.WITCH,
    "h": Role.HUNTER,
    "g": Role.GUARD,
    "d": Role.IDIOT,
    "v": Role.VILLAGER,
}
NINE = "wwwsihvvv"
"""Seats 0-2 wolves, 3 seer, 4 witch, 5 hunter, 6-8 villagers."""
W1, W2, W3, SEER, WITCH, HUNTER, V1, V2, V3 = range(9)

Script = dict[tuple[str, int], Any]
"""(kind, day) → an action for everyone, or a dict by seat. Whoever is not in it passes."""


def table(seats: str = NINE, seed: int | str = 0, *, dead: tuple[int, ...] = (), **options: Any) -> Game:
    """A game with these roles in this order; ``dead`` are out before it starts."""
    roles = tuple(LETTERS[c] for c in seats)
    game = Game(seed, BoardOptions(roles=roles, **options))
    game.roles = roles
    game.wolves = frozenset(i for i, role in enumerate(roles) if role is Role.WEREWOLF)
    for seat in dead:
        game.alive[seat] = False
    return game


def play(game: Game, script: Script | Callable[[Request], Action] | None = None) -> list[Request]:
    """Play to the end; returns every request that was made, in order."""

    def answer(request: Request) -> Action:
        if callable(script):
            return script(request)
        found = (script or {}).get((request.kind, request.day), Action())
        return found.get(request.player, Action()) if isinstance(found, dict) else found

    asked: list[Request] = []
    run = game.run()
    requests = next(run)
    while True:
        asked += requests
        try:
            requests = run.send([answer(r) for r in requests])
        except StopIteration:
            return asked


def votes(*targets: int | None) -> dict[int, Action]:
    """Seat 0 votes for the first, seat 1 for the second, …"""
    return {seat: Action(target) for seat, target in enumerate(targets)}


def kinds(game: Game, *wanted: str) -> list[Event]:
    """The events of these kinds, in order."""
    return [e for e in game.events if e.kind in wanted]


def exiled(game: Game) -> list[tuple[int, int | None]]:
    """(day, seat) of every exile."""
    return [(e.day, e.target) for e in kinds(game, "exile")]


def night_deaths(game: Game) -> dict[int, tuple[int, ...]]:
    """Day → those whose death was announced in the morning."""
    return {e.day: e.players for e in kinds(game, "deaths")}
