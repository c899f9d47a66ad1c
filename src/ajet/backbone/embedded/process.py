"""The server's side of the embedded backbone: one worker process on one device that samples and trains. Imports no torch."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from ajet.algorithm.support import check_algorithm
from ajet.backbone.embedded.pipe import WorkerProcess
from ajet.backbone.models import model_dir
from ajet.backbone.protocol import BackboneDied, BackboneInfo, Chunk, ModelName, Patience, Sampling, StepResult
from ajet.default_config.schema import AjetConfig
from ajet.schema.errors import ConfigError
from ajet.trajectory.batch import TrainBatch

WORKER = "ajet.backbone.embedded.worker"


class EmbeddedBackbone:
    """Implements :class:`ajet.backbone.protocol.Backbone` with one worker process on one device.

    Args:
        patience: after which a worker that hangs is killed.
    """

    def __init__(self, patience: Patience = Patience()) -> None:  # noqa: B008  (frozen)
        self.worker = WorkerProcess(WORKER, patience)

    @property
    def pid(self) -> int | None:
        """Of the worker process, once started."""
        return self.worker.pid

    async def start(self, job: dict[str, Any]) -> BackboneInfo:
        """Spawn the worker and load the model.

        Raises:
            ConfigError: the configuration asks for something that is not here (a model, a GPU, an algorithm).
            BackboneDied: the worker ended while starting.
        """
        config = AjetConfig.model_validate(job)
        check_job(config)
        if config.rollout.name not in ("auto", "embedded"):
            raise ConfigError(
                f"rollout.name: {config.rollout.name} is not what the embedded backbone samples with by itself. Set "
                "rollout.name: auto.", param="rollout.name",
            )  # fmt: skip
        return await self.worker.start(job=job)

    def generate(
        self, ids: list[int], sampling: Sampling, *, session: str, model: ModelName = "policy", stream: bool = False
    ) -> AsyncIterator[Chunk]:
        """See :meth:`ajet.backbone.protocol.Sampler.generate`."""
        return self.worker.generate(ids, sampling, session=session, model=model, stream=stream)

    async def load_weights(self, version: int) -> None:
        await self.worker.ask("load_weights", version=version)

    async def train_step(self, batch: TrainBatch) -> StepResult:
        return StepResult(**await self.worker.ask("train_step", batch=batch.to_wire()))

    async def save(self, directory: str) -> None:
        await self.worker.ask("save", directory=directory)

    async def load(self, directory: str) -> BackboneInfo:
        return BackboneInfo(**await self.worker.ask("load", directory=directory))

    async def stats(self) -> dict[str, float]:
        return await self.worker.ask("stats")

    async def wait_died(self) -> BackboneDied:
        return await self.worker.wait_died()

    async def close(self) -> None:
        """End the worker, whatever it is doing."""
        await self.worker.close()


def check_job(config: AjetConfig) -> None:
    """Raises :class:`ConfigError` for what the embedded trainer does not have."""
    check_algorithm(config.trainer_common)
    model_dir(config.model.path)
    if config.lora.rank > 0:
        raise ConfigError(
            "lora.rank: backbone embedded trains all weights in this version. Set lora.rank: 0.", param="lora.rank"
        )
