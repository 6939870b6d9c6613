"""Figures of a system's attempts, with 95 % intervals.

One sample for each problem: Clopper and Pearson's exact interval (SciPy). Several: a percentile
bootstrap over problems, since samples of one problem are not independent. Unscored attempts are
left out of both and counted apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest

from agon.evaluation.protocols import Attempt
from agon.records import Outcome

RESAMPLES = 10_000
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Summary:
    """One system's figures.

    Attributes:
        problems: Problems with at least one scored attempt.
        passes: Inference passes for one answer.
        pass_1: Mean over problems of the share of right attempts.
        low: Lower end of its 95 % interval.
        high: Upper end.
        pass_k: Share of problems with at least one right attempt among k.
        k: Attempts for each problem.
        generated: Mean generated tokens of all stages.
        last_length: Mean generated tokens of the last stage.
        prompt: Mean prompt tokens of all stages.
        truncated: Share of attempts whose last stage hit the limit.
        unscored: Attempts without a verdict.
        conversions: Share of attempts with a wrong draft and a right answer; None for one stage.
        regressions: Share of attempts with a right draft and a wrong answer; None for one stage.
    """

    problems: int
    passes: int
    pass_1: float
    low: float
    high: float
    pass_k: float
    k: int
    generated: float
    last_length: float
    prompt: float
    truncated: float
    unscored: int
    conversions: float | None
    regressions: float | None


def summarise(attempts: Sequence[Attempt], seed: int = 0) -> Summary:
    """Figures of one system.

    Args:
        attempts: All attempts, the same number for each problem.
        seed: Of the bootstrap.

    Raises:
        ValueError: No attempt is scored.
    """
    scored = [attempt for attempt in attempts if attempt.outcome is not Outcome.UNSCORED]
    if not scored:
        raise ValueError("no attempt is scored: there is nothing to summarise")
    by_problem: dict[str, list[float]] = {}
    for attempt in scored:
        right = float(attempt.outcome is Outcome.RIGHT)
        by_problem.setdefault(attempt.problem, []).append(right)
    rates_P = np.array([np.mean(values) for values in by_problem.values()])
    k = max(attempt.sample for attempt in attempts) + 1
    low, high = (
        exact_interval(int(rates_P.sum()), len(rates_P))
        if k == 1
        else bootstrap_interval(rates_P, seed)
    )
    two_stage = [a for a in scored if a.draft_outcome not in (None, Outcome.UNSCORED)]
    return Summary(
        problems=len(rates_P),
        passes=len(attempts[0].generated),
        pass_1=float(rates_P.mean()),
        low=low,
        high=high,
        pass_k=float(np.mean([max(values) for values in by_problem.values()])),
        k=k,
        generated=float(np.mean([sum(attempt.generated) for attempt in attempts])),
        last_length=float(np.mean([attempt.generated[-1] for attempt in attempts])),
        prompt=float(np.mean([sum(attempt.prompt) for attempt in attempts])),
        truncated=float(np.mean([attempt.truncated for attempt in attempts])),
        unscored=len(attempts) - len(scored),
        conversions=_change(two_stage, Outcome.WRONG, Outcome.RIGHT),
        regressions=_change(two_stage, Outcome.RIGHT, Outcome.WRONG),
    )


def exact_interval(right: int, of: int) -> tuple[float, float]:
    """Clopper and Pearson's interval of a proportion."""
    interval = binomtest(right, of).proportion_ci(CONFIDENCE, method="exact")
    return float(interval.low), float(interval.high)


def bootstrap_interval(rates_P: np.ndarray, seed: int) -> tuple[float, float]:
    """Percentile bootstrap of a mean over problems."""
    generator = np.random.default_rng(seed)
    means = np.array([generator.choice(rates_P, len(rates_P)).mean() for _ in range(RESAMPLES)])
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


def _change(attempts: Sequence[Attempt], before: Outcome, after: Outcome) -> float | None:
    if not attempts:
        return None
    return sum(a.draft_outcome is before and a.outcome is after for a in attempts) / len(attempts)
