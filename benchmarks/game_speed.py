"""How fast the game itself is: `python -m benchmarks.game_speed [--step-s 7.8] [--games-a-step 192]`.

On one core, without models: the rules engine alone (every request answered at once by a fixed legal choice) and whole
games of scripted players, by board and strength; CPU time, best of several rounds, since the machine may be shared. With
``--step-s``, the seconds of a training step of the demo, it also says what share of a step the games take. Prints a table
and one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable

from ajet.envs.werewolves.board import Board
from ajet.envs.werewolves.engine import Action, Game
from ajet.envs.werewolves.presets import board_options
from ajet.envs.werewolves.rules import BoardOptions
from ajet.envs.werewolves.strengths import STRENGTHS, Strength, scripted_player

ROUNDS, GAMES = 8, 150


def engine_game(seed: int, options: BoardOptions) -> None:
    """A game in which everybody names the first that may be named."""
    run = Game(seed, options).run()
    requests = next(run)
    try:
        while True:
            requests = run.send([Action(r.legal[0] if r.legal else None) for r in requests])
    except StopIteration:
        pass


def scripted_game(seed: int, options: BoardOptions, strength: Strength) -> None:
    game = Game(seed, options)
    board, rng = Board(game), random.Random(f"players-{seed}")
    players = [scripted_player(game, board, i, random.Random(rng.random()), strength) for i in range(len(game.roles))]
    run = game.run()
    requests = next(run)
    try:
        while True:
            requests = run.send([players[r.player].act(r) for r in requests])
    except StopIteration:
        pass


def games_per_second(play: Callable[[int], None], rounds: int = ROUNDS, games: int = GAMES) -> float:
    """Games a second of CPU time, the best of ``rounds`` rounds."""
    best = 0.0
    for _ in range(rounds):
        start = time.process_time()
        for seed in range(games):
            play(seed)
        best = max(best, games / (time.process_time() - start))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step-s", type=float, help="seconds of a training step")
    parser.add_argument("--games-a-step", type=int, default=192)
    args = parser.parse_args()
    rows: dict[str, dict[str, float]] = {}

    def measure(label: str, play: Callable[[int], None]) -> None:
        rate = games_per_second(play)
        rows[label] = {"games_per_s": rate}
        share = ""
        if args.step_s:
            rows[label]["share_of_step"] = args.games_a_step / rate / args.step_s
            share = f"   {100 * rows[label]['share_of_step']:.2f}% of a step"
        print(f"{label:32} {rate:6.0f} games/s{share}", flush=True)

    for board in ("classic-9", "guard-12", "idiot-12"):
        options = board_options(board)
        measure(f"{board}: engine alone", lambda seed, options=options: engine_game(seed, options))
        for strength in STRENGTHS:
            measure(
                f"{board}: scripted, {strength}",
                lambda seed, options=options, strength=strength: scripted_game(seed, options, strength),
            )
    print(json.dumps({"games_a_step": args.games_a_step, "step_s": args.step_s, "rows": rows}))


if __name__ == "__main__":
    main()
