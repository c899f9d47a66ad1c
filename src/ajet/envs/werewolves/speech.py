"""What a public statement says, as far as scripted players and metrics can tell. English and Chinese.

Only a few plain forms are understood ("I suspect Player3.", "I am the seer. Player4 is a wolf.", "我怀疑3号", …);
anything else is heard and means nothing. Words are never trusted here: this module only reads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

Stance = Literal["suspect", "trust", "wolf", "good"]
"""``wolf`` and ``good`` are results that a claimed seer reports."""


@dataclass(frozen=True)
class Statement:
    """``claims_seer``, a claimed other role, and stances as (kind, seat)."""

    claims_seer: bool = False
    claims: str = ""
    stances: tuple[tuple[Stance, int], ...] = ()


_NAME = r"(?:player\s*)?([1-9][0-9]?)\s*(?:号)?"
_SEER = re.compile(r"\bI(?:'m| am) (?:the )?seer\b|我是预言家", re.I)
_ROLE = re.compile(
    r"\bI(?:'m| am) (?:the |a )?(villager|witch|hunter|guard|idiot)\b|我是(村民|平民|女巫|猎人|守卫|白痴)", re.I
)
_ROLE_NAMES = {
    "村民": "villager",
    "平民": "villager",
    "女巫": "witch",
    "猎人": "hunter",
    "守卫": "guard",
    "白痴": "idiot",
}
_SUSPECT = re.compile(rf"\b(?:suspect|vote for)\s+{_NAME}|(?:怀疑|投)\s*{_NAME}", re.I)
_TRUST = re.compile(rf"\btrust\s+{_NAME}|(?:相信|信任)\s*{_NAME}", re.I)
_CHECK = re.compile(rf"{_NAME}\s+is\s+(?:a\s+|the\s+)?(werewolf|wolf|good)|{_NAME}\s*是\s*(狼人|狼|好人)", re.I)


@lru_cache(maxsize=4096)
def understand(text: str) -> Statement:
    """Read a statement. Seats count from 0."""
    if not text:
        return Statement()
    stances: list[tuple[Stance, int]] = []
    for match in _SUSPECT.finditer(text):
        stances.append(("suspect", int(match[1] or match[2]) - 1))
    for match in _TRUST.finditer(text):
        stances.append(("trust", int(match[1] or match[2]) - 1))
    seer = bool(_SEER.search(text))
    for match in _CHECK.finditer(text):
        seat = int(match[1] or match[3]) - 1
        good = (match[2] or match[4]).lower() in ("good", "好人")
        if seer:
            stances.append(("good" if good else "wolf", seat))
        else:
            stances.append(("trust" if good else "suspect", seat))
    role = _ROLE.search(text)
    claimed = ""
    if role:
        claimed = _ROLE_NAMES.get(role[2] or "", (role[1] or "").lower())
    return Statement(seer, claimed, tuple(stances))
