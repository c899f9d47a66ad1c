"""Lines from standard input for an event loop: a terminal, a pipe or a file; Ctrl-C is heard at once.

A thread reads, so that the loop (and with it an episode's signs of life) goes on while a person thinks. It reads the
file descriptor itself: a thread that held Python's own buffer of standard input would hold up the end of the process.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import sys
import threading
from contextlib import suppress

CHUNK = 4096
MAX_LINE = 20_000
"""Characters of one line; of a longer one the beginning counts."""


class Lines:
    """Make it inside the event loop that will ask.

    Args:
        fd: what is read; default: standard input.
    """

    def __init__(self, fd: int | None = None) -> None:
        self._fd = sys.stdin.fileno() if fd is None else fd
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        threading.Thread(target=self._read, daemon=True, name="stdin").start()

    async def next(self) -> str:
        """The next line, without its end.

        Raises:
            EOFError: there are no more.
        """
        line = await self._lines.get()
        if line is None:
            self._lines.put_nowait(None)
            raise EOFError
        return line

    def _read(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        rest = ""
        with suppress(RuntimeError):  # the loop is closed: nobody asks any more
            while True:
                try:
                    data = os.read(self._fd, CHUNK)
                except OSError:
                    data = b""
                *whole, rest = (rest + decoder.decode(data, final=not data)).replace("\r\n", "\n").split("\n")
                rest = rest[:MAX_LINE]
                for line in whole:
                    self._loop.call_soon_threadsafe(self._lines.put_nowait, line[:MAX_LINE])
                if not data:
                    if rest:
                        self._loop.call_soon_threadsafe(self._lines.put_nowait, rest)
                    self._loop.call_soon_threadsafe(self._lines.put_nowait, None)
                    return
