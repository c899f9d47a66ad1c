"""Import path that users' scripts rely on."""

from ajet.client import AsyncSwarmClient, SwarmClient

__all__ = ["AsyncSwarmClient", "SwarmClient"]
