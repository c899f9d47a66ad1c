"""Eval episodes: what they came to, and how they stand back behind training.

They are recorded as every episode is, never pooled, and take no lease of training's. Their calls are sampled in places that
training leaves free, one place at least, so an eval neither stands in training's way nor stands still.

Used on the event loop only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any

from ajet.pool.records import Done
from ajet.schema.status import EvalReport
from ajet.server.rewards import mean_reward


@dataclass
class Places:
    """The sampler's places. ``capacity``: sequences it decodes at once (``rollout.max_num_seqs``)."""

    capacity: int
    train: int = 0
    """Calls of train episodes that are being sampled or wait for it."""
    eval: int = 0
    _waiting: deque[asyncio.Future[None]] = field(default_factory=deque)

    @contextlib.asynccontextmanager
    async def take(self, *, train: bool, choices: int = 1) -> AsyncIterator[None]:
        """Hold places for ``choices`` sequences; an eval call waits for the first until training leaves one free."""
        if train:
            self.train += choices
        else:
            while not self._free():
                place = asyncio.get_running_loop().create_future()
                self._waiting.append(place)
                try:
                    await place
                except asyncio.CancelledError:
                    self._wake()  # whoever woke us meant somebody
                    raise
                finally:
                    with contextlib.suppress(ValueError):
                        self._waiting.remove(place)
            self.eval += choices
        try:
            yield
        finally:
            if train:
                self.train -= choices
            else:
                self.eval -= choices
            self._wake()

    def _free(self) -> bool:
        return self.eval == 0 or self.train + self.eval < self.capacity

    def _wake(self) -> None:
        if self._waiting and self._free():
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)


@dataclass
class EvalTally:
    """Eval episodes that ended since the last step."""

    _done: list[dict[str, Any]] = field(default_factory=list)

    def add(self, done: Done) -> None:
        """An eval episode ended with a result."""
        keep = ("rewards", "is_success", "log_metrics", "version")
        self._done.append({key: done.body.get(key) for key in keep})

    def restore(self, ended: Iterable[Done]) -> None:
        """Those on record since the last step."""
        for done in ended:
            self.add(done)

    def cut(self) -> int:
        """How many a step's metrics take in; :meth:`clear` them once it is on record."""
        return len(self._done)

    def clear(self, n: int) -> None:
        del self._done[:n]

    def report(self) -> EvalReport:
        """For the status."""
        if not self._done:
            return EvalReport()
        metrics = self.metrics()
        return EvalReport(
            episodes=len(self._done),
            policy_version=int(metrics["eval/policy_version"]),
            reward=metrics["eval/reward/mean"],
            success_rate=metrics.get("eval/win_rate"),
            reward_by_tag={
                key.split("/")[2]: value for key, value in metrics.items() if key.count("/") == 3 and "/reward/" in key
            },
        )

    def metrics(self) -> dict[str, float]:
        """As a step's metrics have it; empty without any."""
        if not self._done:
            return {}
        found: dict[str, float] = {
            "eval/episodes": len(self._done),
            "eval/policy_version": max(one["version"] for one in self._done),
            "eval/reward/mean": _mean([mean_reward(one["rewards"]) for one in self._done]),
        }
        successes = [float(one["is_success"]) for one in self._done if one["is_success"] is not None]
        if successes:
            found["eval/win_rate"] = _mean(successes)
        sums: Counter[str] = Counter()
        counts: Counter[str] = Counter()
        for one in self._done:
            pairs = [(f"eval/reward/{tag}/mean", value) for tag, values in one["rewards"].items() for value in values]
            pairs += [(f"eval/env/{key}", value) for key, value in (one["log_metrics"] or {}).items()]
            for key, value in pairs:
                sums[key] += value
                counts[key] += 1
        found.update({key: sums[key] / counts[key] for key in sorted(sums)})
        return found


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
