"""A rollout replica without vLLM, through verl's replica registry: the embedded sampler in a Ray actor, for CPUs.

It keeps verl's contract of a server actor (``generate``, ``abort_all_requests``, ``resume_generation``, sleep and wake),
so the load balancer, the clients and the weight updates in front of it are verl's own. Imported in the driver and in
verl's actors; it registers itself.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import traceback
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

import ray
import torch
from verl.workers.rollout import base as rollout_base
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput
from verl.workers.rollout.utils import ensure_async_iterator

from ajet.backbone.lora import is_adapter, merged, plain_name
from ajet.backbone.protocol import Chunk, Sampling
from ajet.backbone.verl.mapping import REPLICA


def server_name(replica_rank: int) -> str:
    return f"ajet_torch_server_{replica_rank}"


class TorchServer:
    """An asyncio actor around :class:`ajet.backbone.embedded.sampler.Sampler`."""

    def __init__(self, path: str, max_len: int, max_seqs: int, seed: int) -> None:
        from ajet.backbone.embedded.engine import new_sampler
        from ajet.backbone.embedded.net import eos_ids, load_net
        from ajet.default_config.schema import RolloutConfig

        torch.set_num_threads(1)
        device, source = torch.device("cpu"), Path(path)
        rollout = RolloutConfig(max_num_seqs=max_seqs, max_model_len=max_len)

        def sampler(net: Any, share: float) -> Any:
            return new_sampler(net, rollout, max_len, device, torch.float32, eos_ids(source), seed, 0, share)

        self._make, self._load_net = sampler, lambda: load_net(source, device, torch.float32)
        self._net = self._load_net()
        self._initial = {name: tensor.detach().clone() for name, tensor in self._net.state_dict().items()}
        self._samplers: dict[str, Any] = {"policy": sampler(self._net, 0.8)}
        self._version: int | None = None
        self._keys = itertools.count(1)
        self._waiting: dict[int, tuple[str, asyncio.Queue[Chunk | None]]] = {}
        self._open, self._work = asyncio.Event(), asyncio.Event()
        self._open.set()
        self._ticking: asyncio.Task[None] | None = None

    # -- verl's server contract -----------------------------------------------------------------------------------------

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str, model: str = "policy", **_: Any
    ) -> TokenOutput:
        """Token ids in, token ids out; what an abort interrupts is answered as far as it came."""
        await self._open.wait()
        if self._ticking is None:
            self._ticking = asyncio.create_task(self._tick())
            self._ticking.add_done_callback(_end)
        if model not in self._samplers:
            self._samplers[model] = self._make(self._load_net(), 0.2)
        limit = sampling_params.get("max_tokens", 1024)
        sampling = Sampling(
            temperature=sampling_params.get("temperature", 1.0), top_p=sampling_params.get("top_p", 1.0),
            top_k=max(0, sampling_params.get("top_k", 0)), max_tokens=limit,
            stop_token_ids=tuple(sampling_params.get("stop_token_ids") or ()), seed=sampling_params.get("seed"),
            ignore_eos=bool(sampling_params.get("ignore_eos", False)),
        )  # fmt: skip
        key, queue = next(self._keys), asyncio.Queue[Chunk | None]()
        self._waiting[key] = (request_id, queue)
        ids: list[int] = []
        logprobs: list[float] = []
        reason, version = "aborted", self._version
        try:
            self._samplers[model].submit(key, list(prompt_ids), sampling, True)
            self._work.set()
            while (chunk := await queue.get()) is not None:
                ids += chunk.ids
                logprobs += chunk.logprobs
                if chunk.finish_reason is not None:
                    reason = "completed"
                    break
        finally:
            self._forget(key)
        return TokenOutput(
            token_ids=ids, log_probs=logprobs, stop_reason=reason, extra_fields={"global_steps": version}
        )  # fmt: skip

    async def abort_all_requests(self, reject_request: bool = False) -> None:
        """Answer what is under way, and hold back what comes until :meth:`resume_generation`."""
        self._open.clear()
        for _, queue in self._waiting.values():
            queue.put_nowait(None)

    async def abort_request(self, request_id: str) -> None:
        for own, queue in self._waiting.values():
            if own == request_id:
                queue.put_nowait(None)

    async def resume_generation(self) -> None:
        self._open.set()

    async def _nothing(self, *_: Any, **__: Any) -> None:
        return None

    wake_up = sleep = clear_kv_cache = release_kv_cache = resume_kv_cache = _nothing

    # -- ours -----------------------------------------------------------------------------------------------------------

    async def load(self, tensors: dict[str, torch.Tensor], scale: float | None, version: int | None) -> None:
        """Take over weights: all of them, or (with ``scale``) adapters on top of the initial ones."""
        if scale is not None:
            adapters = {name: tensor for name, tensor in tensors.items() if is_adapter(name)}
            if not adapters:  # verl hands the base over, which is here already
                return
            tensors = merged(self._initial, adapters, scale)
        own = self._net.state_dict()  # views: writing to them changes the weights
        given = {plain_name(name): tensor for name, tensor in tensors.items()}
        missing = sorted(own.keys() - given.keys())
        if missing:
            raise RuntimeError(f"The trainer sent no weights for {missing[:4]}: replica and trainer disagree on names.")
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(given[name])
        self._net.synchronize()
        self._version = version
        self._serve(version or 0)

    def _serve(self, version: int) -> None:
        """Sample the policy from the net's weights as ``version`` from now on."""
        self._samplers["policy"].refresh(version)

    async def _tick(self) -> None:
        while True:
            await self._work.wait()
            for sampler in self._samplers.values():
                if sampler.busy:
                    for key, chunk in sampler.tick():
                        if key in self._waiting:
                            self._waiting[key][1].put_nowait(chunk)
            if not any(sampler.busy for sampler in self._samplers.values()):
                self._work.clear()
            await asyncio.sleep(0)

    def _forget(self, key: int) -> None:
        self._waiting.pop(key, None)
        for sampler in self._samplers.values():
            sampler.cancel(key)


