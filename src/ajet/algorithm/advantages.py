"""One advantage per row, by verl's estimators, over episodes.

Letters: U units, T tokens. A *unit* is one (episode, tag): what is compared within a group. Several agents of one tag
share their unit as long as they share their reward; with different rewards each agent is a unit.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ajet.algorithm.baseline import RunningBaseline
from ajet.algorithm.support import divides_by_std, needs_group
from ajet.default_config.schema import AlgorithmConfig
from ajet.trajectory.batch import Row

EPSILON = 1e-6
"""verl's default beside the standard deviation."""


@dataclass(frozen=True)
class Advantages:
    """What :func:`compute_advantages` answers.

    Attributes:
        per_row: float64, one per row of the batch, in its order.
        unit_of_row: int, index of each row's (episode, tag) unit.
        units: number of units.
        metrics: ``reward/<tag>/mean``, ``advantage/<tag>/zero_group_share`` …
        baseline: the running baseline for the step after this one.
    """

    per_row: np.ndarray
    unit_of_row: np.ndarray
    units: int
    metrics: dict[str, float]
    baseline: RunningBaseline


@dataclass(frozen=True)
class _Unit:
    tag: str
    group: str
    reward: float
    rows: list[int]
    tokens: int


def compute_advantages(
    rows: Sequence[Row], config: AlgorithmConfig, baseline: RunningBaseline | None = None
) -> Advantages:
    """Advantages of ``rows`` by ``config.adv_estimator``.

    The estimator runs once per tag, with a group per task. In group estimators a group whose rewards are all equal,
    or that has one member only, has nothing to compare: its advantages are exactly 0, or with
    ``config.running_baseline`` those against ``baseline`` (counted in ``advantage/<tag>/running_baseline_share``).
    Groups whose advantages are all 0 are counted in ``advantage/<tag>/zero_group_share``.

    Args:
        baseline: what earlier steps left; used and carried on with ``config.running_baseline`` only.
    """
    baseline = baseline or RunningBaseline()
    units = _units(rows)
    per_row = np.zeros(len(rows))
    unit_of_row = np.zeros(len(rows), np.int64)
    metrics: dict[str, float] = {}
    by_tag: dict[str, list[int]] = {}
    for u, unit in enumerate(units):
        by_tag.setdefault(unit.tag, []).append(u)
    zero_groups = groups = 0
    for tag, members in sorted(by_tag.items()):
        of_tag = [units[u] for u in members]
        advantage_U = _estimate(of_tag, config)
        flat = _groups_without_contrast(of_tag)
        running = 0
        if needs_group(config.adv_estimator):
            largest = max(Counter(unit.group for unit in of_tag).values())
            by_std = divides_by_std(config.adv_estimator) and config.norm_adv_by_std_in_grpo
            for u, unit in enumerate(of_tag):
                if unit.group in flat:
                    advantage_U[u] = 0.0
                    if config.running_baseline is not None:
                        advantage_U[u] = baseline.advantage(tag, unit.reward, by_std=by_std, largest_group=largest)
            learning = {unit.group for unit, a in zip(of_tag, advantage_U, strict=True) if a != 0}
            running, zero = len(flat & learning), flat - learning
        else:
            zero = flat
        for u, unit, advantage in zip(members, of_tag, advantage_U, strict=True):
            per_row[unit.rows] = advantage
            unit_of_row[unit.rows] = u
        count = len({unit.group for unit in of_tag})
        zero_groups, groups = zero_groups + len(zero), groups + count
        reward_U = np.array([unit.reward for unit in of_tag])
        metrics[f"reward/{tag}/mean"] = float(reward_U.mean())
        metrics[f"reward/{tag}/std"] = float(reward_U.std())
        metrics[f"advantage/{tag}/mean"] = float(advantage_U.mean())
        metrics[f"advantage/{tag}/abs_mean"] = float(np.abs(advantage_U).mean())
        metrics[f"advantage/{tag}/zero_group_share"] = len(zero) / count
        if config.running_baseline is not None:
            metrics[f"advantage/{tag}/running_baseline_share"] = running / count
            if tag in baseline.mean:
                metrics[f"advantage/{tag}/running_baseline"] = baseline.mean[tag]
    metrics["advantage/zero_group_share"] = zero_groups / max(1, groups)
    metrics["reward/mean"] = float(np.mean([unit.reward for unit in units])) if units else 0.0
    if config.running_baseline is not None:
        rewards = {tag: [units[u].reward for u in members] for tag, members in sorted(by_tag.items())}
        baseline = baseline.after(rewards, config.running_baseline)
    return Advantages(per_row, unit_of_row, len(units), metrics, baseline)


