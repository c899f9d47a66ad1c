"""What both clients are constructed with: address, key, budget."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

from ajet.schema.errors import ConfigError
from ajet.schema.uncaught import speak_plainly

KEY_VARIABLE = "AJET_SWARM_KEY"
DEFAULT_RETRY_BUDGET_S = 600.0
DEFAULT_POOL_SIZE = 256


@dataclass(frozen=True)
class Settings:
    """Checked constructor arguments. The key is in no repr."""

    server_url: str
    api_key: str | None = field(repr=False)
    verbose: bool
    retry_budget_s: float
    pool_size: int

    @classmethod
    def of(cls, server_url: str, api_key: str | None, verbose: bool, retry_budget_s: float, pool_size: int) -> Settings:
        """Raises :class:`ConfigError` for an address that is none, or that carries a password."""
        speak_plainly()
        url = str(server_url).strip().rstrip("/")
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or not _has_port(parts):
            raise ConfigError(
                f"server_url is an address like http://127.0.0.1:10086, and this is none: {_without_password(url)!r}.",
                param="server_url",
            )
        if parts.username or parts.password:
            raise ConfigError(
                "server_url carries no user or password; give api_key or set AJET_SWARM_KEY.", param="server_url"
            )
        if parts.query or parts.fragment:
            raise ConfigError("server_url has no query and no fragment.", param="server_url")
        if retry_budget_s < 0 or pool_size < 1:
            raise ConfigError("retry_budget_s is at least 0, and pool_size at least 1.")
        key = api_key if api_key is not None else os.environ.get(KEY_VARIABLE)
        if key and (not key.isascii() or not key.isprintable() or " " in key):
            raise ConfigError("The swarm key holds characters that no key has; check api_key or AJET_SWARM_KEY.")
        return cls(url, key or None, verbose, retry_budget_s, pool_size)

    def say(self, text: str) -> None:
        """One line to the user, on standard error."""
        if self.verbose:
            print(f"[ajet] {text}", file=sys.stderr, flush=True)


def _has_port(parts: SplitResult) -> bool:
    """Whether the port, if one is named, can be one."""
    try:
        return parts.port != 0
    except ValueError:
        return False


def _without_password(url: str) -> str:
    return f"…@{url.rpartition('@')[2]}" if "@" in url else url
