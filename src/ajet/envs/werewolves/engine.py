"""The rules engine. Knows nothing of language models: it yields requests, takes actions, and records events.

:meth:`Game.run` is a generator. Each item is a list of :class:`Request` that may be answered at once (and none of
which may see another's answer); send back a list of :class:`Action` in the same order. An action that the rules do not
allow is turned into what the rule book says (an abstention, no shot, …) and counted in :attr:`Game.illegal`.

Who hears what holds by construction: an :class:`Event` has an audience, and :meth:`Game.visible` is the only way a
player learns anything. All randomness comes from generators the game owns.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Literal

from ajet.envs.werewolves.rules import BoardOptions, Role, Side, winner

Kind = Literal["protect", "kill", "check", "witch", "shoot", "speak", "vote", "day", "last_words"]
EventKind = Literal[
    "role", "teammates", "guarded", "wolf_pick", "wolf_target", "check", "witch_sees", "witch_saved", "witch_poisoned",
    "deaths", "shot", "speech", "last_words", "votes", "tie", "exile", "idiot", "no_exile", "game_over",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Request:
    """One decision of one player.

    Attributes:
        player: seat, from 0. kind: what is asked. ``day`` is ``speak`` and ``vote`` in one reply.
        legal: seats that may be named. may_pass: whether naming nobody is allowed.
        day: from 1; the night before day n belongs to day n.
        may_save: the witch holds the antidote and may use it tonight.
        may_poison: the witch holds the poison.
        victim: whom the witch sees attacked, or None.
        revote: the vote is among tied players.
    """

    player: int
    role: Role
    kind: Kind
    legal: tuple[int, ...]
    day: int
    may_pass: bool = True
    may_save: bool = False
    may_poison: bool = False
    victim: int | None = None
    revote: bool = False


@dataclass(frozen=True, slots=True)
class Action:
    """An answer. ``target`` is a seat or None; ``say`` is public (for ``kill``: heard by wolves only)."""

    target: int | None = None
    say: str = ""
    save: bool = False


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened. ``audience`` None means everyone."""

    day: int
    kind: EventKind
    actor: int | None = None
    target: int | None = None
    text: str = ""
    players: tuple[int, ...] = ()
    votes: tuple[tuple[int, int | None], ...] = ()
    is_wolf: bool | None = None
    audience: frozenset[int] | None = None


Requests = Generator[list[Request], list[Action], None]


