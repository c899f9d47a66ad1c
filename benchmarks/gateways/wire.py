"""HTTP/1.1 at as little cost as Python allows: a keep-alive client and a server of ready-made answers.

For the benchmark's own ends only (its load, its fake model, the sampler that calls it): no TLS, no redirects, one request
at a time on a connection.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

_END = b"\r\n\r\n"


class HttpError(RuntimeError):
    """An answer that is not 2xx."""


class Client(asyncio.Protocol):
    """One keep-alive connection."""

    def __init__(self) -> None:
        self._buffer = b""
        self._need = -1
        """Bytes of head and body; -1 until the head has come, -2 for a chunked body."""
        self._head = 0
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def connect(cls, port: int) -> Client:
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(cls, "127.0.0.1", port)
        return client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionError("the peer closed the connection"))

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        if self._need == -1 and not self._read_head():
            return
        if self._need == -2:
            if self._buffer.endswith(b"0" + _END):
                self._resolve(_unchunk(self._buffer[self._head :]))
        elif len(self._buffer) >= self._need:
            self._resolve(self._buffer[self._head : self._need])

    def _read_head(self) -> bool:
        end = self._buffer.find(_END)
        if end < 0:
            return False
        self._head = end + 4
        head = self._buffer[:end].lower()
        at = head.find(b"\r\ncontent-length:")
        if at >= 0:
            self._need = self._head + int(head[at + 17 :].split(b"\r\n", 1)[0])
        elif b"chunked" in head:
            self._need = -2
        else:
            self._need = self._head
        return True

    def _resolve(self, body: bytes) -> None:
        status = int(self._buffer[9:12])
        self._buffer, self._need = b"", -1
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((status, body))

    async def send(self, request: bytes) -> tuple[int, bytes]:
        """Status and body of the answer to a whole request."""
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    async def ask(self, method: str, path: str, body: Any = None, key: str | None = None) -> Any:
        """The answer's JSON. Raises :class:`HttpError`."""
        data = json.dumps(body).encode() if body is not None else b""
        status, answer = await self.send(head(method, path, len(data), key) + data)
        if not 200 <= status < 300:
            raise HttpError(f"{method} {path}: {status} {answer[:500].decode(errors='replace')}")
        return json.loads(answer) if answer else None

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def head(method: str, path: str, length: int, key: str | None = None) -> bytes:
    """The head of a request with a JSON body."""
    auth = f"authorization: Bearer {key}\r\n" if key else ""
    return (
        f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n{auth}"
        f"content-length: {length}\r\n\r\n"
    ).encode()


def _unchunk(data: bytes) -> bytes:
    parts = []
    while True:
        size, _, data = data.partition(b"\r\n")
        n = int(size.split(b";")[0], 16)
        if n == 0:
            return b"".join(parts)
        parts.append(data[:n])
        data = data[n + 2 :]


class Server(asyncio.Protocol):
    """Answers each request at once with ``answer(path, body)``."""

    def __init__(self, answer: Callable[[bytes, bytes], bytes]) -> None:
        self._make = answer
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._buffer = self._buffer + data if self._buffer else data
        while (end := self._buffer.find(_END)) >= 0:
            head = self._buffer[:end]
            low = head.lower()
            at = low.find(b"\r\ncontent-length:")
            length = int(low[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            whole = end + 4 + length
            if len(self._buffer) < whole:
                return
            body, self._buffer = self._buffer[end + 4 : whole], self._buffer[whole:]
            answer = self._make(head.split(b" ", 2)[1], body)
            self._transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(answer)
                + answer
            )
