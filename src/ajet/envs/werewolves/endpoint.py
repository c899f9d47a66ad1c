"""Calls to OpenAI-compatible endpoints, and what happens when they fail.

Two kinds. The *policy* endpoint is the swarm server: it makes callers wait while it updates, so calls have no short
time limit, and while it restarts they are tried again. A *static* endpoint is somebody else's model: failures (429
with Retry-After, 5xx, timeouts, refused connections, answers that are no chat completion) are retried with back-off
inside a budget. Past the budget both raise :class:`InfrastructureFault`: the game is void, and no reward of any value
comes of it.

A static endpoint is shared by all games of the process, and so is what protects it: a bound on calls at once, on requests
and tokens a minute (:mod:`~ajet.envs.werewolves.limits`), and a circuit breaker
(:mod:`~ajet.envs.werewolves.breaker`). What the calls took is counted per game (:mod:`~ajet.envs.werewolves.usage`,
:mod:`~ajet.envs.werewolves.traffic`).

Calls are posted as they are (:mod:`ajet.envs.http`): an SDK's own work was the largest part of what a game costs its
client. The games of one event loop share their connections.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

from ajet.envs.http import Answer, NoAnswer, Poster, connections
from ajet.envs.werewolves.breaker import CircuitBreaker, CircuitOpen
from ajet.envs.werewolves.limits import Gate, RateLimiter
from ajet.envs.werewolves.traffic import Traffic
from ajet.envs.werewolves.usage import Prices, Usage
from ajet.schema.errors import ContextLengthExceeded, EndpointRefused, InfrastructureFault

POLICY = "policy"
"""What messages call the model in training."""
_ADVICE = {
    401: "Set AJET_OPPONENT_API_KEY to its key.",
    403: "Set AJET_OPPONENT_API_KEY to a key that may use this model.",
    404: "Correct its address (it ends in /v1) or the model's name.",
}
POLICY_TIMEOUT_S = 3600.0
STATIC_TIMEOUT_S = 120.0
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0
RETRIED_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504, 507, 520, 522, 524, 529})
FINAL_CODES = frozenset({"engine_failed", "insufficient_quota"})
"""Error codes that no retry cures, whatever their status."""
CHARACTERS_A_TOKEN = 3.0
EXPECTED_REPLY = 250
"""Tokens: what a call is counted for by the rate limiter until its answer says better."""


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


@dataclass
class _Attempt:
    """One try of a call. ``counts``: whose traffic it is. ``queued_s``: how long it waited for its turn."""

    body: dict[str, Any]
    headers: dict[str, str]
    counts: tuple[Traffic, ...]
    queued_s: float = 0.0


@dataclass
class Endpoint:
    """One endpoint as one game uses it. Open it with ``async with``.

    Args:
        base_url: ends in ``/v1``.
        model: the name sent with each call.
        budget_s: how long after its first failure one call is tried again, seconds.
        timeout_s: longest wait for one answer, seconds.
        gate: bound on concurrent calls, or None. A call holds it while it waits for its turn and for an answer, not
            between tries.
        limiter: bound on requests and tokens a minute, or None.
        breaker: the circuit that leaves a broken endpoint alone, or None.
        prices: what tokens cost, or None.
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
    limiter: RateLimiter | None = None
    breaker: CircuitBreaker | None = None
    prices: Prices | None = None
    refused: int = 0
    """Calls that the open circuit kept from being sent, so far."""
    rate_wait_s: float = 0.0
    """Seconds that calls waited for their turn, so far."""
    usage: Usage = field(default_factory=Usage)
    name: str = POLICY
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
        body: dict[str, Any] = {"model": self.model, "messages": messages}
        if temperature is not None:
            body["temperature"] = temperature
        # A try whose reply was lost on its way gets that reply again.
        headers = {
            "Authorization": f"Bearer {api_key}",
            "Idempotency-Key": uuid.uuid4().hex,
            "Content-Type": "application/json",
        }
        counts = (self.traffic,) if traffic is None else (self.traffic, traffic)
        while True:
            attempt = _Attempt(body, headers, counts)
            try:
                return await self._once(attempt)
            except Refused as error:
                for count in counts:
                    count.rate_limited += error.status == 429
                if error.code == "context_length_exceeded":
                    raise ContextLengthExceeded(str(error)) from error
                if error.status not in RETRIED_STATUS or error.code in FINAL_CODES:
                    raise self._fault(error) from error
                hint, cause = retry_after(error.headers), error
                self.retries += 1
            except (NoAnswer, NoCompletion) as error:
                hint, cause = None, error
                self.retries += 1
                self._tell_of(error)
            except CircuitOpen as error:
                hint, cause = error.retry_in, error
                self.refused += 1
            jitter = self.rng.random()
            seconds = wait * (0.5 + jitter) if hint is None else hint + FIRST_WAIT_S * jitter
            wait = min(wait * 2, LONGEST_WAIT_S)
            now = self.clock()
            # Waiting for one's turn is no failure of the endpoint.
            deadline = now + self.budget_s if deadline is None else deadline + attempt.queued_s
            if now + seconds > deadline:
                raise self._fault(cause) from cause
            await self.pause(seconds)

    async def _once(self, attempt: _Attempt) -> dict[str, Any]:
        if self.breaker is not None:
            self.breaker.check()  # before a turn is queued for
        if self.gate is None:
            return await self._in_turn(attempt)
        async with self.gate:
            return await self._in_turn(attempt)

    async def _in_turn(self, attempt: _Attempt) -> dict[str, Any]:
        """Send when the rate allows it."""
        if self.limiter is None:
            return (await self._through_circuit(attempt))[0]
        turn, seconds = self.limiter.reserve(self._estimate(attempt.body["messages"]))
        sent = False
        try:
            if seconds > 0:
                attempt.queued_s = seconds
                self.rate_wait_s += seconds
                await self.pause(seconds)
            sent = True
            message, tokens = await self._through_circuit(attempt)
        except BaseException as error:
            if not sent or isinstance(error, CircuitOpen):
                self.limiter.give_back(turn)
            raise
        if tokens is not None:
            self.limiter.settle(turn, tokens)
        return message

    async def _through_circuit(self, attempt: _Attempt) -> tuple[dict[str, Any], int | None]:
        """Send where the circuit lets it, and tell the circuit how it ended."""
        if self.breaker is None:
            return await self._send(attempt)
        probe = self.breaker.enter()
        works: bool | None = None
        cause = ""
        try:
            answer = await self._send(attempt)
            works = True
        except (NoAnswer, NoCompletion) as error:
            works, cause = False, _words(error)
            raise
        except Refused as error:
            works, cause = error.status < 500 and error.status != 408, _words(error)
            raise
        finally:
            self.breaker.leave(probe, works, cause)
        return answer

    async def _send(self, attempt: _Attempt) -> tuple[dict[str, Any], int | None]:
        """The assistant message, and the tokens of the call where the endpoint says them."""
        assert self._poster is not None, "use `async with`"
        content = json.dumps(attempt.body).encode()
        began = self.clock()
        answer = await self._poster.post(self._url, content, attempt.headers, self.timeout_s)
        seconds = self.clock() - began
        if answer.status >= 300:
            raise Refused(answer)
        message, usage, finish_reason = _message(answer)
        for count in attempt.counts:
            count.answered(seconds, finish_reason)
        return message, self.usage.add(usage)

    def _estimate(self, messages: list[dict[str, Any]]) -> int:
        """Tokens that a call will probably take."""
        characters = sum(len(str(m.get("content") or "")) for m in messages)
        reply = self.usage.mean_completion()
        return round(characters / CHARACTERS_A_TOKEN + (EXPECTED_REPLY if reply is None else reply))

    def metrics(self) -> dict[str, float]:
        """What the calls of this game took, under the endpoint's name."""
        return {
            f"{self.name}/retries": float(self.retries),
            f"{self.name}/refused": float(self.refused),
            f"{self.name}/rate_wait_s": self.rate_wait_s,
            **self.usage.metrics(self.name, self.prices),
        }

    def _fault(self, cause: Exception) -> InfrastructureFault:
        circuit = self.breaker.words() if self.breaker is not None else ""
        words = "its circuit is open" if isinstance(cause, CircuitOpen) else _words(cause)
        advice = _ADVICE.get(cause.status, "") if isinstance(cause, Refused) and self.name != POLICY else ""
        kind = EndpointRefused if advice else InfrastructureFault
        return kind(
            f"The {self.name} endpoint {self.base_url} failed ({words}) after {self.retries} failed tries. "
            f"{circuit + ' ' if circuit else ''}The game is void.{' ' + advice if advice else ''}"
        )

    def _tell_of(self, error: Exception) -> None:
        """Say once, until it works again, that an endpoint of somebody else's is not there; it is waited for meanwhile."""
        if self.breaker is not None and self.breaker.first_trouble():
            print(
                f"[ajet] the {self.name} endpoint {self.base_url} does not answer ({_words(error)}); trying again for "
                f"{self.budget_s:g} s a call. Start it, or correct its address.",
                file=sys.stderr, flush=True,
            )  # fmt: skip


def _words(cause: Exception) -> str:
    """An error with what is at its root."""
    root: BaseException = cause
    while root.__cause__ is not None:
        root = root.__cause__
    words = f"{type(cause).__name__}: {str(cause)[:300]}"
    return words if root is cause else f"{words} [{type(root).__name__}: {str(root)[:300]}]"


def _message(answer: Answer) -> tuple[dict[str, Any], Any, Any]:
    """The assistant message of a chat completion, its ``usage``, and why it ended."""
    try:
        whole = json.loads(answer.body)
        choice = whole["choices"][0]
        message, finish_reason = choice["message"], choice.get("finish_reason")
        content = message.get("content")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise NoCompletion(f"HTTP {answer.status}: {answer.body[:200]!r}") from error
    if isinstance(content, list):  # parts
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    reply: dict[str, Any] = {"role": "assistant", "content": _sendable(content)}
    if message.get("reasoning_content"):
        reply["reasoning_content"] = _sendable(message["reasoning_content"])
    return reply, whole.get("usage"), finish_reason


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
