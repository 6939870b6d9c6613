"""Blind spots: how alike the errors of two systems are, beside two samples of one.

Two policies that err on the same problems cannot help each other. Error overlap is meaningful only
beside that of one policy with itself: two samples of one policy err alike because some problems are
hard, so `a` against `b` is compared with `a` against `a` and `b` against `b` on other samples.

Dimensions: P problems, K attempts, S seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations, product

import numpy as np

from agon.evaluation.comparisons import crossed_totals, interval_ends


@dataclass(frozen=True, slots=True)
class Overlap:
    """How two systems' errors coincide.

    Attributes:
        pairs: Pairs of attempts at one problem that were compared.
        jaccard: Share of the pairs with an error in which both err; nan without errors.
        phi: Correlation of the two errors; nan where one of them never or always errs.
        first_alone: Share of pairs in which the first alone is right.
        second_alone: Share in which the second alone is right.
    """

    pairs: int
    jaccard: float
    phi: float
    first_alone: float
    second_alone: float


def overlap(first_PK: np.ndarray, second_PK: np.ndarray) -> Overlap:
    """Compare two systems' attempts at the same problems, or one system's with each other.

    Attempts of one number are drawn with the same random numbers by every policy: policies that are
    near each other write the same reply. So every attempt is compared with those of other numbers
    alone, across policies no more than within one, and what is left is the policies' own.

    Args:
        first_PK: 1 right, 0 wrong, nan unscored.
        second_PK: The other's, or the same.

    Raises:
        ValueError: There is one attempt alone at each problem, or no pair is scored.
    """
    if min(first_PK.shape[1], second_PK.shape[1]) < 2:
        raise ValueError("one attempt at a problem cannot be compared with another sample")
    pairs = product(range(first_PK.shape[1]), range(second_PK.shape[1]))
    return _compared([(first_PK[:, i], second_PK[:, j]) for i, j in pairs if i != j])


def _compared(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> Overlap:
    left, right = (np.concatenate(side) for side in zip(*pairs, strict=True))
    scored = ~(np.isnan(left) | np.isnan(right))
    if not scored.any():
        raise ValueError("no pair of attempts is scored")
    wrong_left, wrong_right = left[scored] == 0, right[scored] == 0
    either = int((wrong_left | wrong_right).sum())
    spread = wrong_left.std() * wrong_right.std()
    covariance = (wrong_left & wrong_right).mean() - wrong_left.mean() * wrong_right.mean()
    return Overlap(
        pairs=int(scored.sum()),
        jaccard=float((wrong_left & wrong_right).sum() / either) if either else float("nan"),
        phi=float(covariance / spread) if spread > 0 else float("nan"),
        first_alone=float((~wrong_left & wrong_right).mean()),
        second_alone=float((wrong_left & ~wrong_right).mean()),
    )


@dataclass(frozen=True, slots=True)
class Shared:
    """How much two policies' errors coincide beyond what two samples of one policy do.

    Attributes:
        across: Jaccard index of the errors of the two policies.
        within: Mean of the two policies' indices with themselves, on other samples.
        gap: across minus within; below zero the policies err on different problems.
        low: Lower end of the gap's 95 % interval over seeds and problems.
        high: Upper end.
    """

    across: float
    within: float
    gap: float
    low: float
    high: float


def shared_errors(pairs_S: Sequence[tuple[np.ndarray, np.ndarray]], seed: int = 0) -> Shared:
    """Compare two policies' error overlap with their own, over the runs of an arm.

    Attempts of one number are never compared, as in `overlap`.

    Args:
        pairs_S: For each seed both policies' outcomes at the same problems, each (P, K) with K of
            at least 2: 1 right, 0 wrong, nan unscored.
        seed: Of the bootstrap.

    Raises:
        ValueError: There is one attempt at each problem, or no error at all.
    """
    kinds = []
    for left, right in ((0, 1), (0, 0), (1, 1)):
        counted = [_error_counts(pair[left], pair[right]) for pair in pairs_S]
        kinds.append(tuple(np.array(counts_SP) for counts_SP in zip(*counted, strict=True)))
    points = [_ratio(both.sum(), either.sum()) for both, either in kinds]
    if np.isnan(points).any():
        raise ValueError("a policy has no error: overlaps cannot be compared")
    resampled = [_ratio(*(crossed_totals(x, seed) for x in counts)) for counts in kinds]
    low, high = interval_ends(resampled[0] - (resampled[1] + resampled[2]) / 2)
    within = float(points[1] + points[2]) / 2
    return Shared(float(points[0]), within, float(points[0]) - within, low, high)


def _ratio(both: np.ndarray, either: np.ndarray) -> np.ndarray:
    return np.where(either > 0, both / np.maximum(either, 1.0), np.nan)


def _error_counts(first_PK: np.ndarray, second_PK: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """At each problem the pairs of unlike-numbered attempts in which both err, and one errs."""
    if first_PK.shape[1] < 2:
        raise ValueError("one attempt at a problem cannot be compared with another sample")
    both_P, either_P = np.zeros(len(first_PK)), np.zeros(len(first_PK))
    for i, j in permutations(range(first_PK.shape[1]), 2):
        left_P, right_P = first_PK[:, i], second_PK[:, j]
        scored_P = ~(np.isnan(left_P) | np.isnan(right_P))
        both_P += scored_P & (left_P == 0) & (right_P == 0)
        either_P += scored_P & ((left_P == 0) | (right_P == 0))
    return both_P, either_P


def votes(answers_K: Sequence[str | None]) -> list[int | None]:
    """Who answers the same: for each attempt the first with its answer, None without one.

    Answers are compared as text without white space; no verifier stands behind it.
    """
    first: dict[str, int] = {}
    result: list[int | None] = []
    for index, answer in enumerate(answers_K):
        text = None if answer is None else "".join(answer.split())
        result.append(None if not text else first.setdefault(text, index))
    return result
