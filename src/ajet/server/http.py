"""HTTP without surprises: bounded bodies, one JSON error shape, disconnects noticed.

Used by every route. :func:`guarded` is the request boundary: what is an :class:`AjetError` becomes its status and
body, anything else is logged, counted and answered as a 500 that tells nothing of the inside.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from ajet.schema.errors import AjetError, InvalidRequest, TooLarge, error_body

log = logging.getLogger("ajet.http")

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

LARGE_BODY = 64 << 10
JSON_HEADERS: tuple[tuple[bytes, bytes], ...] = ((b"content-type", b"application/json"),)


class Disconnected(Exception):
    """The client went away; there is nobody to answer."""


def json_response(body: BaseModel | dict[str, Any], status: int = 200) -> Response:
    data = body.model_dump_json().encode() if isinstance(body, BaseModel) else orjson.dumps(body)
    return Response(data, status, media_type="application/json")


def error_parts(err: AjetError) -> tuple[int, bytes, list[tuple[bytes, bytes]]]:
    """Status, body and headers of an error."""
    headers = list(JSON_HEADERS)
    if err.retry_after is not None:
        headers.append((b"retry-after", str(max(1, round(err.retry_after))).encode()))
    elif err.retryable:
        headers.append((b"retry-after", b"1"))
    return err.http_status, orjson.dumps(error_body(err), default=str), headers


def error_response(err: AjetError) -> Response:
    status, body, headers = error_parts(err)
    return Response(body, status, headers={k.decode(): v.decode() for k, v in headers})


async def read_body(receive: Receive, headers: list[tuple[bytes, bytes]], limit: int) -> bytes:
    """The whole body. Raises :class:`TooLarge` as soon as it is known to be, :class:`Disconnected` if cut off."""
    for name, value in headers:
        if name == b"content-length" and value.isdigit() and int(value) > limit:
            raise TooLarge(f"The body has {int(value)} bytes; at most {limit} are accepted.")
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise TooLarge(f"The body is larger than the {limit} bytes that are accepted.")
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def read_model(request: Request, model: type[M]) -> M:
    """The body as ``model``. Large ones are parsed one at a time in a thread, so that small requests pass them by."""
    body = await read_body(request.receive, request.scope["headers"], request.app.state.limits.control_body_bytes)
    try:
        if len(body) < LARGE_BODY:
            return model.model_validate_json(body or b"{}")
        async with request.app.state.large_bodies:
            return await asyncio.to_thread(model.model_validate_json, body)
    except ValidationError as err:
        raise validation_error(err) from None


def validation_error(err: ValidationError) -> InvalidRequest:
    """A pydantic error as ours: the first problem in words, all of them in the details."""
    problems = [
        {"field": ".".join(str(part) for part in e["loc"]), "message": e["msg"]}
        for e in err.errors(include_url=False, include_input=False, include_context=False)[:20]
    ]
    first = problems[0] if problems else {"field": "", "message": str(err)}
    where = f" in {first['field']!r}" if first["field"] else ""
    found = InvalidRequest(
        f"The request is not valid{where}: {first['message']}.",
        param=first["field"] or None,
        details={"problems": problems},
    )
    found.http_status = 422  # type: ignore[misc]
    return found


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Run ``work``; cancel it and raise :class:`Disconnected` when the client goes away first."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise Disconnected
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def guarded(handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """The request boundary of a swarm route."""

    async def guard(request: Request) -> Response:
        try:
            return await handler(request)
        except AjetError as err:
            return error_response(err)
        except Disconnected:
            return Response(status_code=499)
        except Exception as err:
            log.exception("unexpected error in %s %s", request.method, request.url.path)
            request.app.state.telemetry.count("errors/internal")
            return error_response(
                AjetError(f"The server failed on this request ({type(err).__name__}); its log says why.")
            )

    guard.__name__ = handler.__name__
    guard.__doc__ = handler.__doc__
    return guard
