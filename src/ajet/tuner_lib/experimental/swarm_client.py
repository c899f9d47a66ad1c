"""Import path that users' scripts rely on."""

from ajet.client import AsyncSwarmClient, DebugSwarmClient, SwarmClient, SwarmThrottlePolicy, auto_train_with_dataset

__all__ = ["AsyncSwarmClient", "DebugSwarmClient", "SwarmClient", "SwarmThrottlePolicy", "auto_train_with_dataset"]
