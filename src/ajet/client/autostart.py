"""Starts a swarm server as a child of this process, and stops it at exit."""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from ajet.client.settings import KEY_VARIABLE
from ajet.schema.errors import ConfigError, ServerUnreachable

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0


def start_server(server_url: str, api_key: str | None, say: Callable[[str], None]) -> subprocess.Popen[bytes] | None:
    """Start ``ajet-swarm start`` for ``server_url`` unless something listens there already (then returns None).

    Raises:
        ConfigError: the address is not this machine's.
        ServerUnreachable: the child ended, or did not listen in time.
    """
    from ajet.schema.endpoint import is_loopback_url

    parts = urlsplit(server_url)
    if not is_loopback_url(server_url) or parts.scheme != "http":
        raise ConfigError(
            f"auto_start_swarm_server starts a server on this machine, and {server_url} is not on it. "
            "Use http://127.0.0.1:10086, or start the server there."
        )
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    if _listens(host, port):
        return None
    command = [sys.executable, "-m", "ajet.cli", "start", "--host", host, "--swarm-port", str(port)]
    environment = {**os.environ, KEY_VARIABLE: api_key} if api_key else dict(os.environ)
    say(f"starting a swarm server at {server_url}")
    child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
    atexit.register(_stop, child)
    deadline = time.monotonic() + START_TIMEOUT_S
    while not _listens(host, port):  # nothing can wake us from another process's listen()
        if child.poll() is not None:
            raise ServerUnreachable(
                f"The swarm server that was started ended with code {child.returncode}; its own message is above."
            )
        if time.monotonic() > deadline:
            _stop(child)
            raise ServerUnreachable(f"The swarm server that was started did not listen within {START_TIMEOUT_S:g} s.")
        time.sleep(0.1)
    return child


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1.0):
            return True
    except OSError:
        return False


def _stop(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is not None:
        return
    child.terminate()
    try:
        child.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
