"""One request on its way through the sampler, and what of its parameters is refused."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ajet.backbone.embedded.paged import Held
from ajet.backbone.protocol import Chunk, FinishReason, Sampling
from ajet.schema.errors import ContextLengthExceeded, InvalidRequest


@dataclass
class Request:
    """``ids`` are the prompt's ``prompt`` tokens and what was sampled behind them, at most ``limit`` together.

    Attributes:
        uniform: the next number in [0, 1) of the request's own.
    """

    key: int
    ids: list[int]
    prompt: int
    sampling: Sampling
    stops: frozenset[int]
    limit: int
    stream: bool
    order: int
    uniform: Callable[[], float]
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    top: list[list[tuple[int, float]]] = field(default_factory=list)
    held: Held = field(default_factory=Held)
    slot: int = -1
    sent: int = 0
    deferred: bool = False
    _uniforms: list[float] = field(default_factory=list)

    @cached_property
    def plain(self) -> bool:
        """Nothing but a temperature shapes what is drawn."""
        s = self.sampling
        return not s.top_logprobs and (s.temperature == 0 or (s.top_p == 1 and s.top_k <= 0))

    def uniforms(self, count: int) -> list[float]:
        """The numbers that the next ``count`` tokens are drawn with, however many are drawn at once."""
        at = len(self.logprobs)
        while len(self._uniforms) < at + count:
            self._uniforms.append(self.uniform())
        return self._uniforms[at : at + count]

    def chunk(self, finish: FinishReason | None) -> Chunk:
        """What has not been sent yet."""
        sent, start = self.sent, self.prompt + self.sent
        self.sent = len(self.logprobs)
        return Chunk(self.ids[start:], self.logprobs[sent:], self.versions[sent:], self.top[sent:], finish)


def check_prompt(ids: list[int], vocab: int, max_len: int) -> None:
    """Raises :class:`InvalidRequest` for a prompt that is empty, too long, or of another tokenizer."""
    if not ids:
        raise InvalidRequest("The prompt has no tokens: send at least one.", param="prompt")
    if len(ids) >= max_len:
        raise ContextLengthExceeded(
            f"The prompt has {len(ids)} tokens and max_model_len is {max_len}: shorten the history, or raise "
            "rollout.max_model_len.", param="messages",
        )  # fmt: skip
    try:
        known = np.frombuffer(array("i", ids), np.int32)
        fine = bool(known.min() >= 0 and known.max() < vocab)
    except OverflowError:
        fine = False
    if not fine:
        raise InvalidRequest(
            f"The prompt has token id {max(ids) if max(ids) >= vocab else min(ids)} and the model's vocabulary "
            f"has {vocab}: tokenizer and model do not belong together.",
            param="messages",
        )


def check_sampling(sampling: Sampling) -> None:
    """Raises :class:`InvalidRequest` for what cannot be sampled."""
    if sampling.max_tokens < 1:
        raise InvalidRequest("max_tokens must be at least 1.", param="max_tokens")
    if not 0 <= sampling.temperature < float("inf"):
        raise InvalidRequest("temperature must be 0 (the most probable token) or positive.", param="temperature")
    if not 0 < sampling.top_p <= 1:
        raise InvalidRequest("top_p must be above 0 and at most 1.", param="top_p")
