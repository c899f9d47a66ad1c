"""Calls to OpenAI-compatible endpoints, and what happens when they fail.

Two kinds. The *policy* endpoint is the swarm server: it makes callers wait while it updates, so calls have no short
time limit, and while it restarts they are tried again. A *static* endpoint is somebody else's model: failures (429
with Retry-After, 5xx, timeouts, refused connections) are retried with back-off inside a budget. Past the budget both
raise :class:`InfrastructureFault`: the game is void, and no reward of any value comes of it.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import httpx
import openai
from openai import AsyncOpenAI

from ajet.schema.errors import ContextLengthExceeded, InfrastructureFault

POLICY_TIMEOUT_S = 3600.0
STATIC_TIMEOUT_S = 120.0
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0
RETRIED_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 507, 529})


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    """One TLS context for the process: making one costs more than a call."""
    return httpx.create_ssl_context()


class Gate:
    """At most ``limit`` holders at once, over all event loops and threads of the process."""

    def __init__(self, limit: int) -> None:
        self._lock = threading.Lock()
        self._free = limit
        self._waiting: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()

    async def __aenter__(self) -> None:
        with self._lock:
            if self._free > 0:
                self._free -= 1
                return
            loop = asyncio.get_running_loop()
            turn: asyncio.Future[None] = loop.create_future()
            self._waiting.append((loop, turn))
        try:
            await turn
        except asyncio.CancelledError:
            with self._lock:
                if (loop, turn) in self._waiting:
                    self._waiting.remove((loop, turn))
                    raise
            self._release()  # the turn had come already
            raise

    async def __aexit__(self, *_: object) -> None:
        self._release()

    def _release(self) -> None:
        with self._lock:
            while self._waiting:
                loop, turn = self._waiting.popleft()
                try:
                    loop.call_soon_threadsafe(lambda t=turn: None if t.done() else t.set_result(None))
                except RuntimeError:  # that loop is closed
                    continue
                return
            self._free += 1


_gates: dict[tuple[str, int], Gate] = {}
_gates_lock = threading.Lock()


def gate_for(base_url: str, limit: int) -> Gate:
    """The process-wide gate of one endpoint."""
    with _gates_lock:
        return _gates.setdefault((base_url, limit), Gate(limit))


@dataclass
class Endpoint:
    """One endpoint as one game uses it. Open it with ``async with``.

    Args:
        budget_s: how long one call may be retried.
        gate: bound on concurrent calls, or None.
        rng: draws the jitter of the back-off.
    """

    base_url: str
    model: str
    budget_s: float
    timeout_s: float
    gate: Gate | None = None
    rng: random.Random = field(default_factory=random.Random)
    retries: int = 0
    """Failed tries so far, for the game's metrics."""
    name: str = "policy"
    _client: AsyncOpenAI | None = None

    async def __aenter__(self) -> Endpoint:
        timeout = httpx.Timeout(self.timeout_s, connect=10.0)
        limits = httpx.Limits(max_connections=32, max_keepalive_connections=32)
        http = httpx.AsyncClient(verify=_tls(), timeout=timeout, limits=limits, trust_env=False)
        self._client = AsyncOpenAI(base_url=self.base_url, api_key="-", max_retries=0, timeout=timeout, http_client=http)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._client is not None:
            await self._client.close()

    async def chat(self, messages: list[dict[str, Any]], api_key: str, temperature: float | None) -> dict[str, Any]:
        """One reply, as the assistant message that was sent.

        Raises:
            ContextLengthExceeded: the conversation does not fit; no retry helps.
            InfrastructureFault: no answer within the budget, or a refusal that is nobody's policy.
        """
        deadline = time.monotonic() + self.budget_s
        wait = FIRST_WAIT_S
        while True:
            try:
                return await self._once(messages, api_key, temperature)
            except openai.APIStatusError as error:
                if error.code == "context_length_exceeded":
                    raise ContextLengthExceeded(str(error)) from error
                if error.status_code not in RETRIED_STATUS or (error.status_code == 409 and self.name == "policy"):
                    raise self._fault(error) from error
                hint, cause = _retry_after(error.response), error
            except (openai.APIConnectionError, httpx.TransportError) as error:  # timeouts included
                hint, cause = None, error
            self.retries += 1
            pause = hint if hint is not None else wait * (0.5 + self.rng.random())
            wait = min(wait * 2, LONGEST_WAIT_S)
            if time.monotonic() + pause > deadline:
                raise self._fault(cause) from cause
            await asyncio.sleep(pause)

    async def _once(self, messages: list[dict[str, Any]], api_key: str, temperature: float | None) -> dict[str, Any]:
        assert self._client is not None, "use `async with`"
        more: dict[str, Any] = {} if temperature is None else {"temperature": temperature}
        request = self._client.chat.completions.create(
            model=self.model,
            messages=messages,  # type: ignore[arg-type]
            extra_headers={"Authorization": f"Bearer {api_key}"},
            **more,
        )
        if self.gate is None:
            answer = await request
        else:
            async with self.gate:
                answer = await request
        if not answer.choices:
            raise InfrastructureFault(f"The {self.name} endpoint answered without a choice.")
        message = answer.choices[0].message
        reply: dict[str, Any] = {"role": "assistant", "content": message.content or ""}
        reasoning = getattr(message, "reasoning_content", None)
        if reasoning:
            reply["reasoning_content"] = reasoning
        return reply

    def _fault(self, cause: Exception) -> InfrastructureFault:
        return InfrastructureFault(
            f"The {self.name} endpoint {self.base_url} failed ({type(cause).__name__}: {str(cause)[:300]}) after "
            f"{self.retries} failed tries. The game is void."
        )


def _retry_after(response: httpx.Response) -> float | None:
    try:
        return max(0.0, float(response.headers["retry-after"]))
    except (KeyError, ValueError):
        return None
