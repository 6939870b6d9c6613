"""What the second pass does to the first: conversions, regressions, and the two controls.

Dimensions: S seeds, P problems, K attempts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from agon.errors import DataError
from agon.evaluation.comparisons import Difference, arm_difference, mean_interval
from agon.experiments.results import Result, SystemResult
from agon.experiments.spec import Reported
from agon.experiments.summary import by_seed, test_rates

CONTROLS = ("shuffled", "filler")
"""What is shown instead of the rival's summary."""


@dataclass(frozen=True, slots=True)
class Share:
    """A share of attempts with its 95 % interval over seeds and problems."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """One direction of an arm on the test split.

    Attributes:
        arm: Its name.
        system: The direction, such as `a->b`.
        seeds: Whose runs there are.
        chosen: Seeds in which this is the reported direction, by dev or because it is fixed.
        converted: Attempts with a wrong draft and a right answer, of all.
        lost: Attempts with a right draft and a wrong answer, of all.
        converted_of_wrong: The first as a share of the wrong drafts alone; None without one.
        lost_of_right: The second as a share of the right drafts alone; None without one.
    """

    arm: str
    system: str
    seeds: tuple[int, ...]
    chosen: tuple[int, ...]
    converted: Share
    lost: Share
    converted_of_wrong: float | None
    lost_of_right: float | None


@dataclass(frozen=True, slots=True)
class ControlRow:
    """An arm's two passes with the rival's own summary and with a control.

    Attributes:
        arm: Its name.
        reported: Which of its systems.
        shown: A word of `CONTROLS`.
        seeds: Whose runs there are.
        own_by_seed: pass@1 with the summary of the attempt's own draft.
        control_by_seed: pass@1 with the control.
        difference: The first minus the second.
    """

    arm: str
    reported: Reported
    shown: str
    seeds: tuple[int, ...]
    own_by_seed: tuple[float, ...]
    control_by_seed: tuple[float, ...]
    difference: Difference


def change_rows(arm: str, runs: Mapping[int, Result]) -> list[ChangeRow]:
    """Every two-pass system of an arm's own policies; the base's where nothing is trained."""
    some = next(iter(runs.values()))
    two = [name for name in some.systems("test") if "->" in name and "/" not in name]
    own = [name for name in two if not name.startswith("base")] or two
    return [_change_row(arm, runs, name) for name in own]


def _change_row(arm: str, runs: Mapping[int, Result], name: str) -> ChangeRow:
    tries = [run.system("test", name) for run in runs.values()]
    return ChangeRow(
        arm=arm,
        system=name,
        seeds=tuple(runs),
        chosen=tuple(seed for seed, run in runs.items() if name in _chosen(run)),
        converted=_share(tries, before=0, after=1),
        lost=_share(tries, before=1, after=0),
        converted_of_wrong=_among(tries, before=0, after=1),
        lost_of_right=_among(tries, before=1, after=0),
    )


def _chosen(run: Result) -> list[str]:
    found = []
    words: tuple[Reported, ...] = ("cascade", "self-cascade", "mixture")
    if run.data["reported"] == "a->b":
        words = ("a->b",)
    for word in words:
        try:
            found.append(run.reported(word))
        except DataError:
            continue
    return found


def _share(tries: Sequence[SystemResult], before: int, after: int) -> Share:
    """Share of attempts that went so, attempts without both verdicts left out."""
    shares_SP = np.array([_rates(one, before, after) for one in tries])
    return Share(*mean_interval(shares_SP))


def _rates(one: SystemResult, before: int, after: int) -> np.ndarray:
    assert one.drafts_PK is not None
    scored_PK = ~(np.isnan(one.drafts_PK) | np.isnan(one.outcomes_PK))
    changed_PK = scored_PK & (one.drafts_PK == before) & (one.outcomes_PK == after)
    count_P = scored_PK.sum(axis=1)
    return np.where(count_P > 0, changed_PK.sum(axis=1) / np.maximum(count_P, 1), np.nan)


def _among(tries: Sequence[SystemResult], before: int, after: int) -> float | None:
    shares = []
    for one in tries:
        assert one.drafts_PK is not None
        of_PK = (one.drafts_PK == before) & ~np.isnan(one.outcomes_PK)
        if of_PK.any():
            shares.append(float((one.outcomes_PK[of_PK] == after).mean()))
    return float(np.mean(shares)) if shares else None


def control_rows(arm: str, runs: Mapping[int, Result]) -> list[ControlRow]:
    """The arm's two-pass system against itself with each control; empty where there is none."""
    some = next(iter(runs.values()))
    names = some.systems("test")
    if some.data["reported"] == "a->b":
        word: Reported = "a->b"
    else:
        word = "cascade" if "a->b" in names else "self-cascade"
    rows = []
    for shown in CONTROLS:
        if not any(name.endswith(f"/{shown}") for name in names):
            continue
        own = {seed: run.reported(word) for seed, run in runs.items()}
        there = {s: run for s, run in runs.items() if f"{own[s]}/{shown}" in run.systems("test")}
        if not there:
            continue
        own_SP = test_rates(there, own)
        control_SP = test_rates(there, {seed: f"{own[seed]}/{shown}" for seed in there})
        rows.append(
            ControlRow(
                arm, word, shown, tuple(there), by_seed(own_SP), by_seed(control_SP),
                arm_difference(own_SP, control_SP),
            )
        )  # fmt: skip
    return rows
