"""Numbered tasks without content, for games that deal from a seed: ``task_id = str(n)``, ``metadata.random_number = n``."""

from __future__ import annotations

from collections.abc import Sequence

from ajet.schema.task import Task


class RandomDummySource:
    """Tasks 0 … ``count`` − 1 for training, and the next ``count`` numbers for validation."""

    def __init__(self, count: int) -> None:
        self._training = [dummy_task(n) for n in range(count)]
        self._validation = range(count, 2 * count)

    def training(self) -> Sequence[Task]:
        return self._training

    def validation(self) -> Sequence[Task]:
        return [dummy_task(n) for n in self._validation]


def dummy_task(number: int) -> Task:
    """Task ``number``."""
    return Task(task_id=str(number), main_query=f"Task {number}", metadata={"random_number": number})
