"""Several tries of one system: what voting reaches, and what a perfect judge could pick.

A system that spends two passes is to be compared with two tries of one that spends one. The tries
are exchangeable, so a figure of k of K tries is averaged over all that were made: for the best of k
by Chen's formula, for the majority over the K windows of k tries that follow each other in a
circle.

Dimensions: P problems, K tries.
"""

from __future__ import annotations

import numpy as np

from agon.evaluation.comparisons import majority_right, pass_at_k


def best_of(outcomes_PK: np.ndarray, k: int) -> np.ndarray:
    """Chance that one of k tries is right at each problem, (P,): a bound that no vote can pass.

    Args:
        outcomes_PK: 1 right, 0 wrong, nan unscored, which is left out.
        k: Tries; where fewer are scored the problem is nan.
    """
    rates = []
    for outcomes_K in outcomes_PK:
        scored_K = outcomes_K[~np.isnan(outcomes_K)]
        of = len(scored_K)
        rates.append(pass_at_k(int(scored_K.sum()), of, k) if of >= k else np.nan)
    return np.array(rates)


def majority_of(votes_PK: np.ndarray, outcomes_PK: np.ndarray, k: int) -> np.ndarray:
    """Share of windows of k tries whose commonest answer is right, (P,).

    Args:
        votes_PK: For each try the first of its problem with the same answer; -1 without one.
        outcomes_PK: 1 right, 0 wrong, nan unscored, which counts as not right.
        k: Tries that vote, 1..K. Of equally common answers the earliest wins.

    Raises:
        ValueError: k is not within 1..K.
    """
    tries = votes_PK.shape[1]
    if not 1 <= k <= tries:
        raise ValueError(f"a majority of {k} cannot be told from {tries} tries")
    windows = tries if k < tries else 1
    rates = []
    for votes_K, outcomes_K in zip(votes_PK.tolist(), outcomes_PK, strict=True):
        right_K = [bool(value == 1) for value in outcomes_K]
        turned = votes_K + votes_K
        won = 0
        for start in range(windows):
            part = turned[start : start + k]
            won += majority_right([None if vote < 0 else vote for vote in part], right_K, k)
        rates.append(won / windows)
    return np.array(rates)
