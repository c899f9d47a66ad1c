"""The server's side of a backbone that is one process: sampler and trainer behind one pipe. Imports no torch.

Which process that is, with what around it, and which jobs it takes, a subclass says; :mod:`ajet.backbone.pipe` runs it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, ClassVar

from ajet.backbone.pipe import WorkerProcess
from ajet.backbone.protocol import BackboneDied, BackboneInfo, Chunk, ModelName, Patience, Sampling, StepResult
from ajet.default_config.schema import AjetConfig
from ajet.trajectory.batch import TrainBatch


class ProcessBackbone:
    """Implements :class:`ajet.backbone.protocol.Backbone` with a worker process.

    Args:
        patience: after which a worker that hangs is killed.
    """

    WORKER: ClassVar[str]
    """The module that is run; its one argument is the file descriptor of a connected socket."""
    GRACE_S: ClassVar[float] = 0.0
    """How long the worker may take to clean up once its pipe is closed."""

    def __init__(self, patience: Patience = Patience()) -> None:  # noqa: B008  (frozen)
        self.worker = WorkerProcess(self.WORKER, patience, grace_s=self.GRACE_S)

    @property
    def pid(self) -> int | None:
        """Of the worker process, once started."""
        return self.worker.pid

    def _check(self, config: AjetConfig) -> None:
        """Raise :class:`ajet.schema.errors.ConfigError` for a job that this backbone does not take."""
        raise NotImplementedError

    def _environment(self) -> Mapping[str, str]:
        """Settings that the worker gets where the user has none."""
        raise NotImplementedError

    async def start(self, job: dict[str, Any]) -> BackboneInfo:
        """Spawn the worker and load the model.

        Raises:
            ConfigError: the configuration asks for something that is not here (a model, a GPU, an algorithm).
            BackboneDied: the worker ended while starting.
        """
        self._check(AjetConfig.model_validate(job))
        self.worker.environment = self._environment()
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
