"""LoRA adapters by peft's names: which modules get one, folding them into their base weights, peft's own files. Torch only.

Both backbones train adapters and serve and export the weights with the adapters folded in; a checkpoint has the adapters
beside them, in ``adapter/``, as ``peft.PeftModel.from_pretrained`` loads them. peft is imported where it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from ajet.default_config.schema import LoraConfig
from ajet.schema.errors import ConfigError

FOLDER = "adapter"
"""Of a checkpoint."""
_PREFIX = "base_model.model."


def plain_name(name: str) -> str:
    """The name that the model without adapters has for a tensor of the model with them."""
    return name.removeprefix(_PREFIX).replace(".base_layer.", ".")


def is_adapter(name: str) -> bool:
    return ".lora_A." in name or ".lora_B." in name


def adapter_name(module: str, side: str) -> str:
    """peft's name, in its files, for side ``A`` or ``B`` of a module's adapter."""
    return f"{_PREFIX}{module}.lora_{side}.weight"


def fold(weight: torch.Tensor, a: torch.Tensor, b: torch.Tensor, scale: float) -> torch.Tensor:
    """``weight + scale · B A``, added up in float32, in the weight's own precision."""
    return (weight.float() + scale * (b.float() @ a.float())).to(weight.dtype)


def merged(
    base: Mapping[str, torch.Tensor], adapters: Mapping[str, torch.Tensor], scale: float
) -> dict[str, torch.Tensor]:
    """``base + scale · B A`` for every module that has an adapter.

    Args:
        base: by plain name.
        adapters: by peft's names, ``….q_proj.lora_A.weight`` (or with the adapter's name in it).
        scale: alpha / rank.
    """
    out = dict(base)
    for name, a in adapters.items():
        if ".lora_A." not in name:
            continue
        b = adapters[name.replace(".lora_A.", ".lora_B.")]
        module = name.removeprefix(_PREFIX).split(".lora_A.")[0]
        out[f"{module}.weight"] = fold(out[f"{module}.weight"], a, b, scale)
    return out


def peft_config(config: LoraConfig, model: str | None = None) -> Any:
    """The job's ``lora`` keys as peft's own configuration."""
    from peft import LoraConfig as PeftLoraConfig

    return PeftLoraConfig(
        task_type="CAUSAL_LM", r=config.rank, lora_alpha=config.alpha, target_modules=config.target_modules, bias="none",
        base_model_name_or_path=model,
    )  # fmt: skip


def target_modules(directory: Path, config: LoraConfig) -> dict[str, tuple[int, int]]:
    """Modules of the model in ``directory`` that peft gives an adapter to, with their (outputs, inputs), in order of name.

    Raises:
        ConfigError: the model has no such module, or one of another kind than a linear layer.
    """
    from peft import get_peft_model
    from peft.tuners.lora import LoraLayer
    from transformers import AutoConfig, AutoModelForCausalLM

    key = "lora.target_modules"
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory, local_files_only=True))
    try:
        wrapped: Any = get_peft_model(model, peft_config(config))
    except ValueError as error:
        raise ConfigError(f"{key}: {error}", param=key) from error
    found: dict[str, tuple[int, int]] = {}
    for name, module in wrapped.named_modules():
        if not isinstance(module, LoraLayer):
            continue
        base: Any = module.get_base_layer()
        if type(base) is not torch.nn.Linear:
            raise ConfigError(
                f"{key}: {plain_name(name)} is a {type(base).__name__}, and adapters are trained on linear layers only. Name "
                "the linear layers' modules.", param=key,
            )  # fmt: skip
        found[plain_name(name)] = (base.out_features, base.in_features)
    return dict(sorted(found.items()))


def save_adapter(
    directory: Path, adapters: Mapping[str, torch.Tensor], config: LoraConfig, model: str | None = None
) -> None:
    """Write ``adapters``, by peft's names in files, into the folder that this makes for them."""
    directory.mkdir(exist_ok=True)
    described = peft_config(config, model)
    described.inference_mode = True
    described.save_pretrained(str(directory))
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in adapters.items()}
    save_file(tensors, directory / "adapter_model.safetensors", metadata={"format": "pt"})
