"""Every framework's tutorial, with the real library, as a real process against a live server.

One server plays host to all of them, a job after the other. What a framework does behind one's back is read from the
server's record: how many calls, and whether any of them left its agent's timeline.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ajet import SwarmClient
from tests.e2e.conftest import Server
from tests.faults import processes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

FOLDER = processes.ROOT / "tutorial" / "example_frameworks"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in ("__init__", "loop"))
NEWER = {"agentscope_agent", "langchain_agent", "pydantic_ai_agent"}
"""Their libraries exist for Python 3.11 and later only."""
GROWS = {"first", "continues"}
"""How calls stand to those before them where nothing was rewritten and nothing asked twice."""

CUT_OFF = 'reason="chat_errors/episode_gone"'
"""A call still under way as training ends is refused so: the episode it belongs to is needed no more. No fault."""


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("frameworks")
    server = Server(folder / "exp", folder / "server.out")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def server(shared_server: Server) -> Iterator[Server]:
    """The one server, free for another job afterwards."""
    yield shared_server
    client = SwarmClient(shared_server.url)
    client.stop_engine()
    client.close()


def test_each_framework_has_its_script():
    assert SCRIPTS == [
        "agentscope_agent", "langchain_agent", "openai_agents", "openai_async", "openai_sync", "pydantic_ai_agent",
        "raw_http",
    ]  # fmt: skip
    for path in FOLDER.glob("*.py"):
        assert len(path.read_text().splitlines()) < 100, path


@pytest.mark.parametrize("script", [s for s in SCRIPTS if s not in NEWER or sys.version_info >= (3, 11)])
def test_a_tutorial_trains_through_tool_calls_on_timelines_that_only_grow(server, run_script, script, tmp_path: Path):
    child = run_script(str(FOLDER / f"{script}.py"), "--swarm-url", server.url, cwd=tmp_path)
    output, _ = child.communicate(timeout=200)
    assert child.returncode == 0, output
    assert "trained 2 steps" in output
    assert "Traceback" not in output, output
    steps = server.steps()
    assert [step["step"] for step in steps] == [1, 2]
    branches = {key.partition("/")[2]: n for s in steps for key, n in s.items() if key.startswith("timelines/") and n}
    assert set(branches) == GROWS, branches  # a tool was called and its result was read
    metrics = httpx.get(f"{server.url}/metrics", timeout=30).text.splitlines()
    refused = [line for line in metrics if "chat_errors/" in line and CUT_OFF not in line]
    assert not refused
