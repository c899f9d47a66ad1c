"""Everything of verl that is touched beyond registries and documented classes, by name. Imports nothing of verl itself.

Each entry says where it is, who touches it, and why there is no other way. ``tests/unit/verl/test_verl_contract.py`` looks
each of them up in the installed verl, so that a new version says what it broke before a run does.
"""

from __future__ import annotations

from dataclasses import dataclass

VERL = "0.9.1"
"""The version that all of this was written against and is tested with."""


@dataclass(frozen=True)
class Touch:
    """``where`` is ``module:attribute[.attribute]``."""

    where: str
    by: str
    why: str


PRIVATE = (
    Touch("verl.workers.rollout.base:_ROLLOUT_REGISTRY", "replica.py, replica_vllm.py",
          "maps a rollout's name to what a worker hands its weights with; a dictionary without a register function"),
    Touch("verl.workers.engine.fsdp.transformer_impl:FSDPEngine._build_fsdp_module", "engine_cpu.py",
          "a forward-only engine is always offloaded to pinned memory, which a CPU does not have"),
    Touch("verl.workers.rollout.llm_server:LLMServerClient._vllm_request_id", "rollout.py",
          "a subclass names the engine's request, so that it can be aborted (get_client takes subclasses for that)"),
)  # fmt: skip
RELIED_ON = (
    Touch("verl.plugin.platform:PlatformRegistry.register", "platform.py", "registry"),
    Touch("verl.plugin.platform:PlatformBase", "platform.py", "subclassed"),
    Touch("verl.workers.engine:EngineRegistry.register", "engine_cpu.py", "registry"),
    Touch("verl.workers.rollout.replica:RolloutReplicaRegistry.register", "replica.py", "registry"),
    Touch("verl.workers.rollout.replica:RolloutReplica.launch_servers", "replica.py", "implemented"),
    Touch("verl.workers.rollout.replica:TokenOutput", "replica.py", "what a server answers"),
    Touch("verl.workers.rollout.base:BaseRollout.update_weights", "replica.py", "implemented"),
    Touch("verl.checkpoint_engine:CheckpointEngineRegistry.register", "gloo.py", "registry"),
    Touch("verl.checkpoint_engine:CheckpointEngineManager.update_weights", "rollout.py", "hands weights over"),
    Touch("verl.checkpoint_engine:CheckpointEngineManager.abort_replicas", "rollout.py", "before an update"),
    Touch("verl.checkpoint_engine:CheckpointEngineManager.sleep_replicas", "rollout.py", "before a colocated update"),
    Touch("verl.checkpoint_engine:CheckpointEngineManager.resume_generation_replicas", "rollout.py", "after an update"),
    Touch("verl.workers.rollout.llm_server:LLMServerManager.create", "rollout.py", "starts replicas"),
    Touch("verl.workers.rollout.llm_server:LLMServerManager.get_client", "rollout.py", "samples"),
    Touch("verl.workers.engine_workers_tinker:TinkerActorRolloutRefWorker.forward_backward", "worker.py", "gradients"),
    Touch("verl.workers.engine_workers_tinker:TinkerActorRolloutRefWorker.optimizer_step", "worker.py", "the update"),
    Touch("verl.workers.engine_workers:ActorRolloutRefWorker.set_loss_fn", "worker.py", "our loss"),
    Touch("verl.workers.engine_workers:ActorRolloutRefWorker.compute_log_prob", "cluster.py", "log-probs"),
    Touch("verl.workers.engine_workers:ActorRolloutRefWorker.compute_ref_log_prob", "cluster.py", "the initial model's"),
    Touch("verl.utils.checkpoint.checkpoint_manager:BaseCheckpointManager.get_rng_state", "worker.py", "saved with a rank"),
    Touch("verl.workers.engine_workers:ActorRolloutRefWorker.load_checkpoint", "cluster.py", "resume"),
    Touch("verl.single_controller.ray:RayWorkerGroup", "cluster.py", "workers on Ray"),
    Touch("verl.utils.tensordict_utils:get_tensordict", "entries.py", "verl's batches"),
)  # fmt: skip
