"""Shares and means over games, with 95% intervals, and paired differences of two policies on the same games.

Everything counted is a ratio of sums: total over count, per game (:class:`~ajet.envs.werewolves.metrics.Tally`). A game
is the unit: decisions within one game are not independent, so the variance is the ratio estimator's over games
(Cochran, Sampling Techniques, 3rd ed., §6.3), not a binomial one over decisions. For shares the interval is Wilson's
with the number of independent observations that this variance amounts to, so it stays within 0 and 1 and does not
collapse where something never happened.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

Unit = tuple[float, float] | list[float]
"""Total and count of one game; (0, 0) where nothing was counted."""


@dataclass(frozen=True)
class Estimate:
    """A value and its 95% interval; None where one game alone says nothing of the spread.

    Attributes:
        n: how many things were counted. games: in how many games.
    """

    value: float
    low: float | None
    high: float | None
    n: float
    games: int


def t_quantile(degrees: int, level: float = 0.975) -> float:
    """Student's t by the Cornish-Fisher expansion (Abramowitz & Stegun 26.7.5); within 0.5% from 4 degrees on."""
    z = NormalDist().inv_cdf(level)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return sum(term / degrees**i for i, term in enumerate(terms))


def estimate(units: Sequence[Unit]) -> Estimate | None:
    """The ratio over games. None where nothing was counted."""
    counted = [(t, n) for t, n in units if n]
    total, count = sum(t for t, _ in counted), sum(n for _, n in counted)
    if not count:
        return None
    games, value = len(counted), total / count
    shares = all(0 <= t <= n for t, n in counted)
    if games < 2:
        low, high = wilson(value, 1.0, NormalDist().inv_cdf(0.975)) if shares else (None, None)
        return Estimate(value, low, high, count, games)
    variance = games / (games - 1) * sum((t - value * n) ** 2 for t, n in counted) / count**2
    t_value = t_quantile(games - 1)
    if shares:
        independent = min(count, value * (1 - value) / variance) if variance > 0 else float(games)
        low, high = wilson(value, independent, t_value)
    else:
        low, high = value - t_value * math.sqrt(variance), value + t_value * math.sqrt(variance)
    return Estimate(value, low, high, count, games)


def wilson(share: float, n: float, z: float) -> tuple[float, float]:
    """Wilson's score interval of a share of ``n`` independent observations."""
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))


def difference(before: Sequence[Unit], after: Sequence[Unit]) -> Estimate | None:
    """``after - before``, paired game by game. None where either counted nothing.

    Raises:
        ValueError: the lists are not equally long.
    """
    if len(before) != len(after):
        raise ValueError(f"paired lists must be equally long: {len(before)} and {len(after)}")
    count_a, count_b = sum(n for _, n in before), sum(n for _, n in after)
    if not count_a or not count_b:
        return None
    a, b = sum(t for t, _ in before) / count_a, sum(t for t, _ in after) / count_b
    residuals = [
        (tb - b * nb) / count_b - (ta - a * na) / count_a
        for (ta, na), (tb, nb) in zip(before, after, strict=True)
        if na or nb
    ]
    games = len(residuals)
    if games < 2:
        return Estimate(b - a, None, None, count_b, games)
    half = t_quantile(games - 1) * math.sqrt(games / (games - 1) * sum(r * r for r in residuals))
    return Estimate(b - a, b - a - half, b - a + half, count_b, games)
