"""AgentJetJob: what to train and how, from keywords, a YAML file and the defaults.

Keywords win over the file, the file wins over the defaults; a keyword left at None means that the file decides.
The resolved values read back as attributes of the same names (``job.num_repeat``), and the whole typed tree is
``job.config``. Checked when built: see :mod:`ajet.default_config.load`.
"""

from __future__ import annotations

import difflib
import time
from pathlib import Path
from typing import Any, NoReturn

import yaml

from ajet.default_config.load import Layer, build_config, layer_under_root
from ajet.default_config.schema import AjetConfig
from ajet.default_config.yaml_source import read_layer
from ajet.schema.errors import ConfigError
from ajet.schema.uncaught import speak_plainly

KEYWORDS: dict[str, str] = {
    "project_name": "project_name",
    "experiment_name": "experiment_name",
    "experiment_dir": "experiment_dir",
    "backbone": "backbone",
    "model": "model.path",
    "n_gpu": "trainer_common.n_gpus_per_node",
    "algorithm": "trainer_common.algorithm.adv_estimator",
    "logging": "trainer_common.logger",
    "num_repeat": "rollout.num_repeat",
    "max_env_worker": "rollout.max_env_worker",
    "batch_size": "data.train_batch_size",
    "swarm_mode": "enable_swarm_mode",
    "swarm_mode_sample_collection_method": "swarm_mode_sample_collection_method",
    "max_prompt_length": "data.max_prompt_length",
    "max_response_length": "data.max_response_length",
    "max_response_length_in_one_turn": "rollout.max_response_length_in_one_turn",
    "max_model_len": "rollout.max_model_len",
    "mini_batch_num": "trainer_common.mini_batch_num",
    "ppo_epochs": "trainer_common.ppo_epochs",
    "lr": "trainer_common.optim.lr",
    "gpu_memory_utilization": "rollout.gpu_memory_utilization",
    "lora_rank": "lora.rank",
    "lora_alpha": "lora.alpha",
    "lora_target_modules": "lora.target_modules",
    "nnodes": "trainer_common.nnodes",
    "tensor_model_parallel_size": "rollout.tensor_model_parallel_size",
    "ulysses_sequence_parallel_size": "trainer_common.ulysses_sequence_parallel_size",
    "total_training_steps": "trainer_common.total_training_steps",
    "timeline_compare_level": "context_tracker.timeline_compare_level",
}
"""Keyword of :class:`AgentJetJob` → key of the tree."""


