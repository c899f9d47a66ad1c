"""verl's estimators over episodes: figures by hand, opposed tags, groups without contrast."""

import numpy as np
import pytest

from ajet.algorithm.advantages import compute_advantages
from ajet.algorithm.support import (
    BATCH_ESTIMATORS,
    GROUP_ESTIMATORS,
    REFUSED_ESTIMATORS,
    REFUSED_LOSSES,
    check_algorithm,
)  # fmt: skip
from ajet.default_config.schema import AlgorithmConfig, TrainerConfig
from ajet.schema.errors import ConfigError
from ajet.trajectory.batch import Row, Sample


def row(episode, agent, tag, reward, task="t", tokens=(3,)) -> Row:
    samples = []
    for n in tokens:
        trained = np.array([False, *[True] * n])
        zeros = np.zeros(n + 1, np.float32)
        samples.append(Sample(np.arange(n + 1, dtype=np.int32), trained, zeros, zeros + 1, np.zeros(n + 1, np.int32)))
    return Row(episode, agent, tag, task, reward, samples)


def werewolves(wins=(1, 1, 1, 1, 0, 0)) -> list[Row]:
    """Three wolves and a seer per game; the wolves speak more, in more samples."""
    rows = []
    for g, won in enumerate(wins):
        rows += [row(f"e{g}", f"w{i}", "werewolf", float(won), tokens=(4, 5, 6)[: i + 1]) for i in range(3)]
        rows.append(row(f"e{g}", "s", "seer", float(1 - won), tokens=(2 + g,)))
    return rows


def by(rows, per_row, tag):
    return np.array([a for r, a in zip(rows, per_row, strict=True) if r.tag == tag])


def test_grpo_of_six_games_won_four_times_by_the_wolves_by_hand():
    rows = werewolves()
    found = compute_advantages(rows, AlgorithmConfig(adv_estimator="grpo"))
    std = np.sqrt((4 * (1 / 3) ** 2 + 2 * (2 / 3) ** 2) / 5)  # verl divides by the sample standard deviation
    seer = by(rows, found.per_row, "seer")
    np.testing.assert_allclose(seer, np.array([-1 / 3] * 4 + [2 / 3] * 2) / std, rtol=1e-5)
    wolves = by(rows, found.per_row, "werewolf").reshape(6, 3)
    np.testing.assert_allclose(wolves, np.array([[1 / 3] * 3] * 4 + [[-2 / 3] * 3] * 2) / std, rtol=1e-5)
    assert abs(seer.mean()) < 1e-12
    assert abs(wolves[:, 0].mean()) < 1e-12
    assert found.units == 12
    assert found.metrics["reward/werewolf/mean"] == pytest.approx(2 / 3)
    assert found.metrics["reward/seer/mean"] == pytest.approx(1 / 3)
    assert found.metrics["advantage/zero_group_share"] == 0


def test_without_the_standard_deviation_advantages_are_reward_minus_mean():
    rows = werewolves()
    found = compute_advantages(rows, AlgorithmConfig(adv_estimator="grpo", norm_adv_by_std_in_grpo=False))
    np.testing.assert_allclose(by(rows, found.per_row, "seer"), [-1 / 3] * 4 + [2 / 3] * 2, rtol=1e-9)


def test_rloo_by_hand():
    rows = werewolves()
    found = compute_advantages(rows, AlgorithmConfig(adv_estimator="rloo"))
    # reward minus the mean of the other five
    np.testing.assert_allclose(by(rows, found.per_row, "seer"), [-2 / 5] * 4 + [1 - 1 / 5] * 2, rtol=1e-9)


@pytest.mark.parametrize("name", sorted(GROUP_ESTIMATORS | BATCH_ESTIMATORS))
def test_every_offered_estimator_runs_and_never_mixes_tags(name):
    config = AlgorithmConfig(adv_estimator=name)
    rows = werewolves()
    both = compute_advantages(rows, config)
    assert np.isfinite(both.per_row).all()
    alone = [r for r in rows if r.tag == "seer"]
    np.testing.assert_allclose(by(rows, both.per_row, "seer"), compute_advantages(alone, config).per_row, atol=1e-9)
    check_algorithm(TrainerConfig(algorithm=config))


