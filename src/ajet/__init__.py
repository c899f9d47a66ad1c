"""AgentJet: a swarm server that trains one language model, and light clients that play and report rewards.

The names below are imported when first used, so ``import ajet`` costs nothing; ``__init__.pyi`` says what they are.
"""

# pyright: reportUnsupportedDunderAll=false

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "AgentJetJob": "ajet.copilot.job",
    "AjetTaskReader": "ajet.default_config.ajet_config_schema",
    "AsyncDebugSwarmClient": "ajet.client",
    "AsyncMultiModelEpisode": "ajet.client",
    "AsyncSwarmClient": "ajet.client",
    "MultiModelEpisode": "ajet.client",
    "DebugSwarmClient": "ajet.client",
    "OpenaiBaseUrlAndApiKey": "ajet.schema.endpoint",
    "PeriodicDrainThreadPoolExecutor": "ajet.client",
    "RouterTaskReader": "ajet.task_reader",
    "SwarmClient": "ajet.client",
    "SwarmThrottlePolicy": "ajet.schema.throttle",
    "Task": "ajet.schema.task",
    "Workflow": "ajet.schema.task",
    "WorkflowOutput": "ajet.schema.task",
    "WorkflowTask": "ajet.schema.task",
    "begin_episodes": "ajet.client",
    "start_engines": "ajet.client",
    "auto_train_with_dataset": "ajet.client",
}

__all__ = [
    "AgentJetJob",
    "AjetTaskReader",
    "AsyncDebugSwarmClient",
    "AsyncMultiModelEpisode",
    "AsyncSwarmClient",
    "DebugSwarmClient",
    "MultiModelEpisode",
    "OpenaiBaseUrlAndApiKey",
    "PeriodicDrainThreadPoolExecutor",
    "RouterTaskReader",
    "SwarmClient",
    "SwarmThrottlePolicy",
    "Task",
    "Workflow",
    "WorkflowOutput",
    "WorkflowTask",
    "auto_train_with_dataset",
    "begin_episodes",
    "start_engines",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ajet' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
