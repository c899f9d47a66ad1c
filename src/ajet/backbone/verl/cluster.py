"""Ray, verl's workers on it, and what they do together. Lives in the driver process; its methods block.

``log_probs``, ``backward``, ``optimizer_step`` and ``digest`` are what the trainer asks of all ranks
(:class:`ajet.backbone.verl.trainer.Ranks`). Samples are dealt to data-parallel ranks here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ajet.backbone.disk import checkpoint_refused
from ajet.backbone.fingerprint import combined
from ajet.backbone.verl import mapping
from ajet.backbone.verl.entries import Entry, dealt, from_verl, to_verl, with_gradients
from ajet.default_config.schema import AjetConfig
from ajet.schema.errors import ConfigError

_STORE_BYTES = 200 * 2**20
_FORWARDED = ("AJET_", "GLOO_", "HF_", "NCCL_", "OMP_", "TOKENIZERS_", "VERL_", "VLLM_")
"""Environment variables that verl's processes get from the driver."""


def prepare_environment(config: AjetConfig, host: mapping.Host) -> dict[str, str]:
    """Set what verl reads when it is imported; what its processes on all hosts shall have, too."""
    defaults = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "VERL_USE_EXTERNAL_PLUGINS": "none"}
    if host.cpu:
        os.environ["VERL_PLATFORM"] = "cpu"
        os.environ["VERL_USE_EXTERNAL_MODULES"] = "ajet.backbone.verl.platform"
        defaults["OMP_NUM_THREADS"] = str(config.trainer_common.cpu_threads or 1)
        if config.verl.ray_address is None:
            defaults["GLOO_SOCKET_IFNAME"] = "lo"
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    forwarded = {name: value for name, value in os.environ.items() if name.startswith(_FORWARDED)}
    forwarded.pop("AJET_SWARM_KEY", None)
    return {**forwarded, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "PYTHONWARNINGS": "ignore"}


