"""``GET /status`` with its long poll, and ``GET /events``."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ajet.schema.errors import InvalidRequest
from ajet.schema.wire import MAX_WAIT_S, EngineState, Event, Status
from ajet.server.engine import Engine
from ajet.server.http import json_response, until_disconnect
from ajet.server.routes.route import SWARM, Route
from ajet.server.status import status as snapshot

KEEPALIVE_S = 15.0


def _wait_s(text: str | None, default: float) -> float:
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= MAX_WAIT_S:
        raise InvalidRequest(f"wait_s must be a number from 0 to {MAX_WAIT_S:g}.", param="wait_s")
    return value


async def status(request: Request) -> Response:
    engine: Engine = request.app.state.engine
    query = request.query_params
    wait_s = _wait_s(query.get("wait_s"), 30.0)
    states = _states(query.get("wait_state"))
    step = _step(query.get("wait_step"))
    if states or step is not None:

        def holds() -> bool:
            return engine.state in states or (step is not None and engine.version >= step)

        if not holds():
            await until_disconnect(request.receive, engine.changed.wait_until(holds, wait_s))
    return json_response(snapshot(engine))


def _states(text: str | None) -> frozenset[EngineState]:
    try:
        return frozenset(EngineState(part.strip().upper()) for part in (text or "").split(",") if part.strip())
    except ValueError:
        known = ", ".join(state.value for state in EngineState)
        raise InvalidRequest(f"wait_state must be some of {known}, separated by commas.", param="wait_state") from None


def _step(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdigit() or len(text) > 9:
        raise InvalidRequest("wait_step must be a whole number.", param="wait_step")
    return int(text)


async def events(request: Request) -> Response:
    stream = request.app.state.events
    last = request.headers.get("last-event-id") or request.query_params.get("after")
    if last is not None and (not last.isdigit() or len(last) > 15):
        raise InvalidRequest("after must be the id of an event.", param="after")
    queue = stream.listen(int(last) if last is not None else None)

    async def body() -> AsyncIterator[bytes]:
        try:
            yield b": connected\n\n"
            while True:
                try:
                    event: Event = await asyncio.wait_for(queue.get(), KEEPALIVE_S)
                except asyncio.TimeoutError:
                    yield b": alive\n\n"
                    continue
                yield f"id: {event.id}\nevent: {event.kind}\ndata: {event.model_dump_json()}\n\n".encode()
        finally:
            stream.leave(queue)

    return StreamingResponse(body(), media_type="text/event-stream", headers={"cache-control": "no-cache"})


ROUTES = [
    Route(
        "GET",
        f"{SWARM}/status",
        status,
        "State, step, pool, leases, drops, checkpoint, disk, last error; waits for a state or step if asked.",
        answer=Status,
        query=("wait_state", "wait_step", "wait_s"),
    ),
    Route(
        "GET",
        f"{SWARM}/events",
        events,
        "Server-sent events: states, steps, drops, checkpoints, warnings, disk.",
        query=("after",),
    ),
]
