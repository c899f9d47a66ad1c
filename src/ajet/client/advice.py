"""What to tell a user about a server that does not answer, or not as one of ours does. Pure: texts from causes.

Used by :mod:`ajet.client.operations`; nothing here is sent or retried.
"""

from __future__ import annotations

import socket
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import ajet
from ajet.schema.endpoint import is_loopback_url

DEFAULT_PORT = 10086
NO_OUTPUT = "no output: the episode's block was left without one"
"""The reason of an abort."""
NO_OUTPUT_HINT = (
    "an episode's block was left without a result, so the episode was aborted and trains nothing. Set episode.output = "
    "WorkflowOutput(reward=…) in the block, or call episode.end(…); episode.abort(reason) where that is what you want."
)


def unreachable(server_url: str, cause: BaseException) -> str:
    """What to do about ``cause``, the last failure to get an answer from ``server_url``."""
    if (through := _through(server_url)) is not None:
        return through
    said = f"{cause} {cause.__cause__}"
    if isinstance(cause.__cause__, ConnectionRefusedError) or "refused" in said:
        return f"Nothing listens there. Start the server ({start_command(server_url)}), or correct the address."
    if isinstance(cause.__cause__, socket.gaierror) or "not known" in said or "name resolution" in said:
        return f"No machine is known as {urlsplit(server_url).hostname}. Correct the address."
    if server_url.startswith("https:") and "SSL" in said.upper():
        return "A swarm server speaks http. Write http://, unless a proxy in front of it holds a certificate."
    return "Check that the server runs, that the address is right, and that no firewall stands between."


def stop_command(server_url: str) -> str:
    """The command that stops the engine of the server at ``server_url``."""
    parts = urlsplit(server_url)
    usual = is_loopback_url(server_url) and parts.port == DEFAULT_PORT
    return "ajet-swarm stop" if usual else f"ajet-swarm stop --swarm-url {server_url}"


def start_command(server_url: str) -> str:
    """The command that starts a server which answers at ``server_url``."""
    parts = urlsplit(server_url)
    command = "ajet-swarm start" if is_loopback_url(server_url) else "on that machine: ajet-swarm start --host 0.0.0.0"
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return command if port == DEFAULT_PORT else f"{command} --swarm-port {port}"


def proxy_of(url: str) -> str | None:
    """The proxy that the environment puts before ``url``, without its password; None for a direct way.

    A loopback address is never asked for through one by our client.
    """
    if is_loopback_url(url):
        return None
    return caught_by(url)


def caught_by(url: str) -> str | None:
    """The proxy that a client which knows of no loopback (the OpenAI SDK's) would take to ``url``."""
    parts = urlsplit(url)
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(parts.hostname or ""):
        return None
    return proxy.rpartition("@")[2] if "@" in proxy else proxy


def no_swarm_server(server_url: str, call: object, status: int, body: Any) -> str | None:
    """What to say where an error's body is not of our shape; None where it is."""
    if isinstance(body, dict) and isinstance(body.get("error"), dict) and body["error"].get("message"):
        return None
    text = f"{server_url} answered {call} with HTTP {status}, and not as a swarm server does. "
    return text + (_through(server_url) or "Another program listens there: correct the address or its port.")


def _through(server_url: str) -> str | None:
    proxy = proxy_of(server_url)
    if proxy is None:
        return None
    return (
        f"The way there leads through the proxy {proxy}, which the environment names. If the server is to be reached "
        f"directly: export NO_PROXY={urlsplit(server_url).hostname}."
    )


def other_version(server_version: str) -> str:
    """What to say where server and client are of different versions; empty where they are not, or it is unknown."""
    ours = ajet.__version__
    if server_version in ("", "unknown", ours):
        return ""
    return f"The server is AgentJet {server_version} and this client {ours}: install the same version on both sides."
