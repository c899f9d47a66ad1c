"""Ratings of checkpoints that played against each other from both sides of an uneven game.

Each checkpoint has a strength on either side: the logit of checkpoint i's wolves beating j's good side is w_i - g_j.
Its Elo is the mean of both, on Elo's scale (400 points: odds of ten to one), relative to the first checkpoint: it says
how often it wins against another when both play each side as often. Fitted by maximum likelihood (Bradley & Terry 1952,
with two parameters a player), with a weak normal prior so that a side that always won has a finite rating; intervals
from the curvature (the posterior's normal approximation).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SCALE = 400 / math.log(10)
"""Elo points per unit of logit."""
PRIOR_LOGITS = 4.0
"""Standard deviation of a side's strength before anything was played: about 700 points."""
Z = 1.96


@dataclass(frozen=True)
class Played:
    """Games of checkpoint ``wolves`` (index) as wolves against ``good``: ``won`` by the wolves, a draw counting half."""

    wolves: int
    good: int
    won: float
    games: float


@dataclass(frozen=True)
class Rating:
    """Points relative to the first checkpoint, with a 95% interval: overall, and of either side."""

    elo: float
    low: float
    high: float
    wolves: float
    good: float


def rate(played: Sequence[Played], count: int) -> list[Rating]:
    """Ratings of ``count`` checkpoints. The first one's are 0 by definition."""
    # Parameters: w_0 … w_{K-1}, g_0 … g_{K-1}.
    theta = np.zeros(2 * count)
    prior = np.eye(2 * count) / PRIOR_LOGITS**2
    rows = np.zeros((len(played), 2 * count))
    for k, p in enumerate(played):
        rows[k, p.wolves], rows[k, count + p.good] = 1.0, -1.0
    won, games = np.array([p.won for p in played]), np.array([p.games for p in played])
    hessian = prior
    for _ in range(100):
        chance = 1 / (1 + np.exp(-(rows @ theta)))
        gradient = rows.T @ (won - games * chance) - prior @ theta
        hessian = rows.T @ ((games * chance * (1 - chance))[:, None] * rows) + prior
        step = np.linalg.solve(hessian, gradient)
        theta = theta + step * min(1.0, 2.0 / max(1e-9, float(np.abs(step).max())))
        if np.abs(step).max() < 1e-10:
            break
    covariance = np.linalg.inv(hessian)
    found = []
    for i in range(count):
        contrast = np.zeros(2 * count)
        contrast[[i, count + i]] += 0.5
        contrast[[0, count]] -= 0.5
        value = float(contrast @ theta) * SCALE
        half = Z * math.sqrt(max(0.0, float(contrast @ covariance @ contrast))) * SCALE
        wolves, good = (theta[i] - theta[0]) * SCALE, (theta[count + i] - theta[count]) * SCALE
        found.append(Rating(value, value - half, value + half, float(wolves), float(good)))
    return found