class AgentJetJob:
    """A training job.

    Args:
        base_yaml_config: a YAML file with ``ajet:`` at its top; the keywords below overlay it.
        model: a model directory, or the name of the built-in model.
        n_gpu: GPUs on each host; 0 = the CPU.
        algorithm: verl's advantage estimator by name.
        batch_size: groups (tasks) per step.
        num_repeat: episodes per task.
        max_env_worker: open episodes at most, over all clients.
        ensure_new_experiment: add a timestamp to the experiment's name, so that no earlier run is continued.

    The other keywords set the key of :data:`KEYWORDS`; ``docs/configuration.md`` describes each.

    Raises:
        ConfigError: an unknown key, a wrong type, or values that contradict each other; each with where and why.
    """

    config: AjetConfig
    """The resolved tree. Change it freely before the job is sent; :meth:`check` looks across the keys again."""

    project_name: str
    experiment_name: str
    experiment_dir: str | None
    backbone: str
    model: str
    n_gpu: int | None
    algorithm: str
    logging: str | list[str]
    num_repeat: int
    max_env_worker: int
    batch_size: int
    swarm_mode: bool
    swarm_mode_sample_collection_method: str
    max_prompt_length: int
    max_response_length: int
    max_response_length_in_one_turn: int
    max_model_len: int
    mini_batch_num: int
    ppo_epochs: int
    lr: float
    gpu_memory_utilization: float
    lora_rank: int
    lora_alpha: int
    lora_target_modules: str | list[str]
    nnodes: int
    tensor_model_parallel_size: int
    ulysses_sequence_parallel_size: int
    total_training_steps: int
    timeline_compare_level: str

    def __init__(
        self,
        base_yaml_config: str | Path | None = None,
        project_name: str | None = None,
        experiment_name: str | None = None,
        experiment_dir: str | None = None,
        backbone: str | None = None,
        model: str | None = None,
        n_gpu: int | None = None,
        algorithm: str | None = None,
        logging: str | list[str] | None = None,
        num_repeat: int | None = None,
        max_env_worker: int | None = None,
        batch_size: int | None = None,
        swarm_mode: bool | None = None,
        swarm_mode_sample_collection_method: str | None = None,
        max_prompt_length: int | None = None,
        max_response_length: int | None = None,
        max_response_length_in_one_turn: int | None = None,
        max_model_len: int | None = None,
        mini_batch_num: int | None = None,
        ppo_epochs: int | None = None,
        lr: float | None = None,
        gpu_memory_utilization: float | None = None,
        lora_rank: int | None = None,
        lora_alpha: int | None = None,
        lora_target_modules: str | list[str] | None = None,
        nnodes: int | None = None,
        tensor_model_parallel_size: int | None = None,
        ulysses_sequence_parallel_size: int | None = None,
        total_training_steps: int | None = None,
        timeline_compare_level: str | None = None,
        ensure_new_experiment: bool = False,
        **unknown: NoReturn,
    ) -> None:
        speak_plainly()
        for name in unknown:
            raise _unknown_keyword(name)
        given = {name: value for name, value in locals().items() if name in KEYWORDS and value is not None}
        layers = []
        if base_yaml_config is not None:
            layers.append(layer_under_root(read_layer(base_yaml_config), str(base_yaml_config)))
        layers.append(_keyword_layer(given))
        object.__setattr__(self, "config", build_config(layers))
        if ensure_new_experiment:
            self.config.experiment_name += time.strftime("_%Y%m%d_%H%M%S")
            self.check()

    def __getattr__(self, name: str) -> Any:
        if name not in KEYWORDS:
            raise AttributeError(f"AgentJetJob has no attribute {name!r}; the whole tree is in .config")
        node: Any = self.config
        for part in KEYWORDS[name].split("."):
            node = getattr(node, part)
        return node

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in KEYWORDS:
            object.__setattr__(self, name, value)
            return
        *sections, leaf = KEYWORDS[name].split(".")
        node: Any = self.config
        for part in sections:
            node = getattr(node, part)
        setattr(node, leaf, value)

    def check(self) -> None:
        """Look across the keys again after changes. Raises :class:`ajet.schema.errors.ConfigError`."""
        build_config([Layer(self.config.model_dump(mode="json"))])

    def dump_job_as_yaml(self, path: str | Path) -> str:
        """Write the resolved tree, defaults included, so that the file alone reproduces the job. Returns the path."""
        text = yaml.safe_dump(self.config.to_dict(), sort_keys=False, allow_unicode=True)
        Path(path).write_text(text, encoding="utf-8")
        return str(path)

    @classmethod
    def build_job_from_yaml(cls, path: str | Path) -> AgentJetJob:
        """The job of a YAML file, as :meth:`dump_job_as_yaml` or a person wrote it."""
        return cls(base_yaml_config=path)

    def __repr__(self) -> str:
        return (
            f"AgentJetJob(experiment_name={self.experiment_name!r}, model={self.model!r}, algorithm={self.algorithm!r}, "
            f"batch_size={self.batch_size}, num_repeat={self.num_repeat})"
        )


def build_job_from_yaml(path: str | Path) -> AgentJetJob:
    """The job of a YAML file."""
    return AgentJetJob(base_yaml_config=path)


def _unknown_keyword(name: str) -> ConfigError:
    """What to write instead of a keyword that there is not."""
    close = difflib.get_close_matches(name, [*KEYWORDS, "base_yaml_config", "ensure_new_experiment"], n=1, cutoff=0.6)
    meant = f" Did you mean {close[0]}?" if close else ""
    return ConfigError(
        f"AgentJetJob has no keyword {name!r}.{meant} Keys without a keyword go into a YAML file (base_yaml_config=…) or are "
        "set on the job: job.config.<section>.<key> = …",
        param=name,
    )


def _keyword_layer(given: dict[str, Any]) -> Layer:
    layer = Layer({})
    for name, value in given.items():
        path = tuple(KEYWORDS[name].split("."))
        node = layer.data
        for part in path[:-1]:
            node = node.setdefault(part, {})
        node[path[-1]] = list(value) if isinstance(value, tuple) else value
        layer.origins[path] = f"AgentJetJob({name}=…)"
    return layer
