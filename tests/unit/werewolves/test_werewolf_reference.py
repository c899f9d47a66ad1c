"""The engine and the reference referee agree on every game: all boards, all options, legal and illegal actions.

Some thousand games here; ``AJET_FUZZ_GAMES=100000`` plays more, ``AJET_FUZZ_FROM`` says from which seed.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest

from ajet.envs.werewolves.engine import Action, Event, Game, Request
from ajet.envs.werewolves.rules import BoardOptions, Role, option_values
from ajet.schema.errors import ConfigError
from tests.unit.werewolves.reference_rules import Referee

GAMES = int(os.environ.get("AJET_FUZZ_GAMES", "3000"))
FROM = int(os.environ.get("AJET_FUZZ_FROM", "0"))

KINDS = ("protect", "kill", "check", "witch", "shoot", "speak", "vote", "day", "last_words")

Told = tuple[frozenset[int], tuple[Any, ...]]


@dataclass(frozen=True)
class Record:
    """All that can be compared of a game."""

    result: str | None
    day: int
    living: frozenset[int]
    told: tuple[Told, ...]
    """Who heard what, in order."""
    asked: tuple[Any, ...]
    """Who was asked what, and who might be named."""
    invalid: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Case:
    """One random game."""

    seed: int
    options: BoardOptions
    one_call: frozenset[int]
    legal_share: float


def case(seed: int) -> Case:
    rng = random.Random(seed)
    while True:
        n = rng.choice((3, 4, 5, 6, 7, 8, 9, 9, 9, 10, 11, 12))
        gods = [r for r in (Role.SEER, Role.WITCH, Role.HUNTER, Role.GUARD, Role.IDIOT) if rng.random() < 0.7]
        wolves = rng.randint(1, max(1, n // 3 + 1))
        villagers = n - wolves - len(gods)
        values = {option: rng.choice(allowed) for option, allowed in option_values().items()}
        if villagers < 0:
            continue
        try:
            options = BoardOptions(
                roles=(*[Role.WEREWOLF] * wolves, *gods, *[Role.VILLAGER] * villagers),
                max_days=rng.randint(1, 12), **values,
            )  # fmt: skip
        except ConfigError:
            continue
        one_call = frozenset(i for i in range(n) if rng.random() < 0.3)
        return Case(seed, options, one_call, rng.choice((0.5, 0.9, 1.0)))


class Dice:
    """Cheap draws for one decision (SplitMix64): a generator of the library costs more to seed than a whole decision."""

    def __init__(self, seed: int) -> None:
        self.state = seed & 0xFFFFFFFFFFFFFFFF

    def random(self) -> float:
        self.state = (self.state + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        return ((z ^ (z >> 31)) >> 11) / (1 << 53)

    def below(self, n: int) -> int:
        return int(self.random() * n)


class Wishes:
    """What the players want, the same for whoever asks the same question."""

    def __init__(self, at: Case, players: int) -> None:
        self.at, self.players = at, players
        rng = random.Random(f"wishes-{at.seed}")
        self.scapegoat = [rng.randrange(players) for _ in range(40)]  # so that votes gather on somebody

    def __call__(self, player: int, kind: str, day: int, revote: bool, may: tuple[int, ...]) -> tuple[int | None, bool]:
        rng = Dice(hash((self.at.seed, player, KINDS.index(kind), day, revote)))
        save = kind == "witch" and rng.random() < 0.4
        if kind in ("speak", "last_words"):
            return (None, False)
        if rng.random() < 0.15:
            return None, save
        if kind in ("vote", "day", "kill") and rng.random() < 0.6:
            scapegoat = self.scapegoat[day * 2 + (kind == "kill")]
            if scapegoat in may or rng.random() > self.at.legal_share:
                return scapegoat, save
        if may and rng.random() < self.at.legal_share:
            return may[rng.below(len(may))], save
        return rng.below(self.players + 3) - 1, save


class Lots(random.Random):
    """A game's own generator that keeps what it drew."""

    def __init__(self, seed: str) -> None:
        super().__init__(seed)
        self.drawn: list[tuple[str, Any, int]] = []

    def choice(self, seq: Any) -> Any:
        picked = super().choice(seq)
        self.drawn.append(("one of", list(seq), picked))
        return picked

    def randrange(self, start: int, *rest: Any) -> int:
        assert not rest
        picked = int(self.random() * start)
        self.drawn.append(("start", start, picked))
        return picked


NAMES = {
    "guarded": lambda e: ("protected", e.day, e.target),
    "wolf_pick": lambda e: ("wolf names", e.day, e.actor, e.target),
    "wolf_target": lambda e: ("wolves attack", e.day, e.target),
    "check": lambda e: ("checked", e.day, e.target, "wolf" if e.is_wolf else "good"),
    "witch_sees": lambda e: ("witch sees", e.day, e.target),
    "witch_saved": lambda e: ("saved", e.day, e.target),
    "witch_poisoned": lambda e: ("poisoned", e.day, e.target),
    "deaths": lambda e: ("dead at dawn", e.day, e.players),
    "shot": lambda e: ("shot", e.day, e.actor, e.target),
    "speech": lambda e: ("speech", e.day, e.actor),
    "last_words": lambda e: ("last words", e.day, e.actor),
    "votes": lambda e: ("votes", e.day, e.votes),
    "tie": lambda e: ("tie", e.day, e.players),
    "exile": lambda e: ("exiled", e.day, e.target),
    "idiot": lambda e: ("idiot", e.day, e.actor),
    "no_exile": lambda e: ("nobody exiled", e.day),
    "game_over": lambda e: ("over", e.text),
}
"""The engine's events in the referee's words."""


