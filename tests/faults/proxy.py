"""A loopback TCP proxy that hurts HTTP requests: cut in mid-request or mid-reply, delayed, sent twice.

One fault is drawn for each request; between faults it is transparent. Runs on an event loop in a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections import Counter

FAULTS = ("cut_request", "cut_reply", "delay", "duplicate")
HEADER_END = b"\r\n\r\n"


class FaultProxy:
    """Forwards to ``upstream`` (host, port).

    Args:
        rate: share of requests that suffer a fault.
        seed: draws them.
    """

    def __init__(self, upstream: tuple[str, int], rate: float, seed: int) -> None:
        self._upstream, self.rate, self._draw = upstream, rate, random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._background: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._ready.wait(10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop)
        self._thread.join(10)

    async def _stop(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._loop.stop()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**24))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            while True:
                request = await _message(reader)
                fault = self._draw.choice(FAULTS) if self._draw.random() < self.rate else "none"
                self.counts[fault] += 1
                if not await self._forward(request, fault, writer):
                    break
        writer.close()

    async def _forward(self, request: bytes, fault: str, writer: asyncio.StreamWriter) -> bool:
        """Answer one request. False where the client's connection is to be cut."""
        if fault == "delay":
            await asyncio.sleep(self._draw.uniform(0.05, 1.0))
        if fault == "duplicate":
            # The copy may come before or after; its reply goes nowhere.
            task = asyncio.ensure_future(self._lost(request, self._draw.uniform(0.0, 0.3)))
            self._background.add(task)
            task.add_done_callback(self._background.discard)
            await asyncio.sleep(self._draw.uniform(0.0, 0.1))
        try:
            up_reader, up_writer = await asyncio.open_connection(*self._upstream, limit=2**24)
        except OSError:
            return False
        try:
            if fault == "cut_request":
                up_writer.write(request[: self._draw.randrange(1, len(request))])
                await up_writer.drain()
                return False
            up_writer.write(request)
            await up_writer.drain()
            if fault == "cut_reply":
                reply = await _message(up_reader, reply=True)
                writer.write(reply[: self._draw.randrange(0, len(reply))])
                await writer.drain()
                return False
            while data := await up_reader.read(2**16):
                writer.write(data)
                await writer.drain()
            return False  # the upstream connection ends each reply, and so does ours
        except (OSError, asyncio.IncompleteReadError):
            return False
        finally:
            up_writer.close()

    async def _lost(self, request: bytes, after: float) -> None:
        await asyncio.sleep(after)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection(*self._upstream, limit=2**24)
            writer.write(request)
            await writer.drain()
            await reader.read(2**20)
            writer.close()


async def _message(reader: asyncio.StreamReader, reply: bool = False) -> bytes:
    """One HTTP message. Requests are told to end their connection, so that a reply is whatever comes until it ends."""
    head = await reader.readuntil(HEADER_END)
    lines = head.split(b"\r\n")
    length = next((int(x.split(b":")[1]) for x in lines if x.lower().startswith(b"content-length:")), None)
    if reply:
        return head + (await reader.read() if length is None else await reader.readexactly(length))
    body = await reader.readexactly(length or 0)
    kept = [x for x in lines[1:] if x and not x.lower().startswith(b"connection:")]
    return b"\r\n".join([lines[0], *kept, b"connection: close", b"", b""]) + body
