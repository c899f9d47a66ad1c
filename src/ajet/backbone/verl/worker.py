"""verl's training worker with the little it lacks here: a fingerprint of its weights. Runs in verl's actors.

A subclass of ``TinkerActorRolloutRefWorker``: gradients, clipping, AdamW, checkpoints, reference and weight transfer are
verl's own.
"""

from __future__ import annotations

import hashlib
import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.device import get_device_name
from verl.workers.engine_workers_tinker import TinkerActorRolloutRefWorker

from ajet.backbone.fingerprint import BUCKETS, bucket_of
from ajet.backbone.lora import is_adapter, merged, plain_name

if get_device_name() == "cpu":
    from ajet.backbone.verl import engine_cpu, replica  # noqa: F401  (they register themselves)

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
    def ajet_export_merged(self, path: str, scale: float) -> None:
        """Write the weights with their adapters folded in, under transformers' names (gathering them is collective)."""
        assert self.actor is not None
        engine: Any = self.actor.engine
        base: dict[str, torch.Tensor] = {}
        adapters: dict[str, torch.Tensor] = {}
        for name, tensor in engine.module.state_dict().items():
            whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            if self.rank == 0:
                own = whole.detach().cpu().contiguous()
                (adapters if is_adapter(name) else base)[name if is_adapter(name) else plain_name(name)] = own
        if self.rank == 0:
            if engine.model_config.hf_config.tie_word_embeddings:
                base.pop("lm_head.weight", None)
            save_file(merged(base, adapters, scale), path, metadata={"format": "pt"})
