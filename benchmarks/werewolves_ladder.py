"""What single habits are worth against the scripted players. `python benchmarks/werewolves_ladder.py [games]`."""

from __future__ import annotations

import json
import sys
import time

from ajet.envs.werewolves.baselines import play, seer, wolf
from ajet.envs.werewolves.rules import Role

W, S = Role.WEREWOLF, Role.SEER
LADDER = {
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


def main() -> None:
    games = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    rows = {}
    for label, baselines in LADDER.items():
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
    print(json.dumps({"games": games, "rows": rows}))


if __name__ == "__main__":
    main()
