"""The server's side of its trackers: a process for each, started, woken, watched and started anew.

Promises:

- :meth:`Trackers.step` returns at once, whatever a tracker does; training waits for none of them.
- Nothing queues up: steps lie in ``metrics.jsonl``, and a tracker that was away catches up from there.
- A tracker that fails or hangs is counted, said once until it works again, and started anew with back-off.

Used on the event loop only.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ajet.default_config.schema import AjetConfig
from ajet.schema.status import TrackerStatus
from ajet.tracking.names import chosen
from ajet.tracking.steps import Cursor, line

log = logging.getLogger("ajet.tracking")
_HINTS = {
    "wandb": "Where there is no account or no network, start the server with WANDB_MODE=offline. ",
    "swanlab": "Where there is no account or no network, start the server with SWANLAB_MODE=offline. ",
}
_SECRETS = ("AJET_SWARM_KEY", "AJET_OPPONENT_API_KEY")


@dataclass(frozen=True)
class Patience:
    """Attributes:
    boot_s: until a process has opened its tracker: libraries come from a slow disk, W&B tries a network for 90 s.
    hang_s: one that has something to report and gives no sign for so long is killed.
    backoff_s: pause before the next try; doubles up to ``backoff_max_s``.
    close_s: what a tracker may take to finish when the engine stops.
    """

    boot_s: float = 180.0
    hang_s: float = 60.0
    backoff_s: float = 5.0
    backoff_max_s: float = 300.0
    close_s: float = 8.0


class Trackers:
    """All trackers of one experiment.

    Args:
        folder: the experiment's. warn: says it to the user; told once for each time a tracker stops working.
    """

    def __init__(
        self, config: AjetConfig, folder: Path, warn: Callable[[str], None], patience: Patience = Patience()
    ) -> None:  # fmt: skip
        names = chosen(config.trainer_common.logger)
        self._console = "console" in names
        self._total = config.trainer_common.total_training_steps
        self._reporters = [
            _Reporter(name, _order(name, config, folder), warn, patience) for name in names if name != "console"
        ]

    def start(self, step: int) -> None:
        """Report from where each tracker stands; ``step`` is the newest on record."""
        for reporter in self._reporters:
            reporter.wanted = step
            reporter.finishing = step >= self._total
            reporter.task = asyncio.create_task(reporter.run(), name=f"tracker {reporter.name}")

    def step(self, values: Mapping[str, Any]) -> None:
        """A step is in the file."""
        if self._console:
            log.info("%s", line(values, self._total))
        for reporter in self._reporters:
            reporter.wanted = values["step"]
            reporter.say(b"w")

    def finish(self) -> None:
        """There will be no more steps: runs end as soon as all are reported."""
        for reporter in self._reporters:
            reporter.finishing = True
            reporter.say(b"f")

    async def close(self) -> None:
        """Let every tracker finish, and end those that do not within ``Patience.close_s``."""
        await asyncio.gather(*(reporter.close() for reporter in self._reporters))

    def status(self) -> list[TrackerStatus]:
        """How far each is."""
        return [reporter.status() for reporter in self._reporters]


def _order(name: str, config: AjetConfig, folder: Path) -> dict[str, Any]:
    folder = folder.absolute()
    return {
        "tracker": name,
        "project": config.project_name,
        "name": config.experiment_name,
        "steps": str(folder / "metrics.jsonl"),
        "cursor": str(folder / f"tracker-{name}.json"),
        "folder": str(folder.parent / "trackers" / name),
        "config": config.model_dump(mode="json"),
    }


def _output(folder: Path) -> IO[bytes] | None:
    """Where a tracker's own words go; None where the disk has no room for them."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return folder.with_suffix(".log").open("wb")
    except OSError:
        return None


