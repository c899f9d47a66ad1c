"""A mini-batch's loss over rows, by verl's policy losses, aggregation and KL penalty.

Letters: R rows (episode, agent), T a row's sampled tokens in order. Every tensor is padded at the right; the mask says
what counts. Old log-probs are those the tokens were sampled with, so that PPO's ratio also corrects for a policy that
lagged behind when it sampled; with ``rollout_correction`` they are those of the policy before the update, and the rest
of the way is covered by verl's truncated weights.

``role_weighting: equal`` goes through the per-token weights that verl's losses take as ``rollout_is_weights``: all
tokens of a unit (episode, tag) share one weight, chosen so that under the aggregation in use each unit contributes the
mean over its tokens (token modes) or over its rows (sequence modes), times 1 / units. With ``token`` there are no
weights and verl's aggregation stands as it is. KL and entropy terms carry the same weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from verl.trainer.ppo import core_algos
from verl.workers.config import ActorConfig, PolicyLossConfig

from ajet.algorithm.support import ACTOR_KWARGS, ADDITIVE_LOSSES
from ajet.default_config.schema import TrainerConfig

_FIXED_AGG = {"sapo": "seq-mean-token-mean", "geo_mean": "seq-mean-token-mean"}
"""Losses that aggregate in one way, whatever ``loss_agg_mode`` says (verl does so)."""


@dataclass(frozen=True)
class Rows:
    """What is known of a mini-batch's rows before the forward pass.

    Attributes:
        old_R_T: log-probs the tokens were sampled with.
        mask_R_T: 1 where there is a token.
        advantage_R: of each row.
        weight_R: of each row; all 1 with ``role_weighting: token``.
        reference_R_T: log-probs under the initial model; None without a KL term.
        correction_R_T: of each token's policy loss (:mod:`ajet.algorithm.correction`); None without one.
    """

    old_R_T: torch.Tensor
    mask_R_T: torch.Tensor
    advantage_R: torch.Tensor
    weight_R: torch.Tensor
    reference_R_T: torch.Tensor | None
    correction_R_T: torch.Tensor | None = None

    def select(self, index_R: torch.Tensor, longest: int) -> Rows:
        """The named rows only, cut to ``longest`` tokens."""
        reference = None if self.reference_R_T is None else self.reference_R_T[index_R, :longest]
        correction = None if self.correction_R_T is None else self.correction_R_T[index_R, :longest]
        old, mask = self.old_R_T[index_R, :longest], self.mask_R_T[index_R, :longest]
        return Rows(old, mask, self.advantage_R[index_R], self.weight_R[index_R], reference, correction)


@dataclass(frozen=True)
class Totals:
    """Sizes of the whole mini-batch, so that working through it in portions changes nothing."""

    tokens: int
    rows: int
    longest: int


class RowLoss:
    """The configured loss. ``additive`` tells whether a mini-batch's loss is the sum over portions of its rows."""

    def __init__(self, config: TrainerConfig) -> None:
        algorithm = config.algorithm
        self._config = config
        self.additive = algorithm.policy_loss in ADDITIVE_LOSSES
        self.needs_reference = config.use_kl_loss and config.kl_loss_coef > 0
        self.needs_entropy = algorithm.entropy_coeff > 0
        self._policy_loss: Any = core_algos.get_policy_loss_fn(algorithm.policy_loss)
        self._agg_mode = _FIXED_AGG.get(algorithm.policy_loss, algorithm.loss_agg_mode)
        kwargs = algorithm.policy_loss_kwargs
        actor_kwargs: dict[str, Any] = {k: v for k, v in kwargs.items() if k in ACTOR_KWARGS}
        self._scale_factor = actor_kwargs.get("loss_scale_factor")
        self._actor = ActorConfig(
            strategy="embedded",
            rollout_n=1,
            ppo_micro_batch_size_per_gpu=1,
            clip_ratio=algorithm.clip_ratio,
            clip_ratio_low=algorithm.clip_ratio if algorithm.clip_ratio_low is None else algorithm.clip_ratio_low,
            clip_ratio_high=algorithm.clip_ratio if algorithm.clip_ratio_high is None else algorithm.clip_ratio_high,
            clip_ratio_c=algorithm.clip_ratio_c,
            loss_agg_mode=algorithm.loss_agg_mode,
            policy_loss=PolicyLossConfig(
                loss_mode=algorithm.policy_loss, **{k: v for k, v in kwargs.items() if k not in ACTOR_KWARGS}
            ),
            **actor_kwargs,
        )

    def row_weights(self, unit_of_row: np.ndarray, tokens_of_row: np.ndarray) -> np.ndarray:
        """float64 weight of each row of a mini-batch; its mean over tokens (or rows) is 1."""
        if self._config.algorithm.role_weighting == "token":
            return np.ones(len(unit_of_row))
        _, unit = np.unique(unit_of_row, return_inverse=True)
        amount = np.ones(len(unit)) if self._agg_mode.startswith("seq-mean") else tokens_of_row.astype(float)
        of_unit = np.bincount(unit, weights=amount)
        # A unit whose tokens were all rejected has no part in the mean.
        return amount.sum() / (max(1, np.count_nonzero(of_unit)) * np.where(of_unit > 0, of_unit, 1)[unit])

    def __call__(
        self, log_prob_R_T: torch.Tensor, rows: Rows, totals: Totals, entropy_R_T: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """The loss of ``rows`` (their share of it, where they are a portion), and verl's metrics.

        Args:
            log_prob_R_T: current log-probs, with gradient.
            entropy_R_T: entropy of the distribution each token was sampled from; needed with an entropy bonus.
        """
        config, mask = self._config, rows.mask_R_T
        info: dict[str, Any] = {
            "dp_size": 1,
            "batch_num_tokens": totals.tokens,
            "global_batch_size": totals.rows,
            "loss_scale_factor": self._scale_factor or totals.longest,
        }
        self._actor.global_batch_info.update(
            info
        )  # the same for all portions, which may be worked through side by side
        weight_R_T = rows.weight_R[:, None].expand_as(mask)
        weighted = config.algorithm.role_weighting == "equal" or rows.correction_R_T is not None
        loss_weight_R_T = weight_R_T if rows.correction_R_T is None else weight_R_T * rows.correction_R_T
        loss, found = self._policy_loss(
            old_log_prob=rows.old_R_T,
            log_prob=log_prob_R_T,
            advantages=rows.advantage_R[:, None] * mask,
            response_mask=mask,
            loss_agg_mode=self._agg_mode,
            config=self._actor,
            rollout_is_weights=loss_weight_R_T if weighted else None,
        )
        metrics = {k: float(v) for k, v in found.items()}
        metrics["actor/pg_loss"] = float(loss.detach())
        if self.needs_reference:
            assert rows.reference_R_T is not None
            penalty: Any = core_algos.kl_penalty
            kl_R_T = penalty(log_prob_R_T, rows.reference_R_T, config.kl_loss_type)
            kl_loss = core_algos.agg_loss(kl_R_T * weight_R_T, mask, self._agg_mode, **info)
            loss = loss + config.kl_loss_coef * kl_loss
            metrics["actor/kl_loss"] = float(kl_loss.detach())
        if self.needs_entropy:
            assert entropy_R_T is not None
            bonus = core_algos.agg_loss(entropy_R_T * weight_R_T, mask, self._agg_mode, **info)
            loss = loss - config.algorithm.entropy_coeff * bonus
        metrics["actor/loss"] = float(loss.detach())
        return loss, metrics