def _end(ticking: asyncio.Task[None]) -> None:
    """A sampler that failed ends its actor: calls would wait for it for ever, and the driver watches actors."""
    if not ticking.cancelled():
        print("".join(traceback.format_exception(ticking.exception())), file=sys.stderr, flush=True)
        os._exit(1)


class TorchReplica(RolloutReplica):
    """One server actor, whatever the replica's share of the workers."""

    SERVER: ClassVar[type] = TorchServer

    async def launch_servers(self) -> None:
        self._server_address = server_name(self.replica_rank)
        server: Any = ray.remote(self.SERVER)
        self._server_handle = server.options(
            name=self._server_address, num_cpus=0, max_concurrency=self.max_concurrency
        ).remote(
            self.model_config.path, self.config.max_model_len, self.config.max_num_seqs, self.config.seed,
        )  # fmt: skip
        self.servers = [self._server_handle]
        await self._server_handle.resume_generation.remote()


class TorchServerAdapter(BaseRollout):
    """In a training (or checkpoint-engine) worker: hands weights to its replica's server."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1, **_: Any) -> None:
        super().__init__(config, model_config, device_mesh)
        self.replica_rank, self.is_leader_rank = replica_rank, True
        if device_mesh is not None:
            self.replica_rank = device_mesh["dp"].get_local_rank()
            self.is_leader_rank = device_mesh["infer_tp"].get_local_rank() == 0

    async def resume(self, tags: list[str]) -> None: ...

    async def release(self) -> None: ...

    async def update_weights(
        self, weights: Any, wire_format: str = "named_tensors", *, global_steps: int | None = None,
        peft_config: dict[str, Any] | None = None, base_sync_done: bool = True, **_: Any,
    ) -> None:  # fmt: skip
        """Every rank draws the tensors (gathering them is collective); the replica's leader passes them on."""
        iterator: AsyncIterator[tuple[str, Any]] = ensure_async_iterator(weights)
        tensors: dict[str, torch.Tensor] = {}
        async for name, tensor in iterator:
            whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
            if self.is_leader_rank:
                tensors[name] = whole.detach().cpu().clone()
        if self.is_leader_rank:
            scale = None if peft_config is None else peft_config["lora_alpha"] / peft_config["r"]
            await ray.get_actor(server_name(self.replica_rank)).load.remote(tensors, scale, global_steps)


RolloutReplicaRegistry.register(REPLICA, lambda: TorchReplica)
# verl has no registry for what a worker hands its weights with; see contract.PRIVATE.
rollout_base._ROLLOUT_REGISTRY[(REPLICA, "async")] = f"{__name__}.{TorchServerAdapter.__name__}"
