"""The light side: clients that ask a swarm server for episodes and report rewards. HTTP only.

Promises: no torch and no server framework are imported; a call that changes state carries a request id, so a lost
reply never doubles it; a server that restarts or a network that drops is waited for inside a stated budget, then a
named error is raised; keys appear in no message, repr or log; an episode that its worker leaves behind is aborted.

Who may call it: users' scripts, ``ajet.cli``, ``ajet.demo``. It never imports ``ajet.server``.
"""

from __future__ import annotations

from ajet.client.async_client import AsyncSwarmClient
from ajet.client.auto_train import auto_train_with_dataset
from ajet.client.debug import AsyncDebugSwarmClient, DebugSwarmClient
from ajet.client.episode import AsyncEpisode, Episode
from ajet.client.executor import PeriodicDrainThreadPoolExecutor
from ajet.client.finish import StopTraining
from ajet.client.multi_model import AsyncMultiModelEpisode, MultiModelEpisode, begin_episodes
from ajet.client.several import start_engines
from ajet.client.swarm_client import SwarmClient
from ajet.schema.throttle import SwarmThrottlePolicy

__all__ = [
    "AsyncDebugSwarmClient",
    "AsyncEpisode",
    "AsyncMultiModelEpisode",
    "AsyncSwarmClient",
    "DebugSwarmClient",
    "Episode",
    "MultiModelEpisode",
    "PeriodicDrainThreadPoolExecutor",
    "StopTraining",
    "SwarmClient",
    "SwarmThrottlePolicy",
    "auto_train_with_dataset",
    "begin_episodes",
    "start_engines",
]
