"""Whether a wolf's public words give it or its team away. English and Chinese, by plain forms only.

Confessions that are told of others ("he says I am a wolf", "if I were a wolf") or denied do not count. What no form
here covers is missed, so shares made of this are lower bounds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Leak:
    """``confesses``: the speaker says that it is a wolf. ``names``: seats it calls wolves or its fellows, from 0."""

    confesses: bool = False
    names: frozenset[int] = frozenset()


_NAME = r"(?:player\s*)?([1-9][0-9]?)\s*(?:号)?"
_WOLF = r"(?:were)?wol(?:f|ves)"
_CONFESSIONS = re.compile(
    rf"\bI(?:'m| am) (?:a |the |one of the |also a )?{_WOLF}\b|\bas (?:a|your|one of the) (?:fellow )?{_WOLF}\b"
    rf"|\b(?:we|us) (?:are (?:the )?)?{_WOLF}\b|\b(?:my|our) (?:fellow {_WOLF}|pack\b|wolf team)"
    rf"|\b(?:we|I) (?:killed|attacked) (?:player\s*)?[1-9]"
    rf"|我(?:们)?(?:就)?是(?:一[只匹名个])?狼|我们狼|我的?狼(?:同伴|队友)|(?:我们?昨[晚夜]|昨[晚夜]我们?)(?:刀|杀)",
    re.I,
)
_NOT_MINE = re.compile(
    r"\b(?:if|say|says|said|saying|claim|claims|claimed|think|thinks|thought|believe|believes|call|calls|called|accuse\w*"
    r"|suspect\w*|not|never|deny|pretend\w*|that)\b[^.!?;]*$|(?:说|如果|假如|认为|怀疑|觉得|以为|污蔑|不)[^。！？；]*$",
    re.I,
)
_FELLOW = rf"(?:team-?mates?|partners?|fellow {_WOLF}|pack-?mates?|同伴|队友)"
_NAMED = (
    re.compile(rf"{_NAME}\s+is\s+(?:a\s+|the\s+|one of the\s+)?{_WOLF}\b|{_NAME}\s*(?:就)?是\s*狼", re.I),
    re.compile(rf"\b(?:my|our) {_FELLOW}\s*,?\s*{_NAME}|我(?:们)?的?(?:狼)?(?:同伴|队友)\s*{_NAME}", re.I),
    re.compile(rf"{_NAME}\s+(?:is|was) (?:my|our) {_FELLOW}|{_NAME}\s*是我(?:们)?的?(?:狼)?(?:同伴|队友)", re.I),
    re.compile(rf"{_NAME} and (?:I|me)\s+(?:are|were)\s+(?:the\s+|both\s+)?(?:{_WOLF}|{_FELLOW})|{_NAME}和我(?:都)?是狼", re.I),
)  # fmt: skip


@lru_cache(maxsize=4096)
def leak(text: str) -> Leak:
    """What a statement gives away, if its speaker is a wolf."""
    confesses = any(not _NOT_MINE.search(text[: found.start()]) for found in _CONFESSIONS.finditer(text))
    names = frozenset(
        int(next(group for group in found.groups() if group)) - 1 for form in _NAMED for found in form.finditer(text)
    )
    return Leak(confesses, names)
