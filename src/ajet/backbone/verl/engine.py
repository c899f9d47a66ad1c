"""Workers, trainer, replicas and checkpoints of one run: everything the driver does, without the pipe.

All methods block and are called from one thread.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ajet.algorithm.baseline import RunningBaseline
from ajet.backbone.disk import checkpoint_refusals, synced
from ajet.backbone.embedded.net import copy_beside, eos_ids
from ajet.backbone.fingerprint import same_weights
from ajet.backbone.models import model_dir
from ajet.backbone.protocol import BackboneInfo, StepResult
from ajet.backbone.verl import mapping
from ajet.backbone.verl.cluster import Cluster
from ajet.backbone.verl.rollout import Rollout
from ajet.backbone.verl.sampling import check_sampler
from ajet.backbone.verl.trainer import Trainer
from ajet.backbone.verl.watch import Watch
from ajet.default_config.schema import AjetConfig
from ajet.schema.errors import ConfigError, DiskRefused, EngineStateConflict
from ajet.trajectory.batch import TrainBatch

STATE_JSON = "trainer_state.json"
SHARDS = "verl"
"""Folder of a checkpoint that holds what verl's ranks saved."""
_BYTES_PER_PARAMETER = 17
"""Of a checkpoint: float32 weights, two moments, and the exported weights, and a little."""


