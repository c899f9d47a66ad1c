"""Atomic, verified, bounded checkpoint directories. See :mod:`ajet.checkpoint.store`. No torch."""

from ajet.checkpoint.store import Checkpoint, CheckpointStore

__all__ = ["Checkpoint", "CheckpointStore"]
