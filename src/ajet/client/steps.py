"""Training steps as lines: one for each step, once, for who watches a script run. Knows no transport."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any


class StepLines:
    """Which steps of a run were shown already. Thread-safe.

    The first look at a run shows its newest step, so that a run that is joined or resumed does not begin with pages; from
    then on every step is shown, in order, once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._experiment: str | None = None
        self._shown = 0

    def since(self, status: dict[str, Any]) -> int | None:
        """The step after which there are new ones; None where there are none."""
        step, experiment = int(status["step"]), status["experiment_dir"]
        with self._lock:
            if experiment != self._experiment or step < self._shown:
                self._experiment, self._shown = experiment, max(0, step - 1)
            return self._shown if step > self._shown else None

    def lines(self, steps: Iterable[dict[str, Any]], total: int, share: str | None = None) -> list[str]:
        """Lines for those of ``steps`` that were not shown yet, which they are with this; of ``share`` each says its own."""
        with self._lock:
            new = [step for step in steps if step["step"] > self._shown]
            self._shown = max((step["step"] for step in new), default=self._shown)
        return [step_line(step, total, share) for step in new]


def step_line(step: dict[str, Any], total: int, share: str | None = None) -> str:
    """``step 3/20  reward 0.412  win rate 0.53``; the win rate where episodes say ``is_success``.

    Args:
        share: the part of the batch whose own reward is shown behind that of all: ``math 0.350 (2 of 5 groups)``.
    """
    parts = [f"step {step['step']}/{total}", f"reward {step['reward/mean']:.3f}"]
    if "win_rate" in step:
        parts.append(f"win rate {step['win_rate']:.2f}")
    if share and f"share/{share}/reward/mean" in step:
        groups, all_groups = step[f"share/{share}/groups"], step["pool/groups"]
        parts.append(f"{share} {step[f'share/{share}/reward/mean']:.3f} ({groups} of {all_groups} groups)")
    return "  ".join(parts)
