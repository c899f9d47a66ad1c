"""Each strength of scripted players beats the one below it, on either side of the table."""

from __future__ import annotations

import random
from functools import cache

import pytest

from ajet.envs.werewolves.board import Board
from ajet.envs.werewolves.engine import Game
from ajet.envs.werewolves.presets import board_options
from ajet.envs.werewolves.rules import Role
from ajet.envs.werewolves.strengths import STRENGTHS, HardPlayer, scripted_player
from benchmarks.werewolves_ladder import estimate, match
from tests.unit.werewolves.table import SEER, V1, V2, W1, W2, table

GAMES = 500


@cache
def wins(wolves: str, good: str) -> list[float]:
    return [match(seed, wolves, good, board_options(None)) for seed in range(GAMES)]  # type: ignore[arg-type]


@pytest.mark.parametrize("opponent", STRENGTHS)
@pytest.mark.parametrize(("weak", "strong"), [("easy", "normal"), ("normal", "hard")])
def test_the_stronger_wins_more_against_the_same_opponent_on_either_side(weak, strong, opponent):
    as_wolves = estimate([a - b for a, b in zip(wins(strong, opponent), wins(weak, opponent), strict=True)])
    as_good = estimate([b - a for a, b in zip(wins(opponent, strong), wins(opponent, weak), strict=True)])
    assert as_wolves.mean - as_wolves.half > 0, as_wolves
    assert as_good.mean - as_good.half > 0, as_good


@pytest.mark.parametrize(("weak", "strong"), [("easy", "normal"), ("normal", "hard")])
def test_head_to_head_with_sides_swapped_the_stronger_wins_most_games(weak, strong):
    shares = [(a + 1 - b) / 2 for a, b in zip(wins(strong, weak), wins(weak, strong), strict=True)]
    e = estimate(shares)
    assert e.mean - e.half > 0.5, e


@pytest.mark.parametrize("strength", STRENGTHS)
@pytest.mark.parametrize("board", ["classic-9", "guard-12", "idiot-12"])
def test_every_strength_plays_by_the_rules_on_every_board(strength, board):
    for seed in range(60):
        game = Game(seed, board_options(board))
        rng = random.Random(seed)
        facts = Board(game)
        players = [
            scripted_player(game, facts, i, random.Random(rng.random()), strength) for i in range(len(game.roles))
        ]
        run = game.run()
        requests = next(run)
        try:
            while True:
                requests = run.send([players[r.player].act(r) for r in requests])
        except StopIteration:
            pass
        assert not game.illegal
        assert game.winner


def hard(game: Game, seat: int) -> HardPlayer:
    return HardPlayer(game, Board(game), seat, random.Random(0))


def test_a_hard_player_takes_a_claimer_who_died_at_night_at_his_word_and_his_rival_for_a_liar():
    game = table()
    game.day = 1
    game._tell("speech", actor=SEER, text=f"I am the seer. Player{W1 + 1} is a wolf. Player{V2 + 1} is good.")
    game._tell("speech", actor=W2, text=f"I am the seer. Player{V2 + 1} is a wolf.")
    game.alive[SEER] = False
    game.day = 2
    game._tell("deaths", players=(SEER,))
    player = hard(game, V1)
    player._learn()
    score = player.suspicion()
    assert sorted(range(9), key=lambda i: -score[i])[:2] in ([W1, W2], [W2, W1])
    assert score[V2] < min(score[i] for i in range(9) if i not in (V2, V1, SEER))


def test_a_hard_seer_reports_every_check_of_a_living_player_wolves_first():
    game = table()
    seer = hard(game, SEER)
    seer.results = {V1: False, W1: True, V2: False}
    game.alive[V2] = False
    assert seer._seer_speech() == f"I am the seer. Player{W1 + 1} is a wolf. Player{V1 + 1} is good."


def test_wolves_of_hard_strength_agree_on_a_victim_who_is_not_of_their_own():
    for seed in range(40):
        game = Game(seed)
        facts, rng = Board(game), random.Random(seed)
        players = [scripted_player(game, facts, i, random.Random(rng.random()), "hard") for i in range(9)]
        run = game.run()
        requests = next(run)
        try:
            while True:
                requests = run.send([players[r.player].act(r) for r in requests])
        except StopIteration:
            pass
        for day in range(1, game.day + 1):
            picks = {e.target for e in game.events if e.kind == "wolf_pick" and e.day == day}
            assert len(picks) == 1
            assert not picks & game.wolves
        assert game.roles.count(Role.WEREWOLF) == 3
