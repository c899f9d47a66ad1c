"""How one server runs: addresses, folders, limits. Not the job: that is :class:`AjetConfig`."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Limits:
    """What requests, peers and clients may cost.

    Attributes:
        large_bodies: bodies above a megabyte that are held in memory at once; further ones wait to be read.
        depth: of nesting in a JSON body.
        connections: open at once. The process's limit of open files may lower it.
        header_s: within which a request's head must come whole. body_s: the same for its body, not counting the time in
            which the server does not read. body_bytes_per_s: slower bodies are given up.
        write_s: a peer that reads nothing for so long is cut off.
        chats_in_flight, chats_per_episode: chat requests at once, from the first byte of the body to the answer.
        waiting_begins, waiting_per_client: requests that wait for a lease at once.
        long_polls, event_streams: of ``GET /status`` and ``GET /events`` at once.
        chat_wait_s: how long a chat call may wait for an update, a boot or a restart before it gets a 503.
        backbone_deaths: deaths without a finished step in between after which the engine is FAILED.
        backbone_frozen_s: a backbone process that gives no sign of life for so long is killed and started anew.
        backbone_boot_s: the same until its model is loaded: importing large libraries from a slow disk stops all signs.
        backbone_stuck_s: one that lives and works, and has not come any further for so long, is killed, too.
        backoff_s: pause before the first restart of a dead backbone; doubles up to ``backoff_max_s``.
    """

    chat_body_bytes: int = 16 << 20
    control_body_bytes: int = 32 << 20
    large_bodies: int = 64
    header_bytes: int = 32 << 10
    url_bytes: int = 8 << 10
    depth: int = 64
    messages: int = 4096
    choices: int = 128
    stop_strings: int = 16
    connections: int = 16384
    header_s: float = 20.0
    body_s: float = 600.0
    body_bytes_per_s: int = 1024
    write_s: float = 60.0
    chats_in_flight: int = 8192
    chats_per_episode: int = 256
    waiting_begins: int = 16384
    waiting_per_client: int = 2048
    long_polls: int = 4096
    event_streams: int = 256
    chat_wait_s: float = 900.0
    backbone_deaths: int = 5
    backbone_frozen_s: float = 60.0
    backbone_boot_s: float = 600.0
    backbone_stuck_s: float = 1800.0
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
