"""Logs: a line for people on stderr, JSON lines in a file. Keys are never in them.

A thread of its own writes them, so that a slow disk or a stuck terminal holds up nobody. The file is bounded: it is
rolled over at 32 MiB, and three older ones are kept.
"""

from __future__ import annotations

import atexit
import json
import logging
import logging.handlers
import queue
import re
import sys
import time
from pathlib import Path

_SECRET = re.compile(r"(ajet-ep\.[\w-]+\.)[\w.-]+|(Bearer )\S+|(ajet-)[\w-]{30,}")


def _clean(text: str) -> str:
    return _SECRET.sub(lambda m: (m.group(1) or m.group(2) or m.group(3)) + "…", text)


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the traceback where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _clean(record.getMessage()),
        }
        if record.exc_info:
            entry["traceback"] = _clean(self.formatException(record.exc_info))
        return json.dumps(entry, ensure_ascii=False)


class HumanLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        text = f"{clock} {record.levelname.lower():7} {_clean(record.getMessage())}"
        if record.exc_info:
            text += "\n" + _clean(self.formatException(record.exc_info))
        return text


FILE_BYTES, FILES = 32 << 20, 3


class _Hand(logging.handlers.QueueHandler):
    """Passes records on as they are: same process, and the formatters want the exception."""

    def __init__(self, reader: _Listener) -> None:
        super().__init__(reader.queue)  # type: ignore[arg-type]
        self.reader = reader

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        record.getMessage()
        return record


class _Listener(logging.handlers.QueueListener):
    """Writes what comes to stderr, and to a file that may change."""

    def __init__(self) -> None:
        human = logging.StreamHandler(sys.stderr)
        human.setFormatter(HumanLine())
        self.file: logging.FileHandler | None = None
        super().__init__(queue.SimpleQueue(), human)  # type: ignore[arg-type]

    def write_to(self, file: Path) -> None:
        """Raises OSError."""
        if self.file is not None and self.file.baseFilename == str(file.absolute()):
            return
        made = logging.handlers.RotatingFileHandler(file, maxBytes=FILE_BYTES, backupCount=FILES, encoding="utf-8")
        made.setFormatter(JsonLines())
        before, self.file = self.file, made
        self.handlers = (self.handlers[0], made)
        if before is not None:
            before.close()


def set_up(file: Path | None = None, level: int = logging.INFO) -> None:
    """Log ``ajet.*`` to stderr, and as JSON lines to ``file``. A file that the disk refuses is no reason to stop."""
    logging.raiseExceptions = False
    root = logging.getLogger("ajet")
    root.setLevel(level)
    root.propagate = False
    hand = next((h for h in root.handlers if isinstance(h, _Hand)), None)
    if hand is None:
        hand = _Hand(_Listener())
        root.addHandler(hand)
        hand.reader.start()
        atexit.register(hand.reader.stop)
    if file is not None:
        try:
            hand.reader.write_to(file)
        except OSError as err:
            root.warning("no log file at %s: %s", file, err)
