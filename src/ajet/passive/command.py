"""What ``ajet-swarm passive`` does; scripts may call :func:`serve` with a judge of their own."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Callable

from ajet.passive.service import PassiveClient
from ajet.passive.settings import check_access
from ajet.schema.errors import AjetError, ConfigError

GRACE_S = 10
"""Seconds that running requests get when the process is told to stop."""


def serve(
    passive: PassiveClient,
    host: str = "127.0.0.1",
    port: int = 10087,
    key: str | None = None,
    on_listening: Callable[[str], None] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM; then let running requests end, and report their rewards.

    Args:
        port: 0 chooses a free one; ``on_listening`` is told the URL.
        key: what the application sends; default: the environment's ``AJET_PASSIVE_KEY``.

    Raises:
        ConfigError: the address is taken, or open to others without a key.
        AjetError: ``agentjet[passive]`` is not installed.
    """
    key = check_access(host, key, os.environ)
    try:
        import uvicorn

        from ajet.passive.app import create_app
    except ImportError as err:
        raise AjetError(
            f"The passive client's endpoint is not installed ({err.name} is missing). Run: pip install 'agentjet[passive]'"
        ) from err
    listener = _listen(host, port)
    url = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}/v1"
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    print(
        f"[ajet] give the application base_url={url} and {'your key' if key else 'any key'}",
        file=sys.stderr,
        flush=True,
    )
    if on_listening is not None:
        on_listening(url)
    config = uvicorn.Config(
        create_app(passive, key), ws="none", access_log=False, log_level="warning", server_header=False,
        timeout_graceful_shutdown=GRACE_S,
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as err:
        listener.close()
        raise ConfigError(f"Cannot listen on {host}:{port}: {err.strerror}. Choose another --port or --host.") from err
    listener.listen(1024)
    return listener
