"""The endpoint as the application sees it: ``/v1/chat/completions`` and ``/v1/models``, in OpenAI's shapes.

Needs Starlette (``agentjet[passive]``). Each answer says in ``x-ajet-served`` what became of the request: ``trained``,
``untrained`` or ``fallback``.

Streaming: the best answer is known when the last one is judged, so a stream begins then. Until then it holds the line
with comments, so that no proxy in between takes it for dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ajet.passive.service import NotServed, PassiveClient, Served
from ajet.schema.endpoint import is_loopback_url
from ajet.schema.errors import AjetError, Forbidden, InvalidKey, InvalidRequest, NotFound, TooLarge, error_body

log = logging.getLogger("ajet.passive")
HOLD_S = 10.0
"""Seconds of silence in a stream, at most."""
SERVED = "x-ajet-served"


def create_app(passive: PassiveClient, key: str | None) -> Starlette:
    """The application's endpoint.

    Args:
        key: what the application sends as its API key; None lets every program of this machine in, and no web page.
    """

    async def chat(request: Request) -> Response:
        _check_key(request, key)
        body = await _body(request, passive.bounds.body_bytes)
        if body.get("stream"):
            return _Stream(passive, body)
        return await _until_left(request, _whole(passive, body))

    async def models(request: Request) -> Response:
        _check_key(request, key)
        model = {"id": await passive.model_name(), "object": "model", "created": 0, "owned_by": "agentjet"}
        return JSONResponse({"object": "list", "data": [model]})

    async def stats(request: Request) -> Response:
        _check_key(request, key)
        return JSONResponse(dict(sorted(passive.counts.items())))

    async def health(_request: Request) -> Response:
        return JSONResponse({"ok": True})

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with passive:
            yield

    return Starlette(
        routes=[
            Route("/v1/chat/completions", _guarded(chat), methods=["POST"]),
            Route("/v1/models", _guarded(models), methods=["GET"]),
            Route("/passive/stats", _guarded(stats), methods=["GET"]),
            Route("/healthz", health, methods=["GET"]),
        ],
        lifespan=lifespan,
        exception_handlers={HTTPException: _no_such_route},
    )


# ── a request ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _guarded(handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """The boundary of a request: errors made on purpose are told, others are logged and not shown."""

    async def guarded(request: Request) -> Response:
        try:
            return await handler(request)
        except ClientDisconnect:
            return Response(status_code=499)
        except AjetError as err:
            return _error(err)
        except Exception as err:
            log.exception("unexpected error")
            return _error(_internal(err))

    return guarded


async def _no_such_route(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == 404:
        return _error(NotFound(f"There is no {request.url.path} here; only chat completions are served."))
    return JSONResponse(error_body(InvalidRequest(f"{request.method} is not served here.")), status)


def _check_key(request: Request, key: str | None) -> None:
    if key is not None:
        sent = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(sent.encode(), key.encode()):
            raise InvalidKey(
                "This endpoint needs its key: give the application what AJET_PASSIVE_KEY holds as its API key."
            )
        return
    origin = request.headers.get("origin")
    here = [f"http://{request.headers.get('host', '')}", *([origin] if origin is not None else [])]
    if not all(is_loopback_url(url) or urlsplit(url).hostname is None for url in here):
        raise Forbidden("Web pages of other origins are refused while no AJET_PASSIVE_KEY is set.")


async def _body(request: Request, most: int) -> dict[str, Any]:
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > most:
            raise TooLarge(f"The request has more than {most} bytes.")
    try:
        body = json.loads(bytes(data))
    except ValueError as err:
        raise InvalidRequest(f"The body is not JSON: {err}") from None
    if not isinstance(body, dict):
        raise InvalidRequest("The body must be a JSON object.")
    return body


async def _until_left(request: Request, work: Awaitable[Response]) -> Response:
    """The result of ``work``, which is cancelled when the application hangs up."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_left(request.receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        watch.cancel()
        task.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _whole(passive: PassiveClient, body: dict[str, Any]) -> Response:
    try:
        served = await passive.answer(body)
    except NotServed as why:
        response = await passive.forward(body, why)
        try:
            content = await response.aread()
        except httpx.TransportError as err:
            raise NotServed(f"{why.message} The fallback broke off: {err!r}") from err
        finally:
            await response.aclose()
        media = response.headers.get("content-type")
        return Response(content, response.status_code, {SERVED: "fallback"}, media_type=media)
    return JSONResponse(served.completion, headers={SERVED: served.how})


