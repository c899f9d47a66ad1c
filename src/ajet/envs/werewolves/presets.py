"""How a user says which board to play: a preset's name, counts of roles, or either with options beside it.

:func:`board_options` is the front door of :class:`~ajet.envs.werewolves.rules.BoardOptions`: what a job file, a command
line or a script gives is checked here, and a board of the wrong size is refused here. The engine itself takes any board
that is not decided before it begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ajet.envs.werewolves.rules import BoardOptions, Role
from ajet.schema.errors import ConfigError

MIN_PLAYERS, MAX_PLAYERS = 6, 12

DEFAULT_BOARD = "classic-9"
PRESETS: dict[str, dict[str, int]] = {
    "classic-9": {"werewolf": 3, "seer": 1, "witch": 1, "hunter": 1, "villager": 3},
    "starter-6": {"werewolf": 2, "seer": 1, "guard": 1, "villager": 2},
    "guard-8": {"werewolf": 2, "seer": 1, "witch": 1, "guard": 1, "villager": 3},
    "idiot-10": {"werewolf": 3, "seer": 1, "witch": 1, "hunter": 1, "idiot": 1, "villager": 3},
    "guard-12": {"werewolf": 4, "seer": 1, "witch": 1, "hunter": 1, "guard": 1, "villager": 4},
    "idiot-12": {"werewolf": 4, "seer": 1, "witch": 1, "hunter": 1, "idiot": 1, "villager": 4},
}
"""Boards by name; the number says how many play."""

BoardConfig = BoardOptions | str | Mapping[str, Any] | None
"""What a user may give: see :func:`board_options`."""


def board_options(given: BoardConfig) -> BoardOptions:
    """The board a user asks for.

    Args:
        given: None for the default board; a preset's name; counts as a mapping (``{"werewolf": 3, …}``) or as text
            (``"werewolf=3,seer=1,…"``); a mapping of options (``wolf_win``, …) with such a name or counts under
            ``board``; or :class:`BoardOptions`, which are only checked.

    Raises:
        ConfigError: an unknown preset, role or option, a count that is none, a board of fewer than 6 or more than 12
            players, or one that is decided before it begins.
    """
    options = given if isinstance(given, BoardOptions) else _read(given)
    players = len(options.roles)
    if not MIN_PLAYERS <= players <= MAX_PLAYERS:
        raise ConfigError(f"A board has {MIN_PLAYERS} to {MAX_PLAYERS} players; this one has {players}.", param="board")
    return options


def _read(given: str | Mapping[str, Any] | None) -> BoardOptions:
    if isinstance(given, Mapping) and not (given and all(key in _ROLE_NAMES for key in given)):
        known = {f.name for f in fields(BoardOptions)} - {"roles"}
        options = {str(key): value for key, value in given.items() if key != "board"}
        if unknown := sorted(options.keys() - known):
            raise ConfigError(
                f"A board knows no {', '.join(unknown)}. Roles: {', '.join(sorted(_ROLE_NAMES))}; options beside "
                f"'board': {', '.join(sorted(known))}.",
                param=unknown[0],
            )
        return BoardOptions(roles=_roles(given.get("board")), **options)
    return BoardOptions(roles=_roles(given))


_ROLE_NAMES = frozenset(role.value for role in Role)


def _roles(board: Any) -> tuple[Role, ...]:
    """Seats of a preset or of counts, always in the order of :class:`Role`, so that equal boards deal alike."""
    counts = _counts(DEFAULT_BOARD if board is None else board)
    return tuple(role for role in Role for _ in range(counts.get(role.value, 0)))


def _counts(board: Any) -> dict[str, int]:
    if isinstance(board, str):
        board = board.strip()
        if "=" not in board:
            if board not in PRESETS:
                raise ConfigError(
                    f"There is no board {board!r}. Presets: {', '.join(PRESETS)}; or counts of roles, such as "
                    "werewolf=3,seer=1,witch=1,hunter=1,villager=3.",
                    param="board",
                )
            return PRESETS[board]
        board = _parse(board)
    if not isinstance(board, Mapping):
        raise ConfigError(f"A board is a preset's name or counts of roles; not {board!r}.", param="board")
    for role, count in board.items():
        if role not in _ROLE_NAMES:
            raise ConfigError(f"There is no role {role!r}; roles: {', '.join(sorted(_ROLE_NAMES))}.", param="board")
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MAX_PLAYERS:
            raise ConfigError(f"The number of {role}s is 0 to {MAX_PLAYERS}; not {count!r}.", param="board")
    return dict(board)


def _parse(text: str) -> dict[str, Any]:
    counts: dict[str, Any] = {}
    for part in text.split(","):
        role, _, number = (piece.strip() for piece in part.partition("="))
        if role in counts:
            raise ConfigError(f"{role!r} is counted twice in {text!r}.", param="board")
        counts[role] = int(number) if number.isdecimal() else number
    return counts


def board_text(options: BoardOptions) -> str:
    """The roles of a board as :func:`board_options` reads them: ``werewolf=3,seer=1,…``."""
    counts = Counter(options.roles)
    return ",".join(f"{role.value}={counts[role]}" for role in Role if counts[role])
