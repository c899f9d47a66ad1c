"""verl's estimators over episodes: figures by hand, opposed tags, groups without contrast."""

import functools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet.algorithm.advantages import compute_advantages
from ajet.algorithm.baseline import RunningBaseline
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


# G = 6 rewards of 0 and 1, k of them 1: mean k/6, verl's sample deviation sqrt(k(6-k)/30), so a winner has
# sqrt(5(6-k)/(6k)) and a loser -sqrt(5k/(6(6-k))). One won of six: sqrt(25/6) and -sqrt(1/6).
BY_HAND = {0: (None, 0.0), 1: (2.04124, -0.40825), 2: (1.29099, -0.64550), 3: (0.91287, -0.91287),
           4: (0.64550, -1.29099), 5: (0.40825, -2.04124), 6: (0.0, None)}  # fmt: skip
"""Games won by a side of six → advantage of the games it won, and of those it lost."""


@pytest.mark.parametrize("won", range(7))
def test_advantages_of_wolves_and_seer_for_every_score_of_six_games_are_those_worked_by_hand(won, monkeypatch):
    from verl.trainer.ppo import core_algos

    asked = []
    verls = core_algos.get_adv_estimator_fn("grpo")

    @functools.wraps(verls)
    def spy(**kwargs):
        asked.append(kwargs["token_level_rewards"].sum(-1).tolist())
        return verls(**kwargs)

    monkeypatch.setitem(core_algos.ADV_ESTIMATOR_REGISTRY, "grpo", spy)
    score = [1] * won + [0] * (6 - won)
    rows = werewolves(score)
    found = compute_advantages(rows, AlgorithmConfig(adv_estimator="grpo"))
    assert asked == [[1.0 - s for s in score], [float(s) for s in score]]  # one row per (game, role): seer, wolves
    seer, wolves = by(rows, found.per_row, "seer"), by(rows, found.per_row, "werewolf").reshape(6, 3)
    for game, wolves_won in enumerate(score):
        np.testing.assert_allclose(wolves[game], BY_HAND[won][0 if wolves_won else 1], atol=1e-5)
        np.testing.assert_allclose(seer[game], BY_HAND[6 - won][1 if wolves_won else 0], atol=1e-5)
    assert abs(seer.sum()) < 1e-9
    assert abs(wolves.sum()) < 1e-9
    for tag, mean in (("werewolf", won / 6), ("seer", 1 - won / 6)):
        assert found.metrics[f"reward/{tag}/mean"] == pytest.approx(mean)
        assert found.metrics[f"advantage/{tag}/mean"] == pytest.approx(0, abs=1e-9)
        assert found.metrics[f"advantage/{tag}/zero_group_share"] == float(won in (0, 6))


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


# ── a running baseline ───────────────────────────────────────────────────────────────────────────────────────────────

RUNNING = AlgorithmConfig(running_baseline=0.9)


def test_a_group_all_won_is_compared_with_what_the_role_had_before():
    first = compute_advantages(werewolves((1, 0, 0, 0, 0, 0)), RUNNING)
    assert first.baseline.mean == pytest.approx({"werewolf": 1 / 6, "seer": 5 / 6})
    then = compute_advantages(rows := werewolves((1,) * 6), RUNNING, first.baseline)
    # Wolves: (1 - 1/6) / sqrt(1/6 - 1/36) = 2.23607, more than any of six can have in a mixed group, 5 / sqrt(6).
    np.testing.assert_allclose(by(rows, then.per_row, "werewolf"), 2.04124, atol=1e-5)
    np.testing.assert_allclose(by(rows, then.per_row, "seer"), -2.04124, atol=1e-5)
    assert then.metrics["advantage/werewolf/zero_group_share"] == 0
    assert then.metrics["advantage/werewolf/running_baseline_share"] == 1
    assert then.metrics["advantage/werewolf/running_baseline"] == pytest.approx(1 / 6)
    assert then.baseline.mean["werewolf"] == pytest.approx(0.9 / 6 + 0.1)
    half = compute_advantages(werewolves((1, 1, 1, 0, 0, 0)), RUNNING).baseline
    after_half = compute_advantages(rows, RUNNING, half)
    np.testing.assert_allclose(by(rows, after_half.per_row, "werewolf"), 1.0, atol=1e-5)  # 0.5 / 0.5


def test_groups_with_contrast_keep_verls_advantages_and_the_first_batch_has_no_baseline():
    rows = werewolves((1, 1, 1, 1, 0, 0))
    past = compute_advantages(werewolves((1, 0, 0, 0, 0, 0)), RUNNING).baseline
    plain = compute_advantages(rows, AlgorithmConfig())
    np.testing.assert_array_equal(compute_advantages(rows, RUNNING, past).per_row, plain.per_row)
    lost = compute_advantages(werewolves((0,) * 6), RUNNING)
    assert not lost.per_row.any()
    assert lost.metrics["advantage/werewolf/zero_group_share"] == 1
    # A role that always lost has nothing to learn from losing again.
    again = compute_advantages(werewolves((0,) * 6), RUNNING, lost.baseline)
    assert not again.per_row.any()
    assert again.metrics["advantage/seer/zero_group_share"] == 1


def test_without_the_deviation_it_is_reward_minus_running_mean():
    config = AlgorithmConfig(adv_estimator="rloo", running_baseline=0.5)
    past = compute_advantages(werewolves((1, 1, 0, 0, 0, 0)), config).baseline
    rows = werewolves((1,) * 6)
    np.testing.assert_allclose(by(rows, compute_advantages(rows, config, past).per_row, "seer"), -2 / 3, rtol=1e-9)


@given(st.dictionaries(st.text(), st.lists(st.floats(-5, 5), min_size=1), max_size=3), st.floats(0.01, 0.99))
def test_a_running_baseline_comes_back_from_json_bit_by_bit(rewards, past):
    baseline = RunningBaseline().after(rewards, 0.5).after(rewards, past)
    assert RunningBaseline.from_state(json.loads(json.dumps(baseline.to_state()))) == baseline


def test_it_is_refused_where_an_advantage_is_not_a_reward_less_a_baseline():
    with pytest.raises(ConfigError, match="running_baseline"):
        check_algorithm(TrainerConfig(algorithm=AlgorithmConfig(adv_estimator="grpo_passk", running_baseline=0.9)))
    check_algorithm(TrainerConfig(algorithm=RUNNING))


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
