"""One exchange with the server: what is sent, tried again, and how an answer is read or becomes an error.

An operation is a generator of effects: it yields :class:`Call` (send this, hand me the :class:`Reply`, or throw
:class:`ConnectionFault` into me) and :class:`Pause` (wait). The blocking and the asyncio client drive the same generators,
so waiting, retrying, request ids and error mapping exist once. Used by :mod:`ajet.client.operations`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ajet.client import advice
from ajet.client.retry import RETRYABLE_STATUS, Backoff
from ajet.schema.errors import (
    AjetError,
    ConfigError,
    InvalidRequest,
    JobConflict,
    NotFound,
    ServerUnreachable,
    error_from_body,
)

DISK_PATIENCE = 144
"""A server that answers that its disk is full is waited for so many times longer (a day, by default): it is there, what
it was told before is safe, and making room takes a human."""
NOTICE_EVERY_S = 15.0
DEAF_S = 0.5
"""Longest single wait of a thread that Ctrl-C should reach: Python sees a signal that came just before a wait after it."""


@dataclass(frozen=True)
class Call:
    """One HTTP request. ``wait_s``: how long the server may hold it before it answers. ``limit_s``: the longest wait for
    an answer, where somebody who leaves does not want to wait as long as usual."""

    method: str
    path: str
    content: bytes | None = None
    params: dict[str, str] = field(default_factory=dict)
    wait_s: float = 0.0
    limit_s: float | None = None

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    def within(self, seconds: float) -> Call:
        """The same, with at most ``seconds`` for an answer, and at least a moment."""
        longest = seconds if self.limit_s is None else min(seconds, self.limit_s)
        return replace(self, limit_s=max(longest, 0.1))


@dataclass(frozen=True)
class Pause:
    """Wait ``seconds`` before going on."""

    seconds: float


@dataclass(frozen=True)
class Reply:
    """Status, decoded body (None where it was not JSON) and the server's Retry-After in seconds."""

    status: int
    body: Any
    retry_after: float | None = None


class ConnectionFault(Exception):
    """No reply: refused, reset, timed out, cut. The request may or may not have arrived."""


T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
Operation = Generator[Call | Pause, Any, T]


class Exchange:
    """Sends what operations ask for, and tells the user what it waits for.

    Args:
        server_url: without a trailing slash.
        say: prints one line to the user.
        clock: monotonic seconds.
    """

    def __init__(
        self, server_url: str, *, retry_budget_s: float, say: Callable[[str], None], clock: Callable[[], float]
    ) -> None:
        self.server_url = server_url
        self.retry_budget_s = retry_budget_s
        self._say = say
        self._clock = clock
        self._last_notice = -NOTICE_EVERY_S
        self._answered = False
        """Whether the server was ever there: one that was is waited for without advice on where to look for it."""
        self._server_version = ""
        self._told: set[str] = set()

    def request(self, call: Call, budget_s: float | None = None) -> Operation[Reply]:
        """Send ``call`` until it is answered for good.

        Raises:
            ServerUnreachable: no answer within the budget; the last failure is its cause.
            AjetError: the server's own error, when trying again cannot help.
        """
        budget = self.retry_budget_s if budget_s is None else budget_s
        # Only what has no budget of its own waits so long: leaving an episode must not take an hour.
        patience = budget * DISK_PATIENCE if budget_s is None else budget
        backoff, full_disk = Backoff(budget), Backoff(patience)
        ends = None if call.limit_s is None else self._clock() + budget  # who leaves has no time for a second whole try
        while True:
            cause: Exception
            retry_after = None
            tries, limit = backoff, budget
            try:
                reply: Reply = yield call if ends is None else call.within(ends - self._clock())
            except ConnectionFault as fault:
                cause = fault
            else:
                if reply.status < 300:
                    self._answered = True
                    return reply
                cause = self._error(call, reply)
                if reply.status not in RETRYABLE_STATUS:
                    raise cause
                retry_after = reply.retry_after
                if reply.status == 507:
                    tries, limit = full_disk, patience
            delay = tries.next_delay(self._clock(), retry_after)
            if ends is not None and delay is not None and self._clock() + delay >= ends:
                delay = None
            if delay is None:
                within = f" within {limit:g} s" if limit else ""
                answered = f"No answer from {self.server_url} to {call}{within}: {cause}"
                raise ServerUnreachable(f"{answered.rstrip('.')}. {self._advice(cause)}") from cause
            waited = tries.waited(self._clock())
            if waited + delay > 1.0:
                advice = "" if self._answered else f" {self._advice(cause)}"
                self.notice(
                    f"waiting for {self.server_url} since {waited:.0f} s ({cause}); giving up after {limit:g} s.{advice}"
                )
            yield Pause(delay)

    def _advice(self, cause: Exception) -> str:
        """What to do where nobody answers; a server that answered with an error has said so itself."""
        return advice.unreachable(self.server_url, cause) if isinstance(cause, ConnectionFault) else ""

    def _of_reply(self, call: Call, reply: Reply) -> AjetError:
        foreign = advice.no_swarm_server(self.server_url, call, reply.status, reply.body)
        if foreign is not None:
            error = AjetError(foreign)
            error.http_status = reply.status  # type: ignore[misc]
            return error
        error = error_from_body(reply.status, reply.body)
        skew = advice.other_version(self._server_version)
        if skew and isinstance(error, (InvalidRequest, ConfigError, NotFound)):
            return type(error)(f"{error.message} {skew}", param=error.param, details=error.details)
        return error

    def _error(self, call: Call, reply: Reply) -> AjetError:
        error = self._of_reply(call, reply)
        error.retry_after = reply.retry_after
        if isinstance(error, JobConflict):
            diff = error.details.get("diff") or {}
            lines = [f"  {key}: {old!r} runs, {new!r} asked for" for key, (old, new) in diff.items()]
            said = error.message.replace("`ajet-swarm stop`", f"`{advice.stop_command(self.server_url)}`")
            if lines and lines[0] not in said:
                said = "\n".join([said, *lines])
            error = JobConflict(said, param=error.param, details=error.details)
        return error

    def notice(self, text: str) -> None:
        """Say ``text``, at most every :data:`NOTICE_EVERY_S` seconds, however many threads wait."""
        now = self._clock()
        if now - self._last_notice >= NOTICE_EVERY_S:
            self._last_notice = now
            self._say(text)

    def tell_once(self, text: str) -> None:
        """Say ``text`` the first time."""
        if text not in self._told:
            self._told.add(text)
            self._say(text)


def as_json(model: BaseModel, *, only_set: bool = False) -> bytes:
    """``model`` as JSON. Raises :class:`InvalidRequest` where something in it is not JSON-able."""
    try:
        return model.model_dump_json(exclude_unset=only_set).encode()
    except ValueError as err:
        raise InvalidRequest(f"Tasks and outputs travel as JSON, and this one cannot: {err}") from err


def read(model: type[M], body: Any) -> M:
    """The answer ``body`` as ``model``."""
    try:
        return model.model_validate(body)
    except ValidationError as err:
        raise AjetError(
            f"The server's answer is no {model.__name__}. Is this address a swarm server, and of a version that fits?"
        ) from err


def checked(model: type[M], **fields: Any) -> M:
    """A request of ``fields``; wrong ones raise :class:`InvalidRequest`."""
    try:
        return model(**fields)
    except ValidationError as err:
        first = err.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"]))
        raise InvalidRequest(f"{name}: {first['msg']}, found {first['input']!r}.", param=name) from err
