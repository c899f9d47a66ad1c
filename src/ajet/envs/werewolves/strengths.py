"""Scripted players at three strengths, and what each knows more than the one below.

``easy`` plays legally at random. ``normal`` (:mod:`~ajet.envs.werewolves.scripted`) is what training runs against.
``hard`` plays either side better: its wolves agree, hunt seer claimers and lie; its good side reports everything it knows,
and draws the conclusions that the deaths of claimers allow. How much each is worth is measured by
``benchmarks/werewolves_ladder.py``; docs/werewolves.md has the table. All of them see only what their seat may see.
"""

from __future__ import annotations

import random
from typing import Literal

from ajet.envs.werewolves.board import Board
from ajet.envs.werewolves.engine import Action, Game, Request
from ajet.envs.werewolves.rules import Role
from ajet.envs.werewolves.scripted import ScriptedPlayer, name

Strength = Literal["easy", "normal", "hard"]


class EasyPlayer(ScriptedPlayer):
    """Legal at random."""

    def act(self, request: Request) -> Action:
        target = self.rng.choice(request.legal) if request.legal else None
        if request.kind == "witch":
            save = request.may_save and self.rng.random() < 0.5
            poison = None if save or not request.may_poison or self.rng.random() < 0.7 else target
            return Action(poison, save=save)
        return Action(target, say="I have no idea." if request.kind in ("speak", "day", "last_words") else "")


class HardPlayer(ScriptedPlayer):
    """Both sides played well, as far as public facts carry."""

    careless = 0.0
    fake_share = 0.6
    claimer_kill_share = 0.95

    def __init__(self, game: Game, board: Board, seat: int, rng: random.Random) -> None:
        super().__init__(game, board, seat, rng)
        if self.role is not Role.WEREWOLF:
            self.hunch = [0.4 * h for h in self.hunch]

    def suspicion(self) -> list[float]:
        """What everybody can conclude, and for the good side what the fate of seer claimers proves."""
        score = super().suspicion()
        if self.role is Role.WEREWOLF:
            return score
        board, me = self.board, self.seat
        proven = [c for c in board.claimers if c in board.night_dead]
        for claimer in board.claimers:
            if proven and claimer != me and claimer not in proven:
                score[claimer] += 4.0  # a rival died in the night, most likely by wolves: so this one lied
        for (claimer, target), wolf in board.reports.items() if proven else ():
            if claimer in proven and target != me:
                score[target] += 6.0 if wolf else -6.0
        believed = {c for c in board.claimers if self._credit(c) >= 0.8}
        for voter, target in board.ballots if believed else ():
            if target in believed and voter != me:
                score[voter] += 0.5
        return score

    def _witch(self, request: Request) -> Action:
        trusted = request.victim in self.board.claimers or request.day == 1
        if request.may_save and (trusted or self.rng.random() < 0.6):
            return Action(save=True)
        if request.may_poison and request.day >= 2:
            target, score = self._most_suspect(request.legal)
            if score > 1.8:
                return Action(target)
        return Action()

    def _seer_speech(self) -> str:
        """Every check of a living player, wolves first: who hears it need not remember."""
        known = [t for t in self.results if self.game.alive[t]]
        if not known:
            return super()._seer_speech()
        words = [f"{name(t)} is {'a wolf' if self.results[t] else 'good'}." for t in known]
        return " ".join(["I am the seer.", *sorted(words, key=lambda w: "wolf" not in w)])


STRENGTHS: dict[Strength, type[ScriptedPlayer]] = {"easy": EasyPlayer, "normal": ScriptedPlayer, "hard": HardPlayer}


def scripted_player(
    game: Game, board: Board, seat: int, rng: random.Random, strength: Strength = "normal"
) -> ScriptedPlayer:
    """The scripted player of a seat."""
    return STRENGTHS[strength](game, board, seat, rng)
