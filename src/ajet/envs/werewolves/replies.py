"""Reading what a language model replied: free reasoning, a public statement, then one machine-readable last line.

The last legal object or line counts. Names are read as ``3``, ``Player3``, ``player 3`` or ``3号``; booleans strictly
(the *string* ``"false"`` is false, and only a few words are true). Nothing here raises on what a model may send.

What others hear is never the reasoning: it is the ``say`` of the object, else what follows the last ``say:`` marker,
else the last paragraph before the machine-readable part. ``<think>`` is cut out before anything is read.
"""

from __future__ import annotations

import json
import random
import re
import unicodedata
from dataclasses import dataclass
from typing import Any

from ajet.envs.werewolves.engine import Action, Request

MAX_REPLY = 40_000
"""Characters of a reply that are read, from its end, reasoning left out."""
MAX_SPEECH = 1200
"""Characters of a statement that others hear."""

VERBS: dict[str, tuple[str, ...]] = {
    "protect": ("protect", "guard", "守护", "守"),
    "kill": ("kill", "击杀", "杀", "刀"),
    "check": ("check", "查验", "验"),
    "vote": ("vote", "投票", "投"),
    "day": ("vote", "投票", "投"),
    "shoot": ("shoot", "开枪", "射击"),
    "witch": ("save", "poison", "resurrect", "解药", "毒药", "救", "毒"),
}
_SAVE = ("save", "resurrect", "解药", "救")
_POISON = ("poison", "毒药", "毒")
_SAY = ("say", "speech", "speak", "statement", "发言")
_GENERIC = ("target", "name", "player", "目标")
_NOBODY = frozenset(
    [
        "none",
        "null",
        "nil",
        "nobody",
        "no-one",
        "noone",
        "pass",
        "skip",
        "abstain",
        "no",
        "false",
        "n/a",
        "弃票",
        "弃权",
        "空",
        "空刀",
        "空守",
        "无",
        "无人",
        "不",
        "否",
        "没有",
    ]
) | {"", "no one", "no body"}
_TRUE = frozenset(["true", "yes", "y", "1", "是", "对"])
_NAME = re.compile(r"(?:player|玩家|no\.)?\s*#?\s*([0-9]{1,2})\s*(?:号)?(?:玩家)?", re.I)
_OBJECT_START = re.compile(r"\{\s{0,20}[\"}]")
_MAX_OBJECTS = 200
"""Places at which a JSON object may begin that are tried, from the end."""
_MARKER = re.compile(
    r"^[ \t*>#\"]*(?:say|speech|statement|public statement|发言|遗言)[ \t*\"]*[:：][ \t*]*", re.I | re.M
)
_EDGES = "\"'.。!！,，`*[]()（）“”‘’ \t"
_DECODER = json.JSONDecoder(strict=False)
_MISSING = object()


@dataclass(frozen=True)
class ParsedReply:
    """``action`` is None where the reply asks for nothing legal; ``problem`` then says what is wrong, for a repair."""

    action: Action | None
    problem: str = ""


@dataclass(frozen=True)
class _Fields:
    """Something machine-readable: its fields (keys in lower case) and where it stands in the text."""

    fields: dict[str, Any]
    start: int
    end: int


def as_bool(value: Any) -> bool:
    """Strictly: only ``true`` and a few words for it are true."""
    if isinstance(value, str):
        return value.strip(_EDGES).lower() in _TRUE
    return value is True or (isinstance(value, int) and value == 1)


def as_seat(value: Any) -> Any:
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
        text = unicodedata.normalize("NFKC", value[:200]).strip(_EDGES)
        if text.lower() in _NOBODY:
            return None
        match = _NAME.fullmatch(text)
        if match:
            return int(match[1]) - 1
    return _MISSING


def parse_reply(text: str, request: Request) -> ParsedReply:
    """The action a reply asks for. Never raises."""
    spoken = without_reasoning(text)  # before anything is cut: reasoning without its beginning looks like speech
    if spoken is None:
        return ParsedReply(None, "The reply ended inside its reasoning.")
    text = spoken[-MAX_REPLY:]
    if request.kind in ("speak", "last_words"):
        objects = _objects(text)
        said = [f for f in objects if any(k in f.fields for k in _SAY)]
        say = _say(said[-1].fields, "") if said else _statement(_without(text, objects))
        return ParsedReply(Action(say=say)) if say else ParsedReply(None, "The reply holds no statement.")
    problem = ""
    for found in reversed(_candidates(text, request)):
        action, why = _action(found.fields, request)
        if action is not None:
            say = ""
            if request.kind in ("day", "kill"):  # fellow wolves hear what is marked as said, nothing else
                say = _say(found.fields, text[: found.start] if request.kind == "day" else "")
            return ParsedReply(Action(action.target, say, action.save))
        problem = problem or why
    return ParsedReply(None, problem or "The reply has no machine-readable last line.")


def without_reasoning(text: str) -> str | None:
    """The text outside ``<think>…</think>``; None where it ends inside. An end without a start closes all before it."""
    *closed, last = re.split(r"</think>", text, flags=re.I)
    spoken = ""
    for part in closed:
        start = part.lower().find("<think>")
        spoken = spoken + part[:start] if start >= 0 else ""
    return None if "<think>" in last.lower() else spoken + last


