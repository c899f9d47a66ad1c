"""The curves of a run: win rates and rewards by role, from the metrics of its steps. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

WIN = "env/win/"
"""What a game calls its win rate of a role."""


@dataclass(frozen=True)
class Curve:
    """One number over the steps that have it.

    Attributes:
        scale: the lowest and highest value of its drawing; None: its own.
    """

    name: str
    values: tuple[float, ...]
    scale: tuple[float, float] | None = None


def curves(steps: Iterable[Mapping[str, Any]]) -> list[Curve]:
    """Win rates by role (of all episodes where no game names roles), then rewards by role."""
    found: dict[str, list[float]] = {}
    for step in steps:
        for key, value in step.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
                found.setdefault(key, []).append(float(value))
    wins = [
        Curve(f"win rate {key.removeprefix(WIN)}", tuple(found[key]), (0.0, 1.0))
        for key in sorted(found)
        if key.startswith(WIN)
    ]
    if not wins and "win_rate" in found:
        wins = [Curve("win rate", tuple(found["win_rate"]), (0.0, 1.0))]
    rewards = [
        Curve(f"reward {key[len('reward/') : -len('/mean')]}", tuple(found[key]))
        for key in sorted(found)
        if key.startswith("reward/") and key.endswith("/mean") and key != "reward/mean"
    ]
    if len(rewards) != 1 and "reward/mean" in found:
        rewards.append(Curve("reward of all", tuple(found["reward/mean"])))
    return wins + rewards
