"""`ajet-swarm eval` as a user runs it: real server, real model, two checkpoints with known behaviour."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
TINY = "ajet-tiny-werewolves"


def test_a_model_against_itself_under_frozen_opponents_leaves_a_report(run_script, tmp_path: Path):
    file = tmp_path / "eval.json"
    command = [
        "-m",
        "ajet.cli",
        "eval",
        "werewolves",
        "--policy",
        TINY,
        "--against",
        TINY,
        "--opponents",
        f"frozen:{TINY}",
    ]
    command += ["--roles", "werewolf,seer", "--games", "9", "--json", str(file)]
    output, _ = (child := run_script(*command, cwd=tmp_path)).communicate(timeout=300)
    assert child.returncode == 0, output
    tree = json.loads(file.read_text())
    assert set(tree["roles"]) == {"werewolf", "seer"}
    assert tree["void"] == 0
    for role, metrics in tree["roles"].items():
        win = metrics["win"]
        assert win["policy"]["games"] == win["against"]["games"] == win["difference"]["games"] == 9
        assert win["difference"]["value"] == pytest.approx(win["policy"]["value"] - win["against"]["value"])
        assert metrics["calls"]["policy"]["value"] > 1, role
    assert tree["roles"]["werewolf"]["teammate_kill"]["policy"]["value"] > 0
    assert "policy - against" in output
    assert list(tmp_path.iterdir()) == [file]


def test_what_is_not_there_is_one_line_and_exit_code_1(run_script, tmp_path: Path):
    command = ["-m", "ajet.cli", "eval", "werewolves", "--policy", "nowhere"]
    output, _ = (child := run_script(*command, cwd=tmp_path)).communicate(timeout=60)
    assert child.returncode == 1
    assert output.count("\n") == 1
    assert "There is no checkpoint nowhere" in output
