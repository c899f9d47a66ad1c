"""Servers that the mistakes of a whole file share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.faults.processes import Server, until
from tests.mistakes.world import Starter


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Server]]:
    """``odd("--version", "0.0.1")``: a server process with the fake backbone, ended with the file's last test."""
    with ExitStack() as stack:

        def start(*options: str, environment: dict[str, str] | None = None) -> Server:
            folder = tmp_path_factory.mktemp("server")
            command = ["-m", "tests.mistakes.odd_server", str(folder / "exp"), "{port}", *options]
            server = Server(folder / "exp", folder / "server.out", command, environment)
            stack.callback(server.stop)
            server.start()
            return server

        yield start


@pytest.fixture(scope="session")
def user() -> Iterator[Starter]:
    """Who runs scripts and commands."""
    starter = Starter()
    yield starter
    starter.close()


@pytest.fixture(scope="module")
def server(odd: Callable[..., Server]) -> Server:
    """One that is as it should be."""
    made = odd()
    until(made.status, what="the server's start")
    return made
