"""What one row of the troubleshooting page is, and whether an output holds its message.

A row's message is the real one: the tests of this folder provoke the mistake and look for it, ``page.py`` prints it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

ANYTHING = "…"
"""Stands in a message for what differs from case to case (a path, a port); in a regular expression, for one line's rest."""


@dataclass(frozen=True)
class Text:
    """In both languages of the page."""

    en: str
    zh: str


@dataclass(frozen=True)
class Row:
    """One mistake.

    Attributes:
        key: how tests name it.
        mistake: what somebody did, in a few words.
        message: what is seen, word for word, with ``…`` for what differs.
        remedy: what to do.
        where: which program says it: ``server``, ``script``, ``command`` or ``run`` (what installs or starts them).
    """

    key: str
    where: str
    mistake: Text
    message: str
    remedy: Text

    def pattern(self) -> re.Pattern[str]:
        """Finds the message in an output."""
        parts = (re.escape(part) for part in self.message.split(ANYTHING))
        return re.compile("[^\n]*?".join(parts))