def test_an_agent_counts_once_however_many_samples_it_has():
    few = compute_advantages(werewolves(), AlgorithmConfig())
    many = [Row(r.episode, r.agent, r.tag, r.task, r.reward, r.samples * 3) for r in werewolves()]
    np.testing.assert_allclose(compute_advantages(many, AlgorithmConfig()).per_row, few.per_row, rtol=1e-12)


def test_groups_go_by_task_and_equal_ones_train_nothing_and_are_counted():
    rows = [row(f"a{i}", "w", "werewolf", 0.1, task="equal") for i in range(6)]
    rows += [row(f"b{i}", "w", "werewolf", float(i == 0), task="07") for i in range(6)]
    rows += [row(f"c{i}", "w", "werewolf", 1.0, task="7") for i in range(2)]
    rows += [row("d0", "w", "werewolf", 1.0, task="single")]
    for name in sorted(GROUP_ESTIMATORS):
        found = compute_advantages(rows, AlgorithmConfig(adv_estimator=name))
        assert (found.per_row[:6] == 0).all(), name
        assert (found.per_row[12:] == 0).all(), name
        assert found.per_row[6] > 0, name
        assert found.metrics["advantage/werewolf/zero_group_share"] == pytest.approx(3 / 4), name


def test_agents_of_one_tag_with_different_rewards_are_one_unit_each():
    rows = [row("e0", "w0", "w", 1.0), row("e0", "w1", "w", 0.0), row("e1", "w0", "w", 0.0), row("e1", "w1", "w", 0.0)]
    found = compute_advantages(rows, AlgorithmConfig(norm_adv_by_std_in_grpo=False))
    assert found.units == 3
    np.testing.assert_allclose(found.per_row, [2 / 3, -1 / 3, -1 / 3, -1 / 3], rtol=1e-9)


@pytest.mark.parametrize("name", [*REFUSED_ESTIMATORS, "nonsense"])
def test_other_estimators_are_refused_with_the_reason_and_the_choices(name):
    with pytest.raises(ConfigError, match=r"adv_estimator.*Use one of: gpg, grpo") as e:
        check_algorithm(TrainerConfig(algorithm=AlgorithmConfig(adv_estimator=name)))
    assert e.value.param == "trainer_common.algorithm.adv_estimator"


@pytest.mark.parametrize(
    ("field", "value"),
    [("policy_loss", next(iter(REFUSED_LOSSES))), ("policy_loss", "x"), ("loss_agg_mode", "x"), ("policy_loss", "dro"),
     ("policy_loss_kwargs", {"x": 1}), ("policy_loss_kwargs", {"dro_beta": "1"})],
)  # fmt: skip
def test_other_losses_are_refused(field, value):
    with pytest.raises(ConfigError):
        check_algorithm(TrainerConfig(algorithm=AlgorithmConfig(**{field: value})))


def test_discounting_is_refused_where_tokens_have_no_single_order():
    with pytest.raises(ConfigError, match="gamma"):
        check_algorithm(TrainerConfig(algorithm=AlgorithmConfig(adv_estimator="reinforce_plus_plus", gamma=0.9)))


def test_kl_types_are_verls():
    check_algorithm(TrainerConfig(kl_loss_type="k3+"))
    with pytest.raises(ConfigError, match="kl_loss_type"):
        check_algorithm(TrainerConfig(kl_loss_type="full"))


def test_the_support_table_covers_verls_registries():
    from verl.trainer.ppo import core_algos

    from ajet.algorithm import support

    assert set(core_algos.ADV_ESTIMATOR_REGISTRY) == GROUP_ESTIMATORS | BATCH_ESTIMATORS | set(REFUSED_ESTIMATORS)
    assert set(core_algos.POLICY_LOSS_REGISTRY) == support.ADDITIVE_LOSSES | support.WHOLE_BATCH_LOSSES | set(
        REFUSED_LOSSES
    )
