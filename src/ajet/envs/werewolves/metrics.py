"""What happened in a finished game, in numbers by role: one reading for training, evaluation and replays.

:func:`measure` reads the game's events with god's view, after the game, so it costs a game nothing while it is played.
Everything is a :class:`Tally`, a sum and how often it was counted, so that shares over many games add up right:
``werewolf/teammate_kill`` of 2 out of 7 picks is ``Tally(2, 7)``. What did not occur in a game is not in its answer.

Names (``<role>/…`` for each role among the seats looked at):

- all roles: ``win``, ``draw``, ``vote_accuracy`` (votes that hit the other side, where it could be named), ``abstain``, ``wolf_exile_vote``
  (of ballots that exiled a wolf: voted for it), ``survival``, ``speech_chars``, ``silent``
- werewolf: ``teammate_kill``, ``seer_kill``, ``claimer_kill`` (picks, of those with such a target), ``teammate_night``
  (nights on which the pack attacked one of its own), ``kill_agreement`` (pairs of picks in a night), ``vote_agreement``
  (pairs of votes in a ballot), ``teammate_vote``, ``seer_claim`` (speeches), ``gave_self_away``, ``gave_teammate_away``
  (speeches and last words, see :mod:`~ajet.envs.werewolves.leaks`)
- seer: ``hit`` (checks that found a wolf), ``claim`` (games in which she claimed), ``first_claim_day``,
  ``claim_survival`` (alive after the night that followed), ``report`` and ``false_report`` (speeches with a check to
  tell: a true, a false one told), ``known_wolf_vote``
- witch: ``poison_precision``, ``poison_used``, ``save_used``, ``save_good`` (saves that saved a good player)
- hunter: ``shot`` (of chances), ``shot_precision``
- of players that are models: ``valid``, ``repaired``, ``fallback`` (decisions), ``truncated`` (replies cut off by the
  token limit), ``calls`` (a game)
- ``game/days``, ``game/draw``, ``game/exile_hit`` (exiles that were wolves), ``game/end_<cause>``
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import NamedTuple, Protocol

from ajet.envs.werewolves.engine import Event, Game
from ajet.envs.werewolves.leaks import leak
from ajet.envs.werewolves.rules import Role, side_of
from ajet.envs.werewolves.speech import understand


class Tally(NamedTuple):
    """A sum over ``n`` things counted."""

    total: float
    n: float


class Asked(Protocol):
    """What a model's seat counted of its own replies (:class:`~ajet.envs.werewolves.players.ModelPlayer`)."""

    outcomes: Counter[str]
    calls: int

    @property
    def truncated(self) -> int: ...


def measure(
    game: Game, seats: Iterable[int] | None = None, asked: Mapping[int, Asked] | None = None
) -> dict[str, Tally]:
    """Numbers of a finished game.

    Args:
        seats: whose behaviour is measured; default: everybody's.
        asked: counters of the seats among them that are models.
    """
    return _Reading(game, frozenset(range(len(game.roles)) if seats is None else seats)).read(asked or {})


def shares(tallies: Mapping[str, Tally]) -> dict[str, float]:
    """The mean of each: what a training curve averages over games."""
    return {name: tally.total / tally.n for name, tally in tallies.items() if tally.n}


def add(into: dict[str, Tally], more: Mapping[str, Tally | tuple[float, float] | list[float]]) -> None:
    """Add up two games (or their JSON)."""
    for name, (total, n) in more.items():
        before = into.get(name, Tally(0.0, 0.0))
        into[name] = Tally(before.total + total, before.n + n)


