"""Blind spots: how alike the errors of two systems are, beside two samples of one.

Two policies that err on the same problems cannot help each other. Error overlap is meaningful only
beside that of one policy with itself: two samples of one policy err alike because some problems are
hard, so `a` against `b` is compared with `a` against `a` and `b` against `b` on other samples.

Dimensions: P problems, K attempts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations, product

import numpy as np


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
    """Compare two systems at the same problems, every attempt of one with every one of the other.

    Args:
        first_PK: 1 right, 0 wrong, nan unscored.
        second_PK: The other's.

    Raises:
        ValueError: No pair of attempts is scored.
    """
    pairs = product(range(first_PK.shape[1]), range(second_PK.shape[1]))
    return _compared([(first_PK[:, i], second_PK[:, j]) for i, j in pairs])


def own_overlap(rates_PK: np.ndarray) -> Overlap:
    """Compare a system's attempts at a problem with each other, in both orders.

    Args:
        rates_PK: 1 right, 0 wrong, nan unscored.

    Raises:
        ValueError: There is one attempt alone, or no pair is scored.
    """
    if rates_PK.shape[1] < 2:
        raise ValueError("one attempt at a problem cannot be compared with itself")
    pairs = permutations(range(rates_PK.shape[1]), 2)
    return _compared([(rates_PK[:, i], rates_PK[:, j]) for i, j in pairs])


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
