"""From our sampling parameters to vLLM's, and what vLLM would not do exactly. Imports no vLLM."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ajet.backbone.protocol import Sampling
from ajet.default_config.schema import RolloutConfig
from ajet.schema.errors import ConfigError, InvalidRequest

COLDEST = 0.01
"""vLLM raises any temperature between 0 and this one to it."""
HOTTEST = 2.0
"""vLLM takes no higher temperature."""
MAX_TOP_LOGPROBS = 20


def check_config(rollout: RolloutConfig) -> None:
    """Raises :class:`ConfigError` for temperatures of the job that no call could be sampled with."""
    for key, value in (
        ("temperature", rollout.temperature),
        ("val_kwargs.temperature", rollout.val_kwargs.temperature),
    ):
        if value and not COLDEST <= value <= HOTTEST:
            raise ConfigError(
                f"rollout.{key} is {value:g}, and vLLM samples at temperatures from {COLDEST} to {HOTTEST:g}. Set one of "
                "these, or rollout.name: auto.", param=f"rollout.{key}",
            )  # fmt: skip


def check_exact(sampling: Sampling) -> None:
    """Raises :class:`InvalidRequest` for what vLLM would change silently, or does not take."""
    if sampling.temperature > HOTTEST:
        raise InvalidRequest(
            f"temperature {sampling.temperature:g} cannot be sampled by vLLM, which takes {HOTTEST:g} at most.",
            param="temperature",
        )
    if 0 < sampling.temperature < COLDEST:
        raise InvalidRequest(
            f"temperature {sampling.temperature:g} cannot be sampled by vLLM, which raises it to {COLDEST}. Use 0 (the most "
            f"probable token), or {COLDEST} and above.", param="temperature",
        )  # fmt: skip
    if sampling.top_logprobs > MAX_TOP_LOGPROBS:
        raise InvalidRequest(f"top_logprobs can be {MAX_TOP_LOGPROBS} at most.", param="top_logprobs")


def to_vllm(sampling: Sampling, eos: Iterable[int], room: int) -> dict[str, Any]:
    """Arguments of ``vllm.SamplingParams``.

    Args:
        eos: ids that end a reply unless it ignores them. All stops are named: vLLM's own reading of the model's
            configuration is turned off.
        room: tokens that may follow the prompt.
    """
    stops = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else set(eos))
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_tokens": min(sampling.max_tokens, room),
        "stop_token_ids": sorted(stops),
        "ignore_eos": True,
        # vLLM takes -1 for "no seed".
        "seed": None if sampling.seed is None else sampling.seed & (2**63 - 1),
        "logprobs": sampling.top_logprobs,
        "detokenize": False,
    }
