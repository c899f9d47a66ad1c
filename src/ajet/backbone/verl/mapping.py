"""From a job to verl's configuration: one table, key by key, and a passthrough for every other key.

:data:`TABLE` is what docs/verl.md prints. :func:`verl_tree` is pure data (no verl, no torch), so the mapping is tested
anywhere; :func:`compose` puts it onto verl's own defaults and refuses a key that verl does not have.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ajet.default_config.schema import AjetConfig
from ajet.schema.errors import ConfigError

A, R = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
M, REF = "actor_rollout_ref.model", "actor_rollout_ref.ref"
ROOT = "actor_rollout_ref"
REPLICA = "ajet_torch"
"""Our rollout replica, for CPUs."""
VLLM_REPLICA = "ajet_vllm"
"""The same with vLLM in it."""
GLOO = "ajet_gloo"
"""Our checkpoint engine, for replicas of their own on CPUs."""


@dataclass(frozen=True)
class Host:
    """What the job runs on, resolved.

    Attributes:
        cpu: no GPU is used.
        per_node: workers (GPUs) of a host.
        model_dir: where the model lies.
    """

    cpu: bool
    per_node: int
    model_dir: str


@dataclass(frozen=True)
class Rule:
    """Where a key of the job goes.

    Attributes:
        job: dotted key of the job, or what else decides.
        verl: dotted keys that get the value.
        value: of the job; None leaves verl's default.
        note: for the documentation.
    """

    job: str
    verl: tuple[str, ...]
    value: Callable[[AjetConfig, Host], Any]
    note: str = ""


def dtype_name(config: AjetConfig, host: Host) -> str:
    """Of the forward pass."""
    return "float32" if config.model.dtype == "float32" or (config.model.dtype == "auto" and host.cpu) else "bfloat16"


def _mixed(config: AjetConfig, host: Host) -> dict[str, str]:
    short = {"float32": "fp32", "bfloat16": "bf16"}[dtype_name(config, host)]
    return {"param_dtype": short, "reduce_dtype": "fp32", "buffer_dtype": "fp32"}


def rollout_name(config: AjetConfig, host: Host) -> str:
    """Of the sampler, by verl's registry."""
    name = config.rollout.name
    if host.cpu and name == "vllm":
        return VLLM_REPLICA
    return (REPLICA if host.cpu else "vllm") if name in ("auto", "embedded") else name


def _separate(config: AjetConfig) -> bool:
    return config.verl.placement == "separate"


def _transfer(config: AjetConfig, host: Host) -> str:
    return "naive" if not _separate(config) else GLOO if host.cpu else "nccl"


