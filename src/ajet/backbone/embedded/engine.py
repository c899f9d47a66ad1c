"""Sampler, trainer and model in one process: everything the worker does, without the pipes. One thread owns it.

Where ``rollout.name`` is another sampler, that one serves the policy and gets each version by :meth:`Engine.export`.

The frozen initial model is loaded from ``model.path`` when something first asks for it: a call with
``model="frozen"``, or a KL term. Other frozen models are in :mod:`ajet.backbone.embedded.beside`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ajet.algorithm.baseline import RunningBaseline
from ajet.backbone.disk import checkpoint_refusals, disk_refusal, synced
from ajet.backbone.embedded.beside import Beside
from ajet.backbone.embedded.lora import LoraNet
from ajet.backbone.embedded.memory import kv_blocks
from ajet.backbone.embedded.net import Net, copy_beside, digest, eos_ids, load_net
from ajet.backbone.embedded.one_pass import OnePassSampler
from ajet.backbone.embedded.paged import BLOCK, PagedKV
from ajet.backbone.embedded.sampler import Sampler
from ajet.backbone.embedded.trainer import Trainer
from ajet.backbone.lora import FOLDER as ADAPTER
from ajet.backbone.models import model_dir
from ajet.backbone.protocol import POLICY, BackboneInfo, Chunk, ModelName, Sampling, StepResult
from ajet.default_config.schema import AjetConfig, RolloutConfig
from ajet.schema.errors import ConfigError, DiskRefused, EngineStateConflict
from ajet.trajectory.batch import TrainBatch

SMALL_MODEL = 500_000
"""Below this many parameters one torch thread is faster than several, and training works in lanes."""
MAX_LANES = 4
STATE_JSON, STATE_TENSORS = "trainer_state.json", "trainer_state.safetensors"


class Engine:
    """Boots with the resolved configuration; see :class:`ajet.backbone.protocol.Backbone` for what it does.

    Args:
        progressed: called after each piece of a long piece of work.
    """

    def __init__(self, config: AjetConfig, progressed: Callable[[], None] = lambda: None) -> None:
        self.config = config
        self._progressed = progressed
        self.device = _device(config)
        self.source = model_dir(config.model.path)
        self.dtype = _dtype(config.model.dtype, self.device)
        self._lanes = 1
        self._set_threads()
        self._master = self.dtype if config.lora.rank else torch.float32
        self.net = self._load(self.source)
        self._parameters = sum(p.numel() for p in self.net.parameters().values())
        self._set_threads(self._parameters)
        self._initial_digest = digest(self.net)
        if config.lora.rank:
            self.net = LoraNet(self.net, config.lora, self.source, config.trainer_common.seed)
        self.eos = eos_ids(self.source)
        self.max_len = min(config.rollout.max_model_len, self.net.max_position)
        self._frozen: Net | None = None
        self.trainer = self._new_trainer()
        self._sampler = self._new_sampler(self.net, 0, share=0.8) if config.rollout.name != "vllm" else None
        self._beside = Beside(
            self.source, self.device, self.dtype, self.net.vocab, self.frozen,
            lambda net: self._new_sampler(net, 0, share=0.2),
        )  # fmt: skip

    # -- life ---------------------------------------------------------------------------------------------------------

    def info(self) -> BackboneInfo:
        device = str(self.device) if self.device.type == "cpu" else torch.cuda.get_device_name(self.device)
        if self.net.by_numpy:
            device += ", products by numpy"
        threads = max(self._lanes, torch.get_num_threads()) if self.device.type == "cpu" else 0
        return BackboneInfo(
            self.trainer.step, device, self._parameters, digest(self.net), self.net.vocab, self.max_len, threads
        )

    def frozen(self) -> Net:
        """The initial model."""
        if self._frozen is None:
            if self.trainer.step == 0:
                self._frozen = self.net.clone_frozen()
            else:
                net = self._load(self.source)
                if digest(net) != self._initial_digest:
                    raise ConfigError(
                        f"model.path: {self.source} has other weights than this run began with, and the frozen initial "
                        "model is needed. Put the original model back.", param="model.path",
                    )  # fmt: skip
                self._frozen = net.clone_frozen()
        return self._frozen

    # -- sampling -------------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        return any(sampler.busy for sampler in self._samplers())

    def submit(self, key: int, ids: list[int], sampling: Sampling, model: ModelName, stream: bool) -> None:
        sampler = self._sampler if model == POLICY else self._beside(model)
        assert sampler is not None, "the policy is served elsewhere"
        sampler.submit(key, ids, sampling, stream)

    def cancel(self, key: int) -> None:
        for sampler in self._samplers():
            sampler.cancel(key)

    def tick(self) -> list[tuple[int, Chunk]]:
        return [chunk for sampler in self._samplers() if sampler.busy for chunk in sampler.tick()]

    def stats(self) -> dict[str, float]:
        return (self._sampler.stats() if self._sampler is not None else {}) | self._beside.stats()

    def load_weights(self, version: int) -> None:
        """Sampler and trainer share weights: there is nothing to load, only to check."""
        self._check_version(version)

    def export(self, version: int, directory: Path) -> None:
        """Write the weights as they are served, in transformers' format, for another sampler to read; not fsynced."""
        self._check_version(version)
        try:
            self.net.save(directory)
        except (OSError, SafetensorError) as error:
            refused = disk_refusal(error)
            if refused is None:
                raise
            raise DiskRefused(
                f"{directory} has no room for the weights that the sampler is to load ({refused}). Free some space there."
            ) from error

    def _samplers(self) -> list[Sampler]:
        return [*([self._sampler] if self._sampler is not None else []), *self._beside.all()]

    def _check_version(self, version: int) -> None:
        if version != self.trainer.step:
            raise EngineStateConflict(
                f"The backbone serves policy {self.trainer.step}, not {version}: train or load that step first."
            )

    # -- training -------------------------------------------------------------------------------------------------------

    def train_step(self, batch: TrainBatch) -> StepResult:
        self._keep_initial()
        result = self.trainer.train_step(batch)
        if self._sampler is not None:
            self._sampler.refresh(self.trainer.step)
        return result

    def save(self, directory: Path) -> None:
        """Model in transformers' format and trainer state, each file fsynced.

        Raises:
            DiskRefused: the disk is full or read-only.
        """
        with checkpoint_refusals(directory):
            self._write(directory)

    def _write(self, directory: Path) -> None:
        self.net.save(directory)
        copy_beside(self.source, directory)
        tensors = self.trainer.optimizer.state_tensors()
        adapted = self.net if isinstance(self.net, LoraNet) else None
        if adapted is not None:
            adapted.save_adapter(directory / ADAPTER)
        if self.dtype != torch.float32 or adapted is not None:
            tensors |= {f"master/{n}": w.detach().cpu().contiguous() for n, w in self.net.parameters().items()}
        save_file(tensors, directory / STATE_TENSORS)
        state = {
            "format": 1,
            "step": self.trainer.step,
            "optimizer_steps": self.trainer.optimizer.count,
            "digest": digest(self.net),
            "initial_digest": self._initial_digest,
            "dtype": str(self.dtype),
            "running_baseline": self.trainer.baseline.to_state(),
            "lora": self.config.lora.model_dump(mode="json") if adapted is not None else None,
        }
        (directory / STATE_JSON).write_text(json.dumps(state, indent=2))
        synced(directory)

    def load(self, directory: Path) -> BackboneInfo:
        """Continue from :meth:`save`. Raises :class:`ConfigError` where the directory is not one of its own."""
        try:
            state = json.loads((directory / STATE_JSON).read_text())
        except FileNotFoundError:
            raise ConfigError(f"{directory} has no {STATE_JSON}: it is no checkpoint of this backbone.") from None
        self._check_lora(directory, state)
        self._keep_initial()
        tensors: dict[str, torch.Tensor] = {}
        with safe_open(directory / STATE_TENSORS, "pt") as opened:
            tensors.update({name: opened.get_tensor(name) for name in list(opened.keys())})
        masters = {n.removeprefix("master/"): t for n, t in tensors.items() if n.startswith("master/")}
        if isinstance(self.net, LoraNet):
            self.net.set_adapters(masters)
        else:
            loaded = self._load(directory).parameters()
            with torch.no_grad():
                for name, own in self.net.parameters().items():
                    own.copy_(masters.get(name, loaded[name]))
            del loaded
        found = digest(self.net)
        if found != state["digest"]:
            raise ConfigError(
                f"{directory} is damaged: its weights do not have the digest that was saved. Use an earlier checkpoint."
            )
        self.net.synchronize()
        if self._initial_digest != state["initial_digest"]:
            self._frozen, self._initial_digest = None, state["initial_digest"]
        self.trainer = self._new_trainer()
        self.trainer.step = state["step"]
        self.trainer.baseline = RunningBaseline.from_state(state.get("running_baseline"))
        self.trainer.optimizer.load_state(tensors, state["optimizer_steps"])
        if self._sampler is not None:
            self._sampler.refresh(self.trainer.step)
        return self.info()

    def _check_lora(self, directory: Path, state: dict[str, Any]) -> None:
        """Adapters mean something on their own base and in their own shape only."""
        wanted, saved = self.config.lora, state.get("lora")
        if saved != (wanted.model_dump(mode="json") if wanted.rank else None):
            raise ConfigError(
                f"{directory} was saved with lora: {saved or 'rank 0'}, and the job has {wanted.model_dump()}. Set lora as it "
                "was, or start a new experiment with this folder as its model.path.", param="lora.rank",
            )  # fmt: skip
        if saved and state["initial_digest"] != self._initial_digest:
            raise ConfigError(
                f"model.path: {self.source} has other weights than the adapters in {directory} were trained on. Put the "
                "original model back, or start a new experiment with the folder as its model.path.", param="model.path",
            )  # fmt: skip

    def _keep_initial(self) -> None:
        """Before the weights first change: keep a copy where a KL term will ask for it."""
        common = self.config.trainer_common
        if self.trainer.step == 0 and common.use_kl_loss and common.kl_loss_coef > 0:
            self.frozen()

    # -- parts ----------------------------------------------------------------------------------------------------------

    def _load(self, directory: Path) -> Net:
        return load_net(directory, self.device, self.dtype, self._master)

    def _new_trainer(self) -> Trainer:
        return Trainer(self.net, self.config.trainer_common, self.frozen, self.device, self._progressed, self._lanes)

    def _new_sampler(self, net: Net, version: int, share: float) -> Sampler:
        return new_sampler(
            net, self.config.rollout, self.max_len, self.device, self.dtype, self.eos, self.config.trainer_common.seed,
            version, share, sum(p.numel() for p in self.net.parameters().values()),
        )  # fmt: skip

    def _set_threads(self, parameters: int | None = None) -> None:
        if self.device.type != "cpu":
            return
        wanted = self.config.trainer_common.cpu_threads
        if parameters is None:
            torch.set_num_threads(wanted or 1)
        elif parameters < SMALL_MODEL and self.net.shares_beginnings and not self.config.lora.rank:
            self._lanes = wanted or min(MAX_LANES, physical_cores())
            torch.set_num_threads(1)
        else:
            torch.set_num_threads(wanted or (1 if parameters < SMALL_MODEL else physical_cores()))


