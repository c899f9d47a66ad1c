"""What a source of tasks is: two sequences, loaded when first asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ajet.schema.task import Task


class TaskSource(Protocol):
    def training(self) -> Sequence[Task]:
        """The training tasks in the source's own order."""
        ...

    def validation(self) -> Sequence[Task]:
        """The validation tasks in the source's own order."""
        ...
