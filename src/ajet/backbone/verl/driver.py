"""The backbone process of verl: ``python -m ajet.backbone.verl.driver FD``. Private; started by ``process.py`` only.

It is Ray's driver. Calls are asyncio tasks; whatever blocks (booting, training, checkpoints, weight updates) runs in one
thread, in the order it was asked for. What was asked wrongly is answered with its error; anything unexpected, and an actor or a
host that is gone, ends the process with the cause on stderr, which the server reports before it starts a new one.
When the server's end of the pipe closes, Ray is shut down and the process ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ajet.backbone.embedded import wire
from ajet.backbone.protocol import Chunk
from ajet.default_config.schema import AjetConfig
from ajet.schema.errors import AjetError, EngineStateConflict, error_body
from ajet.trajectory.batch import TrainBatch

BEAT_S = 1.0
SHUTDOWN_S = 8.0
"""How long Ray may take to end; what is left then ends with this process."""
GONE = 3
"""Exit code: a part of the backbone is gone, or something unexpected happened."""


class Driver:
    """Requests in, events out, over one connected socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._progress = self._working = 0
        self._thread = ThreadPoolExecutor(1, "ajet-verl")
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._engine: Any = None

    async def run(self) -> None:
        """Until the server's end of the pipe closes."""
        reader, self._writer = await asyncio.open_connection(sock=self._sock, limit=2**20)
        beat = asyncio.create_task(self._beat())
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (size,) = wire.HEADER.unpack(await reader.readexactly(wire.HEADER.size))
                message = wire.decode(await reader.readexactly(size))
                key = message["id"]
                if message["op"] == "cancel":
                    if task := self._tasks.get(key):
                        task.cancel()
                    continue
                self._tasks[key] = asyncio.create_task(self._answer(message))
                self._tasks[key].add_done_callback(lambda _, key=key: self._tasks.pop(key, None))
        beat.cancel()

    def progressed(self) -> None:
        """One more thing is done. Any thread."""
        self._progress += 1

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            self._send("beat", 0, [self._progress, self._working > 0])

    def _send(self, kind: str, key: int, value: Any) -> None:
        if not self._writer.is_closing():
            self._writer.write(wire.encode([[kind, key, value]]))

    async def _answer(self, message: dict[str, Any]) -> None:
        key, op = message["id"], message["op"]
        self.progressed()
        try:
            value = await getattr(self, "_op_" + op)(message)
        except AjetError as error:
            self._send("error", key, [type(error).http_status, error_body(error)])
        except asyncio.CancelledError:
            pass
        except BaseException:
            end(f"{op} failed:\n{traceback.format_exc()}")
        else:
            if op == "generate":
                self._send("chunk", key, wire.chunk_to_wire(value))
            else:
                self._send("result", key, wire.result_to_wire(value))

    async def _in_thread(self, work: Callable[..., Any], *args: Any) -> Any:
        self._working += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)
        finally:
            self._working -= 1

    # -- operations -----------------------------------------------------------------------------------------------------

    async def _op_start(self, message: dict[str, Any]) -> Any:
        from ajet.backbone.verl.engine import Engine

        config = AjetConfig.model_validate(message["job"])
        late = threading.Timer(config.verl.boot_timeout_s, end, [_too_late(config)])
        late.daemon = True
        late.start()
        engine = Engine(config, self.progressed, end)
        await self._in_thread(engine.boot)
        late.cancel()
        engine.rollout.reopen()
        self._engine = engine
        return await self._in_thread(engine.info)

    async def _op_generate(self, message: dict[str, Any]) -> Chunk:
        sampling = wire.sampling_from_wire(message["sampling"])
        chunk = await self._ready().rollout.generate(
            wire.unpack_ids(message["ids"]), sampling, session=message["session"], model=message["model"]
        )
        self.progressed()
        return chunk

    async def _op_train_step(self, message: dict[str, Any]) -> Any:
        engine = self._ready()
        if not engine.rollout.separate:
            engine.rollout.shut()
        return await self._change(engine.train, TrainBatch.from_wire(message["batch"]))

    async def _op_load(self, message: dict[str, Any]) -> Any:
        engine = self._ready()
        engine.rollout.shut()
        await self._change(engine.load, Path(message["directory"]))
        return await self._in_thread(engine.info)

    async def _change(self, work: Callable[[Any], Any], argument: Any) -> Any:
        """Change the weights and serve them; what was refused changed nothing, and samplers go on all the same."""
        engine = self._ready()
        refused: AjetError | None = None
        result = None
        try:
            result = await self._in_thread(work, argument)
        except AjetError as error:
            refused = error
        engine.rollout.shut()
        await self._in_thread(engine.serve)
        engine.rollout.reopen()
        if refused is not None:
            raise refused
        return result

    async def _op_save(self, message: dict[str, Any]) -> None:
        await self._in_thread(self._ready().save, Path(message["directory"]))

    async def _op_load_weights(self, message: dict[str, Any]) -> None:
        self._ready().check_version(message["version"])

    async def _op_stats(self, message: dict[str, Any]) -> Any:
        return self._ready().rollout.stats()

    def _ready(self) -> Any:
        if self._engine is None:
            raise EngineStateConflict("The backbone has not been started: call start first.")
        return self._engine


def _too_late(config: AjetConfig) -> str:
    return (
        f"verl did not come up within {config.verl.boot_timeout_s:.0f} s (verl.boot_timeout_s). Look whether Ray has the "
        "hosts and GPUs that are asked for (`ray status`), and into Ray's logs."
    )


def end(cause: str) -> None:
    """End the process with ``cause`` as its last words. Any thread."""
    print(cause, file=sys.stderr, flush=True)
    _shut_down()
    os._exit(GONE)


def _shut_down() -> None:
    """End Ray, or let it end with this process."""
    if "ray" not in sys.modules:
        return
    import ray

    done = threading.Thread(target=ray.shutdown, daemon=True)
    done.start()
    done.join(SHUTDOWN_S)


def main() -> None:
    faulthandler.enable()
    sock = socket.socket(fileno=int(sys.argv[1]))
    asyncio.run(Driver(sock).run())
    _shut_down()
    os._exit(0)


if __name__ == "__main__":
    main()