def new_sampler(
    net: Net, rollout: RolloutConfig, max_len: int, device: torch.device, dtype: torch.dtype, eos: frozenset[int],
    seed: int, version: int, share: float, parameters: int | None = None,
) -> Sampler:  # fmt: skip
    """A sampler over ``net`` with a KV cache of its own.

    Args:
        share: of the memory that caches may take.
        parameters: of the model being trained beside it; default: ``net``'s.
    """
    native = net.native()
    one = PagedKV(net.kv_layers, 1, device, dtype, native is not None)
    token_bytes = sum(pool.numel() * pool.element_size() for pool in [*one.k, *one.v]) // BLOCK
    if parameters is None:
        parameters = sum(p.numel() for p in net.parameters().values())
    blocks = kv_blocks(rollout, max_len, token_bytes, device, share, parameters)
    kv = PagedKV(net.kv_layers, blocks, device, dtype, native is not None, net.packs())
    make = Sampler if native is None else partial(OnePassSampler, native)
    return make(
        net.extend, kv, vocab=net.vocab, max_seqs=rollout.max_num_seqs,
        max_len=min(max_len, (blocks - 1) * BLOCK - 1), eos=eos, seed=seed, version=version,
    )  # fmt: skip


def physical_cores() -> int:
    """Cores this process may run on, hardware threads of one core counted once."""
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = set()
    for cpu in cpus:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            cores.add(siblings.read_text().strip())
        except OSError:
            cores.add(str(cpu))
    return max(1, len(cores))


def _device(config: AjetConfig) -> torch.device:
    wanted, existing = config.trainer_common.n_gpus_per_node, torch.cuda.device_count()
    key = "trainer_common.n_gpus_per_node"
    if wanted is not None and wanted > existing:
        raise ConfigError(
            f"{key} is {wanted} and this machine has {existing} usable GPU(s). Set {key}: {existing and 1}"
            f"{' for the CPU' if not existing else ''}, or start the server where the GPUs are.", param=key,
        )  # fmt: skip
    if wanted is not None and wanted > 1:
        raise ConfigError(f"{key} is {wanted} and backbone: embedded uses one device. Set {key}: 1.", param=key)
    if wanted == 0 or existing == 0:
        return torch.device("cpu")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Else each `empty` is a write over all of it. (A property of the module, set through its class.)
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010
    return torch.device("cuda", 0)


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]