class Engine:
    """See :class:`ajet.backbone.protocol.Backbone` for what it does.

    Args:
        progressed: called after each piece of a long piece of work.
        gone: called with the cause when an actor or a host is gone.
    """

    def __init__(self, config: AjetConfig, progressed: Callable[[], None], gone: Callable[[str], None]) -> None:
        self.config, self._progressed, self._gone = config, progressed, gone
        self.source = model_dir(config.model.path)
        described = json.loads((self.source / "config.json").read_text())
        self.vocab = int(described["vocab_size"])
        self.max_len = min(config.rollout.max_model_len, int(described.get("max_position_embeddings", 2**31)))
        config.rollout.max_model_len = self.max_len
        self.host = resolve_host(config)
        check_sampler(config, self.host)
        self.cluster: Any = None
        self.trainer: Any = None
        self.rollout: Any = None

    def boot(self) -> None:
        """Ray, workers, replicas, and the first weights handed over."""
        self.cluster = Cluster(self.config, self.host, self.vocab, self._progressed)
        self.trainer = Trainer(self.cluster, self.config.trainer_common)
        self.rollout = Rollout(self.cluster, max_len=self.max_len, eos=eos_ids(self.source))
        self.rollout.launch()
        self._progressed()
        self._parameters = self.cluster.parameters()
        self.serve()
        Watch(self.cluster.actors() | self.rollout.actors(), self._gone).start()

    def info(self) -> BackboneInfo:
        kind = "cpu" if self.host.cpu else "gpu"
        device = f"verl: {self.cluster.world} × {kind}"
        return BackboneInfo(
            self.trainer.step, device, self._parameters, self.cluster.digest(), self.vocab, self.max_len, 0
        )  # fmt: skip

    # -- training -------------------------------------------------------------------------------------------------------

    def train(self, batch: TrainBatch) -> StepResult:
        """Update the weights; samplers that share devices with the workers are freed first."""
        if not self.rollout.separate:
            self.rollout.pause()
        return self.trainer.train_step(batch)

    def serve(self) -> None:
        """Hand the weights over to the samplers."""
        self.rollout.hand_over(self.trainer.step)
        self._progressed()

    def check_version(self, version: int) -> None:
        if version != self.trainer.step:
            raise EngineStateConflict(
                f"The backbone serves policy {self.trainer.step}, not {version}: train or load that step first."
            )

    # -- checkpoints ----------------------------------------------------------------------------------------------------

    def save(self, directory: Path) -> None:
        """The ranks' shards, and beside them the model as transformers loads it; every file fsynced.

        Raises:
            DiskRefused: a disk is full or read-only, before or in the middle of it.
            ConfigError: the hosts do not share the folder.
        """
        need = self._parameters * _BYTES_PER_PARAMETER
        free = shutil.disk_usage(directory).free
        if free < need:
            raise DiskRefused(
                f"The disk under {directory} has {free / 2**30:.1f} GiB left, and a checkpoint takes {need / 2**30:.1f}. "
                "Free some space"
            )
        self.cluster.save(directory / SHARDS)
        ranks = sorted((directory / SHARDS).glob("model_world_size_*_rank_*.pt"))
        if len(ranks) != self.cluster.world:
            raise ConfigError(
                f"{directory} has the shards of {len(ranks)} of {self.cluster.world} workers: experiment_dir must be a folder "
                "that all hosts share.", param="experiment_dir",
            )  # fmt: skip
        state = {
            "format": 1, "backbone": "verl", "step": self.trainer.step, "optimizer_steps": self.trainer.optimizer_steps,
            "world": self.cluster.world, "digest": self.cluster.digest(),
            "running_baseline": self.trainer.baseline.to_state(),
        }  # fmt: skip
        with checkpoint_refusals(directory):
            self._describe(directory, state)

    def _describe(self, directory: Path, state: dict[str, Any]) -> None:
        """What a checkpoint has beside weights: the model's description and tokenizer, and the trainer's state."""
        config = json.loads((self.source / "config.json").read_text())
        config.pop("torch_dtype", None)
        config["dtype"] = mapping.dtype_name(self.config, self.host)
        (directory / "config.json").write_text(json.dumps(config, indent=2))
        copy_beside(self.source, directory)
        (directory / STATE_JSON).write_text(json.dumps(state, indent=2))
        synced(directory)

    def load(self, directory: Path) -> None:
        """Continue from :meth:`save`. Raises :class:`ConfigError` where the directory is not one of its own."""
        try:
            state = json.loads((directory / STATE_JSON).read_text())
        except FileNotFoundError:
            state = {}
        if state.get("backbone") != "verl":
            raise ConfigError(
                f"{directory} is no checkpoint of backbone: verl. Start a new experiment from it: model.path."
            )
        if state["world"] != self.cluster.world:
            raise ConfigError(
                f"{directory} was saved by {state['world']} workers, and there are {self.cluster.world}. Set "
                "trainer_common.nnodes and n_gpus_per_node as they were, or start a new experiment with this folder as its "
                "model.path.", param="trainer_common.n_gpus_per_node",
            )  # fmt: skip
        self.cluster.load(directory / SHARDS)
        found = self.cluster.digest()
        if not same_weights(found, state["digest"], tolerance=1e-6):
            raise ConfigError(
                f"{directory} is damaged: its weights do not have the digest that was saved. Use an earlier checkpoint."
            )
        self.trainer.step, self.trainer.optimizer_steps = state["step"], state["optimizer_steps"]
        self.trainer.baseline = RunningBaseline.from_state(state.get("running_baseline"))


def resolve_host(config: AjetConfig) -> mapping.Host:
    """What a host contributes.

    Raises:
        ConfigError: it has fewer GPUs than asked for.
    """
    import torch

    wanted, key = config.trainer_common.n_gpus_per_node, "trainer_common.n_gpus_per_node"
    here = torch.cuda.device_count()
    if wanted is None and config.verl.ray_address is not None:
        raise ConfigError(
            f"{key}: how many GPUs a host of the Ray cluster contributes is not known here. Set {key}.", param=key
        )
    count = here if wanted is None else wanted
    if config.verl.ray_address is None and count > here:
        raise ConfigError(f"{key} is {count} and this machine has {here} usable GPU(s). Set {key}: {here}.", param=key)
    source = str(model_dir(config.model.path))
    return mapping.Host(count == 0, count or config.verl.cpu_workers, source)
