"""HTTP under the operations: kept-alive connections, one SSL context a process, no secrets in what is raised.

Connections are taken from a stack and put back; one shared pool that looks at every connection on every request costs
more than the requests where 200 are open. Ctrl-C may strike between any two steps: a connection whose exchange was cut
short is never used again, no lock stays held, and no wait is deaf to it for more than ``DEAF_S``. Threads talk through the standard library's ``http.client``, at a quarter of
the CPU time of an ``httpx`` request, and through ``httpx`` where a proxy stands between; coroutines always do.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import select
import socket
import ssl
import threading
import time
from collections import deque
from functools import lru_cache
from typing import Any, Protocol
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

from ajet.client.exchange import DEAF_S, Call, ConnectionFault, Reply
from ajet.schema.endpoint import is_loopback_url
from ajet.schema.errors import AjetError

ANSWER_TIMEOUT_S = 90.0
"""Longest silence of a request that the server does not hold on purpose. (An end may wait 60 s for a booting server.)"""
CONNECT_TIMEOUT_S = 10.0


@lru_cache(maxsize=2)
def _ssl_context(verify: bool) -> ssl.SSLContext:
    return httpx.create_ssl_context(verify=verify)


def _options(server_url: str, api_key: str | None) -> dict[str, Any]:
    return {
        "base_url": server_url,
        "headers": {"authorization": f"Bearer {api_key}"} if api_key else {},
        "verify": _ssl_context(server_url.startswith("https:")),
        "limits": httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=60.0),
        "trust_env": not is_loopback_url(server_url),
        "follow_redirects": False,
    }


def _timeouts(call: Call) -> tuple[float, float]:
    """Seconds for an answer, and for a connection."""
    answer, connect = ANSWER_TIMEOUT_S + call.wait_s, CONNECT_TIMEOUT_S
    return (answer, connect) if call.limit_s is None else (min(answer, call.limit_s), min(connect, call.limit_s))


def _request(call: Call) -> dict[str, Any]:
    answer_s, connect_s = _timeouts(call)
    timeout = httpx.Timeout(answer_s, connect=connect_s)
    headers = {"content-type": "application/json"} if call.content is not None else {}
    return {
        "method": call.method, "url": call.path, "content": call.content, "params": call.params or None,
        "headers": headers, "timeout": timeout,
    }  # fmt: skip


def _reply(status: int, content: bytes, retry_after: str | None) -> Reply:
    try:
        body = json.loads(content) if content else None
    except ValueError:
        body = None
    return Reply(status, body, _retry_after(retry_after))


def _httpx_reply(response: httpx.Response) -> Reply:
    return _reply(response.status_code, response.content, response.headers.get("retry-after"))


def _retry_after(value: str | None) -> float | None:
    try:
        seconds = float(value) if value is not None else None
    except ValueError:
        return None
    return seconds if seconds is not None and 0 <= seconds < 86400 else None


def _fault(err: Exception) -> ConnectionFault:
    return ConnectionFault(str(err) or type(err).__name__)


_CLOSED = "This client is closed; make a new one."


class _Connection(Protocol):
    """One connection, one request at a time."""

    def send(self, call: Call) -> Reply:
        """Raises :class:`ConnectionFault`."""
        ...

    def close(self) -> None: ...


class _Direct:
    """Straight to the server."""

    def __init__(self, server_url: str, api_key: str | None) -> None:
        url = urlsplit(server_url)
        assert url.hostname is not None
        self._prefix = url.path.rstrip("/")
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        if url.scheme == "https":
            self._http: http.client.HTTPConnection = http.client.HTTPSConnection(
                url.hostname, url.port, context=_ssl_context(True)
            )
        else:
            self._http = http.client.HTTPConnection(url.hostname, url.port)

    def send(self, call: Call) -> Reply:
        path = self._prefix + call.path + (f"?{urlencode(call.params)}" if call.params else "")
        headers = self._headers
        if call.content is not None:
            headers = {**headers, "content-type": "application/json"}
        started = time.monotonic()
        try:
            answer_s, connect_s = _timeouts(call)
            self._open(answer_s, connect_s)
            self._http.request(call.method, path, call.content, headers)
            if call.limit_s is not None:
                answer_s = min(answer_s, call.limit_s - (time.monotonic() - started))
            _await_answer(self._http.sock, answer_s)
            with self._http.getresponse() as response:  # closed here: its finalizer would swallow a Ctrl-C
                if response.length is None and not response.chunked:
                    # http.client takes a head that was cut off for a whole one.
                    raise http.client.IncompleteRead(b"")
                return _reply(response.status, response.read(), response.headers.get("retry-after"))
        except (http.client.HTTPException, OSError, ValueError) as err:
            self._http.close()
            raise _fault(err) from err

    def _open(self, timeout_s: float, connect_s: float) -> None:
        """A connection that the server has not closed meanwhile."""
        if self._http.sock is not None and _readable(self._http.sock):
            self._http.close()
        if self._http.sock is None:
            self._http.timeout = connect_s
            self._http.connect()
        sock: socket.socket = self._http.sock  # type: ignore[assignment]  # connect made it
        sock.settimeout(timeout_s)

    def close(self) -> None:
        self._http.close()


class _Proxied:
    """Through the proxy that the environment names."""

    def __init__(self, server_url: str, api_key: str | None) -> None:
        self._http = httpx.Client(**_options(server_url, api_key))

    def send(self, call: Call) -> Reply:
        try:
            return _httpx_reply(self._http.request(**_request(call)))
        except (httpx.TransportError, httpx.DecodingError, OSError) as err:
            raise _fault(err) from err

    def close(self) -> None:
        self._http.close()


def _readable(sock: Any, within_s: float = 0.0) -> bool:
    """Whether a connection has something to say; an idle one only that it was closed, or nonsense."""
    poll = select.poll() if hasattr(select, "poll") else None
    if poll is None:
        return bool(select.select([sock], [], [], within_s)[0])
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(within_s * 1000))


def _await_answer(sock: Any, timeout_s: float) -> None:
    """Return as soon as an answer begins; Ctrl-C is seen meanwhile. Raises ``TimeoutError``."""
    deadline = time.monotonic() + timeout_s
    while not (isinstance(sock, ssl.SSLSocket) and sock.pending()):
        left = deadline - time.monotonic()
        if _readable(sock, max(0.0, min(left, DEAF_S))):
            return
        if left <= 0:
            raise TimeoutError("timed out")


def _has_proxy(server_url: str) -> bool:
    url = urlsplit(server_url)
    if is_loopback_url(server_url):
        return False
    proxies = getproxies()
    return bool(proxies.get(url.scheme) or proxies.get("all")) and not proxy_bypass(url.hostname or "")


class BlockingTransport:
    """Thread-safe; ``pool_size`` connections at most, the last one used first."""

    def __init__(self, server_url: str, api_key: str | None, pool_size: int) -> None:
        self._where = server_url, api_key
        self._kind = _Proxied if _has_proxy(server_url) else _Direct
        self._lock = threading.Lock()
        self._left = pool_size
        self._waiting: deque[Any] = deque()
        """Locks that are held, one of each thread that waits for a connection."""
        self._idle: list[_Connection] = []
        self._closed = False

    def send(self, call: Call) -> Reply:
        """Raises :class:`ConnectionFault` where there is no reply."""
        connection: _Connection | None = None
        mine = whole = False
        began = time.monotonic()
        # No condition and no semaphore: their ``with`` and their ``wait`` have steps of Python between taking and holding a lock.
        try:
            while not mine:
                with self._lock:
                    if self._closed:
                        raise AjetError(_CLOSED)
                    if self._left > 0:
                        self._left -= 1
                        mine = True  # without a call in between Ctrl-C finds no way in
                        if self._idle:
                            connection = self._idle.pop()
                if not mine:
                    self._wait()
                    if call.limit_s is not None and time.monotonic() - began >= call.limit_s:
                        raise ConnectionFault("no connection became free")
            if connection is None:
                connection = self._kind(*self._where)
            reply = connection.send(call)
            whole = True
            return reply
        finally:
            if mine:
                with self._lock:
                    self._left += 1
                    if whole and connection is not None and not self._closed:
                        self._idle.append(connection)
                        connection = None
                    if self._waiting:
                        self._waiting.popleft().release()
                if connection is not None:
                    connection.close()

    def _wait(self) -> None:
        """Until a connection is given back, or for a moment."""
        bell = threading.Lock()
        bell.acquire()
        with self._lock:
            if self._left > 0 or self._closed:
                return
            self._waiting.append(bell)
        bell.acquire(timeout=DEAF_S)
        with self._lock:
            if bell in self._waiting:
                self._waiting.remove(bell)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            while self._waiting:
                self._waiting.popleft().release()
        for connection in idle:
            connection.close()


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
            client = self._idle.pop() if self._idle else httpx.AsyncClient(**self._options)
            try:
                return _httpx_reply(await client.request(**_request(call)))
            except (httpx.TransportError, httpx.DecodingError, OSError) as err:
                raise _fault(err) from err
            finally:
                if self._closed:
                    await client.aclose()
                else:
                    self._idle.append(client)

    async def close(self) -> None:
        self._closed = True
        while self._idle:
            await self._idle.pop().aclose()