TABLE: tuple[Rule, ...] = (
    Rule("model.path", (f"{M}.path",), lambda c, h: h.model_dir, "resolved to a directory"),
    Rule("model.dtype", (f"{A}.fsdp_config.dtype", f"{REF}.fsdp_config.dtype", f"{R}.dtype"), dtype_name,
         "auto: bfloat16 on GPUs, float32 on CPUs; master weights stay float32"),
    Rule("model.dtype", (f"+{A}.fsdp_config.mixed_precision", f"+{REF}.fsdp_config.mixed_precision"), _mixed),
    Rule("rollout.name", (f"{R}.name",), rollout_name, f"auto: vllm on GPUs, {REPLICA} on CPUs; vllm on CPUs: {VLLM_REPLICA}"),
    Rule("rollout.temperature", (f"{R}.temperature",), lambda c, h: c.rollout.temperature,
         "each call brings its own"),
    Rule("rollout.max_num_seqs", (f"{R}.max_num_seqs",), lambda c, h: c.rollout.max_num_seqs),
    Rule("rollout.max_model_len", (f"{R}.max_model_len",), lambda c, h: c.rollout.max_model_len),
    Rule("rollout.max_model_len", (f"{R}.max_num_batched_tokens",), lambda c, h: max(8192, c.rollout.max_model_len)),
    Rule("rollout.gpu_memory_utilization", (f"{R}.gpu_memory_utilization",),
         lambda c, h: c.rollout.gpu_memory_utilization, "of what training leaves: 0.5 to 0.6 when colocated"),
    Rule("rollout.tensor_model_parallel_size", (f"{R}.tensor_model_parallel_size",),
         lambda c, h: c.rollout.tensor_model_parallel_size),
    Rule("data.max_prompt_length", (f"{R}.prompt_length", "data.max_prompt_length"),
         lambda c, h: c.data.max_prompt_length),
    Rule("data.max_response_length", (f"{R}.response_length", "data.max_response_length"),
         lambda c, h: c.data.max_response_length),
    Rule("trainer_common.n_gpus_per_node", ("trainer.n_gpus_per_node",), lambda c, h: h.per_node,
         "0: CPU workers, verl.cpu_workers of them a host"),
    Rule("trainer_common.nnodes", ("trainer.nnodes",), lambda c, h: c.trainer_common.nnodes),
    Rule("trainer_common.max_tokens_per_microbatch",
         (f"{A}.ppo_max_token_len_per_gpu", f"{REF}.log_prob_max_token_len_per_gpu", f"{R}.log_prob_max_token_len_per_gpu"),
         lambda c, h: c.trainer_common.max_tokens_per_microbatch, "at least the batch's longest sample"),
    Rule("trainer_common.ulysses_sequence_parallel_size",
         (f"{A}.ulysses_sequence_parallel_size", f"{A}.fsdp_config.ulysses_sequence_parallel_size",
          f"{REF}.ulysses_sequence_parallel_size", f"{REF}.fsdp_config.ulysses_sequence_parallel_size"),
         lambda c, h: c.trainer_common.ulysses_sequence_parallel_size),
    Rule("trainer_common.optim.lr", (f"{A}.optim.lr",), lambda c, h: c.trainer_common.optim.lr,
         "warm-up and schedule are computed here and handed over with each step"),
    Rule("trainer_common.optim.betas", (f"{A}.optim.betas",), lambda c, h: list(c.trainer_common.optim.betas)),
    Rule("trainer_common.optim.eps", (f"{A}.optim.override_optimizer_config",),
         lambda c, h: {"eps": c.trainer_common.optim.eps}),
    Rule("trainer_common.optim.weight_decay", (f"{A}.optim.weight_decay",),
         lambda c, h: c.trainer_common.optim.weight_decay),
    Rule("trainer_common.optim.grad_clip", (f"{A}.optim.clip_grad", f"{A}.grad_clip"),
         lambda c, h: c.trainer_common.optim.grad_clip),
    Rule("trainer_common.seed", (f"{A}.fsdp_config.seed", f"{R}.seed"), lambda c, h: c.trainer_common.seed),
    Rule("lora.rank", (f"{M}.lora_rank",), lambda c, h: c.lora.rank),
    Rule("lora.alpha", (f"{M}.lora_alpha",), lambda c, h: c.lora.alpha),
    Rule("lora.target_modules", (f"{M}.target_modules",), lambda c, h: c.lora.target_modules),
    Rule("verl.param_offload", (f"{A}.fsdp_config.param_offload", f"{REF}.fsdp_config.param_offload"),
         lambda c, h: c.verl.param_offload),
    Rule("verl.optimizer_offload", (f"{A}.fsdp_config.optimizer_offload",), lambda c, h: c.verl.optimizer_offload),
    Rule("verl.gradient_checkpointing", (f"{M}.enable_gradient_checkpointing",),
         lambda c, h: (not h.cpu) if c.verl.gradient_checkpointing is None else c.verl.gradient_checkpointing,
         "default: on GPUs"),
    Rule("verl.placement", (f"{R}.checkpoint_engine.backend",), _transfer,
         f"colocated: naive; separate: nccl, {GLOO} on CPUs"),
    Rule("verl.placement", (f"{R}.free_cache_engine",), lambda c, h: not h.cpu and not _separate(c),
         "a colocated replica sleeps while training"),
    Rule("verl.rollout_nodes", (f"{R}.nnodes",), lambda c, h: c.verl.rollout_nodes if _separate(c) else 1),
    Rule("verl.rollout_gpus_per_node", (f"{R}.n_gpus_per_node",),
         lambda c, h: c.verl.rollout_gpus_per_node if _separate(c) else h.per_node),
    # What follows has no key of its own.
    Rule("(always)", (f"{A}.strategy", f"{A}.fsdp_config.strategy", f"{REF}.strategy", f"{REF}.fsdp_config.strategy"),
         lambda c, h: "fsdp2"),
    Rule("(always)", (f"{A}.use_dynamic_bsz", f"{REF}.log_prob_use_dynamic_bsz", f"{R}.log_prob_use_dynamic_bsz"),
         lambda c, h: True, "micro-batches by tokens"),
    Rule("(always)", (f"{A}.ppo_mini_batch_size",), lambda c, h: 1, "mini-batches are cut here, by units of rows"),
    Rule("(always)", (f"{A}.optim.total_training_steps",), lambda c, h: 1, "verl's own schedule is not used"),
    Rule("(always)", (f"{A}.checkpoint.save_contents",), lambda c, h: ["model", "optimizer", "extra"],
         "written by our worker, in verl's layout"),
    Rule("(always)", (f"{A}.checkpoint.load_contents",), lambda c, h: ["model", "optimizer", "extra"]),
    Rule("(always)", (f"{R}.load_format",), lambda c, h: "dummy" if c.lora.rank == 0 else "safetensors",
         "weights come from the trainer; with LoRA the base model from model.path"),
    Rule("(on CPUs)", (f"{M}.override_config",), lambda c, h: {"attn_implementation": "sdpa"} if h.cpu else None),
    Rule("(on CPUs)", (f"{M}.use_remove_padding",), lambda c, h: False if h.cpu else None,
         "packing needs flash-attention"),
    Rule("(on CPUs)", (f"{A}.use_torch_compile", f"{A}.fsdp_config.use_torch_compile", f"{REF}.use_torch_compile",
                       f"{REF}.fsdp_config.use_torch_compile"), lambda c, h: False if h.cpu else None),
    Rule("(on CPUs)", (f"{R}.enforce_eager",), lambda c, h: True if h.cpu else None),
    Rule("(on CPUs)", (f"{R}.checkpoint_engine.custom_backend_module",),
         lambda c, h: "ajet.backbone.verl.gloo" if h.cpu and _separate(c) else None),
)  # fmt: skip

