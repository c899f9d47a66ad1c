"""The import paths that users' scripts rely on."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

PATHS = {
    "ajet.schema.task": ["Task", "WorkflowTask", "WorkflowOutput"],
    "ajet.copilot.job": ["AgentJetJob"],
    "ajet.task_reader": ["RouterTaskReader"],
    "ajet.utils.thread_executors": ["PeriodicDrainThreadPoolExecutor"],
    "ajet.tuner_lib.as_oai_baseurl_apikey": ["OpenaiBaseUrlAndApiKey"],
    "ajet.default_config.ajet_config_schema": ["AjetTaskReader"],
    "ajet.tuner_lib.experimental.swarm_client": ["SwarmClient"],
}


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in PATHS.items() for name in names])
def test_a_public_name_is_at_its_path_and_in_ajet(module: str, name: str) -> None:
    assert getattr(importlib.import_module(module), name) is getattr(importlib.import_module("ajet"), name)


def test_every_name_of_ajet_exists() -> None:
    import ajet

    for name in ajet.__all__:
        assert getattr(ajet, name) is not None
    with pytest.raises(AttributeError):
        _ = ajet.nothing_of_that_name


def test_importing_ajet_costs_nothing() -> None:
    script = "import time; t = time.process_time(); import ajet, sys; print(time.process_time() - t, 'pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    seconds, pydantic_is_in = done.stdout.split()
    assert float(seconds) < 0.3
    assert pydantic_is_in == "False"
