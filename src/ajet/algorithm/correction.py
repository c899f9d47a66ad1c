"""Off-policy correction: verl's rollout correction over a batch's rows.

Three policies (verl's decoupled mode): the one that sampled, the one before the update (proximal, PPO's old one), and
the one being updated. The weight of a token is proximal over sampling, truncated; tokens out of bounds can be rejected.
Source: ``verl.trainer.ppo.rollout_corr_helper.compute_rollout_correction_and_rejection_mask``.

Letters: R rows (episode, agent), T a row's sampled tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ajet.default_config.schema import RolloutCorrectionConfig


@dataclass(frozen=True)
class Correction:
    """What a batch's log-probs came to.

    Attributes:
        weight_R_T: of each token in the policy loss; None where tokens are only rejected.
        mask_R_T: 1 where a token is still trained.
        metrics: verl's, under ``rollout_corr/``.
    """

    weight_R_T: torch.Tensor | None
    mask_R_T: torch.Tensor
    metrics: dict[str, float]


def active(config: RolloutCorrectionConfig) -> bool:
    """Whether the proximal policy's log-probs are needed at all."""
    return config.rollout_is is not None or config.rollout_rs is not None


def correct(
    proximal_R_T: torch.Tensor, sampled_R_T: torch.Tensor, mask_R_T: torch.Tensor, config: RolloutCorrectionConfig
) -> Correction:
    """Weights and mask of a batch.

    Args:
        proximal_R_T: log-probs under the policy before the update. sampled_R_T: those sampled with.
    """
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask

    weights, mask, metrics = compute_rollout_correction_and_rejection_mask(
        old_log_prob=proximal_R_T,
        rollout_log_prob=sampled_R_T,
        response_mask=mask_R_T,
        rollout_is=config.rollout_is,
        rollout_is_threshold=config.rollout_is_threshold,
        rollout_is_batch_normalize=config.rollout_is_batch_normalize,
        rollout_rs=config.rollout_rs,
        rollout_rs_threshold=config.rollout_rs_threshold,
    )
    weight_R_T = None if weights is None else weights.batch["rollout_is_weights"]
    return Correction(weight_R_T, mask, {k: float(v) for k, v in metrics.items()})
