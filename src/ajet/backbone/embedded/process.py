"""The server's side of the embedded backbone: one worker process on one device that samples and trains. Imports no torch."""

from __future__ import annotations

import importlib.util

from ajet.algorithm.support import check_algorithm
from ajet.backbone.models import model_dir
from ajet.backbone.process import ProcessBackbone
from ajet.default_config.schema import AjetConfig
from ajet.schema.errors import ConfigError

WORKER = "ajet.backbone.embedded.worker"
ENVIRONMENT = {
    # Freed tensors stay with the process: returning them to the system costs page faults in every pass.
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
}


class EmbeddedBackbone(ProcessBackbone):
    """Sampler and trainer in one worker process on one device."""

    WORKER = WORKER

    def _check(self, config: AjetConfig) -> None:
        check_job(config)
        if config.rollout.name not in ("auto", "embedded"):
            raise ConfigError(
                f"rollout.name: {config.rollout.name} is not what the embedded backbone samples with by itself. Set "
                "rollout.name: auto.", param="rollout.name",
            )  # fmt: skip

    def _environment(self) -> dict[str, str]:
        return ENVIRONMENT


def check_job(config: AjetConfig) -> None:
    """Raises :class:`ConfigError` for what the embedded trainer does not have."""
    check_algorithm(config.trainer_common)
    model_dir(config.model.path)
    if config.lora.rank > 0 and importlib.util.find_spec("peft") is None:
        raise ConfigError("lora.rank: adapters need peft: pip install peft, or set lora.rank: 0.", param="lora.rank")
