"""Chat calls to models: the swarm server's, tried again inside a budget, and the plain endpoint's, forwarded."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

import httpx

from ajet.client.retry import RETRYABLE_STATUS, Backoff
from ajet.passive.judge import Answer
from ajet.passive.settings import PlainEndpoint
from ajet.schema.endpoint import OpenaiBaseUrlAndApiKey
from ajet.schema.errors import AjetError, InfrastructureFault, error_from_body

CONNECT_S = 10.0


async def chat(http: httpx.AsyncClient, api: OpenaiBaseUrlAndApiKey, body: dict[str, Any], budget_s: float) -> Answer:
    """One answer of an episode's model. A try whose reply was lost gets that reply again.

    Raises:
        InfrastructureFault: no answer within the budget.
        AjetError: the server's refusal, where trying again cannot help.
    """
    headers = {"authorization": f"Bearer {api.api_key}", "idempotency-key": uuid.uuid4().hex}
    sent = {**body, "model": api.model}
    timeout = httpx.Timeout(budget_s, connect=CONNECT_S)
    tries = Backoff(budget_s)
    while True:
        retry_after = None
        try:
            reply = await http.post(f"{api.base_url}/chat/completions", json=sent, headers=headers, timeout=timeout)
            if reply.status_code < 300:
                return _answer(reply.json())
            cause: Exception = error_from_body(reply.status_code, _json(reply))
            if reply.status_code not in RETRYABLE_STATUS:
                raise cause
            retry_after = _seconds(reply.headers.get("retry-after"))
        except (httpx.TransportError, httpx.DecodingError, ValueError, LookupError, TypeError) as err:
            cause = err
        delay = tries.next_delay(time.monotonic(), retry_after)
        if delay is None:
            raise InfrastructureFault(f"No answer of {api.base_url} within {budget_s:g} s: {cause!r}") from cause
        await asyncio.sleep(delay)


def _answer(completion: dict[str, Any]) -> Answer:
    choice = completion["choices"][0]
    return Answer(choice["message"], choice.get("finish_reason") or "stop", completion)


def _json(reply: httpx.Response) -> Any:
    try:
        return reply.json()
    except ValueError:
        return None


def _seconds(value: str | None) -> float | None:
    try:
        return float(value) if value is not None else None
    except ValueError:
        return None


async def forward(http: httpx.AsyncClient, to: PlainEndpoint, body: dict[str, Any], timeout_s: float) -> httpx.Response:
    """Send the application's request on as it is. The response is open: read or stream it, then ``aclose`` it.

    Raises:
        InfrastructureFault: the endpoint does not answer.
    """
    sent = {**body, "model": to.model} if to.model else body
    headers = {"authorization": f"Bearer {to.api_key}"} if to.api_key else {}
    url = f"{to.base_url.rstrip('/')}/chat/completions"
    request = http.build_request(
        "POST", url, json=sent, headers=headers, timeout=httpx.Timeout(timeout_s, connect=CONNECT_S)
    )
    try:
        return await http.send(request, stream=True)
    except httpx.TransportError as err:
        raise InfrastructureFault(f"{to.base_url} does not answer: {err!r}") from err


def words(error: BaseException) -> str:
    """What happened, for a message."""
    return error.message if isinstance(error, AjetError) else f"{type(error).__name__}: {error}".rstrip(": ")
