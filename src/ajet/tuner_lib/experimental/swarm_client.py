"""Import path that users' scripts rely on."""

from ajet.client import AsyncSwarmClient, MultiModelEpisode, SwarmClient, begin_episodes, start_engines

async_and_start_multi_engine = SwarmClient.async_and_start_multi_engine

__all__ = [
    "AsyncSwarmClient",
    "MultiModelEpisode",
    "SwarmClient",
    "async_and_start_multi_engine",
    "begin_episodes",
    "start_engines",
]
