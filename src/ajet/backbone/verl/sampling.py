"""From our sampling parameters to what each of verl's samplers takes, and what one would not do exactly. No torch, no verl.

vLLM and SGLang behind verl share a contract (token ids in, ids and log-probs out), not the names of all parameters.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from ajet.backbone.protocol import Sampling
from ajet.backbone.verl.mapping import VLLM_REPLICA, Host, rollout_name
from ajet.backbone.vllm.installed import installed_version
from ajet.backbone.vllm.sampling import check_exact as check_vllm
from ajet.default_config.schema import AjetConfig
from ajet.schema.errors import ConfigError, InvalidRequest

_SEED_STRIDE = 1_000_003


def check_sampler(config: AjetConfig, host: Host) -> None:
    """Raises :class:`ConfigError` for a sampler that cannot run on this host."""
    name, key = rollout_name(config, host), "rollout.name"
    if name == VLLM_REPLICA:
        installed_version()
    if name not in ("vllm", "sglang"):
        return
    if host.cpu:
        raise ConfigError(f"{key}: {name} needs GPUs, and this job uses none. Set {key}: auto, or vllm.", param=key)
    if config.verl.ray_address is None and importlib.util.find_spec(name) is None:
        raise ConfigError(
            f"{key}: {name} is not installed. Install the version that verl pairs with (pip install 'verl[{name}]'), or set "
            f"{key} to another sampler.", param=key,
        )  # fmt: skip


def check_exact(name: str, sampling: Sampling) -> None:
    """Raises :class:`InvalidRequest` for what the sampler ``name`` would change silently."""
    if name in ("vllm", VLLM_REPLICA):
        check_vllm(sampling)
    if name == "sglang" and (sampling.top_p < 1 or sampling.top_k):
        raise InvalidRequest(
            "top_p and top_k cannot be used with SGLang: the log-probs that it tells are those before truncation. Leave "
            "them out.", param="top_p" if sampling.top_p < 1 else "top_k",
        )  # fmt: skip


def params(name: str, sampling: Sampling, room: int, part: int) -> dict[str, Any]:
    """verl's ``sampling_params`` for the sampler ``name``.

    Args:
        room: tokens that may follow.
        part: how often the reply has been interrupted; each part draws anew.
    """
    out: dict[str, Any] = {
        "temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k or -1,
        "max_tokens": room, "logprobs": True, "ignore_eos": sampling.ignore_eos,
        "stop_token_ids": list(sampling.stop_token_ids),
    }  # fmt: skip
    if sampling.seed is not None:
        out["sampling_seed" if name == "sglang" else "seed"] = (sampling.seed + _SEED_STRIDE * part) % 2**31
    return out