def _units(rows: Sequence[Row]) -> list[_Unit]:
    together: dict[tuple[str, str], list[int]] = {}
    for i, row in enumerate(rows):
        together.setdefault((row.episode, row.tag), []).append(i)
    units: list[_Unit] = []
    for (_, tag), members in together.items():
        same = len({rows[i].reward for i in members}) == 1
        for part in [members] if same else [[i] for i in members]:
            first = rows[part[0]]
            tokens = sum(rows[i].trained_tokens for i in part)
            units.append(_Unit(tag, first.task, first.reward, part, tokens))
    return units


def _groups_without_contrast(units: Sequence[_Unit]) -> set[str]:
    rewards: dict[str, set[float]] = {}
    for unit in units:
        rewards.setdefault(unit.group, set()).add(unit.reward)
    return {group for group, values in rewards.items() if len(values) == 1}


def _estimate(units: Sequence[_Unit], config: AlgorithmConfig) -> np.ndarray:
    """verl's estimator over one row per unit; its reward stands on the last token, as verl has it."""
    import torch
    from verl.trainer.config import AlgoConfig
    from verl.trainer.ppo import core_algos

    name = config.adv_estimator
    estimator = core_algos.get_adv_estimator_fn(name)
    length_U = np.array([max(1, unit.tokens) for unit in units])
    # Float64, because equal rewards divided by a rounding error would be an advantage.
    reward_U_T = torch.zeros(len(units), int(length_U.max()), dtype=torch.float64)
    mask_U_T = torch.arange(int(length_U.max()))[None] < torch.from_numpy(length_U)[:, None]
    reward_U_T[torch.arange(len(units)), torch.from_numpy(length_U) - 1] = torch.tensor(
        [unit.reward for unit in units], dtype=torch.float64
    )
    # Numbers, because verl would read groups named "7" and "07" as one.
    _, index, size = np.unique([unit.group for unit in units], return_inverse=True, return_counts=True)
    # verl's pass@k refuses groups of one; they have no contrast, so their advantage is 0 anyway.
    keep = size[index] > 1 if name == "grpo_passk" else np.ones(len(units), bool)
    advantage_U = np.zeros(len(units))
    if not keep.any() or (name.startswith("reinforce") and length_U.sum() < 2):  # nothing to whiten
        return advantage_U
    offered = {
        "index": index[keep],
        "norm_adv_by_std_in_grpo": config.norm_adv_by_std_in_grpo,
        "epsilon": EPSILON,
        "config": AlgoConfig(
            adv_estimator=name, gamma=config.gamma, lam=config.lam,
            norm_adv_by_std_in_grpo=config.norm_adv_by_std_in_grpo,
        ),
    }  # fmt: skip
    accepted = inspect.signature(estimator).parameters
    kwargs = {k: v for k, v in offered.items() if k in accepted}
    if not divides_by_std(name):
        kwargs.pop("norm_adv_by_std_in_grpo", None)
    keep_t = torch.from_numpy(keep)
    advantage_U_T, _ = estimator(
        token_level_rewards=reward_U_T[keep_t], response_mask=mask_U_T[keep_t].double(), **kwargs
    )
    advantage_U[keep] = advantage_U_T[:, 0].double().numpy()
    return advantage_U
