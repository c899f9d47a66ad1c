"""What a run of a worker came to: success, training finished, weather (infrastructure), or a bug of the user's code.

Exceptions of other libraries are recognized by their class's name and home, so none of them is imported here.
"""

from __future__ import annotations

from enum import Enum

from ajet.schema.errors import (
    AjetError,
    EndpointRefused,
    EngineFailed,
    EngineUnavailable,
    EpisodeGone,
    Forbidden,
    InfrastructureFault,
    InvalidKey,
    ServerUnreachable,
    TrainingFinished,
)


class Outcome(str, Enum):
    """How a run ended."""

    SUCCEEDED = "succeeded"
    FINISHED = "finished"
    """Training is finished; a normal end."""
    WEATHER = "weather"
    """Infrastructure: network, a server that restarts, a lease that expired, a static model's 429. Run again."""
    UNREACHABLE = "unreachable"
    """No swarm server, or no running engine, within the client's budget. Run again, but not for ever."""
    FATAL = "fatal"
    """No run can succeed: the engine has failed, or the key is wrong."""
    NO_OUTPUT = "no_output"
    """It came back without an exception, and its episode has no result: trained on nothing. Often a forgotten line."""
    BUG = "bug"
    """Anything else."""


_WEATHER_NAMES = {
    "httpx": {"TransportError"},
    "httpx2": {"TransportError"},
    "httpcore": {"NetworkError", "TimeoutException", "ProtocolError"},
    "httpcore2": {"NetworkError", "TimeoutException", "ProtocolError"},
    "openai": {"APIConnectionError", "APITimeoutError", "RateLimitError", "InternalServerError"},
    "anthropic": {"APIConnectionError", "APITimeoutError", "RateLimitError", "InternalServerError"},
    "requests": {"ConnectionError", "Timeout"},
    "aiohttp": {"ClientConnectionError", "ServerTimeoutError", "ClientPayloadError"},
}


def outcome_of(error: BaseException) -> Outcome:
    """Judge the exception that left a run, by itself and by what it was raised from."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        verdict = _verdict(link)
        if verdict is not Outcome.BUG:
            return verdict
        link = link.__cause__
    return Outcome.BUG


def _verdict(error: BaseException) -> Outcome:
    members = getattr(error, "exceptions", None)
    if isinstance(members, tuple) and members:  # an ExceptionGroup is as bad as its worst member
        verdicts = {outcome_of(member) for member in members}
        for worst in (Outcome.BUG, Outcome.FATAL, Outcome.FINISHED, Outcome.UNREACHABLE):
            if worst in verdicts:
                return worst
        return Outcome.WEATHER
    if isinstance(error, TrainingFinished) or _code(error) == TrainingFinished.code:
        return Outcome.FINISHED
    if isinstance(error, (EngineFailed, InvalidKey, Forbidden)):
        return Outcome.FATAL
    if isinstance(error, (ServerUnreachable, EngineUnavailable)):
        return Outcome.UNREACHABLE
    if isinstance(error, EndpointRefused):
        return Outcome.BUG
    if isinstance(error, (InfrastructureFault, EpisodeGone, ConnectionError, TimeoutError)):
        return Outcome.WEATHER
    if isinstance(error, AjetError):
        return Outcome.WEATHER if error.retryable else Outcome.BUG
    if _code(error) == EpisodeGone.code:
        return Outcome.WEATHER
    for cls in type(error).__mro__:
        if cls.__name__ in _WEATHER_NAMES.get(cls.__module__.split(".")[0], ()):
            return Outcome.WEATHER
    if type(error).__name__ == "TimeoutError" and type(error).__module__.startswith(("asyncio", "concurrent")):
        return Outcome.WEATHER
    return Outcome.BUG


def _code(error: BaseException) -> object:
    """The ``code`` of an OpenAI-style API error: the SDK's exceptions carry the body's, an HTTP library's the response."""
    if hasattr(error, "status_code"):
        return getattr(error, "code", None)
    if type(error).__name__ not in ("HTTPStatusError", "HTTPError"):
        return None
    try:
        return error.response.json()["error"]["code"]  # type: ignore[attr-defined]
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError):  # no response, not ours, or not read
        return None
