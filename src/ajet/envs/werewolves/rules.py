"""The board and its options. The engine and every prompt read the same :class:`BoardOptions`, so they cannot disagree."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Literal, get_args, get_origin, get_type_hints

from ajet.schema.errors import ConfigError


class Role(str, Enum):
    """What a player is."""

    WEREWOLF = "werewolf"
    SEER = "seer"
    WITCH = "witch"
    HUNTER = "hunter"
    GUARD = "guard"
    IDIOT = "idiot"
    VILLAGER = "villager"

    __str__ = str.__str__


GODS = frozenset({Role.SEER, Role.WITCH, Role.HUNTER, Role.GUARD, Role.IDIOT})
"""Good roles with a power; the other good role is the villager."""

NINE_PLAYERS: tuple[Role, ...] = (
    *[Role.WEREWOLF] * 3,
    Role.SEER,
    Role.WITCH,
    Role.HUNTER,
    *[Role.VILLAGER] * 3,
)

Side = Literal["wolf", "good", "draw"]


def side_of(role: Role) -> Side:
    """The side a role plays for."""
    return "wolf" if role is Role.WEREWOLF else "good"


@dataclass(frozen=True)
class BoardOptions:
    """Where boards differ, a named option. Defaults: the nine-player seer–witch–hunter board.

    Attributes:
        roles: one per seat, dealt at random.
        wolf_win: ``side_wiped``: all villagers dead, or all gods (seer, witch, hunter, guard, idiot) dead;
            ``parity``: wolves are as many as the others.
        witch_self_save: whether the witch may use the antidote on herself.
        day_tie: a tied vote leads to one ``revote`` among the tied (the others vote), or exiles ``nobody``.
        wolf_tie: the wolves' tied targets are drawn (``seeded``) or nobody dies (``none``).
        self_vote: whether a vote for oneself counts; else it is an abstention.
        max_days: reaching this day's end is a draw.
        guard_self: whether the guard may protect himself.
        guard_repeat: whether he may protect the same player two nights running.
        guard_and_save: what becomes of an attacked player who was both protected and given the antidote.
        idiot_again: the idiot who was voted out reveals himself and lives on without a vote; after that he may not be
            voted for (``immune``), or is ``exiled`` like anybody the next time.

    Raises:
        ConfigError: an unknown value, or a board that is decided before it begins and so has no game to end.
    """

    roles: tuple[Role, ...] = NINE_PLAYERS
    wolf_win: Literal["side_wiped", "parity"] = "side_wiped"
    witch_self_save: Literal["never", "first_night", "always"] = "never"
    day_tie: Literal["revote", "nobody"] = "revote"
    wolf_tie: Literal["seeded", "none"] = "seeded"
    self_vote: bool = False
    max_days: int = 12
    guard_self: bool = True
    guard_repeat: bool = False
    guard_and_save: Literal["dies", "lives"] = "dies"
    idiot_again: Literal["immune", "exiled"] = "immune"

    def __post_init__(self) -> None:
        for option, allowed in option_values().items():
            value = getattr(self, option)
            if value not in allowed or type(value) is not type(allowed[0]):
                words = ", ".join(str(a).lower() if isinstance(a, bool) else str(a) for a in allowed)
                raise ConfigError(f"{option} is one of {words}; not {value!r}.", param=option)
        counts = Counter(self.roles)
        if not counts[Role.WEREWOLF] or counts[Role.WEREWOLF] * 2 >= len(self.roles):
            raise ConfigError(
                "A board needs at least one werewolf, and fewer werewolves than other players: "
                "else it is decided before it begins."
            )
        if self.wolf_win == "side_wiped" and not (counts[Role.VILLAGER] and any(counts[g] for g in GODS)):
            raise ConfigError(
                "wolf_win='side_wiped' needs a villager and a seer, witch, hunter, guard or idiot: else the wolves have won "
                "before it begins. Use 'parity'."
            )
        if any(counts[g] > 1 for g in GODS):
            raise ConfigError("Seer, witch, hunter, guard and idiot occur at most once.")
        if not isinstance(self.max_days, int) or isinstance(self.max_days, bool) or self.max_days < 1:
            raise ConfigError("max_days must be a whole number of at least 1.", param="max_days")


@lru_cache(maxsize=1)
def option_values() -> dict[str, tuple[str | bool, ...]]:
    """What each option that is a choice may be, by its name."""
    values: dict[str, tuple[str | bool, ...]] = {}
    for option, hint in get_type_hints(BoardOptions).items():
        if hint is bool:
            values[option] = (False, True)
        elif get_origin(hint) is Literal:
            values[option] = get_args(hint)
    return values


def winner(options: BoardOptions, roles: tuple[Role, ...], alive: list[bool]) -> Side | None:
    """Who has won, or None. No living wolf is checked first, so "everyone dead" is a good win."""
    living = [role for role, lives in zip(roles, alive, strict=True) if lives]
    wolves = sum(role is Role.WEREWOLF for role in living)
    if wolves == 0:
        return "good"
    if options.wolf_win == "parity":
        return "wolf" if wolves >= len(living) - wolves else None
    villagers = sum(role is Role.VILLAGER for role in living)
    gods = sum(role in GODS for role in living)
    return "wolf" if villagers == 0 or gods == 0 else None
