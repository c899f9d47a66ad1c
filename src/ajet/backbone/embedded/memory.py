"""How many KV blocks to plan with."""

from __future__ import annotations

import os

import torch

from ajet.backbone.embedded.paged import BLOCK
from ajet.default_config.schema import RolloutConfig
from ajet.schema.errors import ConfigError

_CPU_DEFAULT = 2 * 2**30
_TRAINING_BYTES = 16
"""Bytes of gradient and AdamW moments per parameter, kept free on a GPU (with some for activations)."""


def kv_blocks(
    rollout: RolloutConfig, max_len: int, token_bytes: int, device: torch.device, share: float, parameters: int
) -> int:
    """Blocks for one model, scratch included.

    Args:
        token_bytes: of one token's keys and values over all layers.
        share: of the budget this model may have.

    Raises:
        ConfigError: ``rollout.kv_cache_gib`` does not hold one sequence of ``max_model_len``.
    """
    if rollout.kv_cache_gib is not None:
        budget = rollout.kv_cache_gib * 2**30
    elif device.type == "cpu":
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        budget = min(_CPU_DEFAULT, total / 8)
    else:
        free, total = torch.cuda.mem_get_info(device)
        budget = max(0.0, rollout.gpu_memory_utilization * total - (total - free) - _TRAINING_BYTES * parameters) * 0.8
    one_sequence = -(-(max_len + 1) // BLOCK)
    most = one_sequence * rollout.max_num_seqs * 2
    blocks = min(int(budget * share / (token_bytes * BLOCK)), most)
    if rollout.kv_cache_gib is None and device.type == "cpu":
        blocks = max(blocks, one_sequence)
    if blocks < one_sequence:
        need = one_sequence * BLOCK * token_bytes / share / 2**30
        raise ConfigError(
            f"rollout.kv_cache_gib: the KV cache would hold {blocks * BLOCK} tokens and max_model_len is {max_len}. "
            f"Set rollout.kv_cache_gib to {need:.2f} or more, or lower rollout.max_model_len.", param="rollout.kv_cache_gib",
        )  # fmt: skip
    return blocks + 1
