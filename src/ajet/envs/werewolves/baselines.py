"""Simple policies to measure the game with: what each single habit is worth. Used by benchmarks and tests only.

Every baseline sees what its seat may see. They answer ``day`` requests (speech and vote in one), as small models do.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from ajet.envs.werewolves.board import Board
from ajet.envs.werewolves.engine import Action, Game, Request
from ajet.envs.werewolves.rules import BoardOptions, Role
from ajet.envs.werewolves.scripted import ScriptedPlayer, name

Baseline = Callable[[ScriptedPlayer, Request], Action]


def random_speech(player: ScriptedPlayer) -> str:
    """A legal sentence without intent."""
    rng, other = player.rng, name(player.rng.choice(player.game.living(player.seat) or (player.seat,)))
    return rng.choices(
        [
            "I have no idea.",
            f"I suspect {other}.",
            f"I trust {other}.",
            "I am a villager.",
            f"I am the seer. {other} is a wolf.",
            f"I am the seer. {other} is good.",
        ],
        weights=[20, 25, 20, 10, 13, 12],
    )[0]


def random_legal(player: ScriptedPlayer, request: Request) -> Action:
    """Uniform over what is legal."""
    target = player.rng.choice(request.legal) if request.legal else None
    if request.kind == "witch":
        save = request.may_save and player.rng.random() < 0.5
        return Action(None if save or not request.may_poison or player.rng.random() < 0.5 else target, save=save)
    return Action(target, random_speech(player) if request.kind in ("speak", "day", "last_words") else "")


def _without_team(player: ScriptedPlayer, request: Request) -> tuple[int, ...]:
    return tuple(i for i in request.legal if i not in player.game.wolves)


def wolf(*habits: str) -> Baseline:
    """A random wolf with habits: ``spare_kill``, ``spare_vote``, ``kill_claimer``, ``agree`` (on the kill),
    ``vote_accused`` (the most accused good player), ``suspect_good``, ``quiet``, ``claim``, ``abstain``, ``silent``."""

    def act(player: ScriptedPlayer, request: Request) -> Action:
        base = random_legal(player, request)
        if request.kind == "kill":
            legal = _without_team(player, request) if "spare_kill" in habits else request.legal
            agreed = [i for i in player.picks if i in legal]
            if "agree" in habits and agreed:
                return Action(agreed[0])
            claimers = [c for c in player.board.living_claimers() if c in legal and c not in player.game.wolves]
            if "kill_claimer" in habits and claimers:
                return Action(player.rng.choice(claimers))
            return Action(player.rng.choice(legal) if legal else None)
        target, say = base.target, base.say
        good = _without_team(player, request)
        if request.kind in ("vote", "day") and "spare_vote" in habits and good:
            target = player.rng.choice(good)
        if request.kind in ("vote", "day") and "vote_accused" in habits and good:
            accused = [i for i in player.board.accused() if i in good]
            target = player.rng.choice(accused) if accused else target
        living = [i for i in player.game.living(player.seat) if i not in player.game.wolves]
        if say and "suspect_good" in habits and living:
            say = f"I suspect {name(player.rng.choice(living))}."
        if say and "claim" in habits and living:
            say = f"I am the seer. {name(player.rng.choice(living))} is a wolf."
        if say and "quiet" in habits:
            say = "I have no idea."
        if "abstain" in habits and request.kind in ("vote", "day"):
            target = None
        return Action(target, "" if "silent" in habits else say)

    return act


def seer(*habits: str) -> Baseline:
    """A random seer with habits: ``quiet``, ``truthful`` (reports a wolf, else the newest check), ``vote_wolf``
    (votes for checked wolves, spares checked good), ``check_accused``."""

    def act(player: ScriptedPlayer, request: Request) -> Action:
        base = random_legal(player, request)
        target, say = base.target, base.say
        alive = player.game.alive
        wolves = [i for i, w in player.results.items() if w and alive[i]]
        goods = [i for i, w in player.results.items() if not w and alive[i]]
        if request.kind == "check" and "check_accused" in habits:
            accused = [i for i in player.board.accused() if i in request.legal]
            target = player.rng.choice(accused) if accused else target
        if say and "quiet" in habits:
            say = "I have no idea."
        if say and "truthful" in habits:
            if wolves:
                say = f"I am the seer. {name(wolves[0])} is a wolf."
            elif goods:
                say = f"I am the seer. {name(goods[-1])} is good."
            else:
                say = "I have no idea."
        if request.kind in ("vote", "day") and "vote_wolf" in habits:
            named = [i for i in wolves if i in request.legal]
            rest = [i for i in request.legal if i not in goods]
            target = named[0] if named else player.rng.choice(rest) if rest else target
        return Action(target, say)

    return act


def play(
    seed: int | str,
    baselines: dict[Role, Baseline] | None = None,
    *,
    play_seed: int | str | None = None,
    options: BoardOptions | None = None,
) -> Game:
    """One game in this process: roles in ``baselines`` follow them, everyone else is scripted."""
    baselines = baselines or {}
    game = Game(seed, options or BoardOptions(), play_seed=play_seed)
    game.one_call = frozenset(i for i, role in enumerate(game.roles) if role in baselines)
    board = Board(game)
    rng = random.Random(f"players-{seed}-{play_seed}")
    players = [ScriptedPlayer(game, board, i, random.Random(rng.random())) for i in range(len(game.roles))]
    run = game.run()
    requests = next(run)
    try:
        while True:
            actions = []
            for request in requests:
                player = players[request.player]
                if request.role in baselines:
                    player._learn()
                    actions.append(baselines[request.role](player, request))
                else:
                    actions.append(player.act(request))
            requests = run.send(actions)
    except StopIteration:
        return game
