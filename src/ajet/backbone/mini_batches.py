"""How a step is cut into optimizer steps: the same cut for every trainer, so that they train the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch

from ajet.default_config.schema import TrainerConfig
from ajet.schema.errors import EngineStateConflict
from ajet.trajectory.batch import TrainBatch


def check_follows(batch: TrainBatch, step: int) -> None:
    """Raises :class:`EngineStateConflict` unless the batch is of the step after ``step``."""
    if batch.step != step + 1:
        raise EngineStateConflict(
            f"The trainer is at step {step}: it takes the batch of step {step + 1}, not {batch.step}."
        )


def seed_draws(seed: int, device: torch.device) -> None:
    """Seed what a loss draws on ``device`` (``clip_cov``). Without a GPU ``torch.manual_seed`` keeps every seed for the day
    there is one, each with the stack that asked for it."""
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def mini_batches(rows: Iterable[int], unit_R: np.ndarray, config: TrainerConfig, seed: int) -> Iterator[list[int]]:
    """The rows of each optimizer step: ``ppo_epochs`` times all, in an order of ``seed``; rows of a unit stay together.

    Args:
        rows: those that are trained.
        unit_R: the unit (episode and role) of each row.
    """
    rows_of_unit: dict[int, list[int]] = {}
    for r in rows:
        rows_of_unit.setdefault(int(unit_R[r]), []).append(r)
    units = list(rows_of_unit)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(config.ppo_epochs):
        order = [units[i] for i in torch.randperm(len(units), generator=generator).tolist()]
        count = min(config.mini_batch_num, len(units))
        for m in range(count):
            yield [r for unit in order[m::count] for r in rows_of_unit[unit]]