class _Reading:
    """One pass over a game's events, in order."""

    def __init__(self, game: Game, seats: frozenset[int]) -> None:
        self.game, self.seats = game, seats
        self.wolves = game.wolves
        self.alive = set(range(len(game.roles)))
        self.total: dict[str, float] = {}
        self.n: dict[str, float] = {}
        self.claimers: list[int] = []
        self.checks: dict[int, bool] = {}
        self.picks: list[tuple[int, int]] = []
        self.ballot: tuple[tuple[int, int | None], ...] = ()
        self.poisoned: int | None = None
        self.seer_claimed = 0
        """Day of the seer's first claim in a speech; 0: none yet."""
        self.claim_settled = False
        self.poison_used = self.save_used = False
        self.pack = bool(seats & game.wolves)

    def see(self, name: str, value: float, n: float = 1) -> None:
        self.total[name] = self.total.get(name, 0.0) + value
        self.n[name] = self.n.get(name, 0.0) + n

    def of(self, seat: int, name: str, value: float, n: float = 1) -> None:
        """Count for the role of ``seat``, where that is looked at."""
        if seat in self.seats:
            self.see(f"{self.game.roles[seat].value}/{name}", value, n)

    def read(self, asked: Mapping[int, Asked]) -> dict[str, Tally]:
        for event in self.game.events:
            reader = getattr(self, f"_{event.kind}", None)
            if reader is not None:
                reader(event)
        self._result()
        for seat, player in asked.items():
            self._replies(seat, player)
        return {name: Tally(total, self.n[name]) for name, total in self.total.items()}

    # ── night ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _wolf_pick(self, event: Event) -> None:
        if event.actor is None or event.target is None:
            return
        wolf, target = event.actor, event.target
        self.picks.append((wolf, target))
        self.of(wolf, "teammate_kill", target in self.wolves)
        if any(self.game.roles[i] is Role.SEER for i in self.alive):
            self.of(wolf, "seer_kill", self.game.roles[target] is Role.SEER)
        claimers = [c for c in self.claimers if c in self.alive and c not in self.wolves]
        if claimers:
            self.of(wolf, "claimer_kill", target in claimers)

    def _wolf_target(self, event: Event) -> None:
        if self.pack:
            for (a, x), (b, y) in combinations(self.picks, 2):
                if a in self.seats or b in self.seats:
                    self.see("werewolf/kill_agreement", x == y)
            if event.target is not None:
                self.see("werewolf/teammate_night", event.target in self.wolves)
        self.picks = []

    def _check(self, event: Event) -> None:
        assert event.actor is not None
        assert event.target is not None
        self.checks[event.target] = bool(event.is_wolf)
        self.of(event.actor, "hit", bool(event.is_wolf))

    def _witch_saved(self, event: Event) -> None:
        assert event.actor is not None
        self.save_used = True
        self.of(event.actor, "save_good", event.target not in self.wolves)

    def _witch_poisoned(self, event: Event) -> None:
        assert event.actor is not None
        self.poison_used, self.poisoned = True, event.target
        self.of(event.actor, "poison_precision", event.target in self.wolves)

    def _deaths(self, event: Event) -> None:
        self.alive.difference_update(event.players)
        for seat in event.players:
            if seat != self.poisoned:
                self._may_shoot(seat)
        self.poisoned = None
        if self.seer_claimed and not self.claim_settled and event.day > self.seer_claimed:
            self._settle_claim()

    # ── day ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _speech(self, event: Event) -> None:
        assert event.actor is not None
        seat, said = event.actor, understand(event.text)
        self.of(seat, "speech_chars", len(event.text))
        self.of(seat, "silent", not event.text.strip())
        if seat in self.wolves:
            self.of(seat, "seer_claim", said.claims_seer)
            self._leaks(event)
        elif self.game.roles[seat] is Role.SEER:
            self._seer_says(event)
        if said.claims_seer and seat not in self.claimers:
            self.claimers.append(seat)

    def _last_words(self, event: Event) -> None:
        assert event.actor is not None
        if event.actor in self.wolves:
            self._leaks(event)
        if understand(event.text).claims_seer and event.actor not in self.claimers:
            self.claimers.append(event.actor)

    def _leaks(self, event: Event) -> None:
        assert event.actor is not None
        found = leak(event.text)
        self.of(event.actor, "gave_self_away", found.confesses)
        self.of(event.actor, "gave_teammate_away", bool(found.names & (self.wolves - {event.actor})))

    def _seer_says(self, event: Event) -> None:
        assert event.actor is not None
        said = understand(event.text)
        if said.claims_seer and not self.seer_claimed:
            self.seer_claimed = event.day
            self.of(event.actor, "first_claim_day", event.day)
        if self.checks:
            told = [(seat, kind == "wolf") for kind, seat in said.stances if kind in ("wolf", "good")]
            told = told if said.claims_seer else []
            true = [self.checks.get(seat) is wolf for seat, wolf in told]
            self.of(event.actor, "report", any(true))
            self.of(event.actor, "false_report", not all(true))

    def _votes(self, event: Event) -> None:
        self.ballot = event.votes
        for voter, target in event.votes:
            self.of(voter, "abstain", target is None)
            if target is None:
                continue
            others = [i for i in event.players if (i in self.wolves) != (voter in self.wolves)]
            if others:
                self.of(voter, "vote_accuracy", target in others)
                if voter in self.wolves:
                    self.of(voter, "teammate_vote", target in self.wolves)
            if self.game.roles[voter] is Role.SEER:
                known = [i for i in event.players if self.checks.get(i)]
                if known:
                    self.of(voter, "known_wolf_vote", target in known)
        of_wolves = [(v, t) for v, t in event.votes if v in self.wolves and t is not None]
        for (a, x), (b, y) in combinations(of_wolves, 2):
            if a in self.seats or b in self.seats:
                self.see("werewolf/vote_agreement", x == y)

    def _exile(self, event: Event) -> None:
        assert event.target is not None
        self.alive.discard(event.target)
        hit = event.target in self.wolves
        self.see("game/exile_hit", hit)
        if hit:
            for voter, target in self.ballot:
                if voter != event.target:
                    self.of(voter, "wolf_exile_vote", target == event.target)
        self._may_shoot(event.target)
        self._seer_gone(event.target)

    def _shot(self, event: Event) -> None:
        assert event.actor is not None
        assert event.target is not None
        self.alive.discard(event.target)
        self.of(event.actor, "shot", 1, n=0)
        self.of(event.actor, "shot_precision", event.target in self.wolves)
        self._seer_gone(event.target)

    def _may_shoot(self, seat: int) -> None:
        """A chance to shoot; one that ends with the game is none."""
        if self.game.roles[seat] is Role.HUNTER and not self._ended_by_death_of(seat):
            self.of(seat, "shot", 0)

    def _ended_by_death_of(self, seat: int) -> bool:
        """Whether the game was over before the dead could act: its last word was this death."""
        *_, before, last = self.game.events
        return last.kind == "game_over" and (before.target == seat or seat in before.players)

    def _seer_gone(self, seat: int) -> None:
        if self.game.roles[seat] is Role.SEER and self.seer_claimed and not self.claim_settled:
            self._settle_claim()

    def _settle_claim(self) -> None:
        self.claim_settled = True
        for seat, role in enumerate(self.game.roles):
            if role is Role.SEER:
                self.of(seat, "claim_survival", seat in self.alive)

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _result(self) -> None:
        game = self.game
        for seat in sorted(self.seats):
            role = game.roles[seat]
            self.of(seat, "survival", seat in self.alive)
            if role is Role.SEER:
                self.of(seat, "claim", bool(self.seer_claimed))
            elif role is Role.WITCH:
                self.of(seat, "poison_used", self.poison_used)
                self.of(seat, "save_used", self.save_used)
        for role in {game.roles[seat] for seat in self.seats}:
            self.see(f"{role.value}/win", game.winner == side_of(role))
            self.see(f"{role.value}/draw", game.winner == "draw")
        self.see("game/days", game.day)
        self.see("game/draw", game.winner == "draw")
        for cause in {"wolves_dead", game.options.wolf_win, "max_days", game.end_cause}:
            self.see(f"game/end_{cause}", cause == game.end_cause)

    def _replies(self, seat: int, player: Asked) -> None:
        decisions = sum(player.outcomes.values())
        for outcome in ("valid", "repaired", "fallback"):
            self.of(seat, outcome, player.outcomes[outcome], decisions)
        self.of(seat, "truncated", player.truncated, player.calls)
        self.of(seat, "calls", player.calls)
