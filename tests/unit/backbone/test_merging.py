"""Invariant 4: merged, packed and with shared beginnings, loss and gradient are those of one forward pass per call."""

from __future__ import annotations

import pytest
import torch

from ajet.algorithm.support import ADDITIVE_LOSSES, LOSS_AGG_MODES, WHOLE_BATCH_LOSSES
from ajet.backbone.embedded.net import load_net
from ajet.backbone.embedded.trainer import Trainer
from ajet.default_config.schema import AlgorithmConfig, TrainerConfig
from ajet.trajectory.batch import TrainBatch
from tests.unit.backbone.one_call_one_forward import conversations, loss_and_gradient, merged, relative
from tests.unit.backbone.test_embedded_trainer import CPU, gradients

LOSSES = sorted(ADDITIVE_LOSSES | WHOLE_BATCH_LOSSES)
KWARGS = {"dro": {"dro_beta": 0.1}, "clip_cov": {"clip_cov_ratio": 1.0, "clip_cov_lb": 0.0}}
"""clip_cov draws which of its candidates it clips; all of them leave nothing to chance."""


def compare(directory, dtype, config: TrainerConfig, seed: int = 0, lanes: int = 1) -> tuple[float, float]:
    """Relative differences of loss and gradient, ours to the reference's."""
    played = conversations(seed)
    rows = merged(played, seed)
    net = load_net(directory, CPU, dtype, master=dtype)
    found, metrics = gradients(Trainer(net, config, lambda: net, CPU, lanes=lanes), TrainBatch(1, rows))
    assert metrics["tokens/merged_share"] > 0.05
    leaves = {n: w.detach().clone().requires_grad_() for n, w in net.parameters().items()}
    loss, expected, forwarded = loss_and_gradient(leaves, net.shape, played, rows, config)
    computed = metrics["tokens/forward"] * (1 - metrics["tokens/merged_share"])
    assert forwarded > 1.1 * computed / (2 if config.algorithm.policy_loss in WHOLE_BATCH_LOSSES else 1)
    # Its two terms have opposite signs: what is left of them is no measure in float32.
    policy = metrics["actor/pg_loss"]
    size = abs(policy) + abs(metrics["actor/loss"] - policy)
    return abs(metrics["actor/loss"] - loss) / size, relative(found, expected)


@pytest.mark.parametrize("mode", LOSS_AGG_MODES)
@pytest.mark.parametrize("loss", LOSSES)
def test_loss_and_gradient_are_those_of_one_forward_per_call(qwen2_dir, loss, mode):
    for weighting, portion, lanes in (("token", 10**6, 1), ("equal", 150, 3)):
        algorithm = AlgorithmConfig(
            policy_loss=loss, loss_agg_mode=mode, role_weighting=weighting, entropy_coeff=0.3,
            policy_loss_kwargs=KWARGS.get(loss, {}),
        )  # fmt: skip
        config = TrainerConfig(algorithm=algorithm, use_kl_loss=False, max_tokens_per_microbatch=portion)
        for dtype, limit in ((torch.float64, 1e-9), (torch.float32, 1e-5))[: 2 if lanes == 1 else 1]:
            in_loss, in_gradient = compare(qwen2_dir, dtype, config, lanes=lanes)
            assert in_loss < limit, (weighting, dtype)
            assert in_gradient < limit, (weighting, dtype)


@pytest.mark.parametrize("seed", range(1, 6))
def test_they_are_so_for_other_conversations(untied_dir, seed):
    config = TrainerConfig(
        algorithm=AlgorithmConfig(policy_loss="gspo"), use_kl_loss=False, max_tokens_per_microbatch=97
    )
    in_loss, in_gradient = compare(untied_dir, torch.float64, config, seed)
    assert max(in_loss, in_gradient) < 1e-9
