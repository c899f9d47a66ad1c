"""Import path that users' scripts rely on."""

from ajet.client import (
    AsyncSwarmClient,
    DebugSwarmClient,
    MultiModelEpisode,
    SwarmClient,
    SwarmThrottlePolicy,
    auto_train_with_dataset,
    begin_episodes,
    start_engines,
)

async_and_start_multi_engine = SwarmClient.async_and_start_multi_engine

__all__ = [
    "AsyncSwarmClient",
    "DebugSwarmClient",
    "MultiModelEpisode",
    "SwarmClient",
    "SwarmThrottlePolicy",
    "async_and_start_multi_engine",
    "auto_train_with_dataset",
    "begin_episodes",
    "start_engines",
]
