"""An entry of a route table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

SWARM = "/swarm/v1"


@dataclass(frozen=True)
class Route:
    """``access``: ``admin`` needs the admin key, ``open`` nothing, ``any`` an admin or an episode key."""

    method: Literal["GET", "POST", "PUT"]
    path: str
    handler: Callable[[Request], Awaitable[Response]]
    summary: str
    access: Literal["admin", "open", "any"] = "admin"
    request: type[BaseModel] | None = None
    answer: type[BaseModel] | None = None
    statuses: tuple[int, ...] = (200,)
    query: tuple[str, ...] = ()
