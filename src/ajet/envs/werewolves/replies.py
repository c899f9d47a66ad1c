"""Reading what a language model replied: free reasoning, a public statement, then one machine-readable last line.

The last legal object or line counts. Names are read as ``3``, ``Player3``, ``player 3`` or ``3号``; booleans strictly
(the *string* ``"false"`` is false, and only a few words are true). Nothing here raises on what a model may send.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from typing import Any

from ajet.envs.werewolves.engine import Action, Request

MAX_SPEECH = 1200
"""Characters of a statement that others hear."""

VERBS: dict[str, tuple[str, ...]] = {
    "kill": ("kill", "杀", "刀"),
    "check": ("check", "查验", "验"),
    "vote": ("vote", "投票", "投"),
    "day": ("vote", "投票", "投"),
    "shoot": ("shoot", "开枪", "射击"),
    "witch": ("save", "poison", "resurrect", "救", "毒"),
}
_SAVE = ("save", "resurrect", "救")
_POISON = ("poison", "毒")
_SAY = ("say", "speech", "speak", "statement", "发言")
_GENERIC = ("target", "name", "player")
_NOBODY = frozenset({"", "none", "null", "nobody", "no one", "noone", "pass", "abstain", "no", "n/a", "-", "弃票", "弃权", "空", "无", "不", "没有", "false"})
_TRUE = frozenset({"true", "yes", "y", "1", "是", "救", "save"})
_NAME = re.compile(r"(?:player|玩家)?\s*#?\s*([0-9]{1,2})\s*(?:号)?(?:玩家)?", re.I)
_THINK = re.compile(r"<think>.*?</think>", re.S | re.I)
_MISSING = object()


@dataclass(frozen=True)
class ParsedReply:
    """``action`` is None where the reply asks for nothing legal; ``problem`` then says what is wrong, for a repair."""

    action: Action | None
    problem: str = ""


def as_bool(value: Any) -> bool:
    """Strictly: only ``true`` and a few words for it are true."""
    if isinstance(value, str):
        return value.strip().lower() in _TRUE
    return value is True or (isinstance(value, int) and value == 1)


def as_seat(value: Any) -> int | None | object:
    """A seat from 0, None for nobody, or ``_MISSING`` where no player is named."""
    if value is None or value is False:
        return None
    if isinstance(value, bool):
        return _MISSING
    if isinstance(value, int):
        return value - 1
    if isinstance(value, float):
        return int(value) - 1 if value.is_integer() else _MISSING
    if isinstance(value, str):
        text = value.strip().strip("\"'.。`*[]()（） ")
        if text.lower() in _NOBODY:
            return None
        match = _NAME.fullmatch(text)
        if match:
            return int(match[1]) - 1
    return _MISSING


def parse_reply(text: str, request: Request) -> ParsedReply:
    """The action a reply asks for."""
    text = _THINK.sub("", text)
    if "<think>" in text.lower():  # cut off inside its reasoning
        return ParsedReply(None, "The reply ended inside its reasoning.")
    if "</think>" in text.lower():
        text = re.split(r"</think>", text, flags=re.I)[-1]
    if request.kind in ("speak", "last_words"):
        say = _speech(text)
        return ParsedReply(Action(say=say)) if say else ParsedReply(None, "The reply holds no statement.")
    problem = "The reply has no machine-readable last line."
    for fields, start in reversed(_candidates(text, request)):
        action, problem = _action(fields, request)
        if action is not None:
            say = str(next((fields[k] for k in _SAY if isinstance(fields.get(k), str)), "") or text[:start])
            heard = request.kind in ("day", "kill")
            return ParsedReply(Action(action.target, _clip(say) if heard else "", action.save))
    return ParsedReply(None, problem)


def _clip(text: str) -> str:
    return re.sub(r"```\w*", "", text).strip()[:MAX_SPEECH]


def _speech(text: str) -> str:
    for fields, _ in reversed(_objects(text)):
        for key in _SAY:
            if isinstance(fields.get(key), str) and fields[key].strip():
                return _clip(fields[key])
    return _clip(text)


def _objects(text: str) -> list[tuple[dict[str, Any], int]]:
    """JSON objects in the text, with where each starts."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while (at := text.find("{", at)) >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            at += 1
            continue
        if isinstance(value, dict):
            found.append(({str(k).lower(): v for k, v in value.items()}, at))
        at = end
    return found


def _candidates(text: str, request: Request) -> list[tuple[dict[str, Any], int]]:
    """Everything that could be the machine-readable part, in order."""
    found = _objects(text)
    words = "|".join(map(re.escape, VERBS[request.kind]))
    line = re.compile(rf"^[\s*`>-]*({words})\s*[:：]\s*(.+?)\s*[*`]*$", re.I | re.M)
    for match in line.finditer(text):
        found.append(({match[1].lower(): match[2]}, match.start()))
    return sorted(found, key=lambda pair: pair[1])


def _action(fields: dict[str, Any], request: Request) -> tuple[Action | None, str]:
    if request.kind == "witch":
        return _witch(fields, request)
    keys = [k for k in (*VERBS[request.kind], *_GENERIC) if k in fields]
    if not keys:
        return None, f"The object needs the key {VERBS[request.kind][0]!r}."
    seat = as_seat(fields[keys[0]])
    return _target(seat, fields[keys[0]], request)


def _target(seat: Any, shown: Any, request: Request) -> tuple[Action | None, str]:
    if seat is None:
        return (Action(None), "") if request.may_pass else (None, "Somebody must be named.")
    if seat is _MISSING:
        return None, f"{shown!r} names no player."
    if seat not in request.legal:
        return None, f"Player{seat + 1} may not be named now."
    return Action(seat), ""


def _witch(fields: dict[str, Any], request: Request) -> tuple[Action | None, str]:
    named = [k for k in (*_SAVE, *_POISON) if k in fields]
    if not named:
        return None, "The object needs the keys 'save' and 'poison'."
    save = any(as_bool(fields[k]) for k in _SAVE if k in fields)
    value = next((fields[k] for k in _POISON if k in fields), None)
    if value is True:  # "poison": true with the name beside it, or without one
        value = next((fields[k] for k in _GENERIC if k in fields), None)
    if save:
        return (Action(save=True), "") if request.may_save else (None, "The antidote cannot be used now.")
    seat = as_seat(value)
    if seat is None:
        return Action(), ""
    if not request.may_poison:
        return None, "The poison is used up."
    return _target(seat, value, request)


def fallback(request: Request, rng: random.Random) -> Action:
    """What happens where no legal reply came: abstain where that is allowed, else a seeded legal choice."""
    if request.kind in ("speak", "last_words") or request.may_pass or not request.legal:
        return Action()
    return Action(rng.choice(request.legal))
