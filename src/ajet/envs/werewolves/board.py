"""What everybody at the table knows: the public events so far, digested once for all scripted players of a game."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ajet.envs.werewolves.engine import Event, Game
from ajet.envs.werewolves.speech import understand


@dataclass(frozen=True)
class Claim:
    """A seer claimer's report: ``target`` is a wolf, or good."""

    day: int
    claimer: int
    target: int
    is_wolf: bool


@dataclass(frozen=True)
class Opinion:
    """One player's public suspicion or trust of another, the last one of a day."""

    day: int
    speaker: int
    target: int
    suspects: bool


class Board:
    """Public facts of one game, brought up to date on demand.

    Attributes:
        claimers: seats that claimed to be the seer, in order, dead ones included.
        claims: what they reported. reports: the same by (claimer, target), the last word of each counting.
        opinions: suspicions and trust of the others.
        night_dead: killed at night (so probably not wolves). shot: killed by the hunter. exiled: voted out.
        hunters: seats that fired, and so are the hunter. idiots: seats that were voted out and revealed the idiot.
        votes: one dict per ballot, voter → target. ballots: all of them as (voter, target), in order.
        silences: how often each seat said nothing at all when it was its turn.
    """

    def __init__(self, game: Game) -> None:
        self.game = game
        self._read = 0
        self.claimers: list[int] = []
        self.claims: list[Claim] = []
        self.reports: dict[tuple[int, int], bool] = {}
        self._credits: dict[int, float] = {}
        self._credits_at = 0
        self.opinions: dict[tuple[int, int, int], Opinion] = {}
        self.night_dead: dict[int, int] = {}
        self.exiled: dict[int, int] = {}
        self.shot: dict[int, int] = {}
        self.hunters: set[int] = set()
        self.idiots: set[int] = set()
        self.silences: Counter[int] = Counter()
        self.votes: list[tuple[int, dict[int, int | None]]] = []
        self.ballots: list[tuple[int, int | None]] = []
        self.last_speeches = 0

    def refresh(self) -> Board:
        """Read the public events that came since."""
        public = self.game.public
        if len(public) > self._read:
            for event in public[self._read :]:
                self._take(event)
            self._read = len(public)
        return self

    def _take(self, event: Event) -> None:
        if event.kind in ("speech", "last_words") and event.actor is not None:
            self._hear(event)
        elif event.kind == "deaths":
            self.night_dead.update(dict.fromkeys(event.players, event.day))
        elif event.kind == "exile" and event.target is not None:
            self.exiled[event.target] = event.day
        elif event.kind == "shot" and event.target is not None and event.actor is not None:
            self.shot[event.target] = event.day
            self.hunters.add(event.actor)
        elif event.kind == "idiot" and event.actor is not None:
            self.idiots.add(event.actor)
        elif event.kind == "votes":
            self.votes.append((event.day, dict(event.votes)))
            self.ballots += event.votes

    def _hear(self, event: Event) -> None:
        speaker = event.actor
        assert speaker is not None
        if event.kind == "speech":
            self.last_speeches = event.day
        statement = understand(event.text)
        if event.kind == "speech" and not event.text.strip():
            self.silences[speaker] += 1
        if statement.claims_seer and speaker not in self.claimers:
            self.claimers.append(speaker)
        for kind, target in statement.stances:
            if target == speaker or not 0 <= target < len(self.game.roles):
                continue
            if kind in ("wolf", "good"):
                self.claims.append(Claim(event.day, speaker, target, kind == "wolf"))
                self.reports[speaker, target] = kind == "wolf"
            else:
                self.opinions[event.day, speaker, target] = Opinion(event.day, speaker, target, kind == "suspect")

    def credits(self) -> dict[int, float]:
        """How far claimers are believed: kept for all scripted players, and forgotten when anything happens."""
        if self._credits_at != len(self.game.public):
            self._credits_at = len(self.game.public)
            self._credits = {}
        return self._credits

    def living_claimers(self, without: int | None = None) -> list[int]:
        return [i for i in self.claimers if self.game.alive[i] and i != without]

    def accused(self) -> list[int]:
        """Seats that somebody suspected aloud, or called a wolf, on the last day that had speeches; in seat order."""
        day = self.last_speeches
        seats = {o.target for o in self.opinions.values() if o.day == day and o.suspects}
        return sorted(seats | {c.target for c in self.claims if c.day == day and c.is_wolf})