@dataclass
class Game:
    """One game.

    Args:
        seed: deals the roles.
        options: the board.
        play_seed: draws ties and speech order; default: the deal's own seed. Episodes of one task share the deal and
            differ in this.
        rotation: seats by which the dealt roles are moved on, for measuring every role on every seat.
        one_call: seats that are asked to speak and vote in one reply. Their vote stays secret until all have spoken.
    """

    seed: int | str
    options: BoardOptions = field(default_factory=BoardOptions)
    play_seed: int | str | None = None
    rotation: int = 0
    one_call: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        deal = list(self.options.roles)
        random.Random(f"deal-{self.seed}").shuffle(deal)
        deal = [deal[(i - self.rotation) % len(deal)] for i in range(len(deal))]
        self.roles: tuple[Role, ...] = tuple(deal)
        self.rng = random.Random(f"play-{self.seed if self.play_seed is None else self.play_seed}")
        self.alive = [True] * len(deal)
        self.day = 0
        self.events: list[Event] = []
        self.public: list[Event] = []
        self.private: list[list[Event]] = [[] for _ in deal]
        """What was told to each seat and not to everybody."""
        self.illegal: Counter[str] = Counter()
        """Role → actions that the rules turned into something else."""
        self.winner: Side | None = None
        self.end_cause = ""
        self.antidote = self.poison = True
        self.checked: dict[int, bool] = {}
        self.guarded: int | None = None
        """Whom the guard protected in the last night that he was asked."""
        self.revealed: set[int] = set()
        """The idiot, once he was voted out and lived on."""
        self.wolves = frozenset(i for i, role in enumerate(self.roles) if role is Role.WEREWOLF)
        self._held_votes: dict[int, int | None] = {}

    # ── who knows what ───────────────────────────────────────────────────────────────────────────────────────────

    def visible(self, player: int) -> list[Event]:
        """Everything ``player`` has learned, in order."""
        return [e for e in self.events if e.audience is None or player in e.audience]

    def living(self, *without: int) -> tuple[int, ...]:
        if without:
            return tuple([i for i, lives in enumerate(self.alive) if lives and i not in without])
        return tuple([i for i, lives in enumerate(self.alive) if lives])

    def seat(self, role: Role) -> int | None:
        """The living player of a unique role."""
        for i, held in enumerate(self.roles):
            if held is role and self.alive[i]:
                return i
        return None

    def _tell(self, kind: EventKind, *, to: frozenset[int] | None = None, **fields: object) -> None:
        event = Event(self.day, kind, audience=to, **fields)  # type: ignore[arg-type]
        self.events.append(event)
        if to is None:
            self.public.append(event)
        else:
            for seat in to:
                self.private[seat].append(event)

    # ── the game ─────────────────────────────────────────────────────────────────────────────────────────────────

    def run(self) -> Requests:
        """Play to the end. Afterwards :attr:`winner` is set."""
        for i, role in enumerate(self.roles):
            self._tell("role", to=frozenset({i}), actor=i, text=role.value)
        self._tell("teammates", to=self.wolves, players=tuple(sorted(self.wolves)))
        while True:
            self.day += 1
            dead, poisoned = yield from self._night()
            for i in dead:
                self.alive[i] = False
            self._tell("deaths", players=tuple(dead))
            if self._over():
                return
            if self.day == 1 and dead:
                yield from self._last_words([i for i in dead if i not in poisoned])
            yield from self._shots(dead, poisoned)
            if self.winner:
                return
            yield from self._daytime()
            if self.winner:
                return
            if self.day >= self.options.max_days:
                self._finish("draw", "max_days")
                return

    def _over(self) -> bool:
        won = winner(self.options, self.roles, self.alive)
        if won:
            self._finish(won, "wolves_dead" if won == "good" else self.options.wolf_win)
        return won is not None

    def _finish(self, won: Side, cause: str) -> None:
        self.winner, self.end_cause = won, cause
        self._tell("game_over", text=won)

    def _bad(self, player: int) -> None:
        self.illegal[self.roles[player].value] += 1

    def _named(self, request: Request, action: Action) -> int | None:
        """The target if it may be named, else None (counted, unless nobody was named and that is allowed)."""
        if action.target is None:
            if not request.may_pass:
                self._bad(request.player)
            return None
        if action.target in request.legal:
            return action.target
        self._bad(request.player)
        return None

    # ── night ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _night(self) -> Generator[list[Request], list[Action], tuple[list[int], set[int]]]:
        """Returns the dead in the order they are announced, and those of them who were poisoned."""
        yield from self._guard_protects()
        victim = yield from self._wolves_choose()
        yield from self._seer_checks()
        saved, poisoned = yield from self._witch_acts(victim)
        dead = [victim] if victim is not None and self._dies(victim, saved) else []
        if poisoned is not None and poisoned not in dead:
            dead.append(poisoned)
        return dead, set() if poisoned is None else {poisoned}

    def _dies(self, victim: int, saved: bool) -> bool:
        """Whether the attacked player dies: protection and antidote each save, both at once by the board's option."""
        protected = victim == self.guarded
        if protected and saved:
            return self.options.guard_and_save == "dies"
        return not (protected or saved)

    def _guard_protects(self) -> Generator[list[Request], list[Action], None]:
        guard = self.seat(Role.GUARD)
        last, self.guarded = self.guarded, None
        if guard is None:
            return
        legal = self.living(*(() if self.options.guard_self else (guard,)))
        if not self.options.guard_repeat:
            legal = tuple(i for i in legal if i != last)
        if not legal:
            return
        request = Request(guard, Role.GUARD, "protect", legal, self.day)
        (action,) = yield [request]
        self.guarded = self._named(request, action)
        if self.guarded is not None:
            self._tell("guarded", to=frozenset({guard}), actor=guard, target=self.guarded)

    def _wolves_choose(self) -> Generator[list[Request], list[Action], int | None]:
        picks: Counter[int] = Counter()
        for wolf in sorted(self.wolves & set(self.living())):
            request = Request(wolf, Role.WEREWOLF, "kill", self.living(), self.day)
            (action,) = yield [request]
            target = self._named(request, action)
            if target is not None:
                picks[target] += 1
            self._tell("wolf_pick", to=self.wolves, actor=wolf, target=target, text=action.say)
        victim = None
        if picks:
            most = max(picks.values())
            tied = sorted(i for i, n in picks.items() if n == most)
            if len(tied) == 1:
                victim = tied[0]
            elif self.options.wolf_tie == "seeded":
                victim = self.rng.choice(tied)
        self._tell("wolf_target", to=self.wolves, target=victim)
        return victim

    def _seer_checks(self) -> Generator[list[Request], list[Action], None]:
        seer = self.seat(Role.SEER)
        if seer is None:
            return
        legal = tuple(i for i in self.living(seer) if i not in self.checked)
        if not legal:
            return
        request = Request(seer, Role.SEER, "check", legal, self.day)
        (action,) = yield [request]
        target = self._named(request, action)
        if target is not None:
            self.checked[target] = target in self.wolves
            self._tell("check", to=frozenset({seer}), actor=seer, target=target, is_wolf=target in self.wolves)

    def _witch_acts(self, victim: int | None) -> Generator[list[Request], list[Action], tuple[bool, int | None]]:
        witch = self.seat(Role.WITCH)
        if witch is None or not (self.antidote or self.poison):
            return False, None
        only_her = frozenset({witch})
        sees = victim if self.antidote else None
        if self.antidote:
            self._tell("witch_sees", to=only_her, actor=witch, target=sees)
        may_self = {"never": False, "first_night": self.day == 1, "always": True}[self.options.witch_self_save]
        may_save = sees is not None and (sees != witch or may_self)
        request = Request(
            witch, Role.WITCH, "witch", self.living(witch) if self.poison else (), self.day,
            may_save=may_save, may_poison=self.poison, victim=sees,
        )  # fmt: skip
        (action,) = yield [request]
        save = action.save and may_save
        if action.save and not may_save:
            self._bad(witch)
        target = self._named(request, action)
        if save:
            if target is not None:  # not both on one night: the antidote counts
                self._bad(witch)
                target = None
            self.antidote = False
            self._tell("witch_saved", to=only_her, actor=witch, target=victim)
        elif target is not None:
            self.poison = False
            self._tell("witch_poisoned", to=only_her, actor=witch, target=target)
        return save, target

    # ── deaths ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _shots(self, dead: list[int], poisoned: set[int]) -> Generator[list[Request], list[Action], None]:
        """The hunter shoots when killed by wolves or exiled, after the deaths are announced; never when poisoned."""
        for hunter in dead:
            if self.roles[hunter] is not Role.HUNTER or hunter in poisoned:
                continue
            request = Request(hunter, Role.HUNTER, "shoot", self.living(), self.day)
            (action,) = yield [request]
            target = self._named(request, action)
            if target is not None:
                self.alive[target] = False
                self._tell("shot", actor=hunter, target=target)
                self._over()

    def _last_words(self, speakers: list[int]) -> Generator[list[Request], list[Action], None]:
        for player in speakers:
            (action,) = yield [Request(player, self.roles[player], "last_words", (), self.day)]
            self._tell("last_words", actor=player, text=action.say)

    # ── day ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _daytime(self) -> Generator[list[Request], list[Action], None]:
        order = list(self.living())
        start = self.rng.randrange(len(order))
        order = order[start:] + order[:start]
        self._held_votes = {}
        for player in order:
            yield from self._speech(player)
        voters = [i for i in order if i not in self.revealed]
        tied = yield from self._vote(voters, self._candidates(), revote=False)
        if len(tied) > 1 and self.options.day_tie == "revote":
            self._tell("tie", players=tuple(tied))
            for player in tied:
                yield from self._speech(player, revote=True)
            voters = [i for i in voters if i not in tied]
            tied = (yield from self._vote(voters, tuple(tied), revote=True)) if voters else []
        if len(tied) != 1:
            self._tell("no_exile")
            return
        out = tied[0]
        if self.roles[out] is Role.IDIOT and out not in self.revealed:
            self.revealed.add(out)
            self._tell("idiot", actor=out)
            return
        self.alive[out] = False
        self._tell("exile", target=out)
        if self._over():
            return
        yield from self._last_words([out])
        yield from self._shots([out], set())

    def _candidates(self) -> tuple[int, ...]:
        """Who may be voted for."""
        return self.living(*(self.revealed if self.options.idiot_again == "immune" else ()))

    def _vote_request(self, player: int, candidates: tuple[int, ...], kind: Kind, revote: bool) -> Request:
        legal = candidates if self.options.self_vote else tuple([i for i in candidates if i != player])
        return Request(player, self.roles[player], kind, legal, self.day, revote=revote)

    def _speech(self, player: int, revote: bool = False) -> Generator[list[Request], list[Action], None]:
        if player in self.one_call and not revote and player not in self.revealed:
            request = self._vote_request(player, self._candidates(), "day", False)
            (action,) = yield [request]
            self._held_votes[player] = self._named(request, action)
        else:
            (action,) = yield [Request(player, self.roles[player], "speak", (), self.day, revote=revote)]
        self._tell("speech", actor=player, text=action.say)

    def _vote(
        self, voters: list[int], candidates: tuple[int, ...], *, revote: bool
    ) -> Generator[list[Request], list[Action], list[int]]:
        """All vote at once. Returns the candidates with the most votes (none where nobody voted)."""
        votes = {} if revote else dict(self._held_votes)
        requests = [self._vote_request(i, candidates, "vote", revote) for i in voters if i not in votes]
        if requests:
            actions = yield requests
            for request, action in zip(requests, actions, strict=True):
                votes[request.player] = self._named(request, action)
        self._tell("votes", votes=tuple((i, votes[i]) for i in voters), players=candidates)
        counts = Counter(target for target in votes.values() if target is not None)
        most = max(counts.values(), default=0)
        return sorted(i for i, n in counts.items() if n == most)
