"""The arithmetic tutorial as a user runs it: it measures, trains and measures again, as a real process on a live server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.faults import processes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
SCRIPT = processes.ROOT / "tutorial" / "example_arithmetic" / "train.py"


@pytest.mark.parametrize("task", ["math", "countdown"])
def test_the_script_trains_and_compares_held_out_problems(make_server, run_script, task, tmp_path: Path):
    server = make_server()
    script = run_script(
        str(SCRIPT), "--task", task, "--steps", "2", "--eval-problems", "24", "--swarm-url", server.url, cwd=tmp_path
    )
    output, _ = script.communicate(timeout=200)
    assert script.returncode == 0, output
    assert "Traceback" not in output, output
    for line in ("before training: ", "after training: ", "gained, problem by problem: "):
        assert line in output, output
    shares = json.loads(output.splitlines()[-1])
    assert all(0.0 <= shares[when] <= 1.0 for when in ("before", "after"))
    steps = server.steps()
    assert [step["step"] for step in steps] == [1, 2]
    assert len({step["digest"] for step in steps}) == 2  # the weights moved
