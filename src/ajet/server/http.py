"""HTTP without surprises: bounded bodies and crowds, one JSON error shape, disconnects noticed.

Used by every route. :func:`guarded` is the request boundary: what is an :class:`AjetError` becomes its status and
body, anything else is logged, counted and answered as a 500 that tells nothing of the inside.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, MutableMapping
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from ajet.schema.errors import AjetError, EngineUnavailable, InvalidRequest, RateLimited, TooLarge, error_body
from ajet.server.settings import Limits

log = logging.getLogger("ajet.http")

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

PARSE_APART = 64 << 10
"""Bodies from this size on are parsed in a thread, one at a time, so that small requests pass them by."""
HUGE_BODY = 1 << 20
"""Only so many bodies from this size on are held at once (``limits.large_bodies``)."""
JSON_HEADERS: tuple[tuple[bytes, bytes], ...] = ((b"content-type", b"application/json"),)


GOING = "The server is being stopped; ask again when it is back."


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


class UnsupportedEncoding(InvalidRequest):
    """A compressed body."""

    http_status, code = 415, "unsupported_encoding"


class UrlTooLong(TooLarge):
    http_status = 414


def check_head(scope: Scope, limits: Limits) -> None:
    """Refuse heads that are too large, and bodies that are not sent as they are.

    Raises:
        TooLarge, UnsupportedEncoding: see the message.
    """
    size = 0
    for name, value in scope["headers"]:
        size += len(name) + len(value)
        if name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            raise UnsupportedEncoding("Compressed bodies are not accepted. Send the JSON as it is.")
    if size > limits.header_bytes:
        raise TooLarge(f"The headers have {size} bytes; at most {limits.header_bytes} are accepted.")
    if len(scope.get("raw_path") or scope["path"]) + len(scope.get("query_string", b"")) > limits.url_bytes:
        raise UrlTooLong(f"The URL is longer than the {limits.url_bytes} bytes that are accepted.")


class Crowd:
    """At most ``total`` at once, and at most ``each`` of one name."""

    def __init__(self, what: str, total: int, each: int | None = None) -> None:
        self._what, self._total, self._each = what, total, each
        self._inside: Counter[str] = Counter()
        self._count = 0

    @contextlib.contextmanager
    def enter(self, name: str = "") -> Iterator[None]:
        """Raises :class:`RateLimited` where there is no room."""
        if self._count >= self._total:
            raise RateLimited(f"{self._count} {self._what} are open at once. Retry in a second.")
        if self._each is not None and self._inside[name] >= self._each:
            raise RateLimited(f"{self._inside[name]} {self._what} of {name} are open at once. Retry in a second.")
        self._count += 1
        self._inside[name] += 1
        try:
            yield
        finally:
            self._count -= 1
            self._inside[name] -= 1
            if not self._inside[name]:
                del self._inside[name]


class _Body:
    """One body, see :meth:`Bodies.read`."""

    __slots__ = ("_headers", "_holds", "_huge", "_limit", "_receive")

    def __init__(
        self, huge: asyncio.Semaphore, receive: Receive, headers: list[tuple[bytes, bytes]], limit: int
    ) -> None:
        self._huge, self._receive, self._headers, self._limit = huge, receive, headers, limit
        self._holds = False

    async def __aenter__(self) -> bytes:
        try:
            return await self._whole()
        except BaseException:
            self._give_back()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._give_back()

    def _give_back(self) -> None:
        if self._holds:
            self._holds = False
            self._huge.release()

    async def _hold(self) -> None:
        if not self._holds:
            await self._huge.acquire()
            self._holds = True

    async def _whole(self) -> bytes:
        limit = self._limit
        for name, value in self._headers:
            if name == b"content-length" and value.isdigit():
                if len(value) > 18 or int(value) > limit:
                    raise TooLarge(f"The body has {value[:30].decode()} bytes; at most {limit} are accepted.")
                if int(value) > HUGE_BODY:
                    await self._hold()
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            part = message.get("body", b"")
            size += len(part)
            if size > limit:
                raise TooLarge(f"The body is larger than the {limit} bytes that are accepted.")
            parts.append(part)
            if not message.get("more_body", False):
                return parts[0] if len(parts) == 1 else b"".join(parts)
            if size > HUGE_BODY:
                await self._hold()


class Bodies:
    """Reads bodies. However many come at once, the memory that huge ones take is bounded: others wait, unread."""

    def __init__(self, at_once: int) -> None:
        self._huge = asyncio.Semaphore(at_once)
        self._parsing = asyncio.Semaphore(1)

    def read(self, receive: Receive, headers: list[tuple[bytes, bytes]], limit: int) -> _Body:
        """``async with`` gives the whole body, for as long as the block lasts.

        Raises (on entering):
            TooLarge: as soon as it is known to be. Disconnected: it was cut off.
        """
        return _Body(self._huge, receive, headers, limit)

    async def parse(self, body: bytes, parse: Callable[[bytes], T]) -> T:
        """``parse(body)``; of large bodies one at a time, in a thread.

        Parsing holds the interpreter, so every other moment belongs to those who wait for it.
        """
        if len(body) < PARSE_APART:
            return parse(body)
        async with self._parsing:
            began = time.perf_counter()
            try:
                return await asyncio.to_thread(parse, body)
            finally:
                await asyncio.sleep(min(time.perf_counter() - began, 0.2))


async def read_model(request: Request, model: type[M]) -> M:
    """The body as ``model``."""
    return await read_parsed(request, model.model_validate_json)


async def read_parsed(request: Request, parse: Callable[[bytes], T]) -> T:
    """What ``parse`` makes of the body. It runs in a thread where the body is large, and may raise ValidationError."""
    state = request.app.state
    limit = state.limits.control_body_bytes
    async with state.bodies.read(request.receive, request.scope["headers"], limit) as body:
        try:
            return await state.bodies.parse(body or b"{}", parse)
        except ValidationError as err:
            raise validation_error(err) from None


def whole_number(text: str, digits: int, name: str) -> int:
    """A query parameter. Raises :class:`InvalidRequest` unless it is a number of at most ``digits`` plain digits."""
    if not (text.isascii() and text.isdigit() and len(text) <= digits):
        raise InvalidRequest(f"{name} must be a whole number of at most {digits} digits.", param=name)
    return int(text)


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
        except asyncio.CancelledError:
            # The server goes, and has waited for this request long enough. Its client is to wait for the next one.
            return error_response(EngineUnavailable(GOING))
        except Exception as err:
            log.exception("unexpected error in %s %s", request.method, request.url.path)
            request.app.state.telemetry.count("errors/internal")
            return error_response(
                AjetError(f"The server failed on this request ({type(err).__name__}); its log says why.")
            )

    guard.__name__ = handler.__name__
    guard.__doc__ = handler.__doc__
    return guard
