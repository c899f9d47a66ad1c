"""``POST /v1/chat/completions``, as a plain ASGI function: this is what the speed of training hangs on."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, NamedTuple

import orjson

from ajet.schema.endpoint import EpisodeKey
from ajet.schema.errors import AjetError, EngineUnavailable, InvalidRequest, RateLimited, error_body
from ajet.server import chat
from ajet.server.answers import Identity, identify
from ajet.server.auth import Keys, bearer
from ajet.server.chat_request import ChatRequest, parse_chat
from ajet.server.connection import ON_GONE, Peer
from ajet.server.engine import Engine
from ajet.server.http import GOING, JSON_HEADERS, Bodies, Disconnected, Receive, Scope, Send, check_head, error_parts
from ajet.server.replies import Answered, logprob_entries

log = logging.getLogger("ajet.chat")

PATH = "/v1/chat/completions"
_SSE_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


class _Asked(NamedTuple):
    """One request as it was read."""

    key: EpisodeKey
    body: dict[str, Any]
    request: ChatRequest
    identity: Identity
    scope: Scope
    receive: Receive

    @property
    def what(self) -> tuple[EpisodeKey, dict[str, Any], ChatRequest, Identity]:
        return self[:4]


class ChatEndpoint:
    """Serves chat calls for ``engine``; every other path is the application's."""

    def __init__(self, engine: Engine, keys: Keys, bodies: Bodies) -> None:
        self._engine = engine
        self._keys = keys
        self._bodies = bodies
        self._limits = engine.settings.limits
        self._inside = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._inside += 1
        try:
            headers = scope["headers"]
            token = repeat_key = retry_count = None
            for name, value in headers:
                if name == b"authorization":
                    token = bearer(value.decode("latin-1"))
                elif name == b"idempotency-key":
                    repeat_key = value.decode("latin-1")
                elif name == b"x-stainless-retry-count":
                    retry_count = value.decode("latin-1")
            check_head(scope, self._limits)
            key = self._keys.check_episode_key(token)
            if self._inside > self._limits.chats_in_flight:
                raise RateLimited(f"{self._inside - 1} chat calls are in flight. Retry in a second.")
            async with self._bodies.read(receive, headers, self._limits.chat_body_bytes) as raw:
                try:
                    body = await self._bodies.parse(raw, orjson.loads)
                except orjson.JSONDecodeError as err:
                    raise InvalidRequest(f"The body is not JSON: {err}") from None
                request = parse_chat(body, self._limits)
                identity = identify(raw, repeat_key, retry_count)
            asked = _Asked(key, body, request, identity, scope, receive)
            if request.stream:
                await self._stream(asked, send)
                return
            answer = await self._whole(asked)
            status, out = 200, list(JSON_HEADERS)
        except AjetError as err:
            status, answer, out = error_parts(err)
            self._engine.telemetry.count(f"chat_errors/{err.code}")
        except Disconnected:
            self._engine.telemetry.count("chat_errors/disconnected")
            return
        except Exception as err:
            log.exception("unexpected error in a chat call")
            self._engine.telemetry.count("errors/internal")
            status, answer, out = error_parts(_internal(err))
        finally:
            self._inside -= 1
        out.append((b"content-length", b"%d" % len(answer)))
        await send({"type": "http.response.start", "status": status, "headers": out})
        await send({"type": "http.response.body", "body": answer})

    async def _whole(self, asked: _Asked) -> bytes:
        task = asyncio.current_task()
        assert task is not None
        watch = _Watch(asked, task)
        try:
            answered = await chat.answer(self._engine, *asked.what)
        except asyncio.CancelledError:
            if watch.gone:
                raise Disconnected from None
            raise EngineUnavailable(GOING) from None
        finally:
            watch.close()
        renderer, request = self._renderer(), asked.request
        choices = [
            {
                "index": reply.index,
                "message": reply.message,
                "finish_reason": reply.finish_reason,
                "logprobs": {"content": logprob_entries(renderer, reply), "refusal": None}
                if request.logprobs
                else None,
            }
            for reply in answered.replies
        ]
        return orjson.dumps(
            {
                "id": f"chatcmpl-{answered.call_id}",
                "object": "chat.completion",
                "created": answered.created,
                "model": request.model,
                "choices": choices,
                "usage": answered.usage(),
            }
        )

    def _renderer(self) -> Any:
        experiment = self._engine.experiment
        if experiment is None or experiment.renderer is None:
            raise EngineUnavailable("The engine stopped; send the request again when it is ROLLING.")
        return experiment.renderer

    async def _stream(self, asked: _Asked, send: Send) -> None:
        """Server-sent events. Headers go out with the first text, so that an early error keeps its status."""
        pieces: asyncio.Queue[tuple[int, str, str, list[dict[str, Any]] | None] | None] = asyncio.Queue()
        work = asyncio.create_task(chat.answer(self._engine, *asked.what, lambda *piece: pieces.put_nowait(piece)))
        work.add_done_callback(lambda _: pieces.put_nowait(None))
        watch = _Watch(asked, work)
        writer = _Events(send, asked.request)
        try:
            while (piece := await pieces.get()) is not None:
                await writer.text(*piece)
            try:
                answered = work.result()
            except asyncio.CancelledError:
                if watch.gone:
                    raise Disconnected from None
                raise EngineUnavailable("The engine stopped; send the request again when it is ROLLING.") from None
            await writer.finish(answered, asked.request)
        except AjetError as err:
            if not writer.started:
                raise
            await writer.error(err)
        except Disconnected:
            raise
        except Exception as err:
            if not writer.started:
                raise
            log.exception("unexpected error in a streamed chat call")
            await writer.error(_internal(err))
        finally:
            watch.close()
            work.cancel()


