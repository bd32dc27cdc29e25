"""Intervals of scores and of their differences: closed forms, coverage by simulation, and what must not matter."""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runner_core.tools.uncertainty import Components, Difference, Estimate, difference, holm, mean

STUDENT = {4: 2.776, 9: 2.262, 29: 2.045}
"""97.5 % quantiles of Student's t, by degrees of freedom."""
Array = Any


def names(count: int) -> list[str]:
    return [f"patient {number:03d}" for number in range(count)]


def scores(seed: int, seeds: int, groups: int, noise: float = 1.0, each: float = 1.0) -> tuple[Array, Array]:
    """Scores of two arms that are equally good: patients differ, networks differ, and each pair of them differs."""
    rng = np.random.default_rng(seed)
    patients = 5 * rng.standard_normal(groups)
    shape = (2, seeds, groups)
    found = patients + noise * rng.standard_normal((2, seeds, 1)) + each * rng.standard_normal(shape)
    return found[0], found[1]


@pytest.mark.parametrize("groups", [5, 10, 30])
def test_of_one_run_each_it_is_the_paired_t_interval(groups: int) -> None:
    one, other = scores(1, 1, groups)
    found = difference(one, other, names(groups))
    away = (other - one)[0]
    half = STUDENT[groups - 1] * away.std(ddof=1) / math.sqrt(groups)
    low, high = found.interval()
    assert found.value == pytest.approx(away.mean())
    assert (high - low) / 2 == pytest.approx(half, rel=0.08)
    assert found.parts.df_seeds == 0
    assert found.parts.replicates == 1


def test_components_are_those_of_the_analysis_of_variance() -> None:
    one, other = scores(2, 4, 12)
    parts = difference(one, other, names(12), resamples=1).parts
    assert parts.seeds == pytest.approx((one.mean(1).var(ddof=1) + other.mean(1).var(ddof=1)) / 4)
    assert parts.groups == pytest.approx((other.mean(0) - one.mean(0)).var(ddof=1) / 12)
    rest = [arm - arm.mean(0) - arm.mean(1, keepdims=True) + arm.mean() for arm in (one, other)]
    assert parts.both == pytest.approx(sum(np.square(r).sum() / (3 * 11) for r in rest) / (4 * 12))


def test_the_variance_is_unbiased() -> None:
    found = [difference(*scores(n, 3, 8, 1.0, 2.0), names(8), resamples=1) for n in range(400)]
    values = [f.value for f in found]
    true = 2 * (1 + 4 / 8) / 3
    estimates = [f.parts.groups + f.parts.seeds - f.parts.both for f in found]
    assert statistics.fmean(estimates) == pytest.approx(true, rel=0.1)
    assert statistics.pvariance(values, 0.0) == pytest.approx(true, rel=0.2)


@pytest.mark.parametrize(("seeds", "groups", "noise"), [(1, 10, 0.0), (2, 20, 1.0), (5, 10, 0.3)])
def test_equal_arms_rarely_get_a_verdict(seeds: int, groups: int, noise: float) -> None:
    found = [difference(*scores(n, seeds, groups, noise, 2.0), names(groups), 399) for n in range(250)]
    share = sum(f.p <= 0.05 for f in found) / len(found)
    assert 0.003 < share < 0.085  # 5 %, give or take 2.7 standard errors; much rarer would be of little use


@pytest.mark.parametrize(("groups", "least"), [(6, 0.88), (30, 0.91)])
def test_a_mean_of_skewed_scores_is_covered(groups: int, least: float) -> None:
    rng = np.random.default_rng(0)
    true = 1 - 2 * 0.04
    found = [mean(1 - rng.gamma(2, 0.04, groups), names(groups), 399).interval() for _ in range(400)]
    assert least < sum(low <= true <= high for low, high in found) / len(found) < 0.985


def test_records_of_one_patient_are_not_independent() -> None:
    rng = np.random.default_rng(3)
    patients = np.repeat(rng.standard_normal(12), 10)
    low, high = mean(patients, [f"p{n // 10}" for n in range(120)]).interval()
    each = mean(patients[::10], names(12)).interval()
    assert (low, high) == pytest.approx(each, rel=0.1)
    apart = mean(patients, names(120)).interval()
    assert apart[1] - apart[0] < 0.5 * (high - low)


def test_folds_of_one_seed_show_the_noise_of_training() -> None:
    rng = np.random.default_rng(4)
    arms = [np.full((5, 50), np.nan) for _ in range(2)]
    for arm in arms:
        for fold in range(5):
            arm[fold, fold * 10 : fold * 10 + 10] = 3 * rng.standard_normal() + 0.1 * rng.standard_normal(10)
    found = difference(*arms, names(50))
    assert found.parts.clusters == 5
    folds = np.nanmean(arms[1] - arms[0], 1)
    assert found.parts.variance == pytest.approx(folds.var(ddof=1) / 5)
    again = [np.concatenate([arm, arm + rng.standard_normal((5, 1))]) for arm in arms]
    replicated = difference(*again, names(50)).parts
    assert (replicated.clusters, replicated.replicates, replicated.df_seeds > 4) == (50, 2, True)


