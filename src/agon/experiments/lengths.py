"""How long replies are: on the test split by verdict, and over training.

GRPO's length pathology is a length of wrong replies that grows while that of right ones does not.
A wrong reply is longer for other reasons too: hard problems take longer, and a reply that hits the
limit has no answer. So what is looked at is the change over training, not the gap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from agon.evaluation.bands import ends, quantiles
from agon.experiments.curves import logged
from agon.experiments.results import Result
from agon.experiments.spec import Reported

ROLES = ("draft", "challenge")


@dataclass(frozen=True, slots=True)
class LengthRow:
    """Tokens of the last stage on the test split, all seeds together.

    Attributes:
        arm: Its name.
        reported: Which of its systems.
        seeds: How many runs.
        right: Quantiles of right replies; None without one.
        wrong: Of wrong ones.
        right_count: How many right replies.
        wrong_count: How many wrong ones.
        truncated: Share of replies that hit the limit.
    """

    arm: str
    reported: Reported
    seeds: int
    right: tuple[float, ...] | None
    wrong: tuple[float, ...] | None
    right_count: int
    wrong_count: int
    truncated: float


@dataclass(frozen=True, slots=True)
class LengthShift:
    """Mean lengths in the first and last tenth of training; each figure is the seeds' mean.

    Attributes:
        arm: Its name.
        role: `draft` or `challenge`.
        seeds: Runs with figures at both ends.
        right: First and last, right replies.
        wrong: First and last, wrong replies.
        grew: Change of wrong less change of right lengths in each run: above zero in every run is
            what the pathology looks like.
    """

    arm: str
    role: str
    seeds: tuple[int, ...]
    right: tuple[float, float]
    wrong: tuple[float, float]
    grew: tuple[float, ...]


def length_row(arm: str, runs: Mapping[int, Result]) -> LengthRow:
    """Lengths of an arm's headline system."""
    word: Reported = next(iter(runs.values())).data["reported"]
    tries = [run.system("test", run.reported(word)) for run in runs.values()]
    lengths = np.concatenate([one.last_PK.ravel() for one in tries])
    outcomes = np.concatenate([one.outcomes_PK.ravel() for one in tries])
    right, wrong = lengths[outcomes == 1], lengths[outcomes == 0]
    truncated = float(np.mean([one.truncated_PK.mean() for one in tries]))
    return LengthRow(
        arm, word, len(tries), quantiles(right), quantiles(wrong), right.size, wrong.size, truncated
    )


def length_shift(arm: str, runs: Mapping[int, Result], role: str) -> LengthShift | None:
    """How lengths changed over an arm's training; None without figures of this role."""
    found: dict[int, tuple[tuple[float, float], tuple[float, float]]] = {}
    for seed, run in runs.items():
        curves = [logged(run, f"{role}.length_{verdict}") for verdict in ("right", "wrong")]
        both = [None if curve is None else ends(curve[1]) for curve in curves]
        if both[0] is not None and both[1] is not None:
            found[seed] = (both[0], both[1])
    if not found:
        return None
    means = np.mean(list(found.values()), axis=0).tolist()
    return LengthShift(
        arm=arm,
        role=role,
        seeds=tuple(found),
        right=(means[0][0], means[0][1]),
        wrong=(means[1][0], means[1][1]),
        grew=tuple((w[1] - w[0]) - (r[1] - r[0]) for r, w in found.values()),
    )
