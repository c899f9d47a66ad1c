"""Every error that AgentJet raises on purpose, in one hierarchy.

Promise: each message says what happened and what to do about it. Errors that travel over HTTP know their
status, their OpenAI-style ``type`` and a stable ``code``; :func:`error_body` and :func:`error_from_body` turn
them into the wire shape and back, so a client raises the same class that the server raised.
"""

from __future__ import annotations

from typing import Any, ClassVar


class AjetError(Exception):
    """Base of all AgentJet errors.

    Args:
        message: what happened and what to do.
        param: the request field or configuration key at fault, if one is.
        details: extra JSON-able facts (a configuration difference, missing names, …).
    """

    http_status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str] = "internal_error"
    retryable: ClassVar[bool] = False
    """Whether sending the same request again later can succeed."""

    def __init__(self, message: str, *, param: str | None = None, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.details = details or {}
        self.retry_after: float | None = None
        """Seconds to wait before a retry, where the server said so."""


class ConfigError(AjetError):
    """A configuration that is unknown, ill-typed, inconsistent, or impossible on this machine."""

    http_status, type, code = 400, "invalid_request_error", "bad_config"


class InvalidRequest(AjetError):
    """The request is wrong and stays wrong when repeated."""

    http_status, type, code = 400, "invalid_request_error", "invalid_request"


class UnsupportedForTraining(InvalidRequest):
    """A sampling parameter that the trainer could not reproduce (top_p < 1, top_k, penalties, temperature 0)."""

    code = "unsupported_for_training"


class ContextLengthExceeded(InvalidRequest):
    """The prompt, or prompt plus reply, does not fit into ``max_model_len``."""

    code = "context_length_exceeded"


class IncompleteReward(InvalidRequest):
    """A reward dict that does not cover every recorded agent or tag; ``details['missing']`` names them."""

    code = "incomplete_reward"


class InvalidKey(AjetError):
    """No key, or one that opens nothing here."""

    http_status, type, code = 401, "authentication_error", "invalid_api_key"


class Forbidden(AjetError):
    """A key that is genuine but does not open this."""

    http_status, type, code = 403, "permission_error", "forbidden"


class NotFound(AjetError):
    """No such route, episode or model."""

    http_status, type, code = 404, "invalid_request_error", "not_found"


class JobConflict(AjetError):
    """The running engine has a different job; ``details['diff']`` maps key → [running, requested]."""

    http_status, type, code = 409, "conflict_error", "job_conflict"


class EngineStateConflict(AjetError):
    """The call makes no sense in the engine's present state (for example no job was set)."""

    http_status, type, code = 409, "conflict_error", "engine_state"


class TrainingFinished(AjetError):
    """``total_training_steps`` is reached: no further training episode is granted. A normal end, not a fault."""

    http_status, type, code = 409, "training_finished", "training_finished"


class EpisodeGone(AjetError):
    """The episode's lease has ended (expired, aborted, ended); the message carries the reason."""

    http_status, type, code = 410, "episode_gone", "episode_gone"


class TooLarge(AjetError):
    """A body, header or list over its limit."""

    http_status, type, code = 413, "invalid_request_error", "too_large"


class RateLimited(AjetError):
    """Too many requests at once; retry after the stated time."""

    http_status, type, code, retryable = 429, "rate_limit_error", "rate_limited", True


class EngineFailed(AjetError):
    """The engine gave up; the message carries the cause."""

    http_status, type, code = 500, "engine_failed", "engine_failed"


class EngineUnavailable(AjetError):
    """The engine is not serving just now (booting, restarting, stopped); retry."""

    http_status, type, code, retryable = 503, "engine_unavailable", "engine_unavailable", True


class DiskRefused(AjetError):
    """The journal's disk refuses writes (full, read-only); nothing was acknowledged. Keep the result and retry."""

    http_status, type, code, retryable = 507, "insufficient_storage", "disk_refused", True


class JournalDamaged(AjetError):
    """A record of the journal is not what was written."""

    http_status, type, code = 500, "journal_damaged", "journal_damaged"


class ServerUnreachable(AjetError):
    """Client side: no answer within the stated retry budget."""

    http_status, type, code, retryable = 503, "connection_error", "server_unreachable", True


class InfrastructureFault(AjetError):
    """An environment could not be played for reasons that are nobody's policy (network, 429, a bug).

    Raised by workflows and executors; the episode is aborted with this reason and never rewarded.
    """

    http_status, type, code, retryable = 503, "infrastructure_fault", "infrastructure_fault", True


class EnginesNotStarted(AjetError):
    """Of several engines that were to be started together, some were not.

    ``details['failed']`` maps a server's address to why; ``details['serving']`` lists those that serve.
    """

    code = "engines_not_started"


class EpisodesParted(AjetError):
    """Of episodes that were to end together, some are recorded and the others cannot be any more.

    ``details['ended']`` lists the names that are recorded, ``details['lost']`` maps the other names to why.
    """

    code = "episodes_parted"


class EndpointRefused(InfrastructureFault):
    """Another endpoint refuses our key, or does not know what is asked for; trying again does not cure that."""

    retryable = False


def _all_subclasses(cls: type[AjetError]) -> list[type[AjetError]]:
    found: list[type[AjetError]] = []
    for sub in cls.__subclasses__():
        found += [sub, *_all_subclasses(sub)]
    return found


def error_body(err: AjetError) -> dict[str, Any]:
    """The wire shape of ``err``: ``{"error": {"type", "message", "param", "code", "details"?}}``."""
    body: dict[str, Any] = {"type": err.type, "message": err.message, "param": err.param, "code": err.code}
    if err.details:
        body["details"] = err.details
    return {"error": body}


def error_from_body(status: int, body: Any) -> AjetError:
    """The error that :func:`error_body` described; a plain :class:`AjetError` where the code is not ours."""
    error = body.get("error", {}) if isinstance(body, dict) else {}
    if not isinstance(error, dict):
        error = {"message": str(error)}
    by_code: dict[str, type[AjetError]] = {}
    for sub in _all_subclasses(AjetError):
        by_code.setdefault(sub.code, sub)  # a subclass that keeps its parent's code is not what travels
    cls = by_code.get(str(error.get("code")), AjetError)
    details = error.get("details")
    err = cls(
        str(error.get("message") or f"The server answered HTTP {status} without a message."),
        param=error.get("param"),
        details=details if isinstance(details, dict) else None,
    )
    err.http_status = status  # type: ignore[misc]
    return err
