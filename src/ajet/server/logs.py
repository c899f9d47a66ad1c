"""Logs: a line for people on stderr, JSON lines in a file. Keys are never in them."""

from __future__ import annotations

import json
import logging
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


def set_up(file: Path | None = None, level: int = logging.INFO) -> None:
    """Log ``ajet.*`` to stderr, and as JSON lines to ``file``. A file that the disk refuses is no reason to stop."""
    logging.raiseExceptions = False
    root = logging.getLogger("ajet")
    root.setLevel(level)
    root.propagate = False
    if not any(isinstance(h.formatter, HumanLine) for h in root.handlers):
        human = logging.StreamHandler(sys.stderr)
        human.setFormatter(HumanLine())
        root.addHandler(human)
    if file is not None and not any(getattr(h, "baseFilename", None) == str(file.absolute()) for h in root.handlers):
        for old in [h for h in root.handlers if isinstance(h, logging.FileHandler)]:
            root.removeHandler(old)
            old.close()
        try:
            lines = logging.FileHandler(file, encoding="utf-8")
        except OSError as err:
            root.warning("no log file at %s: %s", file, err)
            return
        lines.setFormatter(JsonLines())
        root.addHandler(lines)
