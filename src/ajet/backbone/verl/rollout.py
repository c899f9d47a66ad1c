"""Sampling by verl's rollout replicas: token ids in, token ids out, each with the policy version that sampled it.

A weight update interrupts what is under way; it goes on with the tokens it has under the new version, which is why each
part's version is kept (verl's own resuming client knows the first and the last one only).

Asyncio, in the driver; what blocks runs in the training thread.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
from typing import Any

from ajet.backbone.embedded.request import check_sampling
from ajet.backbone.protocol import Chunk, ModelName, Sampling
from ajet.backbone.verl.mapping import REPLICA, VLLM_REPLICA
from ajet.backbone.verl.sampling import check_exact, params
from ajet.schema.errors import ContextLengthExceeded, InvalidRequest

_engine_id: contextvars.ContextVar[str] = contextvars.ContextVar("engine_id")


class Rollout:
    """verl's replicas, load balancer, client and weight updates, put together.

    Args:
        cluster: its workers train; colocated ones hand the weights over.
        eos: ids that end a reply.
    """

    def __init__(self, cluster: Any, *, max_len: int, eos: frozenset[int]) -> None:
        self._cluster, self._max_len, self._eos = cluster, max_len, eos
        self._tree = cluster.tree
        self._separate = cluster.config.verl.placement == "separate"
        self._open = asyncio.Event()
        self._numbers = itertools.count(1)
        self._active = 0
        self.counters = dict.fromkeys(("sampled_tokens", "prefill_tokens", "requests", "resumed"), 0)

    def launch(self) -> None:
        """Start the replicas. Blocks."""
        from verl.checkpoint_engine import CheckpointEngineManager
        from verl.utils.config import omega_conf_to_dataclass
        from verl.workers.rollout.llm_server import LLMServerClient, LLMServerManager

        from ajet.backbone.verl.worker import AjetWorker  # noqa: F401  (registers our replica where it is wanted)

        class Client(LLMServerClient):
            """Lets the caller name the engine's request, so that it can be aborted."""

            def _vllm_request_id(self, request_id: str) -> str:
                return _engine_id.get()

        group = None if self._separate else self._cluster.group
        self._manager: Any = LLMServerManager.create(config=self._tree, worker_group=group)
        self._weights: Any = CheckpointEngineManager(
            config=omega_conf_to_dataclass(self._tree.actor_rollout_ref.rollout.checkpoint_engine),  # type: ignore[arg-type]
            actor_wg=self._cluster.group, replicas=self._manager.get_replicas(),
        )  # fmt: skip
        self._client: Any = self._manager.get_client(client_cls=Client)

    def actors(self) -> dict[str, Any]:
        found: dict[str, Any] = {"the load balancer": self._manager.global_load_balancer}
        for replica in self._manager.get_replicas():
            found |= {f"sampler {replica.replica_rank}.{i}": server for i, server in enumerate(replica.servers)}
            if self._separate:
                found |= {f"sampler {replica.replica_rank} worker {i}": w for i, w in enumerate(replica.workers)}
        return found

    # -- sampling -------------------------------------------------------------------------------------------------------

    async def generate(self, ids: list[int], sampling: Sampling, *, session: str, model: ModelName) -> Chunk:
        """A whole reply. Cancelling ends it on its server, too.

        Raises:
            InvalidRequest, ContextLengthExceeded: it cannot be sampled as asked.
        """
        self._check(ids, sampling, model)
        limit = min(sampling.max_tokens, self._max_len - len(ids))
        stops = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else self._eos)
        extra = {"model": model} if self._replica_is_ours else {}
        out: list[int] = []
        logprobs: list[float] = []
        versions: list[int] = []
        self.counters["requests"] += 1
        self.counters["prefill_tokens"] += len(ids)
        self._active += 1
        try:
            for part in itertools.count():
                await self._open.wait()
                engine_id = f"ajet-{next(self._numbers)}"
                _engine_id.set(engine_id)
                try:
                    answer = await self._client.generate(
                        session,
                        prompt_ids=ids + out,
                        sampling_params=params(self._name, sampling, limit - len(out), part),
                        **extra,
                    )
                except asyncio.CancelledError:
                    self._abort(engine_id)
                    raise
                out += answer.token_ids
                logprobs += answer.log_probs or []
                versions += [int(answer.extra_fields.get("global_steps") or 0)] * len(answer.token_ids)
                if answer.stop_reason not in ("aborted", "abort") or len(out) >= limit:
                    break
                self.counters["resumed"] += 1
        finally:
            self._active -= 1
        self.counters["sampled_tokens"] += len(out)
        stopped = bool(out) and out[-1] in stops
        return Chunk(out, logprobs, versions, [], "stop" if stopped else "length")

    @property
    def _name(self) -> str:
        return self._tree.actor_rollout_ref.rollout.name

    @property
    def _replica_is_ours(self) -> bool:
        return self._name in (REPLICA, VLLM_REPLICA)

    def _check(self, ids: list[int], sampling: Sampling, model: ModelName) -> None:
        check_sampling(sampling)
        check_exact(self._name, sampling)
        if not ids:
            raise InvalidRequest("The prompt has no tokens: send at least one.", param="prompt")
        if len(ids) >= self._max_len:
            raise ContextLengthExceeded(
                f"The prompt has {len(ids)} tokens and max_model_len is {self._max_len}: shorten the history, or raise "
                "rollout.max_model_len.", param="messages",
            )  # fmt: skip
        if max(ids) >= self._cluster.vocab or min(ids) < 0:
            raise InvalidRequest(
                f"The prompt has a token id outside of the model's {self._cluster.vocab}: tokenizer and model do not belong "
                "together.", param="messages",
            )  # fmt: skip
        if sampling.top_logprobs:
            raise InvalidRequest(
                "top_logprobs: verl's replicas tell the sampled tokens' log-probs only. Leave it out.",
                param="top_logprobs",
            )
        if model == "frozen" and not self._replica_is_ours:
            raise InvalidRequest(
                "The frozen initial model is not served by backbone: verl on GPUs. Serve it elsewhere (vllm serve) and give "
                "the static players that address.", param="model",
            )  # fmt: skip

    def _abort(self, engine_id: str) -> None:
        if (
            self._name == "sglang"
        ):  # verl's server for it cannot end one request: it runs on, and its answer is not read
            return
        for replica in self._manager.get_replicas():
            for server in replica.servers:
                server.abort_request.remote(engine_id)

    # -- weights --------------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Before colocated workers train: interrupt what is under way and free the devices. Blocks."""
        self._weights.abort_replicas()
        if not self._separate:
            self._weights.sleep_replicas()

    def hand_over(self, version: int) -> None:
        """Serve the trainer's weights as policy ``version``. Blocks."""
        self._weights.update_weights(global_steps=version)
        self._weights.resume_generation_replicas()

    def shut(self) -> None:
        """Hold new calls back until :meth:`reopen`."""
        self._open.clear()

    def reopen(self) -> None:
        self._open.set()

    @property
    def separate(self) -> bool:
        return self._separate

    def stats(self) -> dict[str, float]:
        held = 0 if self._open.is_set() else self._active
        return {**self.counters, "active": self._active - held, "waiting": held}