def test_a_single_run_is_taken_to_be_as_noisy_as_the_other_arm() -> None:
    one, other = scores(5, 5, 20)
    parts = difference(one, other[:1], names(20)).parts
    assert parts.seeds == pytest.approx(one.mean(1).var(ddof=1) * (1 / 5 + 1))
    assert parts.df_seeds == 4


def test_one_group_and_one_seed_say_nothing() -> None:
    one, other = scores(6, 1, 3)
    found = difference(one, other, ["a"] * 3)
    assert math.isnan(found.p)
    assert all(map(math.isnan, found.interval()))
    assert all(map(math.isnan, mean([1.0, 2.0], ["a", "a"]).interval()))
    several = difference(*scores(6, 4, 3), ["a"] * 3)
    assert several.parts.groups == 0
    assert math.isfinite(several.interval()[0])


def test_networks_must_be_replicates_or_folds() -> None:
    overlapping = np.array([[1.0, 2.0, np.nan], [np.nan, 2.0, 3.0]])
    with pytest.raises(ValueError, match="networks of one arm"):
        difference(overlapping, overlapping, names(3))


def test_as_many_more_as_it_says_decide_in_four_of_five_cases() -> None:
    seeds, groups, each = 3, 20, 2.0
    both = 2 * each**2 / (seeds * groups)
    true = Components(both, 2 / seeds + both, both, groups - 1, 4, groups, seeds)
    more, patients = Difference(1.5, np.empty(0), true).needed()
    assert more is not None
    assert patients is None, "the noise of three seeds is too large for any number of patients"
    decided = 0
    for n in range(150):
        one, other = scores(n, seeds + more, groups, 1.0, each)
        decided += difference(one, other + 1.5, names(groups), 399).p <= 0.05
    assert 0.7 < decided / 150 < 0.92


def test_what_cannot_be_decided_needs_no_number() -> None:
    parts = difference(*scores(1, 3, 10), names(10)).parts
    assert Difference(1e-9, np.empty(0), parts).needed() == (None, None)


@pytest.mark.parametrize(
    ("p", "rejected"),
    [
        ([0.01, 0.04, 0.03, 0.005], [True, False, False, True]),
        ([0.04], [True]),
        ([0.03, 0.03], [False, False]),
        ([], []),
    ],
)
def test_holm_by_its_definition(p: list[float], rejected: list[bool]) -> None:
    assert [value <= 1 - level + 1e-12 for value, level in zip(p, holm(p), strict=True)] == rejected


tables = st.tuples(st.integers(1, 3), st.integers(2, 6), st.integers(0, 2**31)).map(
    lambda sizes: scores(sizes[2], sizes[0], sizes[1], 1.0, 1.0)
)
quick = settings(max_examples=25, deadline=None)


@quick
@given(tables)
def test_the_other_way_round_is_the_negative(arms: tuple[Array, Array]) -> None:
    one, other = arms
    there, back = difference(one, other, names(one.shape[1]), 99), difference(other, one, names(one.shape[1]), 99)
    assert there.value == -back.value
    assert np.array_equal(there.draws, -back.draws[::-1])
    assert there.p == back.p


@quick
@given(tables, st.randoms(use_true_random=False))
def test_no_order_matters(arms: tuple[Array, Array], random: Any) -> None:
    one, other = arms
    groups = [f"g{n // 2}" for n in range(one.shape[1])]
    records, networks = ([*range(size)] for size in one.shape[::-1])
    random.shuffle(records)
    random.shuffle(networks)
    first = difference(one, other, groups, 99)
    second = difference(one[networks][:, records], other[:, records], [groups[n] for n in records], 99)
    assert np.allclose(first.draws, second.draws, atol=1e-9)


@quick
@given(tables, st.floats(-100, 100), st.floats(0.01, 100))
def test_a_shift_moves_it_and_a_unit_scales_it(arms: tuple[Array, Array], shift: float, unit: float) -> None:
    one, other = arms
    groups = names(one.shape[1])
    plain = difference(one, other, groups, 99)
    assert difference(one + shift, other + shift, groups, 99).value == pytest.approx(plain.value, abs=1e-9)
    sign = 1 if plain.value > 0 else -1  # a gain in the same direction keeps the arms' order, and so the draws
    moved = difference(one, other + sign * 7, groups, 99)
    assert np.allclose(moved.draws, plain.draws + sign * 7)
    assert np.allclose(difference(unit * one, unit * other, groups, 99).draws, unit * plain.draws, atol=1e-9)


@quick
@given(st.lists(st.floats(-1, 1), min_size=39, max_size=200), st.sampled_from([0.9, 0.95, 0.975]))
def test_the_p_value_agrees_with_the_interval(draws: list[float], level: float) -> None:
    found = Estimate(0.0, np.sort(draws))
    low, high = found.interval(level)
    assert (found.p <= 1 - level + 1e-12) == (low > 0 or high < 0)
