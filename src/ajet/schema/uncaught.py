"""How a user's script ends when nobody catches an error of ours: one message and one place, not a traceback.

An :class:`~ajet.schema.errors.AjetError` that AgentJet itself raised says what happened and what to do; forty lines of our
own frames above it hide that. So does Ctrl-C's traceback. Everything else (a bug of the user's code above all) is shown as
Python shows it. ``AJET_DEBUG=1`` shows everything.

``SwarmClient`` and ``AgentJetJob`` call :func:`speak_plainly` when they are made; nothing happens on import, and a hook that
was set before keeps all other exceptions.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

from ajet.schema.errors import AjetError

DEBUG_VARIABLE = "AJET_DEBUG"
_LIBRARIES = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
_PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep
_NOT_THEIRS = (_PACKAGE, "<frozen", *(folder + os.sep for folder in _LIBRARIES))


def speak_plainly() -> None:
    """Take over how uncaught errors of ours are shown. Once is enough; repeats change nothing."""
    if getattr(sys.excepthook, "speaks_plainly", False) or hasattr(sys, "ps1"):
        return
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
        text = None if os.environ.get(DEBUG_VARIABLE) else plainly(error, trace)
        if text is None:
            return before(kind, error, trace)
        print(text, file=sys.stderr, flush=True)

    hook.speaks_plainly = True  # type: ignore[attr-defined]
    sys.excepthook = hook


def plainly(error: BaseException, trace: TracebackType | None) -> str | None:
    """What to show instead of the traceback; None where the traceback is what helps."""
    frames = traceback.extract_tb(trace)
    if isinstance(error, KeyboardInterrupt):
        return "[ajet] interrupted; episodes that were open are given back."
    if getattr(error, SHOWN, False):
        return "[ajet] the script ends: every run failed by the error that is shown above."
    if not isinstance(error, AjetError) or not frames or not frames[-1].filename.startswith(_PACKAGE):
        return None
    theirs = [frame for frame in frames if not frame.filename.startswith(_NOT_THEIRS)]
    place = (
        f"\n  raised for {theirs[-1].filename}:{theirs[-1].lineno}: {theirs[-1].line or ''}".rstrip() if theirs else ""
    )
    return f"ajet: {error.message}{place}\n  ({DEBUG_VARIABLE}=1 shows the whole traceback.)"


SHOWN = "_ajet_shown"
"""Set on an exception whose traceback a user has seen already."""
