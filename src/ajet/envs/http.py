"""POST a JSON body, read the answer: what an environment's calls cost beside the model.

A training step makes thousands of calls, and an SDK's part of one (options, typed models, a request built three times
over) is several times what the connection takes. Here all callers of one event loop share the connections to an
address: on aiohttp where it is installed (``pip install 'agentjet[fast]'``), else on ``httpx``.

Failures are :class:`NoAnswer`; every answer that came whole is an :class:`Answer`, whatever its status.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import httpx

from ajet.schema.endpoint import is_loopback_url

try:
    import aiohttp
except ImportError:  # pragma: no cover - the light install
    aiohttp = None

__all__ = ["Answer", "NoAnswer", "Poster", "connections"]

CONNECT_TIMEOUT_S = 10.0
IDLE_S = 60.0
"""Unused connections are closed after this; below what servers keep theirs for."""


@dataclass(frozen=True)
class Answer:
    """An HTTP answer that came whole. Header names are looked up without regard to case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class NoAnswer(Exception):
    """Refused, reset, timed out, cut off. The request may or may not have arrived."""


class Poster(Protocol):
    """Connections to one address. Any number of requests at once."""

    async def post(self, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> Answer:
        """Send ``body`` as JSON. ``timeout_s``: the longest silence. Raises :class:`NoAnswer`."""
        ...

    async def close(self) -> None: ...


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    """One TLS context for the process: making one costs more than a call."""
    return httpx.create_ssl_context()


class _Aiohttp:
    def __init__(self, url: str) -> None:
        assert aiohttp is not None
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S, ssl=_tls()),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=not is_loopback_url(url),
        )
        self._timeouts: dict[float, Any] = {}

    async def post(self, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> Answer:
        assert aiohttp is not None
        timeout = self._timeouts.get(timeout_s)
        if timeout is None:
            timeout = self._timeouts[timeout_s] = aiohttp.ClientTimeout(
                total=None, sock_connect=min(CONNECT_TIMEOUT_S, timeout_s), sock_read=timeout_s
            )
        try:
            async with self._session.post(url, data=body, headers=headers, timeout=timeout) as response:
                return Answer(response.status, response.headers, await response.read())
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            raise NoAnswer(str(error) or type(error).__name__) from error

    async def close(self) -> None:
        await self._session.close()


class _Httpx:
    def __init__(self, url: str) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=IDLE_S)
        self._client = httpx.AsyncClient(
            verify=_tls(), limits=limits, trust_env=not is_loopback_url(url), follow_redirects=True
        )

    async def post(self, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> Answer:
        timeout = httpx.Timeout(timeout_s, connect=min(CONNECT_TIMEOUT_S, timeout_s))
        try:
            response = await self._client.post(url, content=body, headers=dict(headers), timeout=timeout)
        except (httpx.TransportError, httpx.DecodingError, httpx.TooManyRedirects, OSError) as error:
            raise NoAnswer(str(error) or type(error).__name__) from error
        return Answer(response.status_code, response.headers, response.content)

    async def close(self) -> None:
        await self._client.aclose()


class _Shared:
    """A poster and how many hold it."""

    def __init__(self, poster: Poster) -> None:
        self.poster = poster
        self.holders = 0


_open: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str], _Shared]] = WeakKeyDictionary()
_lock = threading.Lock()


@asynccontextmanager
async def connections(base_url: str) -> AsyncIterator[Poster]:
    """The running loop's connections to the host of ``base_url``, for as long as the block lasts; closed by the last
    holder."""
    split = urlsplit(base_url)
    where = (split.scheme, split.netloc)
    with _lock:
        here = _open.setdefault(asyncio.get_running_loop(), {})
    shared = here.get(where)
    if shared is None:
        shared = here[where] = _Shared(_Httpx(base_url) if aiohttp is None else _Aiohttp(base_url))
    shared.holders += 1
    try:
        yield shared.poster
    finally:
        shared.holders -= 1
        if not shared.holders and here.get(where) is shared:
            del here[where]
            await shared.poster.close()
