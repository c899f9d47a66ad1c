"""Tokens that another policy sampled: verl's weights and rejections, over our rows."""

import numpy as np
import pytest
import torch
from verl.trainer.ppo.rollout_corr_helper import _parse_rollout_is_threshold, _parse_rollout_rs_thresholds

from ajet.algorithm.advantages import compute_advantages
from ajet.algorithm.support import check_algorithm
from ajet.backbone.embedded.packing import lay_out
from ajet.default_config.schema import AlgorithmConfig, TrainerConfig
from ajet.schema.errors import ConfigError
from tests.unit.backbone import tiny
from tests.unit.backbone.test_embedded_trainer import gradients, make_trainer


def algorithm(**correction) -> AlgorithmConfig:
    return AlgorithmConfig(role_weighting="token", rollout_correction=correction)


def current_log_probs(trainer, batch):
    """Of the batch's trained tokens under the trainer's weights, in flat order, differentiable."""
    table, pieces = lay_out(sorted(batch.rows, key=lambda r: (r.episode, r.agent)))
    parts = trainer.passes(pieces)
    flat = torch.cat([part.flat_N for part in parts])
    values = torch.cat([trainer.log_probs(trainer.net, part, table)[0] for part in parts])
    return table, torch.zeros(len(flat), dtype=values.dtype).index_put((flat,), values)


def expected_gradients(directory, batch, weigh):
    """Of the mean over tokens of -A · w · π/π_old at π = π_old; ``weigh(log ratio of each token, table) -> w, kept``."""
    trainer = make_trainer(directory)
    advantage = compute_advantages(sorted(batch.rows, key=lambda r: (r.episode, r.agent)), algorithm()).per_row
    table, logp_N = current_log_probs(trainer, batch)
    weight_N, kept_N = weigh(logp_N.detach().numpy() - table.logprob_N.astype(np.float64), table)
    a_N = torch.from_numpy(advantage[table.row_N])
    factor_N = torch.from_numpy(weight_N * kept_N) * a_N
    (-(factor_N * (logp_N - logp_N.detach()).exp()).sum() / kept_N.sum()).backward()
    return {n: p.grad for n, p in trainer.net.parameters().items() if p.grad is not None}


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, grad in expected.items():
        torch.testing.assert_close(found[name], grad, rtol=1e-6, atol=1e-10, msg=name)


@pytest.mark.parametrize("limit", [10**6, 120])
def test_token_weights_are_the_truncated_ratio_of_the_policy_before_the_update_to_the_sampling_one(qwen2_dir, limit):
    batch = tiny.make_batch()
    trainer = make_trainer(
        qwen2_dir, algorithm=algorithm(rollout_is="token", rollout_is_threshold=1.2), use_kl_loss=False,
        max_tokens_per_microbatch=limit,
    )  # fmt: skip
    found, metrics = gradients(trainer, batch)
    assert_same(
        found,
        expected_gradients(qwen2_dir, batch, lambda d, t: (np.minimum(np.exp(d), 1.2), np.ones(len(d)))),
    )
    assert 0 < metrics["rollout_corr/rollout_is_ratio_fraction_high"] < 1
    assert metrics["tokens/rejected"] == 0


def test_sequence_weights_are_one_ratio_for_a_row(qwen2_dir):
    batch = tiny.make_batch()

    def weigh(d, table):
        row = np.exp(np.clip(np.bincount(table.row_N, weights=d), -20, 20))  # verl's SAFETY_BOUND
        return np.minimum(row, 3.0)[table.row_N], np.ones(len(d))

    trainer = make_trainer(
        qwen2_dir, algorithm=algorithm(rollout_is="sequence", rollout_is_threshold=3.0), use_kl_loss=False
    )
    assert_same(gradients(trainer, batch)[0], expected_gradients(qwen2_dir, batch, weigh))


def test_rejected_tokens_train_nothing_and_are_counted(qwen2_dir):
    batch = tiny.make_batch()

    def weigh(d, _table):
        return np.ones(len(d)), ((np.exp(d) >= 0.8) & (np.exp(d) <= 1.25)).astype(float)

    correction = {"rollout_rs": "token_k1", "rollout_rs_threshold": "0.8_1.25"}
    trainer = make_trainer(qwen2_dir, algorithm=algorithm(**correction), use_kl_loss=False)
    found, metrics = gradients(trainer, batch)
    assert_same(found, expected_gradients(qwen2_dir, batch, weigh))
    assert 0 < metrics["tokens/rejected"] < metrics["tokens/trained"]


