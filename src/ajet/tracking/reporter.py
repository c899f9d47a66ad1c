"""The process that reports to one tracker: ``python -m ajet.tracking.reporter FD``, with its order on standard input.

Follows the file of steps and hands each new one to the tracker; then notes it in the cursor, so that another process,
whenever it starts, goes on there in the same run. Between the two a death can make a step be reported again, with the
same values. Steps that a failing tracker did not take are taken when it works again.

Over the socket ``FD`` come wake-ups (``w``), the wish to end the run (``f``), or its end, which is the server's:
then what is in the file is reported, and the process goes, within :data:`GRACE_S` whatever the tracker does. What is
said there are JSON lines: ``{"ready": run, "step": n}``, ``{"step": n}``, ``{"failed": why}``. The first exception ends the process.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import socket
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ajet.tracking.sinks import Run, Sink, open_sink
from ajet.tracking.steps import Cursor, StepFile, scalars

GRACE_S = 30.0


@dataclass(frozen=True)
class Order:
    """What to report, where.

    Attributes:
        steps: the file to follow. cursor: what was reported so far. folder: of the tracker's files.
    """

    tracker: str
    project: str
    name: str
    steps: str
    cursor: str
    folder: str
    config: dict[str, Any]


class Reporter:
    """See the module."""

    def __init__(self, order: Order, link: socket.socket) -> None:
        self._order = order
        self._link = link
        self._woken = threading.Event()
        self._over = False

    def run(self) -> None:
        """Report until told to end. Raises what the tracker raises."""
        threading.Thread(target=self._listen, daemon=True, name="orders").start()
        cursor_path = Path(self._order.cursor)
        with cursor_path.with_suffix(".lock").open("a") as lock:
            # One that a killed server left behind finishes first.
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._report(cursor_path)

    def _report(self, path: Path) -> None:
        order, cursor = self._order, Cursor.load(path)
        new = cursor.run is None
        if new and order.tracker != "mlflow":  # MLflow names its runs itself
            cursor.run = f"{order.name}-{secrets.token_hex(4)}"
        folder = Path(order.folder)
        sink = open_sink(order.tracker, Run(order.project, order.name, cursor.run, new, folder, order.config))
        cursor.run = sink.run_id
        cursor.save(path)
        # One of a server before this one may have reported more meanwhile.
        self.tell(ready=cursor.run, step=cursor.step)
        steps = StepFile(Path(order.steps), cursor.step)
        while True:
            self._woken.clear()
            over = self._over
            self._pass_on(steps, sink, cursor, path)
            if over:
                break
            self._woken.wait()
        sink.finish()

    def _pass_on(self, steps: StepFile, sink: Sink, cursor: Cursor, path: Path) -> None:
        for step in steps.new():
            sink.log(scalars(step), step["step"])
            cursor.step = step["step"]
            cursor.save(path)
            self.tell(step=cursor.step)

    def _listen(self) -> None:
        while True:
            try:
                said = self._link.recv(4096)
            except OSError:
                said = b""
            self._over = self._over or not said or b"f" in said
            self._woken.set()
            if not said:
                # The server is gone: nobody else would end a tracker that hangs.
                ending = threading.Timer(GRACE_S, os._exit, (1,))
                ending.daemon = True
                ending.start()
                return

    def tell(self, **words: Any) -> None:
        """Say something to the server, if it is there."""
        with contextlib.suppress(OSError):
            self._link.sendall(json.dumps(words).encode() + b"\n")


def main() -> int:
    order = Order(**json.load(sys.stdin))
    with contextlib.suppress(OSError):
        os.nice(10)
    reporter = Reporter(order, socket.socket(fileno=int(sys.argv[1])))
    try:
        reporter.run()
    except BaseException as err:
        reporter.tell(failed=f"{type(err).__name__}: {err}".strip().rstrip(":"))
        # Trackers leave threads behind that would keep a failed process alive.
        sys.stderr.flush()
        os._exit(1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
