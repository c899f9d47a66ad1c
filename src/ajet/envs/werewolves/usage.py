"""What calls to a model took: tokens as the endpoint counts them, and what they cost at given prices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ajet.schema.errors import ConfigError

MILLION = 1_000_000


@dataclass(frozen=True)
class Prices:
    """Per million tokens, in whatever currency: ``input`` and ``output``; ``cached`` for prompt tokens that the endpoint
    says it had cached (default: as ``input``)."""

    input: float
    output: float
    cached: float | None = None

    @classmethod
    def of(cls, given: Prices | Mapping[str, float] | None) -> Prices | None:
        """Prices from a mapping such as ``{"input": 0.15, "output": 0.6}``.

        Raises:
            ConfigError: a missing or unknown price, or one that is no number of at least 0.
        """
        if given is None or isinstance(given, Prices):
            return given
        if not {"input", "output"} <= given.keys() <= {"input", "output", "cached"}:
            raise ConfigError(
                f"Prices are input and output, and cached where it differs, per million tokens; not {dict(given)!r}.",
                param="external_prices",
            )
        for name, price in given.items():
            if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price < float("inf"):
                raise ConfigError(
                    f"The price {name} is a number of at least 0; not {price!r}.", param="external_prices"
                )
        return cls(**given)


@dataclass
class Usage:
    """Counts of answered calls. ``uncounted``: answers whose endpoint did not say what they took."""

    calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    uncounted: int = 0

    def add(self, usage: Any) -> int | None:
        """Count one answer by the ``usage`` of its completion; returns its tokens, None where nothing was said."""
        self.calls += 1
        prompt, completion = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
        if prompt is None or completion is None:
            self.uncounted += 1
            return None
        cached = _count(usage.get("prompt_tokens_details"), "cached_tokens") or 0
        self.prompt_tokens += prompt
        self.cached_tokens += min(cached, prompt)
        self.completion_tokens += completion
        return prompt + completion

    def mean_completion(self) -> float | None:
        """Completion tokens of a counted answer, None before the first."""
        counted = self.calls - self.uncounted
        return self.completion_tokens / counted if counted else None

    def cost(self, prices: Prices) -> float:
        fresh = self.prompt_tokens - self.cached_tokens
        cached = prices.input if prices.cached is None else prices.cached
        return (fresh * prices.input + self.cached_tokens * cached + self.completion_tokens * prices.output) / MILLION

    def metrics(self, name: str, prices: Prices | None) -> dict[str, float]:
        """Under ``name/``; ``cost`` only where prices are known."""
        found = {
            f"{name}/calls": float(self.calls),
            f"{name}/prompt_tokens": float(self.prompt_tokens),
            f"{name}/completion_tokens": float(self.completion_tokens),
            f"{name}/uncounted_calls": float(self.uncounted),
        }
        if prices is not None:
            found[f"{name}/cost"] = self.cost(prices)
        return found


def _count(holder: Any, key: str) -> int | None:
    value = holder.get(key) if isinstance(holder, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
