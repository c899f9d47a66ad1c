"""The backbone process: ``python -m ajet.backbone.embedded.worker FD``. Private; started by the backbones only.

:class:`Worker` is the loop of any such process, around an engine that it opens at ``start``. One thread owns torch and alternates between reading requests and sampler ticks; a training step runs between two
ticks, so calls under way simply wait for it and go on under the new version. What was asked wrongly is answered with
its error; anything unexpected ends the process with its traceback on stderr, which is the cause the server reports.
When the server's end of the pipe closes, the process ends at once, in the middle of a training step, too.
A second thread tells the server every second how far the first one has come, so that a hang is told from long work.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ajet.backbone.embedded import wire
from ajet.backbone.embedded.garbage import settle
from ajet.default_config.schema import AjetConfig
from ajet.schema.errors import AjetError, ConfigError, EngineStateConflict, error_body
from ajet.trajectory.batch import TrainBatch

_READ = 1 << 20
BEAT_S = 1.0
NICENESS = 5
"""The server shares the cores and answers first."""


class Worker:
    """Requests in, events out, over one connected socket.

    Args:
        open_engine: (the ``start`` request, what to call after each piece of work) → what does the work.
    """

    def __init__(self, sock: socket.socket, open_engine: Callable[[dict[str, Any], Callable[[], None]], Any]) -> None:
        self._sock = sock
        self._open_engine = open_engine
        self._sending = threading.Lock()
        self._progress = 0
        self._working = False
        self._buffer = bytearray()
        self._events: list[list[Any]] = []
        self._engine: Any = None

    def run(self) -> None:
        threading.Thread(target=self._beat, daemon=True).start()
        while True:
            self.progressed()
            busy = self._engine is not None and self._engine.busy
            if not self._receive(block=not busy):
                return
            self._flush()
            if self._engine is not None and self._engine.busy:
                self._working = True
                for key, chunk in self._engine.tick():
                    self._events.append(["chunk", key, wire.chunk_to_wire(chunk)])
                self._working = False
                self._flush()

    def progressed(self) -> None:
        """One more thing is done: a tick, a request, a pass of a training step."""
        self._progress += 1

    def _beat(self) -> None:
        with contextlib.suppress(OSError):  # the server is gone, and so are we
            while True:
                time.sleep(BEAT_S)
                self._send([["beat", 0, [self._progress, self._working]]])

    def _send(self, events: list[list[Any]]) -> None:
        with self._sending:
            self._sock.sendall(wire.encode(events))

    def _receive(self, block: bool) -> bool:
        """Handle what has arrived; wait for something where ``block``. False at the end of the stream."""
        while select.select([self._sock], [], [], None if block else 0)[0]:
            data = self._sock.recv(_READ)
            if not data:
                return False
            self._buffer += data
            at = 0
            while len(self._buffer) - at >= 4:
                (size,) = wire.HEADER.unpack_from(self._buffer, at)
                if len(self._buffer) - at - 4 < size:
                    break
                message = wire.decode(bytes(memoryview(self._buffer)[at + 4 : at + 4 + size]))
                at += 4 + size
                self._handle(message)
                block = False
            del self._buffer[:at]
        return True

    def _flush(self) -> None:
        if self._events:
            self._send(self._events)
            self._events = []

    def _handle(self, message: dict[str, Any]) -> None:
        key = message["id"]
        self.progressed()
        self._working = True
        try:
            op = getattr(self, "_op_" + message["op"])
            value = op(message)
        except AjetError as error:
            self._events.append(["error", key, [type(error).http_status, error_body(error)]])
            return
        finally:
            self._working = False
        if message["op"] not in ("generate", "cancel"):
            self._events.append(["result", key, wire.result_to_wire(value)])
            self._flush()

    # -- operations -----------------------------------------------------------------------------------------------------

    def _op_start(self, message: dict[str, Any]) -> Any:
        self._engine = self._open_engine(message, self.progressed)
        return self._engine.info()

    def _op_generate(self, message: dict[str, Any]) -> None:
        sampling = wire.sampling_from_wire(message["sampling"])
        self._ready().submit(
            message["id"], wire.unpack_ids(message["ids"]), sampling, message["model"], message["stream"]
        )

    def _op_cancel(self, message: dict[str, Any]) -> None:
        if self._engine is not None:
            self._engine.cancel(message["id"])

    def _op_train_step(self, message: dict[str, Any]) -> Any:
        return self._ready().train_step(TrainBatch.from_wire(message["batch"]))

    def _op_load_weights(self, message: dict[str, Any]) -> None:
        self._ready().load_weights(message["version"], *[Path(d) for d in message.get("directories", ())])

    def _op_export(self, message: dict[str, Any]) -> None:
        self._ready().export(message["version"], Path(message["directory"]))

    def _op_sleep(self, message: dict[str, Any]) -> None:
        self._ready().sleep()

    def _op_wake(self, message: dict[str, Any]) -> None:
        self._ready().wake()

    def _op_save(self, message: dict[str, Any]) -> None:
        self._ready().save(Path(message["directory"]))

    def _op_load(self, message: dict[str, Any]) -> Any:
        return self._ready().load(Path(message["directory"]))

    def _op_stats(self, message: dict[str, Any]) -> Any:
        return self._ready().stats()

    def _ready(self) -> Any:
        if self._engine is None:
            raise EngineStateConflict("The backbone has not been started: call start first.")
        return self._engine


def _load_algorithms() -> None:
    importlib.import_module("ajet.algorithm.loss")
    settle()


def _open_engine(message: dict[str, Any], progressed: Callable[[], None]) -> Any:
    if importlib.util.find_spec("verl") is None:
        raise ConfigError("verl is not installed and training needs its algorithms: pip install 'agentjet[server]'.")
    from ajet.backbone.embedded.engine import Engine

    engine = Engine(AjetConfig.model_validate(message["job"]), progressed)
    # verl takes seconds to import: do it while the first episodes are played.
    threading.Thread(target=_load_algorithms, daemon=True).start()
    return engine


def _end_with_server(sock: socket.socket) -> None:
    """Wait for the other end to close, then end the process whatever it is doing."""
    poll = select.poll()
    poll.register(sock, getattr(select, "POLLRDHUP", 0))
    while True:
        if any(event & (select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)) for _, event in poll.poll()):
            os._exit(0)


def serve(open_engine: Callable[[dict[str, Any], Callable[[], None]], Any]) -> None:
    """The life of the process, on the socket that its command line names."""
    os.nice(NICENESS)
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.setblocking(True)
    threading.Thread(target=_end_with_server, args=(sock,), daemon=True).start()
    Worker(sock, open_engine).run()
    os._exit(0)  # no waiting for the import thread


if __name__ == "__main__":
    serve(_open_engine)
