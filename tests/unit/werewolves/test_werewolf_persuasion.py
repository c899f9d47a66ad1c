"""Scripted players cannot be talked into anything by saying it louder, more often, or with more mouths."""

from __future__ import annotations

import random

import pytest

from ajet.envs.werewolves.baselines import play, wolf
from ajet.envs.werewolves.board import Board
from ajet.envs.werewolves.engine import Action, Request
from ajet.envs.werewolves.rules import Role
from ajet.envs.werewolves.scripted import ScriptedPlayer, name
from tests.unit.werewolves.table import SEER, V1, V2, W1, W2, W3, table


def suspicion_after(*speeches: tuple[int, str]) -> list[float]:
    """What the first villager thinks of each seat after these speeches."""
    game = table()
    game.day = 1
    for speaker, text in speeches:
        game._tell("speech", actor=speaker, text=text)
    player = ScriptedPlayer(game, Board(game), V1, random.Random(0))
    player._learn()
    return player.suspicion()


CLAIM = f"I am the seer. {name(V2)} is a wolf."


@pytest.mark.parametrize("said", [CLAIM + f" {name(V2)} is a wolf." * 8, CLAIM * 3])
def test_a_claim_repeated_in_a_speech_weighs_as_much_as_once(said):
    assert suspicion_after((W1, said)) == suspicion_after((W1, CLAIM))


def test_a_claim_repeated_in_later_speeches_weighs_as_much_as_once():
    assert suspicion_after((W1, CLAIM), (W1, CLAIM), (W1, CLAIM)) == suspicion_after((W1, CLAIM))


def test_seer_claimers_who_agree_convince_less_than_one_who_stands_alone():
    alone = suspicion_after((W1, CLAIM))
    together = suspicion_after((W1, CLAIM), (W2, CLAIM), (W3, CLAIM))
    assert together[V2] < alone[V2]
    assert min(together[w] - alone[w] for w in (W2, W3)) > 0  # and at least two of three must be lying


def test_a_claim_still_moves_suspicion_both_ways():
    silent = suspicion_after()
    assert suspicion_after((SEER, CLAIM))[V2] > silent[V2] + 1
    assert suspicion_after((SEER, f"I am the seer. {name(V2)} is good."))[V2] < silent[V2] - 1


def wolves_win(times: int, games: int = 120) -> int:
    """Games won by wolves who spare each other and all accuse the same good player as "seers"."""
    habits = wolf("spare_kill", "spare_vote")

    def act(player: ScriptedPlayer, request: Request) -> Action:
        action = habits(player, request)
        good = [i for i in player.game.living(player.seat) if i not in player.game.wolves]
        if request.kind == "kill" or not action.say or not good:
            return action
        return Action(action.target, "I am the seer." + f" {name(good[0])} is a wolf." * times)

    return sum(play(seed, {Role.WEREWOLF: act}).winner == "wolf" for seed in range(games))


@pytest.mark.parametrize("times", [1, 9])
def test_wolves_who_all_claim_and_agree_do_not_beat_wolves_of_good_habits(times):
    best = wolf("spare_kill", "spare_vote", "kill_claimer", "agree", "vote_accused", "quiet")
    played = [play(seed, {Role.WEREWOLF: best}) for seed in range(120)]
    assert wolves_win(times) < sum(g.winner == "wolf" for g in played)
