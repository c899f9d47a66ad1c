"""The ladder of scripted opponents, and what single habits are worth against them.

    python benchmarks/werewolves_ladder.py [--games 2000] [--habits] [--board classic-9]

Every strength plays every other, as wolves and as the good side, on the same deals. A strength beats the one below it as
wolves where its wolves win more often against the same good side, and as the good side where the same wolves win less
often; differences are paired by deal, with 95% intervals. Head to head, each deal is played twice with the sides swapped.
Prints tables and one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from ajet.envs.werewolves.baselines import play, seer, wolf
from ajet.envs.werewolves.board import Board
from ajet.envs.werewolves.engine import Game
from ajet.envs.werewolves.presets import board_options
from ajet.envs.werewolves.rules import BoardOptions, Role
from ajet.envs.werewolves.strengths import STRENGTHS, Strength, scripted_player

W, S = Role.WEREWOLF, Role.SEER
HABITS = {
    "all scripted": {},
    "wolf: random": {W: wolf()},
    "wolf: random, quiet": {W: wolf("quiet")},
    "wolf: spare_kill": {W: wolf("spare_kill")},
    "wolf: spare_vote": {W: wolf("spare_vote")},
    "wolf: spare both": {W: wolf("spare_kill", "spare_vote")},
    "wolf: spare, quiet": {W: wolf("spare_kill", "spare_vote", "quiet")},
    "wolf: spare, suspect_good": {W: wolf("spare_kill", "spare_vote", "suspect_good")},
    "wolf: spare, claim": {W: wolf("spare_kill", "spare_vote", "claim")},
    "wolf: spare, kill_claimer": {W: wolf("spare_kill", "spare_vote", "kill_claimer")},
    "wolf: spare, agree": {W: wolf("spare_kill", "spare_vote", "agree")},
    "wolf: spare, vote_accused": {W: wolf("spare_kill", "spare_vote", "vote_accused")},
    "wolf: random, suspect_good": {W: wolf("suspect_good")},
    "wolf: random, abstain": {W: wolf("abstain")},
    "wolf: random, silent": {W: wolf("silent")},
    "wolf: random, abstain, silent": {W: wolf("abstain", "silent")},
    "wolf: spare, abstain, quiet": {W: wolf("spare_kill", "abstain", "quiet")},
    "wolf: all good habits": {W: wolf("spare_kill", "spare_vote", "kill_claimer", "agree", "vote_accused", "quiet")},
    "seer: random": {S: seer()},
    "seer: quiet": {S: seer("quiet")},
    "seer: vote_wolf": {S: seer("vote_wolf")},
    "seer: truthful": {S: seer("truthful")},
    "seer: truthful, vote_wolf": {S: seer("truthful", "vote_wolf")},
    "seer: all good habits": {S: seer("truthful", "vote_wolf", "check_accused")},
}


@dataclass(frozen=True)
class Estimate:
    """A mean and the half width of its 95% interval."""

    mean: float
    half: float

    def __str__(self) -> str:
        return f"{self.mean:+.3f} ± {self.half:.3f}"


def estimate(values: Sequence[float]) -> Estimate:
    n = len(values)
    mean = sum(values) / n
    variance = sum((v - mean) ** 2 for v in values) / max(1, n - 1)
    return Estimate(mean, 1.96 * math.sqrt(variance / n))


def match(seed: int, wolves: Strength, good: Strength, options: BoardOptions) -> float:
    """One game: 1 where the wolves won, 0.5 for a draw."""
    game = Game(seed, options)
    board, rng = Board(game), random.Random(f"players-{seed}")
    players = [
        scripted_player(game, board, seat, random.Random(rng.random()), wolves if role is W else good)
        for seat, role in enumerate(game.roles)
    ]
    run = game.run()
    requests = next(run)
    while True:
        try:
            requests = run.send([players[r.player].act(r) for r in requests])
        except StopIteration:
            return {"wolf": 1.0, "good": 0.0}.get(game.winner or "", 0.5)


def ladder(games: int, options: BoardOptions) -> dict[str, dict[str, list[float]]]:
    """Print the ladder; returns what each table holds as mean and half width."""

    @cache
    def wins(wolves: Strength, good: Strength) -> list[float]:
        return [match(seed, wolves, good, options) for seed in range(games)]

    strengths = list(STRENGTHS)
    found: dict[str, dict[str, list[float]]] = {
        "wolves_win": {},
        "stronger_wolves": {},
        "stronger_good": {},
        "match": {},
    }

    def keep(table: str, row: str, e: Estimate) -> str:
        found[table][row] = [e.mean, e.half]
        return f"{e.mean:.3f} ± {e.half:.3f}" if table in ("wolves_win", "match") else str(e)

    print(
        f"Wolves' share of wins, {games} games each:\n\n| wolves | " + " | ".join(f"good {g}" for g in strengths) + " |"
    )
    print("|---|" + "---|" * len(strengths))
    for w in strengths:
        cells = [keep("wolves_win", f"{w} vs {g}", estimate(wins(w, g))) for g in strengths]
        print(f"| {w} | " + " | ".join(cells) + " |")
    print("\nWhat the stronger one wins more, paired by deal:\n")
    print("| stronger than weaker | as wolves, good " + ", ".join(strengths) + " | as the good side, wolves " + ", ".join(strengths) + " |")  # fmt: skip
    print("|---|---|---|")
    for weak, strong in pairwise(strengths):
        up = [
            keep("stronger_wolves", f"{strong} over {weak}, good {g}", estimate([a - b for a, b in zip(wins(strong, g), wins(weak, g), strict=True)]))
            for g in strengths
        ]  # fmt: skip
        down = [
            keep("stronger_good", f"{strong} over {weak}, wolves {w}", estimate([b - a for a, b in zip(wins(w, strong), wins(w, weak), strict=True)]))
            for w in strengths
        ]  # fmt: skip
        print(f"| {strong} over {weak} | {', '.join(up)} | {', '.join(down)} |")
    print("\nHead to head, sides swapped on every deal, the stronger one's share:\n")
    for weak, strong in pairwise(strengths):
        both = [(a + 1.0 - b) / 2 for a, b in zip(wins(strong, weak), wins(weak, strong), strict=True)]
        print(f"{strong} against {weak}: {keep('match', f'{strong} against {weak}', estimate(both))}")
    return found


def habits(games: int) -> dict[str, dict[str, float]]:
    """Print what single habits are worth against scripted players of normal strength, on the default board."""
    rows = {}
    for label, baselines in HABITS.items():
        start = time.perf_counter()
        played = [play(seed, baselines) for seed in range(games)]
        speed = games / (time.perf_counter() - start)
        p = sum(g.winner == "wolf" for g in played) / games
        days = sum(g.day for g in played) / games
        draws = sum(g.winner == "draw" for g in played) / games
        rows[label] = {"wolves_win": p, "interval": 1.96 * (p * (1 - p) / games) ** 0.5, "days": days, "draws": draws}
        print(
            f"{label:32} wolves win {p:.3f} ± {rows[label]['interval']:.3f}   days {days:.1f}  draws {draws:.3f}  {speed:.0f} games/s"
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=int, default=2000)
    parser.add_argument("--board", default="classic-9", help="a preset, or counts of roles")
    parser.add_argument("--habits", action="store_true", help="measure single habits instead")
    args = parser.parse_args()
    rows = habits(args.games) if args.habits else ladder(args.games, board_options(args.board))
    print(json.dumps({"games": args.games, "board": args.board, "rows": rows}))


if __name__ == "__main__":
    main()
