"""Scripted players of normal strength: they speak, reason from public facts, trust and doubt seer claims, and vote.

A scripted player uses what :meth:`Game.visible` gives its seat, and nothing else. Training runs against these, so on the
default board they play the same to the last draw from version to version. Weaker and stronger ones:
:mod:`~ajet.envs.werewolves.strengths`.
"""

from __future__ import annotations

import random

from ajet.envs.werewolves.board import Board
from ajet.envs.werewolves.engine import Action, Game, Request
from ajet.envs.werewolves.rules import Role

CARELESS = 0.7
"""How often a wolf of normal strength follows no plan."""
ABSTAINED = 0.12
"""Suspicion earned by not voting."""
SILENT = 0.06
"""Suspicion earned by saying nothing at all."""


def name(seat: int) -> str:
    return f"Player{seat + 1}"


class ScriptedPlayer:
    """One seat.

    Args:
        game: the game, for what the seat may see.
        board: public facts, shared by the scripted players of the game.
        seat: which player.
        rng: this player's own generator.
    """

    noise = 0.9
    """Spread of a player's private hunches. Larger: more random votes."""
    careless = CARELESS
    fake_share = 0.15
    """How many wolves claim to be the seer, once the time has come."""
    claimer_kill_share = 0.5
    """How often wolves attack a seer claimer where there is one."""

    def __init__(self, game: Game, board: Board, seat: int, rng: random.Random) -> None:
        self.game, self.board, self.seat, self.rng = game, board, seat, rng
        self.role = game.roles[seat]
        self.hunch = [rng.random() * self.noise for _ in game.roles]
        self.results: dict[int, bool] = {}
        """The seer's own checks."""
        self.team = game.wolves if self.role is Role.WEREWOLF else frozenset({seat})
        self.picks: list[int] = []
        self._told: set[int] = set()
        self._read = 0
        self._fakes = self.role is Role.WEREWOLF and rng.random() < self.fake_share
        self._careless = self.careless if self.role is Role.WEREWOLF else 0.0

    # ── what this seat knows ─────────────────────────────────────────────────────────────────────────────────────

    def _learn(self) -> None:
        told = self.game.private[self.seat]
        for event in told[self._read :]:
            if event.kind == "check" and event.target is not None:
                self.results[event.target] = bool(event.is_wolf)
            elif event.kind == "wolf_pick" and event.day == self.game.day and event.target is not None:
                self.picks.append(event.target)
            elif event.kind == "wolf_target":
                self.picks = []
        self._read = len(told)
        self.board.refresh()

    def suspicion(self) -> list[float]:
        """How much this seat suspects each other one; larger is more like a wolf."""
        board, game, me = self.board, self.game, self.seat
        score = list(self.hunch)
        rivals = [c for c in board.claimers if c != me]
        if rivals:
            credit = {c: self._credit(c) for c in rivals}
            self._from_claims(score, credit)
            if len([c for c in rivals if game.alive[c]]) > 1:
                for c in rivals:
                    score[c] += 1.2 * (1.0 - credit[c])
        if self.role is Role.SEER:
            for c in rivals:
                score[c] += 5.0  # I am the seer
            for target, wolf in self.results.items():
                score[target] += 20.0 if wolf else -20.0
        innocent = {seat for seat, wolf in self.results.items() if not wolf}.union(board.night_dead)
        self._from_speech(score, innocent)
        self._from_votes(score, innocent)
        for shown in (*board.hunters, *board.idiots):
            score[shown] -= 20.0
        for ally in self.team:
            score[ally] -= 30.0
        return score

    def _from_claims(self, score: list[float], credit: dict[int, float]) -> None:
        """What seer claimers report. Said twice counts once; and since at most one claimer is the seer, claimers who
        agree count as the most credible of them, not as several witnesses."""
        total = max(1.0, sum(credit.values()))
        me, reports = self.seat, self.board.reports
        if self.role is not Role.WEREWOLF:
            for claimer in {c for (c, target), wolf in reports.items() if target == me and wolf}:
                score[claimer] += 5.0  # I know that this is a lie
        strongest: dict[tuple[int, bool], float] = {}
        for (claimer, target), wolf in reports.items():
            if target != me and claimer != me:
                strongest[target, wolf] = max(strongest.get((target, wolf), 0.0), credit[claimer] / total)
        for (target, wolf), weight in strongest.items():
            score[target] += 2.4 * weight if wolf else -1.6 * weight

    def _credit(self, claimer: int) -> float:
        """How far a seer claim is believed, 0 to 1."""
        credits = self.board.credits()
        if claimer not in credits:
            credits[claimer] = self._weigh(claimer)
        return credits[claimer]

    def _weigh(self, claimer: int) -> float:
        board, game = self.board, self.game
        if claimer in board.night_dead:
            return 1.0  # wolves kill the true seer
        if claimer in board.exiled:
            return 0.15
        for claim in board.claims:
            if claim.claimer == claimer and claim.is_wolf and claim.target in board.night_dead:
                return 0.0  # the "wolf" was killed by wolves
        others = [c for c in board.claimers if c != claimer and (game.alive[c] or c in board.night_dead)]
        if any(c in board.night_dead for c in others):
            return 0.05
        if not others:
            return 0.8
        return 0.45 if board.claimers.index(claimer) == 0 else 0.35

    def _from_speech(self, score: list[float], innocent: set[int]) -> None:
        """Loud suspicion moves others a little; accusing those who turn out innocent costs the accuser."""
        me, day, alive = self.seat, self.game.day, self.game.alive
        for opinion in self.board.opinions.values():
            if opinion.speaker == me:
                continue
            if opinion.suspects and opinion.target in innocent:
                score[opinion.speaker] += 0.5
            elif opinion.day == day and alive[opinion.target]:
                score[opinion.target] += 0.12 if opinion.suspects else -0.08
        for speaker, times in self.board.silences.items():
            score[speaker] += SILENT * times

    def _from_votes(self, score: list[float], innocent: set[int]) -> None:
        """Votes are remembered: against the innocent they cost, and so does hiding from the vote."""
        me, honest = self.seat, self.role is not Role.WEREWOLF
        for voter, target in self.board.ballots:
            if voter == me:
                continue
            if target is None:
                score[voter] += ABSTAINED
            elif target in innocent:
                score[voter] += 0.45
            elif target == me and honest:
                score[voter] += 0.3

    def _most_suspect(self, legal: tuple[int, ...]) -> tuple[int | None, float]:
        if not legal:
            return None, 0.0
        score = self.suspicion()
        best = max(legal, key=score.__getitem__)
        return best, score[best]

    # ── what this seat does ──────────────────────────────────────────────────────────────────────────────────────

    def act(self, request: Request) -> Action:
        """Answer a request addressed to this seat."""
        self._learn()
        return getattr(self, f"_{request.kind}")(request)

    def _kill(self, request: Request) -> Action:
        prey = [i for i in request.legal if i not in self.game.wolves]
        if self.rng.random() < self._careless:
            return Action(self.rng.choice(request.legal))
        agreed = [i for i in self.picks if i in prey]
        if agreed:
            return Action(agreed[0])
        armed = [i for i in prey if i not in self.board.idiots]
        prey = armed or prey  # a revealed idiot has no vote: he can wait
        believed = [c for c in self.board.living_claimers() if c in prey]
        if believed and self.rng.random() < self.claimer_kill_share:
            return Action(self.rng.choice(believed))
        return Action(self.rng.choice(prey) if prey else None)

    def _protect(self, request: Request) -> Action:
        """The most credible seer claimer; else somebody who looks good, oneself included where the board allows it."""
        if request.day == 1 and self.game.options.guard_and_save == "dies" and Role.WITCH in self.game.options.roles:
            return Action()  # the witch saves the first victim, and both together would kill
        claimers = [c for c in self.board.living_claimers(self.seat) if c in request.legal]
        if claimers:
            best = max(claimers, key=self._credit)
            if self._credit(best) >= 0.3:
                return Action(best)
        score = self.suspicion()
        trusted = sorted(request.legal, key=lambda i: score[i])[: max(1, len(request.legal) // 2)]
        return Action(self.rng.choice(trusted))

    def _check(self, request: Request) -> Action:
        return Action(self._most_suspect(request.legal)[0])

    def _witch(self, request: Request) -> Action:
        if request.may_save and self.rng.random() < (0.6 if request.day == 1 else 0.5):
            return Action(save=True)
        if request.may_poison and request.day >= 2:
            target, score = self._most_suspect(request.legal)
            if score > 2.3:
                return Action(target)
        return Action()

    def _shoot(self, request: Request) -> Action:
        target, score = self._most_suspect(request.legal)
        return Action(target if score > 1.2 else None)

    def _speak(self, request: Request) -> Action:
        if self.role is Role.SEER:
            return Action(say=self._seer_speech())
        if self.role is Role.WEREWOLF:
            return Action(say=self._wolf_speech())
        target, score = self._most_suspect(self.game.living(self.seat))
        return Action(say=f"I suspect {name(target)}." if target is not None and score > 1.1 else "I have no idea.")

    _last_words = _speak

    def _seer_speech(self) -> str:
        fresh = [t for t in self.results if t not in self._told]
        wolves = [t for t in fresh if self.results[t]] or [
            t for t, w in self.results.items() if w and self.game.alive[t]
        ]
        reveal = bool(wolves) or self.game.day >= 2 or bool(self.board.claimers)
        if not self.game.alive[self.seat]:
            reveal = True
        if reveal and (wolves or fresh):
            target = wolves[0] if wolves else fresh[-1]
            self._told.add(target)
            return f"I am the seer. {name(target)} is {'a wolf' if self.results[target] else 'good'}."
        target, score = self._most_suspect(self.game.living(self.seat))
        return f"I suspect {name(target)}." if target is not None and score > 1.1 else "I have no idea."

    def _wolf_speech(self) -> str:
        prey = tuple(i for i in self.game.living(self.seat) if i not in self.game.wolves)
        target, score = self._most_suspect(prey)
        fellow = any(c in self.game.wolves for c in self.board.claimers)
        if self._fakes and not fellow and target is not None and (self.game.day >= 2 or self.board.claimers):
            return f"I am the seer. {name(target)} is a wolf."
        if self.seat in self.board.claimers and target is not None:
            return f"I am the seer. {name(target)} is a wolf."
        return f"I suspect {name(target)}." if target is not None and score > 0.9 else "I have no idea."

    def _vote(self, request: Request) -> Action:
        if request.legal and self.rng.random() < self._careless:
            return Action(self.rng.choice(request.legal))
        return Action(self._most_suspect(request.legal)[0])

    def _day(self, request: Request) -> Action:
        return Action(self._vote(request).target, self._speak(request).say)
