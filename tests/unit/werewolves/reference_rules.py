"""A second, slow referee, written from the rule book alone, for the fuzzer to compare the engine with.

It shares no code and no structure with the engine: roles are plain words, the living are a set, a decision is a call of
``ask``, and whatever is drawn by lot is a call of ``draw``. Where the rule book leaves something open, the choice is
marked "Open:" below.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

GODS = ("seer", "witch", "hunter", "guard", "idiot")

Ask = Callable[..., tuple[Any, bool]]
"""ask(player, kind, day, revote, may_name, facts) → (whom the player names, whether the witch saves)."""
Draw = Callable[[str, Sequence[int]], int]


def who_won(roles: Sequence[str], living: set[int], wolf_win: str) -> str | None:
    """The rule book's two rows about winning."""
    wolves = {p for p in living if roles[p] == "werewolf"}
    if len(wolves) == 0:
        return "good"  # checked first: "everyone dead" is a good win
    others = living - wolves
    if wolf_win == "parity":
        if len(wolves) >= len(others):
            return "wolf"
        return None
    if not any(roles[p] == "villager" for p in others):
        return "wolf"
    if not any(roles[p] in GODS for p in others):
        return "wolf"
    return None


class Over(Exception):
    """The game has a result; nothing after it runs."""


class Referee:
    """One game. Afterwards: ``result``, ``day``, ``told`` (who heard what, in order), ``invalid`` (role → count)."""

    def __init__(self, roles: Sequence[str], rules: dict[str, Any], one_call: set[int], ask: Ask, draw: Draw) -> None:
        self.roles, self.rules, self.one_call = list(roles), rules, one_call
        self.ask_player, self.draw = ask, draw
        self.everyone = set(range(len(roles)))
        self.living = set(self.everyone)
        self.pack = {p for p in self.everyone if roles[p] == "werewolf"}
        self.told: list[tuple[set[int], tuple[Any, ...]]] = []
        self.invalid: dict[str, int] = {}
        self.day = 0
        self.result: str | None = None
        self.antidote_left, self.poison_left = True, True
        self.known_to_seer: set[int] = set()
        self.protected_before: int | None = None
        self.shown_idiots: set[int] = set()

    # ── small things ─────────────────────────────────────────────────────────────────────────────────────────────

    def tell(self, hearers: set[int], *what: Any) -> None:
        self.told.append((set(hearers), what))

    def holder(self, role: str) -> int | None:
        for p in self.living:
            if self.roles[p] == role:
                return p
        return None

    def count_invalid(self, player: int) -> None:
        role = self.roles[player]
        self.invalid[role] = self.invalid.get(role, 0) + 1

    def decide(
        self, player: int, kind: str, may_name: set[int], revote: bool = False, **facts: Any
    ) -> tuple[Any, bool]:
        """What a player wants, with a name that may not be named turned into nobody and counted."""
        target, save = self.ask_player(player, kind, self.day, revote, tuple(sorted(may_name)), facts)
        if target is not None and target not in may_name:
            self.count_invalid(player)
            target = None
        return target, save

    def end_if_won(self) -> None:
        won = who_won(self.roles, self.living, self.rules["wolf_win"])
        if won is not None:
            self.finish(won)

    def finish(self, result: str) -> None:
        self.result = result
        self.tell(self.everyone, "over", result)
        raise Over

    # ── the game ─────────────────────────────────────────────────────────────────────────────────────────────────

    def play(self) -> Referee:
        try:
            while True:
                self.day += 1
                self.night()
                self.daylight()
                if self.day == self.rules["max_days"]:
                    self.finish("draw")
        except Over:
            return self

    def night(self) -> None:
        shield = self.guard_turn()
        attacked = self.wolves_turn()
        self.seer_turn()
        antidote, poisoned = self.witch_turn(attacked)
        dead: list[int] = []
        if attacked is not None:
            times_saved = int(antidote) + int(shield == attacked)
            if times_saved == 0 or (times_saved == 2 and self.rules["guard_and_save"] == "dies"):
                dead.append(attacked)
        if poisoned is not None and poisoned not in dead:
            dead.append(poisoned)
        self.living -= set(dead)
        self.tell(self.everyone, "dead at dawn", self.day, tuple(dead))
        self.end_if_won()
        # Open: last words come before the hunter's shot.
        if self.day == 1:
            for p in dead:
                if p != poisoned:
                    self.final_words(p)
        for p in dead:
            if p != poisoned:
                self.maybe_shoot(p)

    def guard_turn(self) -> int | None:
        guard, before = self.holder("guard"), self.protected_before
        self.protected_before = None
        if guard is None:
            return None
        may = set(self.living)
        if not self.rules["guard_self"]:
            may.discard(guard)
        if not self.rules["guard_repeat"] and before is not None:
            may.discard(before)
        if not may:
            return None
        shield, _ = self.decide(guard, "protect", may)
        self.protected_before = shield
        if shield is not None:
            self.tell({guard}, "protected", self.day, shield)
        return shield

    def wolves_turn(self) -> int | None:
        ballots: list[int] = []
        for wolf in sorted(self.pack & self.living):
            target, _ = self.decide(wolf, "kill", set(self.living))
            self.tell(self.pack, "wolf names", self.day, wolf, target)
            if target is not None:
                ballots.append(target)
        victim = None
        if ballots:
            top = max(ballots.count(p) for p in ballots)
            leaders = sorted({p for p in ballots if ballots.count(p) == top})
            if len(leaders) == 1:
                victim = leaders[0]
            elif self.rules["wolf_tie"] == "seeded":
                victim = self.draw("one of", leaders)
        self.tell(self.pack, "wolves attack", self.day, victim)
        return victim

    def seer_turn(self) -> None:
        seer = self.holder("seer")
        if seer is None:
            return
        may = self.living - {seer} - self.known_to_seer
        if not may:
            return
        target, _ = self.decide(seer, "check", may)
        if target is not None:
            self.known_to_seer.add(target)
            self.tell({seer}, "checked", self.day, target, "wolf" if target in self.pack else "good")

    def witch_turn(self, attacked: int | None) -> tuple[bool, int | None]:
        witch = self.holder("witch")
        if witch is None or (not self.antidote_left and not self.poison_left):
            return False, None
        seen = None
        if self.antidote_left:
            seen = attacked
            self.tell({witch}, "witch sees", self.day, seen)
        herself = {"never": False, "first_night": self.day == 1, "always": True}[self.rules["witch_self_save"]]
        can_save = seen is not None and (seen != witch or herself)
        may = self.living - {witch} if self.poison_left else set()
        target, save = self.decide(witch, "witch", may, save=can_save, sees=seen)
        if save and not can_save:
            self.count_invalid(witch)
            save = False
        if save:
            # Open: who asks for both gets the antidote; the poison counts as invalid.
            if target is not None:
                self.count_invalid(witch)
            self.antidote_left = False
            self.tell({witch}, "saved", self.day, attacked)
            return True, None
        if target is not None:
            self.poison_left = False
            self.tell({witch}, "poisoned", self.day, target)
        return False, target

    def maybe_shoot(self, dead: int) -> None:
        if self.roles[dead] != "hunter":
            return
        target, _ = self.decide(dead, "shoot", set(self.living))
        if target is not None:
            self.living.remove(target)
            self.tell(self.everyone, "shot", self.day, dead, target)
            self.end_if_won()

    def final_words(self, player: int) -> None:
        self.decide(player, "last_words", set())
        self.tell(self.everyone, "last words", self.day, player)

    # ── day ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def electable(self) -> set[int]:
        if self.rules["idiot_again"] == "immune":
            return self.living - self.shown_idiots
        return set(self.living)

    def votable(self, voter: int, candidates: set[int]) -> set[int]:
        return candidates if self.rules["self_vote"] else candidates - {voter}

    def daylight(self) -> None:
        seats = sorted(self.living)
        first = self.draw("start", seats)
        order = [p for p in seats if p >= first] + [p for p in seats if p < first]
        early: dict[int, int | None] = {}
        for p in order:
            if p in self.one_call and p not in self.shown_idiots:
                early[p], _ = self.decide(p, "day", self.votable(p, self.electable()))
            else:
                self.decide(p, "speak", set())
            self.tell(self.everyone, "speech", self.day, p)
        voters = [p for p in order if p not in self.shown_idiots]
        top = self.ballot(voters, self.electable(), early, False)
        if len(top) > 1 and self.rules["day_tie"] == "revote":
            self.tell(self.everyone, "tie", self.day, tuple(top))
            for p in top:
                self.decide(p, "speak", set(), True)
                self.tell(self.everyone, "speech", self.day, p)
            voters = [p for p in voters if p not in top]
            # Open: where everybody is tied nobody is left to vote, and nobody is exiled.
            top = self.ballot(voters, set(top), {}, True) if voters else []
        if len(top) != 1:
            self.tell(self.everyone, "nobody exiled", self.day)
            return
        out = top[0]
        if self.roles[out] == "idiot" and out not in self.shown_idiots:
            self.shown_idiots.add(out)
            self.tell(self.everyone, "idiot", self.day, out)
            return
        self.living.remove(out)
        self.tell(self.everyone, "exiled", self.day, out)
        self.end_if_won()
        self.final_words(out)
        self.maybe_shoot(out)

    def ballot(self, voters: list[int], candidates: set[int], early: dict[int, int | None], revote: bool) -> list[int]:
        """Everybody votes; returns who has most votes, lowest seat first."""
        slips: dict[int, int | None] = {}
        for p in voters:
            if p in early:
                slips[p] = early[p]
            else:
                slips[p], _ = self.decide(p, "vote", self.votable(p, candidates), revote)
        self.tell(self.everyone, "votes", self.day, tuple((p, slips[p]) for p in voters))
        named = [t for t in slips.values() if t is not None]
        if not named:
            return []
        top = max(named.count(p) for p in named)
        return sorted({p for p in named if named.count(p) == top})
