"""From our sampling parameters to vLLM's, and what vLLM would not do exactly. Imports no vLLM."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ajet.backbone.protocol import Sampling
from ajet.schema.errors import InvalidRequest

COLDEST = 0.01
"""vLLM raises any temperature between 0 and this one to it."""
MAX_TOP_LOGPROBS = 20


def check_exact(sampling: Sampling) -> None:
    """Raises :class:`InvalidRequest` for what vLLM would change silently."""
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
