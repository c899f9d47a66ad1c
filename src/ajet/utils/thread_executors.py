"""Import path that users' scripts rely on."""

from ajet.client import PeriodicDrainThreadPoolExecutor

__all__ = ["PeriodicDrainThreadPoolExecutor"]
