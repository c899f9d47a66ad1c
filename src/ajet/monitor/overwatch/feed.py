"""What a server says, again and again: :class:`Feed` asks, and a :class:`View` is what is known so far.

Promises: a server that is not there (yet, or any more) is an answer like any other and is asked again with back-off;
what was known stays; only a key that does not open the server is an error. Of the curves only what is new is fetched.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic import BaseModel

from ajet.client.exchange import Call, ConnectionFault, read
from ajet.client.reads import API
from ajet.client.retry import Backoff
from ajet.client.settings import Settings
from ajet.client.transport import AsyncTransport
from ajet.monitor.overwatch.drawing import clean
from ajet.schema.errors import AjetError, Forbidden, InvalidKey, error_from_body
from ajet.schema.status import MetricsHistory, Status

TOP = 50
"""Clients and tasks that are asked for."""
STEPS = 400
"""Newest steps that are kept for curves."""
ANSWER_S = 15.0
"""An answer that takes longer counts as none. (A server that has just begun to listen may need ten seconds.)"""

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class View:
    """What is known of a server.

    Attributes:
        url: its address.
        at: when it was looked at, in Unix seconds of this machine.
        status: its last answer; None before the first. answered: when that came.
        steps: metrics of the newest steps, in order. steps_error: why there may be newer ones.
        lost: since when it has not answered; None where it has. why: what stands in the way. tries: in vain since then.
    """

    url: str
    at: float
    status: Status | None = None
    answered: float = 0.0
    steps: tuple[dict[str, Any], ...] = ()
    steps_error: str = ""
    lost: float | None = None
    why: str = ""
    tries: int = 0


class Feed:
    """Looks at one server. Belongs to one event loop.

    Args:
        url: of the server. api_key: the admin key; None: the environment's ``AJET_SWARM_KEY``.
        clock: Unix seconds.

    Raises:
        ConfigError: the address or the key cannot be one.
    """

    def __init__(self, url: str, api_key: str | None = None, *, clock: Callable[[], float] = time.time) -> None:
        settings = Settings.of(url, api_key, False, 0.0, 1)
        self._transport = AsyncTransport(settings.server_url, settings.api_key, 1)
        self._clock = clock
        self._backoff = Backoff(math.inf)
        self._asked: tuple[float, str | None, int] | None = None
        """Server start, experiment and step that the curves belong to."""
        self.view = View(settings.server_url, clock())

    async def look(self) -> View:
        """Ask once, and return what is known now.

        Raises:
            InvalidKey, Forbidden: this key will never open the server.
        """
        try:
            status = await self._get(Status, "/status", top=str(TOP))
        except (InvalidKey, Forbidden):
            raise
        except (ConnectionFault, AjetError, asyncio.TimeoutError) as err:
            now = self._clock()
            before = self.view
            lost = before.lost if before.lost is not None else now
            self.view = replace(before, at=now, lost=lost, why=reason(err), tries=before.tries + 1)
            return self.view
        now = self._clock()
        self._backoff = Backoff(math.inf)
        self.view = replace(self.view, at=now, status=status, answered=now, lost=None, why="", tries=0)
        await self._look_at_steps(status)
        return self.view

    def pause(self, interval_s: float) -> float:
        """Seconds until the next look is due: ``interval_s``, or the back-off while the server is away."""
        if self.view.lost is None:
            return interval_s
        return self._backoff.next_delay(self._clock()) or 0.0

    async def _look_at_steps(self, status: Status) -> None:
        wanted = (status.started, status.experiment_dir, status.step)
        if wanted == self._asked:
            return
        kept = self.view.steps
        if self._asked is None or self._asked[:2] != wanted[:2] or self._asked[2] > status.step:
            kept = ()
        since = int(kept[-1]["step"]) if kept else max(0, status.step - STEPS)
        try:
            new = (await self._get(MetricsHistory, "/metrics/history", since=str(since))).steps
        except (ConnectionFault, AjetError, asyncio.TimeoutError) as err:
            self.view = replace(self.view, steps=kept, steps_error=reason(err))
            return
        self._asked = wanted
        steps = (*kept, *(step for step in new if isinstance(step.get("step"), int)))
        self.view = replace(self.view, steps=steps[-STEPS:], steps_error="")

    async def _get(self, model: type[M], path: str, **params: str) -> M:
        reply = await asyncio.wait_for(self._transport.send(Call("GET", API + path, params=params)), ANSWER_S)
        if reply.status >= 300:
            if not isinstance(reply.body, dict) or "error" not in reply.body:
                raise AjetError(f"HTTP {reply.status}, and not from a swarm server")
            raise error_from_body(reply.status, reply.body)
        return read(model, reply.body)

    async def close(self) -> None:
        """Let go of the connection."""
        await self._transport.close()


def reason(error: BaseException) -> str:
    """Why there is no answer, in one line."""
    if isinstance(error, AjetError):
        return clean(error.message)
    if isinstance(error, asyncio.TimeoutError):
        return f"no answer within {ANSWER_S:g} s"
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, OSError) and link.strerror:
            return os.strerror(link.errno) if link.errno and link.errno > 0 else clean(link.strerror)
        link = link.__cause__ or link.__context__
    return clean(str(error)) or type(error).__name__
