"""What a passive client is made with, beside its server and its judge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ajet.schema.endpoint import is_loopback_url
from ajet.schema.errors import ConfigError

KEY_VARIABLE = "AJET_PASSIVE_KEY"
"""The key that the application sends."""
FALLBACK_KEY_VARIABLE = "AJET_FALLBACK_API_KEY"


@dataclass(frozen=True)
class PlainEndpoint:
    """Any OpenAI-compatible endpoint; serves the application while the swarm server cannot. It is never trained.

    Attributes:
        base_url: ends in ``/v1``. model: replaces the name that the application sent; None keeps it.
    """

    base_url: str
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.base_url.startswith(("http://", "https://")):
            raise ConfigError("The fallback is an address like https://host/v1.", param="fallback")


@dataclass(frozen=True)
class Bounds:
    """How much at once, and how long.

    Attributes:
        max_requests: requests of the application that are being answered at once; each holds ``num_repeat`` episodes.
        max_waiting: requests that may wait for their turn; one more is told to come again (429).
        begin_s: how long a request waits for its episodes (an update, a full server) before it falls back.
        call_s: how long one call is tried again, and at most waited for, before its group is given up.
        judge_s: how long the judge may take.
        episode_s: ``discard_episode_timeout`` of the episodes.
        body_bytes: of a request.
    """

    max_requests: int = 16
    max_waiting: int = 64
    begin_s: float = 60.0
    call_s: float = 300.0
    judge_s: float = 120.0
    episode_s: float = 240.0
    body_bytes: int = 16 << 20

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < (0 if name == "max_waiting" else 1e-3):
                raise ConfigError(f"{name} must be above 0, not {value!r}.", param=name)


def trusts_proxies(url: str) -> bool:
    """Whether calls to ``url`` go through the proxy that the environment names."""
    return not is_loopback_url(url)


def check_access(host: str, key: str | None, environment: Mapping[str, str]) -> str | None:
    """The key that opens the endpoint, None where everybody on this machine may use it.

    Raises:
        ConfigError: the endpoint would be open to other machines without a key.
    """
    key = key if key is not None else environment.get(KEY_VARIABLE)
    if not key and not is_loopback_url(f"http://{f'[{host}]' if ':' in host else host}"):
        raise ConfigError(
            f"{host} is open to other machines, so the endpoint needs a key. Set {KEY_VARIABLE} and give the application "
            "the same as its API key."
        )
    return key or None
