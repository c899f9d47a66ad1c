"""verl's training worker with the little it lacks here. Runs in verl's actors.

A subclass of ``TinkerActorRolloutRefWorker``: gradients, clipping, AdamW, resuming, reference and weight transfer are
verl's own. Added are a fingerprint of the weights, and a save that survives a full disk.
"""

from __future__ import annotations

import hashlib
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.tensor import DTensor
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.device import get_device_name
from verl.workers.engine_workers_tinker import TinkerActorRolloutRefWorker

from ajet.backbone.fingerprint import BUCKETS, bucket_of
from ajet.backbone.verl import shards
from ajet.default_config.schema import LoraConfig

if get_device_name() == "cpu":
    from ajet.backbone.verl import engine_cpu, replica, replica_vllm  # noqa: F401  (they register themselves)

_modes: Any = Dispatch  # its members are added at run time
ONE_TO_ALL = _modes.ONE_TO_ALL
COLLECTIVE_TIMEOUT_S = 600.0


class AjetWorker(TinkerActorRolloutRefWorker):
    """One rank: actor, reference, and (colocated) the hand-over to the rollout replica."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if get_device_name() == "cpu" and not dist.is_initialized():
            torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
            # verl would ask for "cpu:gloo,cpu:gloo", which torch refuses.
            dist.init_process_group(
                "gloo", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]),
                timeout=timedelta(seconds=COLLECTIVE_TIMEOUT_S),
            )  # fmt: skip
        super().__init__(*args, **kwargs)

    @register(dispatch_mode=ONE_TO_ALL)
    def ajet_fingerprint(self) -> tuple[str, list[float], int]:
        """Of this rank's shards: SHA-256, sums by bucket (see :mod:`ajet.backbone.fingerprint`), parameters."""
        assert self.actor is not None
        sha, sums, count = hashlib.sha256(), [0.0] * (2 * BUCKETS), 0
        for name, parameter in sorted(self.actor.engine.module.named_parameters()):  # type: ignore[attr-defined]
            tensor = parameter.detach()
            count += tensor.numel()
            whole = not isinstance(tensor, DTensor)
            local = tensor if whole else tensor.to_local()
            sha.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
            sha.update(local.contiguous().cpu().view(torch.uint8).reshape(-1).numpy().data)
            if whole and self.rank != 0:
                continue  # every rank has it; it counts once
            at = bucket_of(name)
            sums[2 * at] += float(local.double().sum())
            sums[2 * at + 1] += float(local.double().square().sum())
        return sha.hexdigest(), sums, count

    @register(dispatch_mode=ONE_TO_ALL)
    def ajet_where(self) -> tuple[str, int]:
        """Host and process."""
        import ray

        return ray.util.get_node_ip_address(), os.getpid()

    @register(dispatch_mode=ONE_TO_ALL)
    def ajet_save(self, directory: str, dtype: str, lora: dict[str, Any] | None, base: str) -> str | None:
        """Write this rank's shards, as verl's ``load_checkpoint`` reads them, and (rank 0) the model for transformers.

        verl's own save leaves a rank whose disk is full alone, and the others in a barrier. Here what the disk refuses is
        this rank's answer, and every rank takes part in what is collective whatever has been refused.

        Args:
            dtype: of the exported weights.
            lora: the job's ``lora`` keys: adapters are folded in, and written beside.
            base: what the adapters are said to belong to.

        Returns:
            What the disk refused, or None.
        """
        assert self.actor is not None
        engine: Any = self.actor.engine
        folder = Path(directory)
        scheduler = engine.lr_scheduler.state_dict() if engine.lr_scheduler is not None else None
        extra = {"lr_scheduler": scheduler, "rng": engine.checkpoint_manager.get_rng_state()}
        parts = {"model": engine.module.state_dict(), "optim": engine.optimizer.state_dict(), "extra_state": extra}
        refused = shards.write(folder, parts, rank=self.rank, world=dist.get_world_size())
        del parts
        whole: dict[str, Any] = get_model_state_dict(
            engine.module, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
        )
        if self.rank == 0 and refused is None:
            config = LoraConfig.model_validate(lora) if lora else None
            tied = bool(engine.model_config.hf_config.tie_word_embeddings)
            refused = shards.export(folder.parent, whole, getattr(torch, dtype), tied, config, base)
        return refused
