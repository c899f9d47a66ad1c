"""A checkpoint engine over gloo, through verl's registry: weights to replicas of their own on hosts without GPUs.

verl's engines for that (nccl, nixl, …) need an accelerator. One sending rank broadcasts each tensor to all receivers in a
group made for the occasion; names and shapes go through the group's store as JSON.
"""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import ray
import torch
import torch.distributed as dist
from verl.checkpoint_engine import CheckpointEngine, CheckpointEngineRegistry

from ajet.backbone.verl import replica, replica_vllm  # noqa: F401  (verl's checkpoint-engine workers find our adapter)
from ajet.backbone.verl.mapping import GLOO

_dist: Any = dist  # stores are public, but not in torch's list of exports
TIMEOUT = timedelta(seconds=120)


_registry: Any = CheckpointEngineRegistry  # its register is a function, written as a method


@_registry.register(GLOO)
class GlooCheckpointEngine(CheckpointEngine):
    """See the module."""

    def __init__(self, bucket_size: int = 0, is_master: bool = False, **_: Any) -> None:
        self._is_master = is_master
        self._group: Any = None
        self._store: Any = None

    def prepare(self) -> dict[str, Any]:
        if not self._is_master:
            return {}
        with socket.socket() as free:
            free.bind(("", 0))
            return {"host": ray.util.get_node_ip_address(), "port": free.getsockname()[1]}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        size, master = rollout_world_size + 1, metadata[0]

        def kwargs(ranks: list[int]) -> dict[str, list[Any]]:
            return {"rank": ranks, "world_size": [size] * len(ranks), "master": [master] * len(ranks)}

        return kwargs([0] + [-1] * (actor_wg_world_size - 1)), kwargs(list(range(1, size)))

    def init_process_group(self, rank: int, world_size: int, master: dict[str, Any]) -> None:  # type: ignore[override]
        if rank < 0:
            return
        self._store = _dist.TCPStore(master["host"], master["port"], world_size, rank == 0, timeout=TIMEOUT)
        self._group = dist.ProcessGroupGloo(_dist.PrefixStore("weights", self._store), rank, world_size, TIMEOUT)

    async def send_weights(self, weights: Iterator[tuple[str, torch.Tensor]], global_steps: int | None = None) -> Any:
        tensors = [(name, tensor.detach().contiguous()) for name, tensor in weights]  # gathering them is collective
        if self._group is None:
            return {}
        described = [[name, list(t.shape), str(t.dtype).removeprefix("torch.")] for name, t in tensors]
        self._store.set("described", json.dumps(described))
        for _, tensor in tensors:
            self._broadcast(tensor)
        return {}

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, torch.Tensor]]:  # type: ignore[override]
        for name, shape, dtype in json.loads(self._store.get("described")):
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            self._broadcast(tensor)
            yield name, tensor

    def _broadcast(self, tensor: torch.Tensor) -> None:
        options = dist.BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        self._group.broadcast([tensor], options).wait()

    def finalize(self) -> None:
        self._group = self._store = None
