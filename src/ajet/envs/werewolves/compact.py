"""Short state prompts for small models: one message that says what matters now, and a reply of a line or two.

A prompt is about sixty tokens. Every living other player (and oneself, where one may name oneself) stands once, under the first heading that applies, and each
heading comes *before* its names, so that a causal model knows what a name is when it reads it. Everything shown is
public or was told to this seat. Speech and vote are asked in one reply (``Game.one_call``).

Replies: an optional sentence in one of the forms of :mod:`~ajet.envs.werewolves.speech`, then one last line such as
``kill: Player4``, ``vote: Player4``, ``save: yes``, ``shoot: nobody``.
"""

from __future__ import annotations

import re
from typing import Any

from ajet.envs.werewolves.board import Board
from ajet.envs.werewolves.engine import Action, Game, Request
from ajet.envs.werewolves.scripted import name

SYSTEM = "Play werewolf."
NOBODY = "nobody"
SECTIONS = ("Team", "Wolf", "Good", "Idiot", "Claims", "Accused", "Others")
"""Headings of a prompt; each living player stands under one of them."""
MAX_SPEECH = 200
"""Characters of a statement that others hear."""

_LINE = re.compile(r"(protect|kill|check|vote|shoot|poison|save|pass):? ?(?:Player([1-9][0-9]?)|(nobody|yes|no))?\s*$")
_QUESTIONS = {
    "protect": "Who to protect?",
    "kill": "Who to kill?",
    "check": "Who to check?",
    "witch": "Save or poison?",
    "shoot": "Who to shoot?",
    "speak": "Speak.",
    "vote": "Vote.",
    "day": "Speak and vote.",
    "last_words": "Last words.",
}


def _names(seats: list[int]) -> str:
    return " ".join(name(i) for i in seats) if seats else "none"


def compact_text(game: Game, board: Board, request: Request) -> str:
    """The user message of a compact prompt."""
    me = request.player
    board.refresh()
    checks: dict[int, bool] = {}
    team: set[int] = set()
    picks: list[int] = []
    last: list[int] = []
    for event in game.private[me]:
        if event.kind == "check" and event.target is not None:
            checks[event.target] = bool(event.is_wolf)
        elif event.kind == "teammates":
            team.update(event.players)
        elif event.kind == "wolf_pick" and event.day == game.day and event.target is not None:
            picks.append(event.target)
        elif event.kind == "guarded" and event.day == game.day - 1 and event.target is not None:
            last.append(event.target)
    night = request.kind in ("protect", "kill", "check", "witch")
    lines = [f"{'Night' if night else 'Day'} {game.day}. You are {name(me)}, {request.role.value}."]
    # Whom one may attack includes oneself; whom one may protect, where the board says so.
    own = request.kind == "kill" or (request.kind == "protect" and game.options.guard_self)
    rest = list(game.living() if own else game.living(me))

    def section(title: str, seats: set[int], always: bool) -> None:
        shown = [i for i in rest if i in seats]
        if shown or always:
            lines.append(f"{title}: {_names(shown)}")
        for i in shown:
            rest.remove(i)

    if team:
        section("Team", team, True)
    if request.role.value == "seer":
        section("Wolf", {i for i, wolf in checks.items() if wolf}, True)
        section("Good", {i for i, wolf in checks.items() if not wolf}, True)
    section("Idiot", board.idiots, False)
    section("Claims", set(board.claimers), True)
    section("Accused", set(board.accused()), True)
    section("Others", set(rest), True)
    if request.kind == "protect":
        lines.append(f"Last: {_names(last)}")
    if request.kind == "kill":
        lines.append(f"Picks: {_names(picks)}")
    if request.kind == "witch":
        can = [word for word, may in (("save", request.may_save), ("poison", request.may_poison)) if may]
        lines.append(f"Victim: {_names([] if request.victim is None else [request.victim])}")
        lines.append(f"Has: {' '.join(can) or 'none'}")
    if request.revote:
        lines.append(f"Tied: {_names(list(request.legal))}")
    lines.append(_QUESTIONS[request.kind])
    return "\n".join(lines)


def compact_prompt(game: Game, board: Board, request: Request) -> list[dict[str, Any]]:
    """Chat messages of a compact prompt."""
    return [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": compact_text(game, board, request)},
    ]


def compact_reply(request: Request, action: Action) -> str:
    """How ``action`` is written as a reply. The inverse of :func:`parse_compact`."""
    target = NOBODY if action.target is None else name(action.target)
    if request.kind == "witch":
        line = "save: yes" if action.save else f"poison: {target}"
    elif request.kind in ("speak", "last_words"):
        return action.say
    else:
        line = f"{'vote' if request.kind == 'day' else request.kind}: {target}"
    return f"{action.say}\n{line}" if action.say else line


def parse_compact(text: str, request: Request) -> Action | None:
    """The action a reply asks for; None where it is not of the required form or not legal."""
    text = text.strip()
    if request.kind in ("speak", "last_words"):
        return Action(say=text[:MAX_SPEECH]) if text and "\n" not in text else None
    say, _, last = text.rpartition("\n")
    match = _LINE.fullmatch(last)
    if match is None:
        return None
    verb, seat, word = match[1], match[2], match[3]
    expected = {"day": ("vote",), "witch": ("save", "poison", "pass")}.get(request.kind, (request.kind,))
    if verb not in expected or (say and request.kind != "day"):
        return None
    if verb == "pass":
        return Action()
    if verb == "save":
        return Action(save=word == "yes") if word in ("yes", "no") and (request.may_save or word == "no") else None
    say = say.strip()[:MAX_SPEECH]
    if word == NOBODY:
        return Action(None, say) if request.may_pass else None
    if seat is None or int(seat) - 1 not in request.legal:
        return None
    return Action(int(seat) - 1, say)
