"""One frame, or its summary, on standard output, for scripts and mails: plain text, with colours only on a terminal."""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from ajet.client.advice import unreachable
from ajet.monitor.overwatch.drawing import ASCII
from ajet.monitor.overwatch.feed import Feed, View
from ajet.monitor.overwatch.frame import frame, summary
from ajet.schema.errors import ServerUnreachable
from ajet.schema.status import Status

WIDTH = 100
"""Where standard output is no terminal and ``COLUMNS`` is not set."""


def once(url: str) -> None:
    """Print a frame.

    Raises:
        ServerUnreachable: no server answered, and why.
        InvalidKey, Forbidden: the key does not open it.
    """
    view = asyncio.run(_look(url))
    if view.status is None:
        raise ServerUnreachable(
            f"No answer from {view.url}: {view.why}. {unreachable(view.url, ConnectionError(view.why))}"
        )
    _print(frame(view, _width()))


def print_summary(url: str, status: Status) -> None:
    """Print the summary of what the server at ``url`` has just answered."""
    now = time.time()
    _print(summary(View(url, now, status, answered=now), status, _width()))


def _width() -> int:
    return shutil.get_terminal_size((WIDTH, 24)).columns


def _print(lines: Iterable[Text]) -> None:
    console = Console(
        file=sys.stdout,
        force_terminal=sys.stdout.isatty(),
        width=_width(),
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=True,
    )
    for line in lines:
        line.rstrip()
        console.print(line if _writable(line.plain) else Text(_ascii(line.plain)))


async def _look(url: str) -> View:
    feed = Feed(url)
    try:
        return await feed.look()
    finally:
        await feed.close()


def _writable(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _ascii(text: str) -> str:
    encoding = sys.stdout.encoding or "ascii"
    return text.translate(ASCII).encode(encoding, "replace").decode(encoding)
