"""How one server runs: addresses, folders, limits. Not the job: that is :class:`AjetConfig`."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Limits:
    """What a request may cost.

    Attributes:
        chat_wait_s: how long a chat call may wait for an update, a boot or a restart before it gets a 503.
        backbone_deaths: deaths without a finished step in between after which the engine is FAILED.
        backoff_s: pause before the first restart of a dead backbone; doubles up to ``backoff_max_s``.
    """

    chat_body_bytes: int = 16 << 20
    control_body_bytes: int = 32 << 20
    header_bytes: int = 32 << 10
    messages: int = 4096
    choices: int = 128
    stop_strings: int = 16
    chats_in_flight: int = 8192
    chat_wait_s: float = 900.0
    backbone_deaths: int = 5
    backoff_s: float = 0.5
    backoff_max_s: float = 30.0


@dataclass(frozen=True)
class ServerSettings:
    """One server process.

    Attributes:
        exp_dir: folder of experiments; the server's own data lies in ``<exp_dir>/.server``.
        admin_key: opens the swarm API; None: none demanded on loopback, generated and kept elsewhere.
    """

    host: str = "127.0.0.1"
    port: int = 10086
    exp_dir: Path = Path("saved_experiments")
    admin_key: str | None = None
    limits: Limits = field(default_factory=Limits)

    @property
    def data_dir(self) -> Path:
        return self.exp_dir / ".server"

    @property
    def loopback(self) -> bool:
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