class Cluster:
    """See the module.

    Args:
        vocab: of the model.
        progressed: called after each piece of work.
    """

    def __init__(
        self, config: AjetConfig, host: mapping.Host, vocab: int, progressed: Callable[[], None] = lambda: None
    ) -> None:
        self.config, self.host, self.vocab, self._progressed = config, host, vocab, progressed
        environment = prepare_environment(config, host)
        self._start_ray(environment)
        self.tree = mapping.compose(mapping.verl_tree(config, host))
        progressed()
        common = config.trainer_common
        self._needs_reference = common.use_kl_loss and common.kl_loss_coef > 0
        self._lora = config.lora.rank > 0
        self.world = host.per_node * common.nnodes
        if self.world % common.ulysses_sequence_parallel_size:
            raise ConfigError(
                f"trainer_common.ulysses_sequence_parallel_size: {common.ulysses_sequence_parallel_size} does not divide "
                f"the {self.world} workers.", param="trainer_common.ulysses_sequence_parallel_size",
            )  # fmt: skip
        self.ranks = self.world // common.ulysses_sequence_parallel_size
        self._start_workers()

    # -- life -----------------------------------------------------------------------------------------------------------

    def _start_ray(self, environment: Mapping[str, str]) -> None:
        import ray

        address = self.config.verl.ray_address
        options: dict[str, Any] = {"runtime_env": {"env_vars": dict(environment)}, "log_to_driver": True}
        if address is not None:
            ray.init(address=address, **options)
        else:
            wanted = self.host.per_node + (self._separate_slots() if self._separate else 0)
            if self.config.trainer_common.nnodes > 1:
                raise ConfigError(
                    "trainer_common.nnodes is more than 1: start Ray on every host (`ray start --head` on the first, "
                    "`ray start --address=…` on the others) and set verl.ray_address: auto.", param="verl.ray_address",
                )  # fmt: skip
            if self.host.cpu:
                options |= {"num_cpus": 8 + 4 * wanted, "num_gpus": wanted, "object_store_memory": _STORE_BYTES}
                options["_node_ip_address"] = "127.0.0.1"
            if directory := os.environ.get("AJET_RAY_DIR"):
                options["_temp_dir"] = directory
            # "local": without an address Ray would join whatever cluster was last started on this host.
            ray.init(address="local", include_dashboard=False, **options)
        self._progressed()
        slots = {n["NodeID"]: int(n["Resources"].get("GPU", 0)) for n in ray.nodes() if n["Alive"]}
        fitting = sum(1 for count in slots.values() if count >= self.host.per_node)
        if fitting < self.config.trainer_common.nnodes:
            raise ConfigError(
                f"trainer_common.nnodes: {self.config.trainer_common.nnodes} hosts with {self.host.per_node} GPUs each are "
                f"asked for, and Ray has {fitting} ({len(slots)} hosts, {sum(slots.values())} GPUs in all). Start Ray on the "
                "others, or lower trainer_common.nnodes or n_gpus_per_node."
                + (" A host without GPUs declares its CPU workers: `ray start --num-gpus=2`." if self.host.cpu else ""),
                param="trainer_common.nnodes",
            )

    @property
    def _separate(self) -> bool:
        return self.config.verl.placement == "separate"

    def _separate_slots(self) -> int:
        return self.config.verl.rollout_nodes * self.config.verl.rollout_gpus_per_node

    def _start_workers(self) -> None:
        import ray
        from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
        from verl.utils.device import get_device_name

        from ajet.backbone.verl.loss import row_gradient_loss
        from ajet.backbone.verl.worker import AjetWorker

        own_reference = self._needs_reference and not self._lora
        if self._separate:
            roles = ["actor", *(["ref"] if own_reference else [])]
        else:
            roles = ["actor_rollout_ref" if own_reference else "actor_rollout"]
        pool = RayResourcePool(
            [self.host.per_node] * self.config.trainer_common.nnodes, use_gpu=True, max_colocate_count=len(roles)
        )
        groups = {}
        for role in roles:
            made = RayClassWithInitArgs(cls=ray.remote(AjetWorker), config=self.tree.actor_rollout_ref, role=role)
            groups[role] = RayWorkerGroup(pool, made, device_name=get_device_name())
            self._progressed()
            groups[role].init_model()
            self._progressed()
        self.group: Any = groups[roles[0]]
        self._reference_group: Any = groups[roles[-1]]
        self.group.set_loss_fn(row_gradient_loss)
        self._others = [worker for role in roles[1:] for worker in groups[role].workers]

    def actors(self) -> dict[str, Any]:
        """By the name that a cause is told with."""
        found = {f"training worker {rank}": worker for rank, worker in enumerate(self.group.workers)}
        return found | {f"reference worker {rank}": worker for rank, worker in enumerate(self._others)}

    def where(self) -> list[tuple[str, int]]:
        """Host and process of each training worker."""
        return [tuple(found) for found in self.group.ajet_where()]

    # -- training -------------------------------------------------------------------------------------------------------

    def log_probs(
        self, entries: Sequence[Entry], tokens: int, *, reference: bool = False, entropy: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See :class:`ajet.backbone.verl.trainer.Ranks`."""
        order = dealt(entries, self.ranks)
        extra = {"no_lora_adapter": True} if reference and self._lora else {}
        data = to_verl(order, max_tokens=self._max_tokens, entropy=entropy, compute_loss=False, **extra)
        if reference and not self._lora:
            answer = self._reference_group.compute_ref_log_prob(data)
        else:
            answer = self.group.compute_log_prob(data)
        self._progressed()
        logprob_N = torch.zeros(tokens)
        from_verl(order, answer["log_probs"], logprob_N)
        if not entropy:
            return logprob_N, None
        entropy_N = torch.zeros(tokens)
        from_verl(order, answer["entropy"], entropy_N)
        return logprob_N, entropy_N

    def backward(self, entries: Sequence[Entry], gradient_N: torch.Tensor, entropy_N: torch.Tensor | None) -> None:
        order = dealt(entries, self.ranks)
        data = to_verl(order, max_tokens=self._max_tokens, entropy=entropy_N is not None, compute_loss=True)
        future = self.group.forward_backward(with_gradients(data, order, gradient_N, entropy_N))
        future.get()
        self._progressed()

    def optimizer_step(self, lr: float) -> float:
        answers = self.group.optimizer_step({"lr": lr})
        self._progressed()
        return float(answers[0]["grad_norm"])

    @property
    def _max_tokens(self) -> int:
        return self.config.trainer_common.max_tokens_per_microbatch

    def digest(self) -> str:
        return combined([(sha, sums) for sha, sums, _ in self.group.ajet_fingerprint()])

    def parameters(self) -> int:
        return int(self.group.ajet_fingerprint()[0][2])

    # -- checkpoints ----------------------------------------------------------------------------------------------------

    def save(self, directory: Path) -> None:
        """Shards into ``directory``, and beside it the model's weights for transformers.

        Raises:
            DiskRefused: a disk is full or read-only; the run can go on, and try again.
        """
        lora = self.config.lora.model_dump(mode="json") if self._lora else None
        answers = self.group.ajet_save(
            str(directory), mapping.dtype_name(self.config, self.host), lora, self.host.model_dir
        )
        self._progressed()
        refused = [f"worker {rank}: {words}" for rank, words in enumerate(answers) if words]
        if refused:
            raise checkpoint_refused(directory, "; ".join(refused))

    def load(self, directory: Path) -> None:
        self.group.load_checkpoint(str(directory))
        self._progressed()
