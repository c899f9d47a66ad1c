"""The ASGI application: routes, keys, errors of one shape.

The chat endpoint is dispatched before the framework; everything else is Starlette.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute

import ajet
from ajet.backbone.protocol import Backbone, Patience
from ajet.default_config.schema import AjetConfig
from ajet.schema.errors import AjetError, DiskRefused, InvalidKey, InvalidRequest, NotFound
from ajet.schema.wire import EngineState
from ajet.server.auth import Keys, bearer
from ajet.server.engine import Engine
from ajet.server.events import Events
from ajet.server.http import (
    Bodies,
    Crowd,
    Receive,
    Scope,
    Send,
    check_head,
    error_parts,
    error_response,
    guarded,
    json_response,
)
from ajet.server.openapi import document
from ajet.server.routes import chat, episodes, health, models, pool, status
from ajet.server.routes import engine as engine_routes
from ajet.server.routes.route import Route
from ajet.server.settings import Limits, ServerSettings
from ajet.server.telemetry import Telemetry
from ajet.trajectory import ChatRenderer

log = logging.getLogger("ajet.server")

ROUTES: list[Route] = [
    *status.ROUTES,
    *engine_routes.ROUTES,
    *episodes.ROUTES,
    *pool.ROUTES,
    *health.ROUTES,
    *models.ROUTES,
]
SHUTDOWN_S = 120.0
"""How long a stopping server waits for the update and the last checkpoint."""
RESUME_FIRST_S, RESUME_RETRY_S = 10.0, 2.0


def named_backbone(limits: Limits) -> Callable[[AjetConfig], Backbone]:
    """Makes the backbone that a job names."""
    patience = Patience(limits.backbone_frozen_s, limits.backbone_boot_s, limits.backbone_stuck_s)

    def make(config: AjetConfig) -> Backbone:
        from ajet.backbone import create_backbone

        return create_backbone(config, patience)

    return make


def model_renderer(config: AjetConfig) -> ChatRenderer:
    """The renderer of the job's model."""
    from ajet.backbone import model_dir

    renderer = ChatRenderer(model_dir(config.model.path))
    # The libraries it took in are there to stay: no collection need walk them again.
    gc.collect()
    gc.freeze()
    return renderer


def checkpoint_store(directory: Any, *, keep_last: int, keep_best: int) -> Any:
    from ajet.checkpoint.store import CheckpointStore

    return CheckpointStore(directory, keep_last=keep_last, keep_best=keep_best)


class SwarmApp:
    """ASGI entry. ``engine``, ``keys`` and ``events`` are public for the process that serves it."""

    def __init__(self, engine: Engine, keys: Keys, starlette: Starlette) -> None:
        self.engine = engine
        self.keys = keys
        self.events: Events = engine.events
        self._starlette = starlette
        self._limits = engine.settings.limits
        self._chat = chat.ChatEndpoint(engine, keys, starlette.state.bodies)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            if scope["path"] == chat.PATH and scope["method"] == "POST":
                await self._chat(scope, receive, send)
                return
            try:
                check_head(scope, self._limits)
            except AjetError as err:
                status, body, headers = error_parts(err)
                headers.append((b"content-length", b"%d" % len(body)))
                await send({"type": "http.response.start", "status": status, "headers": headers})
                await send({"type": "http.response.body", "body": body})
                return
        await self._starlette(scope, receive, send)


