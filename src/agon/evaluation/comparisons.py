"""Comparisons between systems and arms, with their uncertainty.

Between two systems of one run the unit is the problem: both try the same problems with the same
randomness, so differences are taken problem by problem (paired bootstrap, McNemar's exact test).
Between two arms the unit is the training run: the seeds are paired, since both arms draw the same
data order, start and samples from a seed. The interval of a mean over runs resamples seeds and
problems both (Owen's pigeonhole bootstrap: every run answers the same problems, so they are crossed
and not nested); with a handful of seeds it is too short, which is why the test between arms is
Student's t over the seeds' paired differences, whose degrees of freedom say how few they are.

Dimensions: P problems, S seeds, K attempts at a problem.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb

import numpy as np
from scipy.stats import binomtest, t, ttest_rel

from agon.evaluation.statistics import CONFIDENCE, RESAMPLES

_CHUNK = 500
"""Resamples that are drawn at once; bounds the memory."""


_ROUNDING = 1e-12
"""Differences of rates below this are none."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Left minus right.

    Attributes:
        mean: Mean difference.
        low: Lower end of its 95 % interval.
        high: Upper end.
        p: Two-sided p-value of no difference; None where there is no test (one seed).
    """

    mean: float
    low: float
    high: float
    p: float | None


def pass_at_k(right: int, of: int, k: int) -> float:
    """Chance that at least one of k attempts is right, without bias from `of` attempts.

    1 - C(of - right, k) / C(of, k) (Chen et al. 2021, "Evaluating large language models trained on
    code", equation 1).

    Raises:
        ValueError: k is not within 1..of.
    """
    if not 1 <= k <= of:
        raise ValueError(f"pass@{k} cannot be told from {of} attempts")
    return 1.0 - comb(of - right, k) / comb(of, k)


def majority_right(votes_K: Sequence[int | None], right_K: Sequence[bool], k: int) -> bool:
    """Whether the commonest answer of the first k attempts is right.

    Args:
        votes_K: What each attempt answers, as the number of the first attempt that answers the
            same; None where there is no answer, which wins nothing.
        right_K: Whether each is right.
        k: Attempts that vote. Of equally common answers the earliest wins.
    """
    counts: dict[int, int] = {}
    for vote in votes_K[:k]:
        if vote is not None:
            counts[vote] = counts.get(vote, 0) + 1
    if not counts:
        return False
    winner = max(counts, key=lambda vote: (counts[vote], -vote))
    return right_K[winner]


def paired_difference(left_P: np.ndarray, right_P: np.ndarray, seed: int = 0) -> Difference:
    """Two systems of one run: bootstrap over problems, McNemar's test where rates are 0 or 1.

    Args:
        left_P: One system's share of right attempts at each problem; nan is unscored.
        right_P: The other's.
        seed: Of the bootstrap.

    Raises:
        ValueError: No problem is scored in both.
    """
    both_P = ~(np.isnan(left_P) | np.isnan(right_P))
    if not both_P.any():
        raise ValueError("no problem is scored in both systems")
    gaps_P = left_P[both_P] - right_P[both_P]
    generator = np.random.default_rng(seed)
    means = np.concatenate(
        [
            gaps_P[generator.integers(len(gaps_P), size=(_CHUNK, len(gaps_P)))].mean(axis=1)
            for _ in range(RESAMPLES // _CHUNK)
        ]
    )
    low, high = interval_ends(means)
    single = bool(np.isin(np.concatenate([left_P[both_P], right_P[both_P]]), (0.0, 1.0)).all())
    p = mcnemar(left_P[both_P] > 0, right_P[both_P] > 0) if single else None
    return Difference(float(gaps_P.mean()), low, high, p)


def mcnemar(left_P: np.ndarray, right_P: np.ndarray) -> float:
    """McNemar's exact test: the binomial test on the problems that one alone has right."""
    only_left = int((left_P & ~right_P).sum())
    only_right = int((right_P & ~left_P).sum())
    if only_left + only_right == 0:
        return 1.0
    return float(binomtest(only_left, only_left + only_right, 0.5).pvalue)


def mean_interval(rates_SP: np.ndarray, seed: int = 0) -> tuple[float, float, float]:
    """An arm's mean over seeds and problems, and its interval over both.

    Args:
        rates_SP: Share of right attempts; nan is unscored.
        seed: Of the bootstrap.
    """
    means = _crossed_means([rates_SP], seed)[0]
    low, high = interval_ends(means)
    return float(np.nanmean(rates_SP)), low, high


def arm_difference(left_SP: np.ndarray, right_SP: np.ndarray, seed: int = 0) -> Difference:
    """Two arms over the same seeds and problems.

    The interval is the wider of the crossed bootstrap's and Student's over the seeds.

    Args:
        left_SP: One arm's share of right attempts; rows are the same seeds in both.
        right_SP: The other's.
        seed: Of the bootstrap.

    Raises:
        ValueError: The shapes differ.
    """
    if left_SP.shape != right_SP.shape:
        raise ValueError(f"shapes {left_SP.shape} and {right_SP.shape}: not the same seeds")
    left, right = _crossed_means([left_SP, right_SP], seed)
    low, high = interval_ends(left - right)
    left_S, right_S = np.nanmean(left_SP, axis=1), np.nanmean(right_SP, axis=1)
    gaps_S = left_S - right_S
    mean = float(gaps_S.mean())
    if len(gaps_S) < 2:
        return Difference(mean, low, high, None)
    error = float(gaps_S.std(ddof=1)) / np.sqrt(len(gaps_S))
    reach = float(t.ppf((1 + CONFIDENCE) / 2, len(gaps_S) - 1)) * error
    # Equal differences leave no variance to test with: they are one constant, or none.
    p = (
        float(ttest_rel(left_S, right_S).pvalue)
        if error > _ROUNDING
        else float(abs(mean) <= _ROUNDING)
    )
    return Difference(mean, min(low, mean - reach), max(high, mean + reach), p)


def holm(values: Mapping[str, float]) -> dict[str, float]:
    """Holm's step-down correction of named p-values (Holm 1979)."""
    from statsmodels.stats.multitest import multipletests

    if not values:
        return {}
    corrected = multipletests(list(values.values()), method="holm")[1]
    return dict(zip(values, map(float, corrected), strict=True))


def crossed_weights(seeds: int, problems: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """How often each seed and each problem is drawn in each of R = `RESAMPLES` resamples.

    The same arguments give the same draws, so that arms are resampled alike.

    Returns:
        Counts of the seeds, (R, S), and of the problems, (R, P); not to be written to.
    """
    return _drawn(seeds, problems, seed)


@lru_cache(maxsize=8)
def _drawn(seeds: int, problems: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    weight_RS = np.empty((RESAMPLES, seeds), dtype=np.float32)
    weight_RP = np.empty((RESAMPLES, problems), dtype=np.float32)
    for weight_S, weight_P in zip(weight_RS, weight_RP, strict=True):
        weight_S[:] = np.bincount(generator.integers(seeds, size=seeds), minlength=seeds)
        weight_P[:] = np.bincount(generator.integers(problems, size=problems), minlength=problems)
    for weights in (weight_RS, weight_RP):
        weights.flags.writeable = False
    return weight_RS, weight_RP


def crossed_totals(values_SP: np.ndarray, seed: int = 0) -> np.ndarray:
    """The sum of a quantity over seeds and problems in each resample, (R,).

    Args:
        values_SP: Finite; a ratio of two such sums is a resampled mean.
        seed: Of the bootstrap.
    """
    weight_RS, weight_RP = crossed_weights(values_SP.shape[0], values_SP.shape[1], seed)
    totals = np.empty(RESAMPLES)
    for start in range(0, RESAMPLES, _CHUNK):
        part = slice(start, start + _CHUNK)
        of_problems = weight_RS[part].astype(float) @ values_SP
        totals[part] = (of_problems * weight_RP[part]).sum(axis=1)
    return totals


def _crossed_means(arms_SP: Sequence[np.ndarray], seed: int) -> list[np.ndarray]:
    """Each arm's mean in each resample; all arms take the same seeds and problems."""
    means = []
    for rates_SP in arms_SP:
        scored_SP = ~np.isnan(rates_SP)
        total_R = crossed_totals(np.where(scored_SP, rates_SP, 0.0), seed)
        if scored_SP.all():  # each resample draws as many rates as there are
            means.append(total_R / rates_SP.size)
            continue
        count_R = crossed_totals(scored_SP.astype(float), seed)
        means.append(np.where(count_R > 0, total_R / np.maximum(count_R, 1.0), np.nan))
    return means


def interval_ends(means: np.ndarray) -> tuple[float, float]:
    """The 95 % percentile interval of resampled figures; nan ones are left out."""
    tail = (1 - CONFIDENCE) / 2
    low, high = np.nanquantile(means, [tail, 1 - tail])
    return float(low), float(high)