OWNED = {
    f"{A}.policy_loss": "trainer_common.algorithm.policy_loss",
    f"{A}.loss_agg_mode": "trainer_common.algorithm.loss_agg_mode",
    f"{A}.clip_ratio": "trainer_common.algorithm.clip_ratio",
    f"{A}.use_kl_loss": "trainer_common.use_kl_loss",
    f"{A}.kl_loss_coef": "trainer_common.kl_loss_coef",
    f"{A}.kl_loss_type": "trainer_common.kl_loss_type",
    f"{A}.entropy_coeff": "trainer_common.algorithm.entropy_coeff",
    f"{A}.ppo_epochs": "trainer_common.ppo_epochs",
    f"{A}.ppo_mini_batch_size": "trainer_common.mini_batch_num",
    f"{A}.optim.lr": "trainer_common.optim.lr",
    f"{A}.optim.total_training_steps": "trainer_common.total_training_steps",
    f"{A}.checkpoint": "checkpoint",
    f"{M}.path": "model.path",
    "algorithm": "trainer_common.algorithm",
    "data": "data",
    "trainer": "trainer_common",
}
"""Keys of verl that would not be read here, and the job's keys that decide instead."""


def verl_tree(config: AjetConfig, host: Host) -> dict[str, Any]:
    """Dotted key of verl → value: the table's, and over them ``verl.overrides``. A ``+`` in front adds a key.

    Raises:
        ConfigError: an override names what the job's own keys decide, or a part of verl that is not in use here.
    """
    flat: dict[str, Any] = {}
    for rule in TABLE:
        value = rule.value(config, host)
        if value is not None:
            flat.update(dict.fromkeys(rule.verl, value))
    for key, value in _dotted(config.verl.overrides):
        plain = key.removeprefix("+")
        _check_override(plain)
        added = key != plain or f"+{plain}" in flat
        flat.pop(plain, None)
        flat.pop(f"+{plain}", None)
        flat[f"+{plain}" if added else plain] = value
    return flat


def _check_override(key: str) -> None:
    param = "verl.overrides"
    for owned, instead in OWNED.items():
        if key == owned or key.startswith((owned + ".", owned + "_")):
            raise ConfigError(f"{param}: {key} is decided by the job's own key {instead}. Set that one.", param=param)
    if key != ROOT and not key.startswith(ROOT + "."):
        raise ConfigError(
            f"{param}: {key} is not read here. What verl's workers and replicas read stands below {ROOT} "
            f"(.actor, .ref, .rollout, .model).", param=param,
        )  # fmt: skip


def _dotted(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested mappings with string keys → dotted keys; an empty mapping stays a value."""
    out: list[tuple[str, Any]] = []
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            out += _dotted(value, path + ".")
        else:
            out.append((path, value))
    return out


def compose(flat: Mapping[str, Any]) -> Any:
    """verl's ``ppo_trainer`` defaults with ``flat`` on top, as its workers take them. Imports verl.

    A key with ``+`` in front is added where verl's defaults do not have it (``engine_kwargs``, for example).

    Raises:
        ConfigError: verl has no such key.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module
    from omegaconf import OmegaConf, open_dict

    with initialize_config_module("verl.trainer.config", version_base=None):
        tree = hydra_compose("ppo_trainer")
    known = _known(OmegaConf.to_container(tree, resolve=False))
    with open_dict(tree):
        for key, value in flat.items():
            plain = key.removeprefix("+")
            parent = plain.rpartition(".")[0]
            if key == plain and plain not in known and not _free(known, parent):
                close = difflib.get_close_matches(plain, known, n=1, cutoff=0.7)
                raise ConfigError(
                    f"verl.overrides: this verl has no key {plain}."
                    + (f" Did you mean {close[0]}?" if close else "")
                    + " A key that only an engine knows is added with a + in front.",
                    param="verl.overrides",
                )
            OmegaConf.update(tree, plain, value, merge=isinstance(value, Mapping) and bool(value), force_add=True)
    return tree


def _known(node: Any, prefix: str = "") -> set[str]:
    found: set[str] = set()
    for key, value in node.items():
        found.add(prefix + str(key))
        if isinstance(value, Mapping):
            found |= _known(value, f"{prefix}{key}.")
    return found


_FREE = ("engine_kwargs", "override_config", "override_optimizer_config", "mixed_precision")


def _free(known: set[str], parent: str) -> bool:
    """Whether ``parent`` is a mapping that takes any key."""
    parts = parent.split(".")
    return any(part in _FREE for part in parts) and ".".join(parts[:-1]) in known | {""}
