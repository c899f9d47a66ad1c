"""``GET /v1/models``: what can be asked for."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ajet.server.chat_request import FROZEN
from ajet.server.http import json_response
from ajet.server.routes.route import Route
from ajet.server.status import served_name


async def models(request: Request) -> Response:
    engine = request.app.state.engine
    names = ["policy", FROZEN]
    served = served_name(engine)
    if served and served not in names:
        names.insert(0, served)
    data: list[dict[str, Any]] = [
        {"id": name, "object": "model", "created": int(engine.since), "owned_by": "agentjet"} for name in names
    ]
    return json_response({"object": "list", "data": data})


ROUTES = [
    Route(
        "GET",
        "/v1/models",
        models,
        "Names of the served model: the policy in training, and the frozen initial one.",
        "any",
    )
]
