"""Lines with a label column, and lists that share what height is left. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from rich.text import Text

from ajet.monitor.overwatch.drawing import clean, cut, flow, wrap

LABEL = 12
"""Cells of the label column."""
TROUBLE, CARE, GOOD, DIM = "bold red", "yellow", "green", "dim"
Part: TypeAlias = Text | str


@dataclass(frozen=True)
class Room:
    """What a frame may use.

    Attributes:
        message: lines of one message. line: of facts under one label. drops: of drops by reason.
        lists: lines that must be left for lists.
    """

    message: int
    line: int
    drops: int
    lists: int = 0


@dataclass(frozen=True)
class Section:
    """A head that is always shown, and rows that are shown as height allows.

    Attributes:
        hidden: rows that exist and are not known here. noun: what the rows are, for counting those not shown.
    """

    head: list[Text]
    rows: list[Text] = field(default_factory=list)
    hidden: int = 0
    noun: str = "more"


def labelled(label: str, lines: list[Text], style: str = "bold") -> list[Text]:
    """``lines`` with the label before the first."""
    return [
        Text.assemble((f"{label if n == 0 else '':<{LABEL}}", style), line, no_wrap=True)
        for n, line in enumerate(lines)
    ]


def parts(label: str, pieces: Sequence[Part], width: int, lines: int, *, count_rest: bool = False) -> list[Text]:
    """Short facts side by side, the most important first."""
    texts = [piece if isinstance(piece, Text) else Text(piece) for piece in pieces]
    return labelled(label, flow(texts, width - LABEL, lines, count_rest=count_rest))


def message(label: str, text: str, width: int, lines: int, style: str) -> list[Text]:
    """A sentence that may come from anywhere."""
    return labelled(label, [Text(line, style) for line in wrap(clean(text), width - LABEL, lines)], style)


def column(names: list[str], width: int, rest: int = 0) -> list[str]:
    """Names cut and padded to one width.

    Args:
        rest: cells that the rows need behind them: where it gets tight, names are cut, and not what is said of them.
    """
    room = max(12, min(max((Text(name).cell_len for name in names), default=0), (width - LABEL) * 2 // 5))
    room = max(8, min(room, width - LABEL - rest))
    shown = [cut(name, room) for name in names]
    return [name + " " * (room - Text(name).cell_len) for name in shown]


def row(width: int, *pieces: Part | tuple[str, str], further: Sequence[Part] = ()) -> Text:
    """A line of a list, in at most ``width`` cells. ``further``: pieces for which there may be room."""
    line = Text.assemble(" " * LABEL, *pieces, no_wrap=True)
    for piece in further:
        text = piece if isinstance(piece, Text) else Text(piece)
        if line.cell_len + text.cell_len <= width:
            line.append_text(text)
    line.truncate(width, overflow="ellipsis")
    return line


def fit(sections: list[Section], height: int | None) -> list[Text]:
    """Heads, and rows dealt out one by one, to the last section first, until ``height`` is used up.

    Args:
        height: None shows all that is known.
    """
    wanted = [len(section.rows) + (section.hidden > 0) for section in sections]
    given = list(wanted)
    if height is not None:
        left = height - sum(len(section.head) for section in sections)
        given = [0] * len(sections)
        while left > 0 and given != wanted:
            for n in reversed(range(len(sections))):
                if given[n] < wanted[n] and left > 0:
                    given[n] += 1
                    left -= 1
    found: list[Text] = []
    for section, lines in zip(sections, given, strict=True):
        all_shown = lines == len(section.rows) + (section.hidden > 0)
        shown = len(section.rows) if all_shown else lines - 1 if lines > 1 else lines
        missing = len(section.rows) - shown + section.hidden
        found += [*section.head, *section.rows[:shown]]
        if missing and lines > shown:
            found.append(Text(f"{'':<{LABEL}}… {missing} {section.noun}", DIM, no_wrap=True))
    return found


def beside(left: list[Text], right: list[Text], width: int) -> list[Text]:
    """Two columns, the left one ``width`` cells wide."""
    found = []
    for n in range(max(len(left), len(right))):
        one = left[n].copy() if n < len(left) else Text()
        one.pad_right(width - one.cell_len)
        found.append(Text.assemble(one, (" │ ", DIM), right[n] if n < len(right) else "", no_wrap=True))
    return found