def test_a_batch_that_is_rejected_whole_changes_no_weight(qwen2_dir):
    correction = {"rollout_rs": "token_k1", "rollout_rs_threshold": "1000_2000"}
    trainer = make_trainer(qwen2_dir, algorithm=AlgorithmConfig(rollout_correction=correction))
    before = {n: p.detach().clone() for n, p in trainer.net.parameters().items()}
    metrics = trainer.train_step(tiny.make_batch()).metrics
    assert metrics["actor/skipped_updates"] == metrics["actor/optimizer_steps"] == 1
    assert metrics["tokens/rejected"] == metrics["tokens/trained"]
    for name, tensor in trainer.net.parameters().items():
        assert torch.equal(tensor, before[name])


@pytest.mark.parametrize("weighting", ["equal", "token"])
def test_without_drift_the_correction_changes_nothing(qwen2_dir, weighting):
    batch = tiny.make_batch()
    table, logp_N = current_log_probs(make_trainer(qwen2_dir), batch)
    # The sampler's log-probs become those of the trainer.
    at = 0
    for row in sorted(batch.rows, key=lambda r: (r.episode, r.agent)):
        for sample in row.samples:
            where = np.flatnonzero(sample.trained_T)
            sample.logprobs_T[where] = logp_N[at : at + len(where)].detach().numpy()
            at += len(where)
    assert at == len(table.id_N)
    plain = gradients(make_trainer(qwen2_dir, algorithm=AlgorithmConfig(role_weighting=weighting)), batch)[0]
    correction = {"rollout_is": "token", "rollout_rs": "seq_mean_k3", "rollout_rs_threshold": 0.01}
    both = AlgorithmConfig(role_weighting=weighting, rollout_correction=correction)
    found, metrics = gradients(make_trainer(qwen2_dir, algorithm=both), batch)
    assert metrics["tokens/rejected"] == 0
    for name, grad in plain.items():
        torch.testing.assert_close(found[name], grad, rtol=1e-4, atol=1e-7)  # log-probs are recorded in float32


@pytest.mark.parametrize(
    ("correction", "words"),
    [
        ({"rollout_rs": "token_k9", "rollout_rs_threshold": 1.0}, "token_k9"),
        ({"rollout_rs": "token_k1"}, "rollout_rs_threshold"),
        ({"rollout_rs": "token_k1,token_k2,token_k3", "rollout_rs_threshold": "1,2"}, "rollout_rs_threshold"),
        ({"rollout_rs": "token_k2", "rollout_rs_threshold": "0.5_2.0"}, "rollout_rs_threshold"),
        ({"rollout_rs": "token_k1", "rollout_rs_threshold": "2.0_0.5"}, "rollout_rs_threshold"),
        ({"rollout_is": "token", "rollout_is_threshold": "high"}, "rollout_is_threshold"),
        ({"rollout_is": "token", "rollout_is_threshold": "5.0_0.5"}, "rollout_is_threshold"),
    ],
)
def test_a_correction_that_verl_would_not_take_is_refused_by_its_key(correction, words):
    with pytest.raises(ConfigError, match=words):
        check_algorithm(TrainerConfig(algorithm=AlgorithmConfig(rollout_correction=correction)))


BOUNDS = ["2.0", "0.5_2.0", "2.0_0.5", "0", "-1", "0_2", "nan", "high", "0.5_high", "", "1_2_3", "0.01"]


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("names", ["token_k1", "token_k3", "token_k1,seq_mean_k2"])
def test_what_is_let_through_verl_takes(names, bound):
    """Never less strict than verl, which would end the run in its first update."""
    parsed = AlgorithmConfig(rollout_correction={"rollout_rs": names, "rollout_rs_threshold": bound})
    try:
        check_algorithm(TrainerConfig(algorithm=parsed))
    except ConfigError:
        return
    found = _parse_rollout_rs_thresholds(names.split(","), bound)
    assert all(entry["upper"] > 0 for entry in found.values())


@pytest.mark.parametrize("bound", BOUNDS)
def test_weights_bounds_that_are_let_through_verl_takes(bound):
    parsed = AlgorithmConfig(rollout_correction={"rollout_is": "token", "rollout_is_threshold": bound})
    try:
        check_algorithm(TrainerConfig(algorithm=parsed))
    except ConfigError:
        return
    assert _parse_rollout_is_threshold(bound)[0] > 0
