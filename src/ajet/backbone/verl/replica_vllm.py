"""vLLM behind verl on a host without GPUs: the replica of :mod:`ajet.backbone.verl.replica` with vLLM serving the policy.

verl's own vLLM replica needs a GPU build (it reads the version of a package of that name, and sleeps). Here the engine is
the one that samples for the embedded backbone (:mod:`ajet.backbone.vllm.engine`): weights change in place between two of
its steps. ``frozen`` calls are sampled by the embedded sampler. Registers itself.
"""

from __future__ import annotations

import os
from typing import Any

from verl.workers.rollout import base as rollout_base
from verl.workers.rollout.replica import RolloutReplicaRegistry

from ajet.backbone.protocol import Sampling
from ajet.backbone.verl.mapping import VLLM_REPLICA
from ajet.backbone.verl.replica import TorchReplica, TorchServer, TorchServerAdapter
from ajet.backbone.vllm import private
from ajet.backbone.vllm.handover import handover
from ajet.default_config.schema import AjetConfig


class _Policy:
    """vLLM's engine with the methods that a server asks of a sampler."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.tick, self.cancel = engine.tick, engine.cancel

    @property
    def busy(self) -> bool:
        return self._engine.busy

    def submit(self, key: int, ids: list[int], sampling: Sampling, stream: bool) -> None:
        self._engine.submit(key, ids, sampling, "policy", stream)

    def refresh(self, version: int) -> None:
        """The server hands whole versions over: :meth:`VllmServer._serve`."""


class VllmServer(TorchServer):
    def __init__(self, path: str, max_len: int, max_seqs: int, seed: int) -> None:
        super().__init__(path, max_len, max_seqs, seed)
        os.environ.update(private.ENVIRONMENT)
        from ajet.backbone.vllm.engine import VllmEngine

        config = AjetConfig.model_validate(
            {
                "model": {"path": path, "dtype": "float32"},
                "rollout": {"name": "vllm", "max_model_len": max_len, "max_num_seqs": max_seqs},
                "trainer_common": {"seed": seed, "n_gpus_per_node": 0},
            }
        )
        parameters = sum(tensor.numel() for tensor in self._initial.values())
        self._engine = VllmEngine(config, device="cpu", parameters=parameters, max_len=max_len)
        self._bytes = 4 * parameters
        self._samplers["policy"] = _Policy(self._engine)

    def _serve(self, version: int) -> None:
        with handover(self._bytes) as folder:
            self._net.save(folder)
            self._engine.load_weights(version, folder)


class VllmReplica(TorchReplica):
    SERVER = VllmServer


RolloutReplicaRegistry.register(VLLM_REPLICA, lambda: VllmReplica)
rollout_base._ROLLOUT_REGISTRY[(VLLM_REPLICA, "async")] = (
    f"{TorchServerAdapter.__module__}.{TorchServerAdapter.__name__}"
)
