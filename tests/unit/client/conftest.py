from __future__ import annotations

from collections.abc import Iterator

import pytest

from ajet.client import SwarmClient
from tests.unit.client.fake_swarm import FakeSwarm


@pytest.fixture
def swarm() -> Iterator[FakeSwarm]:
    server = FakeSwarm()
    yield server
    server.close()


@pytest.fixture
def swarms() -> Iterator[tuple[FakeSwarm, FakeSwarm]]:
    """Two servers, in the order of their addresses."""
    pair = sorted((FakeSwarm(), FakeSwarm()), key=lambda swarm: swarm.url)
    yield pair[0], pair[1]
    for swarm in pair:
        swarm.close()


@pytest.fixture
def client(swarm: FakeSwarm) -> Iterator[SwarmClient]:
    with SwarmClient(swarm.url, verbose=False, retry_budget_s=20) as client:
        yield client
