"""Votes and bests of several tries, in cases that can be counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from agon.evaluation.voting import best_of, majority_of

NAN = np.nan


def test_one_try_is_the_share_of_right_tries() -> None:
    outcomes_PK = np.array([[1.0, 0, 0, 1], [0, 0, 0, 0]])
    votes_PK = np.array([[0, 1, 2, 0], [-1, -1, 2, 3]])
    np.testing.assert_allclose(best_of(outcomes_PK, 1), [0.5, 0])
    np.testing.assert_allclose(majority_of(votes_PK, outcomes_PK, 1), [0.5, 0])


def test_two_votes_are_as_good_as_one() -> None:
    """Two equal answers change nothing, of two unequal ones the earliest wins."""
    draw = np.random.default_rng(0)
    votes_PK = np.zeros((400, 4), dtype=int)
    outcomes_PK = np.zeros((400, 4))
    for p in range(400):
        answers = draw.integers(3, size=4).tolist()
        votes_PK[p] = [answers.index(answer) for answer in answers]
        outcomes_PK[p] = [answer == 0 for answer in answers]
    one, two = (majority_of(votes_PK, outcomes_PK, k).mean() for k in (1, 2))
    assert two == pytest.approx(one, abs=0.05)


def test_all_tries_have_one_majority() -> None:
    outcomes_PK = np.array([[0.0, 1, 1, 0], [1, 0, 0, 0]])
    votes_PK = np.array([[0, 1, 1, 3], [0, 1, 1, 3]])
    np.testing.assert_array_equal(majority_of(votes_PK, outcomes_PK, 4), [1, 0])


def test_the_best_of_all_tries_is_whether_one_is_right() -> None:
    outcomes_PK = np.array([[0.0, 0, 1], [0, 0, 0], [1, 1, 1]])
    np.testing.assert_array_equal(best_of(outcomes_PK, 3), [1, 0, 1])


def test_unscored_tries_are_left_out_of_the_best_and_win_no_vote() -> None:
    outcomes_PK = np.array([[NAN, 1.0, 0]])
    np.testing.assert_array_equal(best_of(outcomes_PK, 2), [1])
    assert np.isnan(best_of(outcomes_PK, 3)).all()
    np.testing.assert_array_equal(majority_of(np.array([[0, 1, 0]]), outcomes_PK, 3), [0])


@pytest.mark.parametrize("k", [0, 4])
def test_a_majority_of_more_tries_than_there_are_is_refused(k: int) -> None:
    with pytest.raises(ValueError, match="cannot be told"):
        majority_of(np.array([[0, 1, 2]]), np.array([[1.0, 0, 0]]), k)
