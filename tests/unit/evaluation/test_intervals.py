"""Intervals and ratings against values worked by hand and against simulation."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet.evaluation.elo import SCALE, Played, rate
from ajet.evaluation.intervals import difference, estimate, t_quantile, wilson

BITS = st.sampled_from([0.0, 1.0])


def test_t_quantiles_are_those_of_the_tables():
    for degrees, value in ((4, 2.776), (10, 2.228), (30, 2.042), (100, 1.984), (10_000, 1.960)):
        assert t_quantile(degrees) == pytest.approx(value, rel=5e-3)


def test_a_paired_interval_worked_by_hand():
    # Differences 1, 0, 0, 1: mean 0.5, sample deviation sqrt(1/3), standard error that over 2; t with 3 degrees.
    d = difference([(x, 1) for x in (0, 0, 1, 0)], [(x, 1) for x in (1, 0, 1, 1)])
    assert d is not None
    assert d.value == 0.5
    assert d.high - d.value == pytest.approx(t_quantile(3) * (1 / 3) ** 0.5 / 2)


@given(st.lists(st.tuples(BITS, BITS), min_size=2, max_size=60))
def test_a_paired_difference_is_the_difference_of_means_and_lies_in_its_interval(pairs):
    before, after = [(a, 1.0) for a, _ in pairs], [(b, 1.0) for _, b in pairs]
    d = difference(before, after)
    assert d is not None
    assert d.value == pytest.approx(sum(b for b, _ in after) / len(after) - sum(a for a, _ in before) / len(before))
    assert d.low <= d.value <= d.high
    assert d == difference(list(before), list(after))
    back = difference(after, before)
    assert (back.value, back.low, back.high) == pytest.approx((-d.value, -d.high, -d.low))


def test_unequal_lists_are_refused_and_nothing_counted_is_nothing():
    with pytest.raises(ValueError, match="paired"):
        difference([(1.0, 1.0)], [])
    assert difference([(0, 0)], [(1, 1)]) is None
    assert estimate([(0, 0), (0, 0)]) is None


def test_one_decision_a_game_gives_wilsons_interval():
    units = [(1.0, 1.0)] * 30 + [(0.0, 1.0)] * 70
    found = estimate(units)
    low, high = wilson(0.3, 99, t_quantile(99))  # the sample variance has n - 1
    assert (found.value, found.n, found.games) == (0.3, 100, 100)
    assert (found.low, found.high) == pytest.approx((low, high))


def test_decisions_that_go_together_within_a_game_count_as_one():
    together = estimate([(5.0, 5.0)] * 10 + [(0.0, 5.0)] * 10)
    apart = estimate([(1.0, 1.0)] * 50 + [(0.0, 1.0)] * 50)
    assert together.value == apart.value == 0.5
    assert together.high - together.low > 2 * (apart.high - apart.low)


def test_what_never_happened_still_has_an_interval():
    found = estimate([(0.0, 3.0)] * 20)
    assert found.value == found.low == 0
    assert 0.1 < found.high < 0.2


def test_means_that_are_no_shares_are_not_bounded_by_1():
    found = estimate([(20.0, 1.0), (22.0, 1.0), (24.0, 1.0)])
    assert found.value == 22
    assert found.low < 20 < 24 < found.high


@given(st.lists(st.integers(1, 6).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), min_size=1, max_size=40))
def test_an_interval_of_a_share_holds_its_value_and_stays_within_0_and_1(units):
    found = estimate(units)
    assert 0 <= found.low <= found.value <= found.high <= 1


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    rng = random.Random(1)
    hit_share = hit_difference = 0
    for _ in range(400):
        games = []
        for _ in range(40):
            p, q = rng.betavariate(2, 3), rng.betavariate(3, 3)
            n = rng.randint(1, 5)
            games.append(((sum(rng.random() < p for _ in range(n)), n), (sum(rng.random() < q for _ in range(n)), n)))
        before, after = [a for a, _ in games], [b for _, b in games]
        share, change = estimate(before), difference(before, after)
        hit_share += share.low <= 0.4 <= share.high
        hit_difference += change.low <= 0.1 <= change.high
    assert 0.92 <= hit_share / 400 <= 0.98
    assert 0.92 <= hit_difference / 400 <= 0.98


# ── Elo ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def expected(w: list[float], g: list[float], games: float) -> list[Played]:
    """Every pairing with exactly its expected score."""
    k = range(len(w))
    return [Played(i, j, games / (1 + math.exp(-(w[i] - g[j]))), games) for i in k for j in k]


def test_ratings_find_the_strengths_of_both_sides():
    w, g = [-1.0, -0.4, 0.3], [0.0, 0.1, 0.6]
    found = rate(expected(w, g, 5000), 3)
    assert found[0].elo == found[0].low == found[0].high == 0
    for i in (1, 2):
        assert found[i].wolves == pytest.approx((w[i] - w[0]) * SCALE, abs=1)
        assert found[i].good == pytest.approx((g[i] - g[0]) * SCALE, abs=1)
        assert found[i].elo == pytest.approx((found[i].wolves + found[i].good) / 2)
        assert found[i].low < found[i].elo < found[i].high


def test_four_hundred_points_are_odds_of_ten_to_one():
    ten = math.log(10)
    found = rate(expected([0.0, ten], [0.0, ten], 10_000), 2)
    assert found[1].elo == pytest.approx(400, abs=2)


def test_a_checkpoint_that_always_won_is_finite_and_more_games_narrow_the_interval():
    def sweep(games):
        return rate(
            [Played(i, j, float(i == 1) * games if i != j else games / 2, games) for i in (0, 1) for j in (0, 1)], 2
        )

    few, many = sweep(10)[1], sweep(200)[1]
    assert 0 < few.elo < many.elo < 2000
    even_few, even_many = rate(expected([0, 0], [0, 0], 10), 2)[1], rate(expected([0, 0], [0, 0], 200), 2)[1]
    assert even_few.elo == pytest.approx(0, abs=1e-6)
    assert even_few.high - even_few.low > 3 * (even_many.high - even_many.low)
