"""``GET /v1/models``: what can be asked for."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from ajet.server import frozen
from ajet.server.chat_request import FROZEN
from ajet.server.http import json_response
from ajet.server.routes.route import Route
from ajet.server.status import served_name


class Model(BaseModel):
    """One served name."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "agentjet"


class ModelList(BaseModel):
    """``GET /v1/models``, as OpenAI has it."""

    object: Literal["list"] = "list"
    data: list[Model]


async def models(request: Request) -> Response:
    engine = request.app.state.engine
    names = ["policy", *(frozen.names(engine.experiment) if engine.experiment else [FROZEN])]
    served = served_name(engine)
    if served and served not in names:
        names.insert(0, served)
    return json_response(ModelList(data=[Model(id=name, created=int(engine.since)) for name in names]))


ROUTES = [
    Route(
        "GET",
        "/v1/models",
        models,
        "Names of the served models: the policy in training, the frozen initial one, and frozen checkpoints.",
        "any",
        answer=ModelList,
    )
]
