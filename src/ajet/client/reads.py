"""What a client only reads of the server: status, training steps, episodes. The base of :mod:`ajet.client.operations`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import quote

from ajet.client import advice
from ajet.client.exchange import Call, Exchange, Operation, read
from ajet.client.steps import StepLines
from ajet.schema.status import MetricsHistory, Status
from ajet.schema.wire import EngineState

API = "/swarm/v1"


class Reads(Exchange):
    """See the module; arguments as of :class:`~ajet.client.exchange.Exchange`."""

    def __init__(
        self, server_url: str, *, retry_budget_s: float, say: Callable[[str], None], clock: Callable[[], float]
    ) -> None:
        super().__init__(server_url, retry_budget_s=retry_budget_s, say=say, clock=clock)
        self._step_lines = StepLines()
        self.share: str | None = None
        """The part of each batch that this client plays for."""

    def status(
        self,
        *,
        wait_states: Iterable[EngineState] = (),
        wait_step: int | None = None,
        wait_batch: int | None = None,
        wait_s: float = 0.0,
    ) -> Operation[dict[str, Any]]:
        params = {}
        wanted = ",".join(wait_states)
        if wanted and wait_s > 0:
            params = {"wait_state": wanted, "wait_s": f"{wait_s:g}"}
        if wait_step is not None and wait_s > 0:
            params |= {"wait_step": str(wait_step), "wait_s": f"{wait_s:g}"}
        if wait_batch is not None and wait_s > 0:
            params |= {"wait_batch": str(wait_batch), "wait_s": f"{wait_s:g}"}
        reply = yield from self.request(Call("GET", f"{API}/status", params=params, wait_s=wait_s))
        if isinstance(reply.body, dict):
            self._server_version = str(reply.body.get("server_version") or "")
        skew = advice.other_version(self._server_version)
        if skew:
            self.tell_once(skew)
        return read(Status, reply.body).model_dump(mode="json")

    def steps(self, since: int) -> Operation[list[dict[str, Any]]]:
        reply = yield from self.request(Call("GET", f"{API}/metrics/history", params={"since": str(since)}))
        return read(MetricsHistory, reply.body).steps

    def new_step_lines(self) -> Operation[list[str]]:
        """A line for each step that was not asked for before."""
        status = yield from self.status()
        since = self._step_lines.since(status)
        if since is None:
            return []
        return self._step_lines.lines((yield from self.steps(since)), status["total_steps"], self.share)

    def open_episodes(self) -> Operation[list[dict[str, Any]]]:
        reply = yield from self.request(Call("GET", f"{API}/episodes"))
        return list(reply.body.get("episodes", []))

    def episode(self, episode: str, tokens: bool) -> Operation[dict[str, Any]]:
        params = {"tokens": "true"} if tokens else {}
        return (yield from self.request(Call("GET", f"{API}/episodes/{quote(episode, safe='')}", params=params))).body
