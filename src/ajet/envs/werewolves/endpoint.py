"""Calls to OpenAI-compatible endpoints, and what happens when they fail.

Two kinds. The *policy* endpoint is the swarm server: it makes callers wait while it updates, so calls have no short
time limit, and while it restarts they are tried again. A *static* endpoint is somebody else's model: failures (429
with Retry-After, 5xx, timeouts, refused connections, answers that are no chat completion) are retried with back-off
inside a budget. Past the budget both raise :class:`InfrastructureFault`: the game is void, and no reward of any value
comes of it.

Calls are posted as they are (:mod:`ajet.envs.http`): an SDK's own work was the largest part of what a game costs its
client. The games of one event loop share their connections.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import threading
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

from ajet.envs.http import Answer, NoAnswer, Poster, connections
from ajet.envs.werewolves.traffic import Traffic
from ajet.schema.errors import ContextLengthExceeded, InfrastructureFault

POLICY_TIMEOUT_S = 3600.0
STATIC_TIMEOUT_S = 120.0
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0
RETRIED_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504, 507, 520, 522, 524, 529})
FINAL_CODES = frozenset({"engine_failed", "insufficient_quota"})
"""Error codes that no retry cures, whatever their status."""


class NoCompletion(Exception):
    """HTTP 200 with a body that is no chat completion (a proxy's page, a cut-off body, an error in disguise)."""


class Refused(Exception):
    """An answer that is an error.

    Attributes:
        status: of HTTP. code: the error's ``code``, or its type where it has none; empty where it has neither.
    """

    def __init__(self, answer: Answer) -> None:
        self.status, self.headers = answer.status, answer.headers
        self.code, message = _error(answer.body)
        super().__init__(f"HTTP {answer.status}{' ' + self.code if self.code else ''}: {message}")


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
        base_url: ends in ``/v1``.
        model: the name sent with each call.
        budget_s: how long after its first failure one call is tried again, seconds.
        timeout_s: longest wait for one answer, seconds.
        gate: bound on concurrent calls, or None. A call holds it while it waits for an answer, not between tries.
        rng: draws the jitter of the back-off.
        name: what messages call it.
        pause, clock: how to wait, and what time it is; for tests.
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
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    clock: Callable[[], float] = time.monotonic
    traffic: Traffic = field(default_factory=Traffic)
    """Of all its callers."""
    _poster: Poster | None = None

    def __post_init__(self) -> None:
        self._url = self.base_url.rstrip("/") + "/chat/completions"

    async def __aenter__(self) -> Endpoint:
        self._held = connections(self.base_url)
        self._poster = await self._held.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._poster = None
        await self._held.__aexit__(*error)

    async def chat(
        self, messages: list[dict[str, Any]], api_key: str, temperature: float | None, traffic: Traffic | None = None
    ) -> dict[str, Any]:
        """One reply, as the assistant message that was sent.

        Args:
            traffic: the caller's own counts, beside the endpoint's.

        Raises:
            ContextLengthExceeded: the conversation does not fit; no retry helps.
            InfrastructureFault: no answer within the budget, or a refusal that is nobody's policy.
        """
        deadline: float | None = None
        wait = FIRST_WAIT_S
        # A try whose reply was lost on its way gets that reply again.
        request_id = uuid.uuid4().hex
        counts = (self.traffic,) if traffic is None else (self.traffic, traffic)
        while True:
            try:
                return await self._once(messages, api_key, temperature, request_id, counts)
            except Refused as error:
                for count in counts:
                    count.rate_limited += error.status == 429
                if error.code == "context_length_exceeded":
                    raise ContextLengthExceeded(str(error)) from error
                if error.status not in RETRIED_STATUS or error.code in FINAL_CODES:
                    raise self._fault(error) from error
                hint, cause = retry_after(error.headers), error
            except (NoAnswer, NoCompletion) as error:
                hint, cause = None, error
            self.retries += 1
            jitter = self.rng.random()
            seconds = wait * (0.5 + jitter) if hint is None else hint + FIRST_WAIT_S * jitter
            wait = min(wait * 2, LONGEST_WAIT_S)
            now = self.clock()
            deadline = now + self.budget_s if deadline is None else deadline
            if now + seconds > deadline:
                raise self._fault(cause) from cause
            await self.pause(seconds)

    async def _once(
        self, messages: list[dict[str, Any]], api_key: str, temperature: float | None, request_id: str,
        counts: tuple[Traffic, ...],
    ) -> dict[str, Any]:  # fmt: skip
        assert self._poster is not None, "use `async with`"
        body: dict[str, Any] = {"model": self.model, "messages": messages}
        if temperature is not None:
            body["temperature"] = temperature
        headers = {
            "Authorization": f"Bearer {api_key}",
            "Idempotency-Key": request_id,
            "Content-Type": "application/json",
        }
        content = json.dumps(body).encode()
        async with self.gate or nullcontext():
            began = self.clock()
            answer = await self._poster.post(self._url, content, headers, self.timeout_s)
            seconds = self.clock() - began
        if answer.status >= 300:
            raise Refused(answer)
        reply, finish_reason = _message(answer)
        for count in counts:
            count.answered(seconds, finish_reason)
        return reply

    def _fault(self, cause: Exception) -> InfrastructureFault:
        root: BaseException = cause
        while root.__cause__ is not None:
            root = root.__cause__
        words = f"{type(cause).__name__}: {str(cause)[:300]}"
        if root is not cause:
            words += f" [{type(root).__name__}: {str(root)[:300]}]"
        return InfrastructureFault(
            f"The {self.name} endpoint {self.base_url} failed ({words}) after {self.retries} failed tries. The game is void."
        )


def _message(answer: Answer) -> tuple[dict[str, Any], Any]:
    """The assistant message of a chat completion, and why it ended."""
    try:
        choice = json.loads(answer.body)["choices"][0]
        message, finish_reason = choice["message"], choice.get("finish_reason")
        content = message.get("content")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise NoCompletion(f"HTTP {answer.status}: {answer.body[:200]!r}") from error
    if isinstance(content, list):  # parts
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    reply: dict[str, Any] = {"role": "assistant", "content": _sendable(content)}
    if message.get("reasoning_content"):
        reply["reasoning_content"] = _sendable(message["reasoning_content"])
    return reply, finish_reason


def _sendable(text: Any) -> str:
    """The text itself, but for lone surrogates, which the next request could not carry."""
    return str(text or "").encode("utf-8", "replace").decode()


def _error(body: bytes) -> tuple[str, str]:
    """Code (or type) and message of an error in OpenAI's shape; of any other body the first words."""
    try:
        error = json.loads(body)["error"]
        code, message = error.get("code") or error.get("type") or "", error.get("message") or ""
    except (ValueError, LookupError, TypeError, AttributeError):
        return "", repr(body[:200])
    return str(code), str(message)[:300]


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the answer asks to wait: ``retry-after-ms``, or ``retry-after`` as a number or a date."""
    try:
        if "retry-after-ms" in headers:
            seconds = float(headers["retry-after-ms"]) / 1000
        else:
            seconds = float(headers["retry-after"])
    except KeyError:
        return None
    except ValueError:
        try:
            seconds = parsedate_to_datetime(headers["retry-after"]).timestamp() - time.time()
        except (KeyError, ValueError, TypeError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
