"""httpx under the operations: kept-alive connections, one SSL context a process, no secrets in what is raised.

Each connection is an ``httpx`` client of its own, taken from a stack and put back. One shared ``httpx`` pool would
look at every connection on every request: with 200 at once that costs more than the requests.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import httpx

from ajet.client.operations import Call, ConnectionFault, Reply
from ajet.schema.errors import AjetError

ANSWER_TIMEOUT_S = 90.0
"""Longest silence of a request that the server does not hold on purpose. (An end may wait 60 s for a booting server.)"""
CONNECT_TIMEOUT_S = 10.0


@lru_cache(maxsize=2)
def _ssl_context(verify: bool) -> ssl.SSLContext:
    return httpx.create_ssl_context(verify=verify)


def is_loopback(server_url: str) -> bool:
    """Whether the address can only mean this machine."""
    host = urlsplit(server_url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def _options(server_url: str, api_key: str | None) -> dict[str, Any]:
    return {
        "base_url": server_url,
        "headers": {"authorization": f"Bearer {api_key}"} if api_key else {},
        "verify": _ssl_context(server_url.startswith("https:")),
        "limits": httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=60.0),
        "trust_env": not is_loopback(server_url),
        "follow_redirects": False,
    }


def _request(call: Call) -> dict[str, Any]:
    timeout = httpx.Timeout(ANSWER_TIMEOUT_S + call.wait_s, connect=CONNECT_TIMEOUT_S)
    headers = {"content-type": "application/json"} if call.content is not None else {}
    return {
        "method": call.method, "url": call.path, "content": call.content, "params": call.params or None,
        "headers": headers, "timeout": timeout,
    }  # fmt: skip


def _reply(response: httpx.Response) -> Reply:
    try:
        body = json.loads(response.content) if response.content else None
    except ValueError:
        body = None
    return Reply(response.status_code, body, _retry_after(response.headers.get("retry-after")))


def _retry_after(value: str | None) -> float | None:
    try:
        seconds = float(value) if value is not None else None
    except ValueError:
        return None
    return seconds if seconds is not None and 0 <= seconds < 86400 else None


def _fault(err: httpx.HTTPError | OSError) -> ConnectionFault:
    return ConnectionFault(str(err) or type(err).__name__)


_CLOSED = "This client is closed; make a new one."


class BlockingTransport:
    """Thread-safe; ``pool_size`` connections at most, the last one used first."""

    def __init__(self, server_url: str, api_key: str | None, pool_size: int) -> None:
        self._options = _options(server_url, api_key)
        self._slots = threading.Semaphore(pool_size)
        self._lock = threading.Lock()
        self._idle: list[httpx.Client] = []
        self._closed = False

    def send(self, call: Call) -> Reply:
        """Raises :class:`ConnectionFault` where there is no reply."""
        with self._slots:
            http = self._take()
            try:
                return _reply(http.request(**_request(call)))
            except (httpx.TransportError, httpx.DecodingError, OSError) as err:
                raise _fault(err) from err
            finally:
                self._put_back(http)

    def _take(self) -> httpx.Client:
        with self._lock:
            if self._closed:
                raise AjetError(_CLOSED)
            if self._idle:
                return self._idle.pop()
        return httpx.Client(**self._options)

    def _put_back(self, http: httpx.Client) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(http)
                return
        http.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for http in idle:
            http.close()


class AsyncTransport:
    """The same for asyncio. Belongs to one event loop."""

    def __init__(self, server_url: str, api_key: str | None, pool_size: int) -> None:
        self._options = _options(server_url, api_key)
        self._slots = asyncio.Semaphore(pool_size)
        self._idle: list[httpx.AsyncClient] = []
        self._closed = False

    async def send(self, call: Call) -> Reply:
        """Raises :class:`ConnectionFault` where there is no reply."""
        async with self._slots:
            if self._closed:
                raise AjetError(_CLOSED)
            http = self._idle.pop() if self._idle else httpx.AsyncClient(**self._options)
            try:
                return _reply(await http.request(**_request(call)))
            except (httpx.TransportError, httpx.DecodingError, OSError) as err:
                raise _fault(err) from err
            finally:
                if self._closed:
                    await http.aclose()
                else:
                    self._idle.append(http)

    async def close(self) -> None:
        self._closed = True
        while self._idle:
            await self._idle.pop().aclose()
