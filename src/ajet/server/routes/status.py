"""``GET /status`` with its long poll, and ``GET /events``."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ajet.schema.errors import InvalidRequest
from ajet.schema.status import Event, Status
from ajet.schema.wire import MAX_WAIT_S, EngineState
from ajet.server.engine import Engine
from ajet.server.http import json_response, until_disconnect, whole_number
from ajet.server.routes.route import SWARM, Route
from ajet.server.status import status as snapshot

KEEPALIVE_S = 15.0
TOP_LIMIT = 100
_STATES = "^({0})(,({0}))*$".format("|".join(state.value for state in EngineState))


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
    step = whole_number(query["wait_step"], 9, "wait_step") if "wait_step" in query else None
    batch = whole_number(query["wait_batch"], 9, "wait_batch") if "wait_batch" in query else None
    top = whole_number(query.get("top", "0"), 3, "top")
    if top > TOP_LIMIT:
        raise InvalidRequest(f"top must be a whole number from 0 to {TOP_LIMIT}.", param="top")
    if states or step is not None or batch is not None:

        def holds() -> bool:
            return (
                engine.leaving
                or engine.state in states
                or (step is not None and engine.version >= step)
                or (batch is not None and engine.experiment is not None and engine.experiment.batch_step >= batch)
            )

        if not holds():
            with request.app.state.polls.enter():
                await until_disconnect(request.receive, engine.changed.wait_until(holds, wait_s))
    return json_response(snapshot(engine, top))


def _states(text: str | None) -> frozenset[EngineState]:
    try:
        return frozenset(EngineState(part.strip().upper()) for part in (text or "").split(",") if part.strip())
    except ValueError:
        known = ", ".join(state.value for state in EngineState)
        raise InvalidRequest(f"wait_state must be some of {known}, separated by commas.", param="wait_state") from None


async def events(request: Request) -> Response:
    stream = request.app.state.events
    last = request.headers.get("last-event-id") or request.query_params.get("after")
    after = whole_number(last, 15, "after") if last is not None else None
    held = contextlib.ExitStack()
    held.enter_context(request.app.state.streams.enter())
    queue = stream.listen(after)

    held.callback(stream.leave, queue)
    return _EventStream(queue, held)


class _EventStream(StreamingResponse):
    """Events as they come. ``held`` is let go of however it ends, also where it never began."""

    def __init__(self, queue: asyncio.Queue[Event], held: contextlib.ExitStack) -> None:
        super().__init__(_lines(queue), media_type="text/event-stream", headers={"cache-control": "no-cache"})
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._held:
            await super().__call__(scope, receive, send)


async def _lines(queue: asyncio.Queue[Event]) -> AsyncIterator[bytes]:
    yield b": connected\n\n"
    while True:
        try:
            event = await asyncio.wait_for(queue.get(), KEEPALIVE_S)
        except asyncio.TimeoutError:
            yield b": alive\n\n"
            continue
        yield f"id: {event.id}\nevent: {event.kind}\ndata: {event.model_dump_json()}\n\n".encode()


ROUTES = [
    Route(
        "GET",
        f"{SWARM}/status",
        status,
        "State, step, pool, leases, drops, checkpoint, disk, last error; waits for a state or step if asked.",
        answer=Status,
        query={
            "wait_state": {
                "type": "string",
                "pattern": _STATES,
                "description": "States, separated by commas: answer when it is one of them.",
            },
            "wait_step": {"type": "integer", "minimum": 0, "maximum": 999_999_999},
            "wait_batch": {
                "type": "integer",
                "minimum": 0,
                "maximum": 999_999_999,
                "description": "Answer when the batch of this update is fixed: the weights are about to change.",
            },
            "wait_s": {"type": "number", "minimum": 0, "maximum": MAX_WAIT_S, "default": 30},
            "top": {
                "type": "integer",
                "minimum": 0,
                "maximum": TOP_LIMIT,
                "default": 0,
                "description": "Show the activity of at most so many clients and tasks.",
            },
        },
    ),
    Route(
        "GET",
        f"{SWARM}/events",
        events,
        "Server-sent events: states, steps, drops, checkpoints, warnings, disk.",
        query={"after": {"type": "integer", "minimum": 0, "description": "Begin after the event with this id."}},
        media="text/event-stream",
    ),
]
