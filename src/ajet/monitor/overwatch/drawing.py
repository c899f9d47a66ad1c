"""Small drawings for a terminal: text that is safe to print, durations, sizes, bars, curves. Pure.

Names and messages come from anywhere, so :func:`clean` is applied to every one: what is printed holds no control
characters. Widths are cells, so that wide characters count twice.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import datetime

from rich.cells import cell_len
from rich.text import Text

FULL, HALF, EMPTY = "█", "▒", "░"
LEVELS = "▁▂▃▄▅▆▇█"
ASCII = str.maketrans("█▒░▁▂▃▄▅▆▇·…–→", "#+.._-=+*#|~->")
"""For terminals that have no such characters."""
DAY_S = 86400.0


def clean(text: str) -> str:
    """``text`` on one line, with nothing in it that a terminal would obey."""
    flat = " ".join(text.split())
    return "".join("�" if unicodedata.category(c).startswith("C") else c for c in flat)


def cut(text: str, width: int) -> str:
    """``text`` in at most ``width`` cells; of a longer one the beginning and the end."""
    if cell_len(text) <= width:
        return text
    if width <= 1:
        return "…"[:width]
    tail = (width - 1) // 2
    return _start(text, width - 1 - tail) + "…" + _start(text[::-1], tail)[::-1]


def _start(text: str, width: int) -> str:
    used = 0
    for n, char in enumerate(text):
        used += cell_len(char)
        if used > width:
            return text[:n]
    return text


def wrap(text: str, width: int, lines: int) -> list[str]:
    """``text`` in at most ``lines`` lines; what does not fit ends in an ellipsis."""
    found: list[str] = []
    rest = text
    while rest and len(found) < lines:
        if cell_len(rest) <= width:
            return [*found, rest]
        if len(found) == lines - 1:
            return [*found, _start(rest, width - 1).rstrip() + "…"]
        piece = _start(rest, width)
        space = piece.rfind(" ")
        if not rest[len(piece)].isspace() and space > width // 2:
            piece = piece[:space]
        found.append(piece.rstrip())
        rest = rest[len(piece) :].lstrip()
    return found


def flow(parts: Iterable[Text], width: int, lines: int, *, count_rest: bool = False) -> list[Text]:
    """``parts`` side by side with dots between them, in at most ``lines`` lines of whole parts.

    A part wider than a line is cut; parts that find no place are left out.

    Args:
        count_rest: say how many were left out.
    """
    left = [part for part in parts if part.plain]
    found: list[Text] = []
    while left and len(found) < lines:
        line = Text(no_wrap=True)
        while left:
            part = left[0].copy()
            part.truncate(width, overflow="ellipsis")
            gap = 3 if line.plain else 0
            last = count_rest and len(left) > 1 and len(found) == lines - 1
            if (
                line.plain
                and line.cell_len + gap + part.cell_len + (len(f" · {len(left)} more") if last else 0) > width
            ):
                break
            line.append(" · " if gap else "", "dim").append_text(part)
            left.pop(0)
        found.append(line)
    if left and count_rest:
        found[-1].append(f" · {len(left)} more", "dim")
        found[-1].truncate(width, overflow="ellipsis")
    return found


def clock(when: float, now: float) -> str:
    """A moment, for a reader at ``now``: the time of day, with the date where that is needed."""
    try:
        return datetime.fromtimestamp(when).strftime("%H:%M:%S" if abs(now - when) < DAY_S else "%Y-%m-%d %H:%M")
    except (OverflowError, OSError, ValueError):
        return "?"


def duration(seconds: float) -> str:
    """``3.2 s``, ``4 min 10 s``, ``2 h 5 min``, ``3 d 4 h``."""
    s = max(0.0, seconds)
    if s < 9.95:
        return f"{s:.1f} s"
    n = round(s)
    for size, big, small in ((86400, "d", "h"), (3600, "h", "min"), (60, "min", "s")):
        if n >= size:
            rest = n % size // {"h": 3600, "min": 60, "s": 1}[small]
            return f"{n // size} {big} {rest} {small}" if rest else f"{n // size} {big}"
    return f"{n} s"


def count(number: float) -> str:
    """``950``, ``12.3k``, ``4.1M``; below ten with a decimal unless whole."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(number) >= size:
            return f"{number / (1e3 if unit == 'k' else size):.1f}{unit}"
    return f"{number:.0f}" if abs(number) >= 10 or number == int(number) else f"{number:.1f}"


def many(number: int, noun: str) -> str:
    """``1 call``, ``12.3k calls``."""
    return f"{count(number)} {noun}" if number == 1 else f"{count(number)} {noun}s"


def size(n: float) -> str:
    """Bytes in decimal units, as disks are sold."""
    for bound, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if n >= bound:
            return f"{n / bound:.1f} {unit}" if n < 100 * bound else f"{n / bound:.0f} {unit}"
    return f"{n:.0f} B"


def bar(done: float, total: float, width: int, under_way: float = 0.0, style: str = "green") -> Text:
    """How much of ``total`` is done, and how much is ``under_way``."""
    share = min(1.0, max(0.0, done / total)) if total > 0 else 0.0
    reach = min(1.0, max(share, (done + under_way) / total)) if total > 0 else 0.0
    filled = math.floor(share * width + 1e-9)
    coming = math.floor(reach * width + 1e-9) - filled
    return Text.assemble(
        (FULL * filled, style), (HALF * coming, style), (EMPTY * (width - filled - coming), "dim"), no_wrap=True
    )


def curve(values: Sequence[float], width: int, low: float | None = None, high: float | None = None) -> str:
    """``values`` as a line of at most ``width`` blocks, each the mean of its stretch. ``low``, ``high``: of the scale."""
    if not values or width < 1:
        return ""
    points = min(width, len(values))
    means = []
    for n in range(points):
        part = values[n * len(values) // points : (n + 1) * len(values) // points]
        means.append(sum(part) / len(part))
    bottom, top = min(means) if low is None else low, max(means) if high is None else high
    span = top - bottom
    if span <= 0:
        return LEVELS[len(LEVELS) // 2] * points
    return "".join(LEVELS[round(min(1.0, max(0.0, (v - bottom) / span)) * (len(LEVELS) - 1))] for v in means)