class _Reporter:
    """One tracker's process, again and again."""

    def __init__(self, name: str, order: dict[str, Any], warn: Callable[[str], None], patience: Patience) -> None:
        self.name = name
        self.wanted = 0
        self.finishing = False
        self.task: asyncio.Task[None] | None = None
        self._order = order
        self._warn = warn
        self._patience = patience
        self._reported = 0
        self._failures = 0
        self._error: str | None = None
        self._ready = False
        self._closing = asyncio.Event()
        self._writer: asyncio.StreamWriter | None = None
        self._process: asyncio.subprocess.Process | None = None

    def status(self) -> TrackerStatus:
        return TrackerStatus(name=self.name, step=self._reported, failures=self._failures, error=self._error)

    def say(self, word: bytes) -> None:
        """Dropped where the process has not read the former ones: one is enough to wake it."""
        writer = self._writer
        if writer is not None and not writer.is_closing() and not writer.transport.get_write_buffer_size():
            writer.write(word)

    async def close(self) -> None:
        self._closing.set()
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write_eof()
        if self.task is None:
            return
        done, _ = await asyncio.wait([self.task], timeout=self._patience.close_s)
        if not done:
            log.warning(
                "tracker %s did not finish in time; the next start goes on from step %d", self.name, self._reported
            )
            self._kill()
            await asyncio.wait([self.task], timeout=5)

    async def run(self) -> None:
        """Until closed, or everything is reported and no more will come."""
        pause = self._patience.backoff_s
        self._reported = (await asyncio.to_thread(Cursor.load, Path(self._order["cursor"]))).step
        if self.finishing and self._reported >= self.wanted:
            return  # a finished run that is opened again
        while not self._closing.is_set():
            before = self._reported
            try:
                why = await self._live()
            except OSError as err:
                why = f"its process cannot be started: {err}"
            if why is None and (self._closing.is_set() or self.finishing):
                return
            self._note(why or "its process ended")
            pause = self._patience.backoff_s if self._reported > before else pause
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._closing.wait(), pause)
            pause = min(2 * pause, self._patience.backoff_max_s)

    def _note(self, why: str) -> None:
        self._failures += 1
        if self._error is None:
            hint = _HINTS.get(self.name, "")
            self._warn(
                f"Tracker {self.name} does not work: {why[:500].rstrip('.')}. {hint}Training goes on; it is tried again, and "
                f"the steps after {self._reported} are reported when it works. What it printed is in "
                f"{self._order['folder']}.log."
            )
        self._error = why

    async def _live(self) -> str | None:
        """One process's life. Returns why it failed, or None."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = process = await self._spawn(theirs.fileno())
        reader, self._writer = await asyncio.open_connection(sock=ours)
        try:
            assert process.stdin is not None
            with contextlib.suppress(ConnectionError):
                process.stdin.write(json.dumps(self._order).encode())
                await process.stdin.drain()
                process.stdin.close()
            self._ready = False
            if self.finishing:
                self.say(b"f")
            if self._closing.is_set():
                self._writer.write_eof()
            why = await self._watch(reader)
            if why is None:
                code = await process.wait()
                why = None if code == 0 else f"its process ended with code {code}"
            return why
        finally:
            self._writer.close()
            self._writer = None
            self._kill()
            await process.wait()
            self._process = None

    async def _spawn(self, fd: int) -> asyncio.subprocess.Process:
        environment = {k: v for k, v in os.environ.items() if k not in _SECRETS} | {"OMP_NUM_THREADS": "1"}
        out = await asyncio.to_thread(_output, Path(self._order["folder"]))
        try:
            return await asyncio.create_subprocess_exec(
                sys.executable, "-m", "ajet.tracking.reporter", str(fd),
                stdin=asyncio.subprocess.PIPE, stdout=out or asyncio.subprocess.DEVNULL,
                stderr=out or asyncio.subprocess.DEVNULL, pass_fds=(fd,), start_new_session=True, env=environment,
            )  # fmt: skip
        finally:
            if out is not None:
                out.close()

    async def _watch(self, reader: asyncio.StreamReader) -> str | None:
        """Take what the process says until it ends. Returns why it failed, where it said so or hangs."""
        sign = time.monotonic()
        line_task = asyncio.ensure_future(reader.readline())
        try:
            while True:
                limit = self._patience.hang_s if self._ready else self._patience.boot_s
                await asyncio.wait([line_task], timeout=min(limit, 1.0))
                if not line_task.done():
                    busy = not self._ready or self._reported < self.wanted
                    sign = sign if busy else time.monotonic()
                    if time.monotonic() - sign > limit:
                        return f"it gave no sign for {limit:g} s and was ended"
                    continue
                sign, said = time.monotonic(), line_task.result()
                if not said:
                    return None
                line_task = asyncio.ensure_future(reader.readline())
                words = json.loads(said)
                if "failed" in words:
                    return str(words["failed"])
                self._ready = True
                self._reported = words["step"]
                if self._error is not None and self._reported >= self.wanted:
                    log.info("tracker %s works again", self.name)
                    self._error = None
        except (ConnectionError, ValueError) as err:
            return f"its process broke off: {err}"
        finally:
            line_task.cancel()

    def _kill(self) -> None:
        """The process and what it started."""
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