class _Watch:
    """Cancels ``task`` when the client goes away: told by its connection, or, served by another, by ``receive``."""

    def __init__(self, asked: _Asked, task: asyncio.Task[Any]) -> None:
        self.gone = False
        self._target = task
        self._task: asyncio.Task[None] | None = None
        self._peer: Peer | None = asked.scope.get("extensions", {}).get(ON_GONE)
        if self._peer is not None:
            self._peer.watchers.add(self._leave)
            if self._peer.gone:
                self._leave()
        else:
            self._task = asyncio.create_task(self._wait(asked.receive))

    def _leave(self) -> None:
        self.gone = True
        self._target.cancel()

    async def _wait(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._leave()

    def close(self) -> None:
        if self._peer is not None:
            self._peer.watchers.discard(self._leave)
        if self._task is not None:
            self._task.cancel()


class _Events:
    """Writes one streamed answer."""

    def __init__(self, send: Send, request: ChatRequest) -> None:
        self._send = send
        self._model = request.model
        self._id = f"chatcmpl-{time.time_ns():x}"
        self._created = int(time.time())
        self._roles: set[int] = set()
        self._usage = request.include_usage
        self.started = False

    async def _write(self, data: bytes, more: bool = True) -> None:
        if not self.started:
            self.started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": list(_SSE_HEADERS)})
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    def _event(self, choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> bytes:
        event: dict[str, Any] = {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }
        if self._usage:
            event["usage"] = usage
        return b"data: " + orjson.dumps(event) + b"\n\n"

    def _choice(self, index: int, delta: dict[str, Any], finish: str | None = None, probs: Any = None) -> bytes:
        if index not in self._roles:
            self._roles.add(index)
            delta = {"role": "assistant", **delta}
        choice = {"index": index, "delta": delta, "finish_reason": finish}
        choice["logprobs"] = {"content": probs, "refusal": None} if probs is not None else None
        return self._event([choice])

    async def text(self, index: int, part: str, text: str, probs: list[dict[str, Any]] | None) -> None:
        await self._write(self._choice(index, {part: text}, probs=probs))

    async def finish(self, answered: Answered, request: ChatRequest) -> None:
        out = b""
        for reply in answered.replies:
            delta: dict[str, Any] = {}
            if request.tools:
                delta = {k: v for k, v in reply.message.items() if k != "role"}
                if delta.get("tool_calls"):
                    delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(delta["tool_calls"])]
            out += self._choice(reply.index, delta, reply.finish_reason)
        if self._usage:
            out += self._event([], answered.usage())
        await self._write(out + b"data: [DONE]\n\n", more=False)

    async def error(self, err: AjetError) -> None:
        await self._write(b"data: " + orjson.dumps(error_body(err), default=str) + b"\n\n", more=False)


def _internal(err: Exception) -> AjetError:
    return AjetError(f"The server failed on this request ({type(err).__name__}); its log says why.")
