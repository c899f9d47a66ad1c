"""From the job's configuration to vLLM's engine arguments. Imports no vLLM.

Letters of memory: bytes throughout.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ajet.backbone.vllm.sampling import MAX_TOP_LOGPROBS
from ajet.default_config.schema import RolloutConfig
from ajet.schema.errors import ConfigError

CPU_BLOCK = 128
"""vLLM's block of KV cache on a CPU, in tokens."""
_CPU_DEFAULT = 2 * 2**30
TRAINING_BYTES = 16
"""Of gradient, AdamW's moments and activations per parameter, kept free for the trainer on a GPU."""


@dataclass(frozen=True)
class Shape:
    """What of a model the cache depends on."""

    layers: int
    kv_heads: int
    head_dim: int

    @classmethod
    def of(cls, source: Path) -> Shape:
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(source, local_files_only=True).get_text_config()
        heads = config.num_attention_heads
        return cls(
            config.num_hidden_layers,
            getattr(config, "num_key_value_heads", None) or heads,
            getattr(config, "head_dim", None) or config.hidden_size // heads,
        )

    def token_bytes(self, item: int) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * item


def cpu_kv_bytes(rollout: RolloutConfig, shape: Shape, max_len: int, item: int) -> int:
    """KV cache on a CPU: as configured, else what is modest for the machine and enough for one sequence."""
    block = CPU_BLOCK * shape.token_bytes(item)
    sequence = (-(-max_len // CPU_BLOCK) + 1) * block
    if rollout.kv_cache_gib is not None:
        budget = int(rollout.kv_cache_gib * 2**30)
        if budget < sequence:
            raise ConfigError(
                f"rollout.kv_cache_gib: {rollout.kv_cache_gib:g} GiB do not hold one sequence of {max_len} tokens. Set "
                f"{sequence / 2**30:.3f} or more, or lower rollout.max_model_len.", param="rollout.kv_cache_gib",
            )  # fmt: skip
        return budget
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(sequence, min(_CPU_DEFAULT, memory // 8, 2 * rollout.max_num_seqs * sequence))


def gpu_share(rollout: RolloutConfig, free: int, total: int, parameters: int, weights: int) -> float:
    """vLLM's ``gpu_memory_utilization``: of the part that may be planned with, what the trainer has and will need goes off.

    Args:
        free, total: of the device, with the trainer's weights loaded.
        parameters: that are trained.
        weights: bytes of the sampler's own copy.
    """
    trainer = total - free
    moments = 0 if rollout.sleep_while_training else TRAINING_BYTES * parameters
    budget = rollout.gpu_memory_utilization * total - trainer - moments
    if budget < 1.2 * weights:
        gib = 2.0**30
        raise ConfigError(
            f"rollout.name: vllm: of {total / gib:.0f} GiB the trainer has {trainer / gib:.0f} and will need about "
            f"{moments / gib:.0f} more, which leaves vLLM {max(0.0, budget) / gib:.1f} under rollout.gpu_memory_utilization "
            f"{rollout.gpu_memory_utilization:g}: too little for its weights ({weights / gib:.1f} GiB) and a cache. Set "
            "rollout.sleep_while_training: true, use a smaller model, or set rollout.name: auto (one copy of the weights).",
            param="rollout.name",
        )
    return budget / total


def engine_args(
    rollout: RolloutConfig, source: Path, *, dtype: str, max_len: int, seed: int, cpu: bool, memory: dict[str, Any]
) -> dict[str, Any]:
    """Arguments of ``vllm.EngineArgs``.

    Args:
        dtype: ``float32`` or ``bfloat16``, the trainer's.
        memory: ``kv_cache_memory_bytes`` or ``gpu_memory_utilization``.
    """
    return {
        "model": str(source),
        "skip_tokenizer_init": True,
        "generation_config": "vllm",  # nothing of the model's own sampling defaults
        "dtype": dtype,
        "max_model_len": max_len,
        "max_num_seqs": rollout.max_num_seqs,
        "seed": seed,
        "logprobs_mode": "processed_logprobs",  # of the distribution sampled from
        "max_logprobs": MAX_TOP_LOGPROBS,
        "enable_prefix_caching": True,
        "async_scheduling": False,  # else a token could be sampled before a weight update and arrive after it
        "enforce_eager": cpu,
        "enable_sleep_mode": rollout.sleep_while_training,
        "disable_log_stats": True,
        **memory,
    }