def _error(err: AjetError) -> Response:
    headers = {"retry-after": str(max(1, round(err.retry_after or 1)))} if err.retryable else {}
    return JSONResponse(error_body(err), err.http_status, headers)


def _internal(err: Exception) -> AjetError:
    return AjetError(f"The passive client failed on this request ({type(err).__name__}); its log says why.")


# ── streams ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Stream(Response):
    """A streamed answer. Its head is held back until there is something to say, so that an early error keeps its status."""

    def __init__(self, passive: PassiveClient, body: dict[str, Any]) -> None:
        self.background = None
        self._passive, self._body = passive, body
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = asyncio.ensure_future(self._run(scope, receive, send))
        watch = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            watch.cancel()
            work.cancel()
            await asyncio.gather(work, watch, return_exceptions=True)

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            try:
                served = await self._answer(send)
            except NotServed as why:
                await self._forward(why, send)
                return
            for event in events(served, self._body):
                await self._write(send, event, served.how)
            await self._write(send, b"data: [DONE]\n\n", served.how)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except Exception as err:
            known = err if isinstance(err, AjetError) else _internal(err)
            if known is not err:
                log.exception("unexpected error in a stream")
            if not self._started:
                await _error(known)(scope, receive, send)
                return
            await self._write(send, _event(error_body(known)))
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _answer(self, send: Send) -> Served:
        """The answer; comments hold the line meanwhile."""
        task = asyncio.ensure_future(self._passive.answer(self._body))
        try:
            while not (await asyncio.wait({task}, timeout=HOLD_S))[0]:
                await self._write(send, b": the answers are being compared\n\n")
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _forward(self, why: NotServed, send: Send) -> None:
        response = await self._passive.forward(self._body, why)
        try:
            if not self._started:
                await self._head(send, response.status_code, response.headers.get("content-type", ""), "fallback")
            async for piece in response.aiter_bytes():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await response.aclose()

    async def _write(self, send: Send, data: bytes, served: str = "") -> None:
        if not self._started:
            await self._head(send, 200, "text/event-stream; charset=utf-8", served)
        await send({"type": "http.response.body", "body": data, "more_body": True})

    async def _head(self, send: Send, status: int, media: str, served: str) -> None:
        self._started = True
        headers = [(b"content-type", media.encode()), (b"cache-control", b"no-cache")]
        if served:
            headers.append((SERVED.encode(), served.encode()))
        await send({"type": "http.response.start", "status": status, "headers": headers})


def events(served: Served, body: dict[str, Any]) -> list[bytes]:
    """A chat completion as the chunks of a stream."""
    whole = served.completion
    head = {"id": whole["id"], "object": "chat.completion.chunk", "created": whole["created"], "model": whole["model"]}
    with_usage = bool((body.get("stream_options") or {}).get("include_usage"))
    extra = {"usage": None} if with_usage else {}
    out = []
    for choice in whole["choices"]:
        delta = dict(choice["message"])
        if delta.get("tool_calls"):
            delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(delta["tool_calls"])]
        said = {"index": choice["index"], "delta": delta, "logprobs": choice.get("logprobs"), "finish_reason": None}
        done = {"index": choice["index"], "delta": {}, "logprobs": None, "finish_reason": choice["finish_reason"]}
        out += [_event({**head, "choices": [said], **extra}), _event({**head, "choices": [done], **extra})]
    if with_usage:
        out.append(_event({**head, "choices": [], "usage": whole["usage"]}))
    return out


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, ensure_ascii=False, default=str).encode() + b"\n\n"
