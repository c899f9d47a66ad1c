"""The server's side of ``rollout.name: vllm``: the embedded trainer in one process, vLLM in another. Imports neither.

Promises:

- The policy is served by vLLM, trained by the embedded trainer; ``frozen`` calls are sampled in the trainer's process.
- vLLM goes on sampling under the old version while the trainer works (unless ``rollout.sleep_while_training``), and
  changes over when :meth:`VllmBackbone.load_weights` is called. Each token carries the version that sampled it.
- When either process ends, the backbone is dead with that one's cause; the server then starts both anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

from ajet.backbone.embedded.process import ENVIRONMENT as TRAINER_ENVIRONMENT
from ajet.backbone.embedded.process import WORKER, check_job
from ajet.backbone.pipe import WorkerProcess
from ajet.backbone.protocol import BackboneDied, BackboneInfo, Chunk, ModelName, Patience, Sampling, StepResult
from ajet.backbone.vllm.handover import handover, remove_leftovers
from ajet.backbone.vllm.installed import installed_version
from ajet.backbone.vllm.private import ENVIRONMENT
from ajet.backbone.vllm.sampling import check_config
from ajet.default_config.schema import AjetConfig
from ajet.schema.errors import DiskRefused
from ajet.trajectory.batch import TrainBatch

log = logging.getLogger("ajet.backbone")
SAMPLER = "ajet.backbone.vllm.worker"
ROOM_S, ROOM_RETRY_S = 60.0, 2.0
"""How long an update waits for room to hand the weights over, and between two tries."""


class VllmBackbone:
    """Implements :class:`ajet.backbone.protocol.Backbone`.

    Args:
        patience: after which a process that hangs is killed.
    """

    def __init__(self, patience: Patience = Patience()) -> None:  # noqa: B008  (frozen)
        self.trainer = WorkerProcess(WORKER, patience, name="trainer", environment=TRAINER_ENVIRONMENT)
        self.sampler = WorkerProcess(SAMPLER, patience, name="vLLM", environment={**TRAINER_ENVIRONMENT, **ENVIRONMENT})
        self._weight_bytes = 0
        self._served = 0
        self._sleeps = False

    async def start(self, job: dict[str, Any]) -> BackboneInfo:
        """Start the trainer, then the sampler with what memory is left.

        Raises:
            ConfigError: vLLM is not here, or the configuration asks for something that is not.
            BackboneDied: a process ended while starting.
        """
        installed_version()
        config = AjetConfig.model_validate(job)
        check_job(config)
        check_config(config.rollout)
        remove_leftovers()
        self._sleeps = config.rollout.sleep_while_training
        try:
            info = await self.trainer.start(job=job)
            await self.sampler.start(
                job=job, device="cpu" if info.device == "cpu" else "gpu", parameters=info.parameters,
                max_len=info.max_position,
            )  # fmt: skip
        except BaseException:
            await self.close()
            raise
        self._weight_bytes = 4 * info.parameters
        self._served = 0
        return info

    def generate(
        self, ids: list[int], sampling: Sampling, *, session: str, model: ModelName = "policy", stream: bool = False
    ) -> AsyncIterator[Chunk]:
        """See :meth:`ajet.backbone.protocol.Sampler.generate`."""
        process = self.sampler if model == "policy" else self.trainer
        return process.generate(ids, sampling, session=session, model=model, stream=stream)

    async def load_weights(self, version: int) -> None:
        """Hand the trainer's weights, which must be ``version``, to vLLM.

        Raises:
            EngineStateConflict: the trainer has another version.
            DiskRefused: there was no room to hand them over for ``ROOM_S``.
        """
        if version == self._served == 0:  # both have just read them
            await self.trainer.ask("load_weights", version=version)
            return
        deadline = asyncio.get_running_loop().time() + ROOM_S
        while True:
            try:
                with handover(self._weight_bytes) as folder:
                    await self.trainer.ask("export", version=version, directory=str(folder))
                    await self.sampler.ask("load_weights", version=version, directories=[str(folder)])
                break
            except DiskRefused as refused:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                log.warning("the weights of policy %d cannot be handed to vLLM yet: %s", version, refused.message)
                await asyncio.sleep(ROOM_RETRY_S)
        self._served = version

    async def train_step(self, batch: TrainBatch) -> StepResult:
        if self._sleeps:
            await self.sampler.ask("sleep")
        try:
            return StepResult(**await self.trainer.ask("train_step", batch=batch.to_wire()))
        finally:
            if self._sleeps:
                await self.sampler.ask("wake")

    async def save(self, directory: str) -> None:
        await self.trainer.ask("save", directory=directory)

    async def load(self, directory: str) -> BackboneInfo:
        """The trainer's half; :meth:`load_weights` brings the sampler after."""
        return BackboneInfo(**await self.trainer.ask("load", directory=directory))

    async def stats(self) -> dict[str, float]:
        """The sampler's counters: they are there while the trainer works."""
        return await self.sampler.ask("stats")

    async def wait_died(self) -> BackboneDied:
        waiting = [asyncio.ensure_future(process.wait_died()) for process in (self.sampler, self.trainer)]
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            return next(iter(done)).result()
        finally:
            for task in waiting:
                task.cancel()

    async def close(self) -> None:
        """End both processes, whatever they are doing."""
        await asyncio.gather(self.sampler.close(), self.trainer.close())
