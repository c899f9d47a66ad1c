"""Claim: every configuration beside the arithmetic script is a job."""

from pathlib import Path

import pytest

from ajet import AgentJetJob

FOLDER = Path(__file__).resolve().parents[3] / "tutorial" / "example_arithmetic"


@pytest.mark.parametrize("name", ["math", "countdown", "math_qwen", "countdown_qwen"])
def test_a_configuration_is_a_job(name):
    assert AgentJetJob(FOLDER / f"{name}.yaml").config.experiment_name == name
