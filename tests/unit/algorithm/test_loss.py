"""The loss over rows: role weights and independence of portions."""

import numpy as np
import pytest
import torch

from ajet.algorithm.loss import RowLoss, Rows, Totals
from ajet.algorithm.support import ADDITIVE_LOSSES
from ajet.default_config.schema import AlgorithmConfig, TrainerConfig

LENGTHS = np.array([5, 2, 9, 3, 7])
UNITS = np.array([0, 0, 1, 2, 2])
TOTALS = Totals(int(LENGTHS.sum()), len(LENGTHS), 9)


def make(weighting="token", **algorithm):
    kwargs = {"policy_loss_kwargs": {"dro_beta": 0.1}} if algorithm.get("policy_loss") == "dro" else {}
    config = TrainerConfig(
        algorithm=AlgorithmConfig(role_weighting=weighting, entropy_coeff=0.01, **algorithm, **kwargs), kl_loss_coef=0.1
    )
    loss = RowLoss(config)
    g = torch.Generator().manual_seed(0)
    mask = (torch.arange(9)[None] < torch.from_numpy(LENGTHS)[:, None]).double()
    new = -torch.rand(5, 9, generator=g, dtype=torch.float64) * mask
    old = (new + 0.3 * torch.randn(5, 9, generator=g, dtype=torch.float64)) * mask
    advantage = torch.randn(5, generator=g, dtype=torch.float64)
    weight = torch.from_numpy(loss.row_weights(UNITS, LENGTHS))
    return loss, new, Rows(old, mask, advantage, weight, old * 0.9)


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
@pytest.mark.parametrize("weighting", ["token", "equal"])
@pytest.mark.parametrize("name", sorted(ADDITIVE_LOSSES))
def test_additive_losses_are_the_sum_over_portions_of_rows(name, weighting, mode):
    loss, new, rows = make(weighting, policy_loss=name, loss_agg_mode=mode)
    new.requires_grad_()
    whole, _ = loss(new, rows, TOTALS, -new)
    (grad,) = torch.autograd.grad(whole, new)
    parts, grads = 0.0, torch.zeros_like(new)
    for chosen in ([1, 3], [0], [2, 4]):
        cut = int(LENGTHS[chosen].max())
        leaf = new.detach()[chosen, :cut].requires_grad_()
        part, _ = loss(leaf, rows.select(torch.tensor(chosen), cut), TOTALS, -leaf)
        parts += float(part.detach())
        grads[chosen, :cut] += torch.autograd.grad(part, leaf)[0]
    assert parts == pytest.approx(float(whole.detach()), rel=1e-9)
    torch.testing.assert_close(grads, grad, rtol=1e-9, atol=1e-12)


def test_equal_weighting_makes_each_unit_count_the_same_in_token_modes():
    _, _, rows = make("equal")
    per_token = torch.rand(5, 9, dtype=torch.float64) * rows.mask_R_T
    weighted = (per_token * rows.weight_R[:, None]).sum() / TOTALS.tokens
    unit_means = [per_token[u == UNITS].sum() / LENGTHS[u == UNITS].sum() for u in range(3)]
    assert float(weighted) == pytest.approx(float(sum(unit_means) / 3))
    assert float((rows.weight_R * torch.from_numpy(LENGTHS)).sum()) == pytest.approx(TOTALS.tokens)


def test_equal_weighting_makes_each_unit_count_the_same_in_sequence_modes():
    _, _, rows = make("equal", loss_agg_mode="seq-mean-token-mean")
    np.testing.assert_allclose(rows.weight_R.numpy(), [5 / 6, 5 / 6, 5 / 3, 5 / 6, 5 / 6])


def test_token_weighting_is_verls_plain_aggregation():
    from verl.trainer.ppo import core_algos

    loss, new, rows = make("token")
    found, metrics = loss(new, rows, TOTALS, -new)
    ratio = (new - rows.old_R_T).exp()
    a = rows.advantage_R[:, None]
    clipped = torch.maximum(-a * ratio, -a * ratio.clamp(0.8, 1.2))
    clipped = torch.where(a < 0, torch.minimum(clipped, -a * 3.0), clipped)
    expected = (clipped * rows.mask_R_T).sum() / TOTALS.tokens
    kl = core_algos.kl_penalty(new, rows.reference_R_T, "low_var_kl")
    expected += 0.1 * (kl * rows.mask_R_T).sum() / TOTALS.tokens - 0.01 * (-new * rows.mask_R_T).sum() / TOTALS.tokens
    assert float(found) == pytest.approx(float(expected), rel=1e-9)
    assert metrics["actor/loss"] == pytest.approx(float(expected), rel=1e-9)