def create_app(
    settings: ServerSettings,
    backbone_factory: Callable[[AjetConfig], Backbone] | None = None,
    *,
    renderer_factory: Callable[[AjetConfig], ChatRenderer] = model_renderer,
    make_store: Callable[..., Any] = checkpoint_store,
) -> SwarmApp:
    """Build the application. When it starts it resumes what was running in ``settings.exp_dir``; when it ends it
    finishes the current update, saves, and leaves the experiment to be resumed.

    Args:
        backbone_factory, renderer_factory, make_store: see :class:`Engine`; None: the backbone that the job names.
    """
    keys = Keys(settings)
    events = Events()
    telemetry = Telemetry()
    engine = Engine(
        settings,
        events=events,
        telemetry=telemetry,
        backbone_factory=backbone_factory or named_backbone(settings.limits),
        renderer_factory=renderer_factory,
        make_store=make_store,
    )

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        resuming = asyncio.create_task(_resume(engine)) if engine.resume() else None
        if resuming is not None:
            # A first try is made before the first request is answered.
            await asyncio.wait([resuming], timeout=RESUME_FIRST_S)
        yield
        if resuming is not None:
            resuming.cancel()
        await engine.stop(resume_later=True)
        try:
            await asyncio.wait_for(engine.wait_stopped(), SHUTDOWN_S)
        except asyncio.TimeoutError:
            log.error("the engine did not stop within %g s; its journal will resume it", SHUTDOWN_S)

    openapi = document(ROUTES, ajet.__version__)

    async def openapi_json(_request: Request) -> Response:
        return json_response(openapi)

    table = [StarletteRoute(route.path, _protect(route, keys), methods=[route.method]) for route in ROUTES]
    table.append(StarletteRoute("/openapi.json", openapi_json, methods=["GET"]))
    table.append(StarletteRoute(chat.PATH, _method_not_allowed, methods=["GET", "PUT", "DELETE", "PATCH"]))
    starlette = Starlette(routes=table, lifespan=lifespan, exception_handlers={HTTPException: _http_error})  # type: ignore[dict-item]
    starlette.state.engine = engine
    starlette.state.keys = keys
    starlette.state.events = events
    starlette.state.telemetry = telemetry
    limits = starlette.state.limits = settings.limits
    starlette.state.bodies = Bodies(limits.large_bodies)
    starlette.state.begins = Crowd("waiting requests for an episode", limits.waiting_begins, limits.waiting_per_client)
    starlette.state.polls = Crowd("waiting requests for the status", limits.long_polls)
    starlette.state.streams = Crowd("event streams", limits.event_streams)
    return SwarmApp(engine, keys, starlette)


async def _resume(engine: Engine) -> None:
    """Start what was running; while the disk refuses, try again until it does not or somebody starts another engine."""
    assert engine.job is not None
    log.info("resuming experiment %s", engine.job.experiment_name)
    while engine.state is EngineState.OFFLINE and engine.resuming:
        try:
            await engine.start()
            return
        except DiskRefused as err:
            if engine.waits_for_disk is None:
                log.error("the experiment cannot be resumed yet: %s", err.message)
            engine.last_error = engine.waits_for_disk = err.message
            await engine.changed.wait_until(lambda: engine.state is not EngineState.OFFLINE, RESUME_RETRY_S)
        except AjetError as err:
            engine.last_error = err.message
            log.error("the experiment could not be resumed: %s", err.message)
            return


def _protect(route: Route, keys: Keys) -> Callable[[Request], Awaitable[Response]]:
    """The route behind its key, inside the request boundary."""

    async def checked(request: Request) -> Response:
        if route.access != "open":
            token = bearer(request.headers.get("authorization"))
            try:
                headers = request.headers
                keys.check_admin(
                    token,
                    origin=headers.get("origin"),
                    host=headers.get("host"),
                    site=headers.get("sec-fetch-site"),
                )
            except InvalidKey:
                if route.access != "any":
                    raise
                keys.check_episode_key(token)
        return await route.handler(request)

    checked.__name__ = route.handler.__name__
    return guarded(checked)


async def _method_not_allowed(_request: Request) -> Response:
    raise HTTPException(405)


async def _http_error(request: Request, err: Exception) -> Response:
    """What the framework itself refuses (404, 405, …), in our shape."""
    assert isinstance(err, HTTPException)
    if err.status_code == 404:
        return error_response(NotFound(f"There is no {request.method} {request.url.path} here. See /openapi.json."))
    if err.status_code == 405:
        found: AjetError = InvalidRequest(f"{request.url.path} does not answer {request.method}. See /openapi.json.")
    else:
        found = InvalidRequest(str(err.detail))
    found.http_status = err.status_code  # type: ignore[misc]
    response = error_response(found)
    for name, value in (err.headers or {}).items():
        response.headers[name] = value
    return response