def in_words(event: Event, everyone: frozenset[int]) -> Told:
    return (everyone if event.audience is None else event.audience), NAMES[event.kind](event)


def by_the_engine(at: Case) -> tuple[Record, Game, list[tuple[str, Any, int]]]:
    game = Game(at.seed, at.options, one_call=at.one_call)
    game.rng = lots = Lots(f"lots-{at.seed}")
    wishes = Wishes(at, len(game.roles))
    asked: list[Any] = []

    def answer(r: Request) -> Action:
        asked.append((r.player, r.kind, r.day, r.revote, r.legal, r.may_save, r.victim))
        target, save = wishes(r.player, r.kind, r.day, r.revote, r.legal)
        return Action(target, save=save)

    run = game.run()
    requests = next(run)
    try:
        while True:
            requests = run.send([answer(r) for r in requests])
    except StopIteration:
        pass
    everyone = frozenset(range(len(game.roles)))
    told = tuple(in_words(e, everyone) for e in game.events if e.kind not in ("role", "teammates"))
    record = Record(game.winner, game.day, frozenset(game.living()), told, tuple(asked), _sorted(game.illegal))
    return record, game, lots.drawn


def by_the_referee(
    at: Case, roles: tuple[Role, ...], drawn: list[tuple[str, Any, int]], options: BoardOptions
) -> Record:
    rules = {f.name: getattr(options, f.name) for f in fields(options)}
    wishes = Wishes(at, len(roles))
    asked: list[Any] = []
    lots = iter(drawn)

    def ask(player, kind, day, revote, may, facts):
        asked.append((player, kind, day, revote, may, facts.get("save", False), facts.get("sees")))
        return wishes(player, kind, day, revote, may)

    def draw(what, seats):
        kind, among, picked = next(lots, ("nothing", None, 0))
        assert (kind, among) == ((what, len(seats)) if what == "start" else (what, list(seats)))
        return seats[picked] if what == "start" else picked

    referee = Referee([r.value for r in roles], rules, set(at.one_call), ask, draw)
    referee.play()
    told = tuple((frozenset(hearers), what) for hearers, what in referee.told)
    return Record(referee.result, referee.day, frozenset(referee.living), told, tuple(asked), _sorted(referee.invalid))


def _sorted(counts: dict[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((role, n) for role, n in counts.items() if n))


def disagreement(at: Case, options: BoardOptions | None = None) -> str:
    """What the two say differently about a game, in a line; empty where they agree."""
    engine, game, drawn = by_the_engine(at)
    try:
        referee = by_the_referee(at, game.roles, drawn, options or at.options)
    except AssertionError as error:
        return f"seed {at.seed}: other draws: {error}"
    for field in fields(Record):
        ours, theirs = getattr(engine, field.name), getattr(referee, field.name)
        if ours == theirs:
            continue
        if isinstance(ours, tuple):
            ours, theirs = next(
                ((a, b) for a, b in zip(ours, theirs, strict=False) if a != b), (len(ours), len(theirs))
            )
        return f"seed {at.seed}, {field.name}: engine {ours}, referee {theirs}, {at.options}"
    return ""


@pytest.mark.timeout(0 if GAMES > 3000 else 120)
def test_engine_and_referee_agree_on_every_game():
    ends = {"wolf": 0, "good": 0, "draw": 0}
    for seed in range(FROM, FROM + GAMES):
        at = case(seed)
        assert not (problem := disagreement(at)), problem
        if seed % 50 == 0:
            ends[by_the_engine(at)[0].result or ""] += 1
    assert GAMES < 1000 or min(ends.values()) > 0, ends
    print(f"{GAMES} games from seed {FROM} agree; of every fiftieth {ends}")


@pytest.mark.parametrize("option", [*option_values(), "max_days"])
def test_the_comparison_notices_every_option(option):
    """A referee who is told another value of one option disagrees sooner or later."""
    for seed in range(3000):
        at = case(seed)
        value = getattr(at.options, option)
        others = [at.options.max_days + 1] if option == "max_days" else [
            v for v in option_values()[option] if v != value
        ]  # fmt: skip
        if any(_altered(at, option, other) for other in others):
            return
    pytest.fail(f"{option} makes no difference in 3000 games")


def _altered(at: Case, option: str, value: Any) -> bool:
    try:
        options = replace(at.options, **{option: value})
    except ConfigError:
        return False
    return bool(disagreement(at, options))


def test_the_random_games_reach_every_kind_of_event_and_request():
    events: set[str] = set()
    kinds: set[str] = set()
    for seed in range(1500):
        record, game, _ = by_the_engine(case(seed))
        events |= {e.kind for e in game.events}
        kinds |= {a[1] for a in record.asked}
    assert events - {"role", "teammates"} == set(NAMES)
    assert kinds == set(KINDS)
