"""Overlap of errors in limiting cases, and beside the coefficients' textbook forms."""

from __future__ import annotations

import numpy as np
import pytest

from agon.evaluation.overlap import overlap, shared_errors, votes


def test_the_same_errors_overlap_wholly_and_opposite_ones_not_at_all() -> None:
    first_PK = np.array([[1.0, 1.0], [0.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    same = overlap(first_PK, first_PK.copy())
    assert (same.jaccard, same.phi) == (1.0, pytest.approx(1.0))
    other = overlap(first_PK, 1 - first_PK)
    assert (other.jaccard, other.phi) == (0.0, pytest.approx(-1.0))
    assert (other.first_alone, other.second_alone) == (0.5, 0.5)


def test_phi_is_the_correlation_and_jaccard_the_share_of_common_errors() -> None:
    generator = np.random.default_rng(0)
    first, second = generator.integers(0, 2, (2, 300, 2)).astype(float)
    found = overlap(first, second)
    left, right = first.T.ravel(), second[:, ::-1].T.ravel()
    assert found.phi == pytest.approx(np.corrcoef(left, right)[0, 1])
    wrong = [set(np.flatnonzero(x == 0)) for x in (left, right)]
    assert found.jaccard == pytest.approx(len(wrong[0] & wrong[1]) / len(wrong[0] | wrong[1]))
    assert found.first_alone - found.second_alone == pytest.approx(first.mean() - second.mean())


def test_a_system_is_compared_with_its_other_attempts_and_never_with_the_same_one() -> None:
    """Attempts that are independent given nothing: no overlap beyond chance."""
    rates_PK = np.random.default_rng(1).integers(0, 2, (4000, 2)).astype(float)
    assert abs(overlap(rates_PK, rates_PK).phi) < 0.05
    assert overlap(rates_PK, rates_PK).pairs == 8000
    with pytest.raises(ValueError, match="one attempt"):
        overlap(rates_PK[:, :1], rates_PK)


def test_common_difficulty_alone_makes_two_systems_as_alike_as_one_with_itself() -> None:
    """The reason for the comparison: equal policies with own randomness are no blind spots."""
    generator = np.random.default_rng(2)
    hardness_P = generator.random((3000, 1))
    first_PK = (generator.random((3000, 2)) > hardness_P).astype(float)
    second_PK = (generator.random((3000, 2)) > hardness_P).astype(float)
    cross, own = overlap(first_PK, second_PK), overlap(first_PK, first_PK)
    assert cross.phi == pytest.approx(own.phi, abs=0.05)
    assert own.phi > 0.2


def test_unscored_attempts_are_left_out() -> None:
    first_PK = np.array([[1.0, np.nan], [0.0, 1.0]])
    second_PK = np.array([[np.nan, 1.0], [0.0, 0.0]])
    assert overlap(first_PK, second_PK).pairs == 3
    with pytest.raises(ValueError, match="no pair"):
        overlap(np.full((2, 2), np.nan), np.ones((2, 2)))


def test_attempts_with_the_same_random_numbers_are_never_compared() -> None:
    """Equal policies whose equal-numbered replies are the same look like one with itself."""
    draw = np.random.default_rng(4)
    hardness_P = draw.random((3000, 1))
    a_PK = (draw.random((3000, 2)) > hardness_P).astype(float)
    assert overlap(a_PK, a_PK.copy()) == overlap(a_PK, a_PK)
    assert overlap(a_PK, a_PK.copy()).phi < 0.6


def test_without_any_error_there_is_no_overlap_to_tell() -> None:
    found = overlap(np.ones((3, 2)), np.ones((3, 2)))
    assert np.isnan(found.jaccard)
    assert np.isnan(found.phi)


def test_answers_agree_whatever_their_spaces() -> None:
    assert votes(["4 * 7", "1+2", None, "4*7", "", "1 + 2"]) == [0, 1, None, 0, None, 1]


def test_equal_policies_share_no_more_errors_than_one_with_itself() -> None:
    draw = np.random.default_rng(1)
    rates_P = draw.random(200)
    a_PK, b_PK = ((draw.random((200, 4)) < rates_P[:, None]).astype(float) for _ in "ab")
    found = shared_errors([(a_PK, b_PK)])
    assert found.low < 0 < found.high
    same = shared_errors([(a_PK, a_PK)])
    assert same.gap == pytest.approx(0)
    assert same.across == pytest.approx(same.within)


def test_policies_that_err_on_different_problems_share_fewer_errors() -> None:
    first_P = np.arange(40) < 20
    a_PK = np.repeat(first_P[:, None], 2, axis=1).astype(float)
    found = shared_errors([(a_PK, 1 - a_PK)] * 2)
    assert (found.across, found.within) == (0, 1)
    assert found.high < 0


def test_attempts_of_one_number_are_never_compared() -> None:
    """Both policies draw them with the same random numbers, which is no likeness of theirs."""
    a_PK = np.array([[0.0, 1.0], [1.0, 0.0]])
    assert shared_errors([(a_PK, a_PK)]).across == 0


def test_overlaps_without_errors_or_with_one_attempt_are_refused() -> None:
    right_PK = np.ones((3, 2))
    with pytest.raises(ValueError, match="no error"):
        shared_errors([(right_PK, right_PK)])
    with pytest.raises(ValueError, match="one attempt"):
        shared_errors([(right_PK[:, :1], right_PK[:, :1])])
