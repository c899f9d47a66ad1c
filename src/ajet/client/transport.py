"""httpx under the operations: one keep-alive pool, one SSL context, no secrets in what is raised."""

from __future__ import annotations

import json
import ssl
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import httpx

from ajet.client.operations import Call, ConnectionFault, Reply
from ajet.schema.errors import AjetError

ANSWER_TIMEOUT_S = 60.0
"""Longest silence of a request that the server does not hold on purpose."""
CONNECT_TIMEOUT_S = 10.0


@lru_cache(maxsize=1)
def _ssl_context() -> ssl.SSLContext:
    return httpx.create_ssl_context()


def is_loopback(server_url: str) -> bool:
    """Whether the address can only mean this machine."""
    host = urlsplit(server_url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def _options(server_url: str, api_key: str | None, pool_size: int) -> dict[str, Any]:
    return {
        "base_url": server_url,
        "headers": {"authorization": f"Bearer {api_key}"} if api_key else {},
        "verify": _ssl_context() if server_url.startswith("https:") else False,
        "limits": httpx.Limits(max_connections=pool_size, max_keepalive_connections=pool_size, keepalive_expiry=60.0),
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


class BlockingTransport:
    """Thread-safe; ``pool_size`` connections at most."""

    def __init__(self, server_url: str, api_key: str | None, pool_size: int) -> None:
        self._http = httpx.Client(**_options(server_url, api_key, pool_size))

    def send(self, call: Call) -> Reply:
        """Raises :class:`ConnectionFault` where there is no reply."""
        if self._http.is_closed:
            raise AjetError("This client is closed; make a new one.")
        try:
            return _reply(self._http.request(**_request(call)))
        except (httpx.TransportError, httpx.DecodingError, OSError) as err:
            raise _fault(err) from err

    def close(self) -> None:
        self._http.close()


class AsyncTransport:
    """The same for asyncio. Belongs to one event loop."""

    def __init__(self, server_url: str, api_key: str | None, pool_size: int) -> None:
        self._http = httpx.AsyncClient(**_options(server_url, api_key, pool_size))

    async def send(self, call: Call) -> Reply:
        """Raises :class:`ConnectionFault` where there is no reply."""
        if self._http.is_closed:
            raise AjetError("This client is closed; make a new one.")
        try:
            return _reply(await self._http.request(**_request(call)))
        except (httpx.TransportError, httpx.DecodingError, OSError) as err:
            raise _fault(err) from err

    async def close(self) -> None:
        await self._http.aclose()
