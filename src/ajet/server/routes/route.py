"""An entry of a route table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

SWARM = "/swarm/v1"


@dataclass(frozen=True)
class Route:
    """What is served, and what ``/openapi.json`` says of it.

    Attributes:
        access: ``admin`` needs the admin key, ``open`` nothing, ``any`` an admin or an episode key.
        answer: of the first of ``statuses``; ``also``: of others. What is not named is an error of the one shape.
        query: parameter → its JSON schema.
        media: content type of the answer.
    """

    method: Literal["GET", "POST", "PUT"]
    path: str
    handler: Callable[[Request], Awaitable[Response]]
    summary: str
    access: Literal["admin", "open", "any"] = "admin"
    request: type[BaseModel] | None = None
    answer: type[BaseModel] | None = None
    also: Mapping[int, type[BaseModel]] = field(default_factory=dict)
    statuses: tuple[int, ...] = (200,)
    query: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    media: str = "application/json"
