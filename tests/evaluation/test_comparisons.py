"""Intervals and tests against closed forms, enumerations and limiting cases."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from agon.evaluation.comparisons import (
    arm_difference,
    holm,
    majority_right,
    mcnemar,
    mean_interval,
    paired_difference,
    pass_at_k,
)

GENERATOR = np.random.default_rng(0)


@pytest.mark.parametrize(("right", "of", "k"), [(0, 5, 3), (1, 5, 3), (2, 6, 2), (5, 5, 1)])
def test_pass_at_k_is_the_share_of_all_choices_of_k_attempts_with_a_right_one(
    right: int, of: int, k: int
) -> None:
    attempts = [True] * right + [False] * (of - right)
    choices = [any(choice) for choice in combinations(attempts, k)]
    assert pass_at_k(right, of, k) == pytest.approx(np.mean(choices))


def test_pass_at_more_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match="pass@5 cannot be told from 4"):
        pass_at_k(1, 4, 5)


def test_the_majority_is_the_commonest_answer_and_of_equals_the_earliest() -> None:
    right = [False, True, False, True]
    votes: list[int | None] = [0, 1, 0, 1]
    assert [majority_right(votes, right, k) for k in (1, 2, 3, 4)] == [False] * 4
    assert majority_right([0, 1, 1, 1], [False, True, True, True], 3)
    assert not majority_right([None, None], [False, False], 2)
    assert majority_right([None, 1], [False, True], 2)


def test_mcnemar_counts_only_where_the_systems_differ() -> None:
    left = np.array([1, 1, 1, 1, 1, 0, 1, 0], dtype=bool)
    right = np.array([0, 0, 0, 0, 0, 0, 1, 0], dtype=bool)
    assert mcnemar(left, right) == pytest.approx(2 * 0.5**5)
    assert mcnemar(left, left) == 1.0


def test_a_system_does_not_differ_from_itself() -> None:
    rates_P = GENERATOR.integers(0, 2, 50).astype(float)
    found = paired_difference(rates_P, rates_P)
    assert (found.mean, found.low, found.high, found.p) == (0.0, 0.0, 0.0, 1.0)


def test_pairing_narrows_what_common_difficulty_widens() -> None:
    """One is right wherever the other is, and on ten problems more: the gap is nearly certain."""
    base_P = np.array([1.0] * 100 + [0.0] * 100)
    better_P = base_P.copy()
    better_P[100:110] = 1.0
    found = paired_difference(better_P, base_P)
    assert found.mean == pytest.approx(0.05)
    assert 0.015 < found.low < found.high < 0.085
    assert found.p is not None
    assert found.p == pytest.approx(2 * 0.5**10)


def test_unscored_problems_are_left_out_of_both_sides() -> None:
    left_P, right_P = np.array([1.0, np.nan, 0.0, 1.0]), np.array([0.0, 0.0, np.nan, 1.0])
    assert paired_difference(left_P, right_P).mean == pytest.approx(0.5)
    with pytest.raises(ValueError, match="no problem is scored"):
        paired_difference(np.array([np.nan]), np.array([1.0]))


def test_rates_between_nought_and_one_have_no_mcnemar_test() -> None:
    assert paired_difference(np.array([0.5, 1.0]), np.array([0.0, 1.0])).p is None


def test_seeds_that_differ_widen_an_arms_interval() -> None:
    """With the same mean: seeds all alike, and seeds far apart."""
    problems = GENERATOR.random(400)
    alike_SP = np.array([problems < 0.5 for _ in range(5)], dtype=float)
    apart_SP = np.array([problems < level for level in (0.3, 0.4, 0.5, 0.6, 0.7)], dtype=float)
    mean, low, high = mean_interval(alike_SP)
    wide_mean, wide_low, wide_high = mean_interval(apart_SP)
    assert mean == pytest.approx(wide_mean, abs=0.02)
    assert wide_high - wide_low > 1.5 * (high - low)
    assert low < mean < high


def test_one_seed_has_the_interval_of_its_problems_and_no_test() -> None:
    rates_SP = GENERATOR.integers(0, 2, (1, 300)).astype(float)
    mean, low, high = mean_interval(rates_SP)
    error = np.sqrt(mean * (1 - mean) / 300)
    assert (high - low) / 2 == pytest.approx(1.96 * error, rel=0.1)
    assert arm_difference(rates_SP, rates_SP).p is None


def test_arms_are_tested_over_their_seeds_paired_differences() -> None:
    left_SP = GENERATOR.integers(0, 2, (5, 100)).astype(float)
    right_SP = GENERATOR.integers(0, 2, (5, 100)).astype(float)
    found = arm_difference(left_SP, right_SP)
    gaps_S = left_SP.mean(axis=1) - right_SP.mean(axis=1)
    test = ttest_1samp(gaps_S, 0.0)
    assert found.mean == pytest.approx(gaps_S.mean())
    assert found.p == pytest.approx(test.pvalue)
    interval = test.confidence_interval()
    assert found.low <= interval.low
    assert found.high >= interval.high


def test_a_seed_common_to_both_arms_cancels() -> None:
    level_S = np.array([0.2, 0.35, 0.5, 0.65, 0.8])
    hardness_P = GENERATOR.random(500)
    left_SP = (hardness_P < level_S[:, None] + 0.05).astype(float)
    right_SP = (hardness_P < level_S[:, None]).astype(float)
    found = arm_difference(left_SP, right_SP)
    assert 0 < found.low < found.mean < found.high < 0.12


def test_false_alarms_between_arms_without_difference_are_as_rare_as_promised() -> None:
    """Seeds with levels of their own: resampling problems alone would cry wolf most of the time."""
    alarms = 0
    for trial in range(100):
        generator = np.random.default_rng(trial)
        arms = [generator.random((5, 200)) < generator.normal(0.5, 0.06, (5, 1)) for _ in range(2)]
        rates = [arm.astype(float).mean(axis=1) for arm in arms]
        p = ttest_1samp(rates[0] - rates[1], 0.0).pvalue
        if trial < 3:  # the whole function is slower; it gives the same p
            assert arm_difference(arms[0].astype(float), arms[1].astype(float)).p == pytest.approx(
                p
            )
        alarms += p < 0.05
    assert alarms <= 12


def test_other_shapes_are_no_pairs() -> None:
    with pytest.raises(ValueError, match="not the same seeds"):
        arm_difference(np.zeros((4, 3)), np.zeros((5, 3)))


def test_holm_multiplies_the_least_p_by_their_number_and_never_falls() -> None:
    pytest.importorskip("statsmodels")
    assert holm({"x": 0.01, "y": 0.04, "z": 0.03}) == pytest.approx(
        {"x": 0.03, "z": 0.06, "y": 0.06}
    )
    assert holm({}) == {}
