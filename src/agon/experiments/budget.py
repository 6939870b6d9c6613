"""Accuracy at equal tokens: voting among one-pass tries beside the systems of two passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from agon.evaluation.comparisons import Difference, arm_difference, mean_interval
from agon.evaluation.voting import best_of, majority_of
from agon.experiments.results import Result, SystemResult
from agon.experiments.spec import Reported, Side
from agon.experiments.summary import side_rates


@dataclass(frozen=True, slots=True)
class VotePoint:
    """k tries of one system.

    Attributes:
        k: Tries.
        generated: Mean generated tokens of all of them, all stages.
        read: Mean prompt tokens.
        majority: Share of problems whose commonest answer is right.
        low: Lower end of its 95 % interval over seeds and problems.
        high: Upper end.
        best: Share with at least one right try: a bound that needs a perfect judge.
    """

    k: int
    generated: float
    read: float
    majority: float
    low: float
    high: float
    best: float


@dataclass(frozen=True, slots=True)
class EqualTokens:
    """A two-pass system beside the vote of a one-pass system at about its tokens.

    Attributes:
        two: The system of two passes.
        one: The system that votes.
        seeds: The seeds of both.
        budget: Mean generated tokens of the first.
        two_pass: Its pass@1.
        vote: The vote whose tokens come nearest to the budget.
        more: Whether a vote of more tries than there are would come nearer.
        difference: pass@1 of the first minus the majority of the second.
    """

    two: Side
    one: Side
    seeds: tuple[int, ...]
    budget: float
    two_pass: float
    vote: VotePoint
    more: bool
    difference: Difference


def vote_points(runs: Mapping[int, Result], word: Reported) -> list[VotePoint]:
    """Votes of one to K tries of an arm's system on the test split."""
    tries = _tries(runs, word)
    return [_point(tries, k, _majorities(tries, k)) for k in range(1, _most(tries) + 1)]


def _tries(runs: Mapping[int, Result], word: Reported) -> list[SystemResult]:
    return [run.system("test", run.reported(word)) for run in runs.values()]


def _most(tries: Sequence[SystemResult]) -> int:
    return min(int(one.votes_PK.shape[1]) for one in tries)


def _generated(tries: Sequence[SystemResult]) -> float:
    """Mean generated tokens of one try."""
    return float(np.mean([one.generated_PK.mean() for one in tries]))


def _majorities(tries: Sequence[SystemResult], k: int) -> np.ndarray:
    return np.array([majority_of(one.votes_PK, one.outcomes_PK, k) for one in tries])


def _point(tries: Sequence[SystemResult], k: int, majorities_SP: np.ndarray) -> VotePoint:
    best_SP = np.array([best_of(one.outcomes_PK, k) for one in tries])
    best = float(np.nanmean(best_SP)) if not np.isnan(best_SP).all() else float("nan")
    read = float(np.mean([one.read_PK.mean() for one in tries]))
    mean, low, high = mean_interval(majorities_SP)
    return VotePoint(k, k * _generated(tries), k * read, mean, low, high, best)


def equal_tokens(
    arms: Mapping[str, Mapping[int, Result]], two: Side, one: Side
) -> EqualTokens | None:
    """Compare a system of two passes with votes of one that needs about as many tokens.

    Returns:
        None without a common seed.
    """
    theirs = arms.get(one.arm, {})
    seeds = tuple(seed for seed in arms.get(two.arm, {}) if seed in theirs)
    if not seeds:
        return None
    ours = {seed: arms[two.arm][seed] for seed in seeds}
    budget = _generated(_tries(ours, two.reported))
    tries = _tries({seed: theirs[seed] for seed in seeds}, one.reported)
    most, cost = _most(tries), _generated(tries)
    k = min(range(1, most + 1), key=lambda k: abs(k * cost - budget))
    majorities_SP, own_SP = _majorities(tries, k), side_rates(arms, two, seeds)
    return EqualTokens(
        two=two,
        one=one,
        seeds=seeds,
        budget=budget,
        two_pass=float(np.nanmean(own_SP)),
        vote=_point(tries, k, majorities_SP),
        more=k == most and budget - k * cost > cost / 2,
        difference=arm_difference(own_SP, majorities_SP),
    )
