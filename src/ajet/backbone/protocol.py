"""The seam between the server and whatever samples and trains: token ids in, token ids and log-probs out.

Chat, tools and templates are the server's business; devices, optimizers and parallelism are the backbone's.
Any :class:`Sampler` can serve any :class:`Trainer`. Everything here is plain data: no torch.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from ajet.trajectory.batch import Row, Sample, TrainBatch

__all__ = [
    "FROZEN",
    "POLICY",
    "Backbone",
    "BackboneDied",
    "BackboneInfo",
    "Chunk",
    "FinishReason",
    "ModelName",
    "Patience",
    "Row",
    "Sample",
    "Sampler",
    "Sampling",
    "StepResult",
    "TrainBatch",
    "Trainer",
]

FinishReason = Literal["stop", "length", "cancelled"]
ModelName = str
"""``policy``; ``frozen`` (the run's initial weights); or ``frozen:<directory>``, a checkpoint of the same model."""
POLICY, FROZEN = "policy", "frozen"


@dataclass(frozen=True)
class Sampling:
    """How to sample one reply. Log-probs returned are those of the distribution sampled from (temperature applied)."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 = off."""
    max_tokens: int = 1024
    stop_token_ids: tuple[int, ...] = ()
    """Generation ends *with* one of these; the stop token is part of the returned (and trained) ids."""
    seed: int | None = None
    top_logprobs: int = 0
    ignore_eos: bool = False


@dataclass(frozen=True)
class Chunk:
    """A piece of a reply: newly sampled ids with their log-probs and the policy version that sampled each."""

    ids: list[int]
    logprobs: list[float]
    versions: list[int]
    top_logprobs: list[list[tuple[int, float]]] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    """Set on the last chunk only."""


@dataclass(frozen=True)
class StepResult:
    """What a training step answers.

    Attributes:
        policy_version: equals the batch's ``step``.
        metrics: numbers for the curves (``actor/loss``, ``actor/grad_norm``, ``actor/lr``, ``reward/<tag>/mean``,
            ``advantage/<tag>/zero_group_share``, ``timing/update_s``, ``tokens/trained`` …).
        advantages: ``"<episode>/<agent>"`` → advantage of that row.
        digest: hex SHA-256 over the weights after the step.
    """

    policy_version: int
    metrics: dict[str, float]
    advantages: dict[str, float]
    digest: str


@dataclass(frozen=True)
class Patience:
    """How long a backbone is waited for before it counts as hung.

    Attributes:
        frozen_s: without any sign of life: it is stopped or dead-locked.
        boot_s: the same until its model is loaded; libraries that come from a slow disk hold up all signs of life.
        stuck_s: alive and at work, without having come any further. Loading a large model from a slow disk is the longest
            piece of work without a sign of progress.
    """

    frozen_s: float = 60.0
    boot_s: float = 600.0
    stuck_s: float = 1800.0


@dataclass(frozen=True)
class BackboneInfo:
    """What a started backbone says of itself."""

    policy_version: int
    device: str
    parameters: int
    digest: str
    vocab_size: int
    max_position: int
    threads: int = 0
    """CPU threads that compute; bit-exact resumption needs the same number. 0 where it does not matter."""


class BackboneDied(Exception):
    """The backbone process is gone or hung up; the message carries the cause (last lines of its log)."""


class Sampler(Protocol):
    """Serves tokens. All methods are called on the server's event loop."""

    def generate(
        self, ids: list[int], sampling: Sampling, *, session: str, model: ModelName = "policy", stream: bool = False
    ) -> AsyncIterator[Chunk]:
        """Sample a reply to the prompt ``ids``.

        ``session`` names the timeline (``episode/agent``), so that a cache can be kept between its calls. With
        ``stream`` chunks arrive as they are sampled, else one chunk with everything. Closing the iterator, or
        cancelling its consumer, cancels the generation. Raises :class:`BackboneDied`, and :class:`ConfigError` for a
        frozen model that cannot be served.
        """
        ...

    async def load_weights(self, version: int) -> None:
        """Serve policy ``version`` from now on (a no-op where sampler and trainer share weights)."""
        ...


class Trainer(Protocol):
    """Updates weights. Deterministic given its state and batch."""

    async def train_step(self, batch: TrainBatch) -> StepResult: ...

    async def save(self, directory: str) -> None:
        """Write model (transformers format) and trainer state into the existing empty ``directory`` and fsync it."""
        ...

    async def load(self, directory: str) -> BackboneInfo:
        """Continue exactly from what :meth:`save` wrote."""
        ...


class Backbone(Sampler, Trainer, Protocol):
    """A sampler and a trainer that are started together."""

    async def start(self, job: dict[str, Any]) -> BackboneInfo:
        """Boot with the resolved configuration tree (``AjetConfig.model_dump()``)."""
        ...

    async def wait_died(self) -> BackboneDied:
        """Return when the backbone is dead, with the cause."""
        ...

    async def stats(self) -> dict[str, float]:
        """Sampler counters: ``sampled_tokens``, ``prefill_tokens``, ``active``, ``waiting`` …"""
        ...

    async def close(self) -> None: ...
