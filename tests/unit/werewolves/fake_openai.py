"""A small OpenAI-compatible server on a local port, whose answers a test decides."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

REASONS = {200: "OK", 429: "Too Many Requests", 503: "Service Unavailable"}


@dataclass
class Call:
    """One request as it came."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def key(self) -> str:
        return self.headers["authorization"].removeprefix("Bearer ")

    @property
    def prompt(self) -> str:
        return self.body["messages"][-1]["content"]


@dataclass
class Answer:
    """What to send back. ``content`` is a completion's text; ``raw`` a whole body instead."""

    content: Any = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    hang: bool = False
    hang_up: bool = False
    finish_reason: str = "stop"

    def body(self) -> bytes:
        if self.raw is not None:
            return self.raw
        message = {"role": "assistant", "content": self.content}
        choice = {"index": 0, "finish_reason": self.finish_reason, "message": message}
        whole = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        return json.dumps(whole).encode()


def failure(status: int, code: str = "", **headers: str) -> Answer:
    """An error answer in OpenAI's shape."""
    body = {"error": {"message": f"fault {status} {code}", "type": "error", "code": code or None}}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status=status, headers=named, raw=json.dumps(body).encode())


Decide = Callable[[Call], "Answer | str | Awaitable[Answer | str]"]


@dataclass
class Server:
    url: str
    calls: list[Call] = field(default_factory=list)
    busy: int = 0
    most_busy: int = 0


def replies(*answers: Answer | str) -> Decide:
    """These answers in turn, the last one for ever."""
    left = list(answers)
    return lambda call: left.pop(0) if len(left) > 1 else left[0]


@asynccontextmanager
async def serve(decide: Decide) -> AsyncIterator[Server]:
    """Serve until the block ends; connections still open are dropped then."""
    open_writers: set[asyncio.StreamWriter] = set()
    tasks: set[asyncio.Task[Any]] = set()

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_writers.add(writer)
        tasks.add(asyncio.current_task())  # type: ignore[arg-type]
        try:
            while await one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            open_writers.discard(writer)
            writer.close()

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines if line)}
        body = json.loads(await reader.readexactly(int(headers.get("content-length", 0))))
        call = Call(first.split()[1], headers, body)
        server.calls.append(call)
        server.busy += 1
        server.most_busy = max(server.most_busy, server.busy)
        try:
            answer = decide(call)
            if not isinstance(answer, Answer | str):
                answer = await answer
        finally:
            server.busy -= 1
        if isinstance(answer, str):
            answer = Answer(answer)
        if answer.hang:
            await asyncio.Event().wait()
        if answer.hang_up:
            return False
        content = answer.body()
        sent = {"content-type": "application/json", "content-length": str(len(content)), **answer.headers}
        head = "".join(f"{k}: {v}\r\n" for k, v in sent.items())
        writer.write(f"HTTP/1.1 {answer.status} {REASONS.get(answer.status, 'X')}\r\n{head}\r\n".encode() + content)
        await writer.drain()
        return True

    listener = await asyncio.start_server(connection, "127.0.0.1", 0)
    server = Server(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1")
    try:
        yield server
    finally:
        listener.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def refused_url() -> str:
    """An address at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}/v1"
