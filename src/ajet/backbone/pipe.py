"""A backbone's process as its server sees it: spawned, asked over a pipe, watched, its log kept. Imports no torch.

Each call is one frame to the process; a reply that is not streamed is one event back, and the events of a tick share a
frame. Whatever waits when the process dies gets :class:`BackboneDied` with the last lines of its log. Used by the
backbones of this package only: most have one such process (:mod:`ajet.backbone.process`), vLLM beside the embedded trainer two.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from ajet.backbone.embedded import wire
from ajet.backbone.protocol import BackboneDied, BackboneInfo, Chunk, ModelName, Patience, Sampling
from ajet.schema.errors import error_from_body

log = logging.getLogger("ajet.backbone")
_TAIL = 40
"""Lines of the worker's log kept for the cause of its death."""
WATCH_S = 1.0
"""Between two looks at whether the worker hangs."""
_FAULT_HINTS = {
    -signal.SIGKILL: " (killed: most likely the machine, or its container, had no memory left, which dmesg tells; take a smaller "
    "model, or lower rollout.max_num_seqs, rollout.max_model_len or trainer_common.max_tokens_per_microbatch)"
}


class WorkerProcess:
    """One process that runs ``python -m module FD`` and speaks :mod:`ajet.backbone.embedded.wire`.

    Args:
        module: what it runs.
        patience: after which it counts as hung and is killed.
        name: what it is called in messages.
        environment: settings it gets where the user has none.
        grace_s: how long it may take to clean up once its pipe is closed.
    """

    def __init__(
        self, module: str, patience: Patience, *, name: str = "backbone", environment: Mapping[str, str] | None = None,
        grace_s: float = 0.0,
    ) -> None:  # fmt: skip
        self.patience = patience
        self.environment = environment or {}
        self._module, self._name, self._grace_s = module, name, grace_s
        self._booted = False
        self._silent = self._standing = 0.0
        self._seen_progress = -1
        self._hung = ""
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._waiting: dict[int, asyncio.Queue[Chunk | Exception] | asyncio.Future[Any]] = {}
        self._keys = itertools.count(1)
        self._tail: deque[str] = deque(maxlen=_TAIL)
        self._tasks: list[asyncio.Task[None]] = []
        self._died: asyncio.Future[BackboneDied] | None = None
        self._closing = False

    @property
    def pid(self) -> int | None:
        """Of the worker process, once started."""
        return self._process.pid if self._process else None

    async def start(self, **arguments: Any) -> BackboneInfo:
        """Spawn it, and have it do its ``start``.

        Raises:
            AjetError: what the process refuses.
            BackboneDied: it ended while starting.
        """
        loop = asyncio.get_running_loop()
        self._died = loop.create_future()
        ours, theirs = socket.socketpair()
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", self._module, str(theirs.fileno()), pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
                start_new_session=True, env=_environment(self.environment),
            )  # fmt: skip
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        reader, self._writer = await asyncio.open_connection(sock=ours, limit=2**20)
        assert self._process.stdout is not None
        logs = asyncio.create_task(self._keep_log(self._process.stdout))
        self._tasks = [logs, asyncio.create_task(self._read_events(reader, logs)), asyncio.create_task(self._watch())]
        try:
            info = BackboneInfo(**await self.ask("start", **arguments))
        except BaseException:
            await self.close()
            raise
        self._booted = True
        return info

    async def generate(
        self, ids: list[int], sampling: Sampling, *, session: str, model: ModelName = "policy", stream: bool = False
    ) -> AsyncIterator[Chunk]:
        """See :meth:`ajet.backbone.protocol.Sampler.generate`. Caches go by content, so ``session`` only labels."""
        key = next(self._keys)
        queue: asyncio.Queue[Chunk | Exception] = asyncio.Queue()
        self._register(key, queue)
        finished = False
        try:
            self._send(
                {"op": "generate", "id": key, "ids": wire.pack_ids(ids), "sampling": wire.sampling_to_wire(sampling),
                 "model": model, "stream": stream, "session": session}
            )  # fmt: skip
            while not finished:
                item = await queue.get()
                if isinstance(item, Exception):
                    finished = True
                    raise item
                finished = item.finish_reason is not None
                yield item
        finally:
            self._waiting.pop(key, None)
            if not finished and self._alive:
                with contextlib.suppress(BackboneDied):
                    self._send({"op": "cancel", "id": key})

    async def wait_died(self) -> BackboneDied:
        """Return when it is dead, with the cause."""
        if self._died is None:
            raise RuntimeError("wait_died before start")
        return await asyncio.shield(self._died)

    async def close(self) -> None:
        """End the worker, whatever it is doing."""
        self._closing = True
        if self._writer is not None:
            self._writer.close()
        if self._process is not None:
            if self._process.returncode is None and self._grace_s:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._process.wait(), self._grace_s)
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
            await self._process.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        self._fail_all(BackboneDied("The backbone was closed."))

    # -- the pipe -------------------------------------------------------------------------------------------------------

    @property
    def _alive(self) -> bool:
        return self._writer is not None and self._died is not None and not self._died.done() and not self._closing

    def _register(self, key: int, receiver: asyncio.Queue[Chunk | Exception] | asyncio.Future[Any]) -> None:
        if not self._alive:
            dead = self._died is not None and self._died.done()
            raise (
                self._died.result()
                if dead and self._died
                else BackboneDied("The backbone is not running: call start first.")
            )
        self._waiting[key] = receiver

    def _send(self, message: dict[str, Any]) -> None:
        assert self._writer is not None
        try:
            self._writer.write(wire.encode(message))
        except (RuntimeError, OSError) as error:
            # The pipe broke just now; the reader has not come to it yet.
            raise BackboneDied(f"The pipe to the {self._name} process is closed ({error}).") from error

    async def ask(self, op: str, **arguments: Any) -> Any:
        """The answer to one request. Raises :class:`BackboneDied`, or what the process refuses."""
        key = next(self._keys)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._register(key, future)
        try:
            self._send({"op": op, "id": key, **arguments})
            return await future
        finally:
            self._waiting.pop(key, None)

    async def _read_events(self, reader: asyncio.StreamReader, logs: asyncio.Task[None]) -> None:
        try:
            while True:
                (size,) = wire.HEADER.unpack(await reader.readexactly(wire.HEADER.size))
                for kind, key, value in wire.decode(await reader.readexactly(size)):
                    self._deliver(kind, key, value)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        assert self._process is not None
        code = await self._process.wait()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(logs), 2)
        tail = "\n".join(self._tail) or "it wrote nothing"
        self._fail_all(
            BackboneDied(
                f"The {self._name} process ended with code {code}{'' if self._hung else _FAULT_HINTS.get(code, '')}. "
                f"{self._hung}Its last words: {tail}"
            )
        )

    async def _watch(self) -> None:
        """Kill a worker that hangs. Time during which this process itself stood still does not count."""
        loop = asyncio.get_running_loop()
        before = loop.time()
        while True:
            await asyncio.sleep(WATCH_S)
            now = loop.time()
            passed, before = min(now - before, 2 * WATCH_S), now
            self._silent += passed
            self._standing += passed
            if self._silent > (self.patience.frozen_s if self._booted else self.patience.boot_s):
                self._hung = f"It gave no sign of life for {self._silent:.0f} s and was killed. "
            elif self._standing > self.patience.stuck_s:
                self._hung = f"It worked for {self._standing:.0f} s without coming any further and was killed. "
            if self._hung and self._process is not None:
                log.error("the %s process hangs: %s", self._name, self._hung)
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
                return

    def _deliver(self, kind: str, key: int, value: Any) -> None:
        self._silent = 0.0
        if kind == "beat":
            progress, working = value
            if progress != self._seen_progress or not working:
                self._standing = 0.0
            self._seen_progress = progress
            return
        receiver = self._waiting.get(key)
        if receiver is None:
            return
        item: Any = value
        if kind == "chunk":
            item = wire.chunk_from_wire(value)
        elif kind == "error":
            item = error_from_body(*value)
        if isinstance(receiver, asyncio.Queue):
            receiver.put_nowait(item)
        elif not receiver.done():
            if isinstance(item, Exception):
                receiver.set_exception(item)
            else:
                receiver.set_result(item)

    def _fail_all(self, died: BackboneDied) -> None:
        if self._died is not None and not self._died.done():
            self._died.set_result(died)
        for receiver in list(self._waiting.values()):
            if isinstance(receiver, asyncio.Queue):
                receiver.put_nowait(died)
            elif not receiver.done():
                receiver.set_exception(died)
        self._waiting.clear()

    async def _keep_log(self, stream: asyncio.StreamReader) -> None:
        while line := await _read_line(stream):
            text = line.decode(errors="replace").rstrip()
            self._tail.append(text)
            log.info("%s: %s", self._name, text)


async def _read_line(stream: asyncio.StreamReader) -> bytes:
    """A line, or a piece of one that is too long."""
    try:
        return await stream.readuntil()
    except asyncio.IncompleteReadError as error:
        return error.partial
    except asyncio.LimitOverrunError as error:
        return await stream.readexactly(error.consumed)


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    """Ours, with the package importable and the worker's settings where the user has none."""
    package_root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(p for p in [package_root, os.environ.get("PYTHONPATH", "")] if p)
    return {**own, **os.environ, "PYTHONPATH": path}