def _without(text: str, found: list[_Fields]) -> str:
    """The text outside ``found``: an object that has no statement may hold thoughts, and is nothing to be said aloud."""
    for part in reversed(found):
        text = text[: part.start] + text[part.end :]
    return text


def _say(fields: dict[str, Any], before: str) -> str:
    """The statement of an object that has one, else the one in the text before it."""
    for key in _SAY:
        if key in fields:
            return _clip(fields[key]) if isinstance(fields[key], str) else ""
    return _statement(before)


def _statement(text: str) -> str:
    """The public part of free text: after the last marker, else the last paragraph."""
    text = re.sub(r"```\w*", "", text).strip()
    if markers := list(_MARKER.finditer(text)):
        return _clip(text[markers[-1].end() :])
    return _clip(re.split(r"\n[ \t]*\n", text)[-1])


def _clip(text: str) -> str:
    return text.encode("utf-8", "replace").decode().strip()[:MAX_SPEECH]


def _objects(text: str) -> list[_Fields]:
    """JSON objects in the text, in order."""
    found: list[_Fields] = []
    end = 0
    for match in list(_OBJECT_START.finditer(text))[-_MAX_OBJECTS:]:
        if match.start() < end:
            continue
        try:
            value, after = _DECODER.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            continue
        end = after
        found.append(_Fields({str(k).strip().lower(): v for k, v in value.items()}, match.start(), end))
    return found


def _lines(text: str, verbs: tuple[str, ...]) -> list[_Fields]:
    """Lines such as ``vote: Player3``. Adjacent ones of different words (``save: no``, ``poison: 3``) are one."""
    words = "|".join(map(re.escape, verbs))
    line = re.compile(rf"^[ \t*`>\"'-]*({words})[ \t*`\"']*[:：](.*)$", re.I | re.M)
    found: list[_Fields] = []
    for match in line.finditer(text):
        fields = {match[1].lower(): match[2]}
        last = found[-1] if found else None
        if last and not last.fields.keys() & fields.keys() and not text[last.end : match.start()].strip():
            found.pop()
            found.append(_Fields({**last.fields, **fields}, last.start, match.end()))
        else:
            found.append(_Fields(fields, match.start(), match.end()))
    return found


def _candidates(text: str, request: Request) -> list[_Fields]:
    """Everything that could be the machine-readable part, in order."""
    objects = _objects(text)
    lines = [
        f for f in _lines(text, VERBS[request.kind]) if not any(o.start <= f.start and f.end <= o.end for o in objects)
    ]
    return sorted(objects + lines, key=lambda f: f.start)


def _action(fields: dict[str, Any], request: Request) -> tuple[Action | None, str]:
    if request.kind == "witch":
        return _witch(fields, request)
    keys = [k for k in (*VERBS[request.kind], *_GENERIC) if k in fields]
    if not keys:
        return None, f"The object needs the key {VERBS[request.kind][0]!r}."
    return _target(as_seat(fields[keys[0]]), fields[keys[0]], request)


def _target(seat: Any, shown: Any, request: Request) -> tuple[Action | None, str]:
    if seat is None:
        return (Action(None), "") if request.may_pass else (None, "Somebody must be named.")
    if seat is _MISSING:
        text = f"{shown.strip()[:40]!r}" if isinstance(shown, str) else "That"
        return None, f"{text} names no player."
    if seat not in request.legal:
        return None, f"Player{seat + 1} may not be named now." if 0 <= seat < 99 else "There is no such player."
    return Action(seat), ""


def _witch(fields: dict[str, Any], request: Request) -> tuple[Action | None, str]:
    if not any(k in fields for k in (*_SAVE, *_POISON)):
        return None, "The object needs the keys 'save' and 'poison'."
    save = any(as_bool(fields[k]) for k in _SAVE if k in fields)
    value = next((fields[k] for k in _POISON if k in fields), None)
    if value is True or (isinstance(value, str) and as_bool(value) and not value.strip().isdigit()):
        value = next((fields[k] for k in _GENERIC if k in fields), None)  # "poison": true, the name beside it
        if as_seat(value) is None:
            return None, "Poison is said to be used, but nobody is named."
    seat = as_seat(value)
    if save and seat is not None:
        return None, "Antidote and poison may not be used in one night."
    if save:
        return (Action(save=True), "") if request.may_save else (None, "The antidote cannot be used now.")
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


def private_words(text: str, request: Request, say: str) -> str:
    """What of a reply is nobody else's: its reasoning, and its words but for the statement and the machine-readable part.

    Args:
        say: the public statement that was read from it.
    """
    spoken = without_reasoning(text)
    if spoken is None:
        return text.strip()
    thoughts = re.findall(r"(?:^|<think>)((?:(?!</?think>).)*)</think>", text, flags=re.I | re.S)
    if request.kind in ("speak", "last_words"):
        machine = [f for f in _objects(spoken) if any(k in f.fields for k in _SAY)]
    else:
        machine = _candidates(spoken, request)
    if machine:
        spoken = spoken[: machine[-1].start] + spoken[machine[-1].end :]
    place = spoken.rfind(say) if say else -1
    if place >= 0:
        spoken = spoken[:place] + spoken[place + len(say) :]
    spoken = re.sub(r"```\w*", "", _MARKER.sub("", spoken))
    return "\n".join(part for part in (*(t.strip() for t in thoughts), spoken.strip()) if part)
