"""What an experiment's result files say: one row for each arm, and the primary contrasts.

Reads result files alone. Arms are compared over the seeds that both have; what is missing is said.
Dimensions: S seeds, P problems.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from agon.errors import DataError
from agon.evaluation.comparisons import Difference, arm_difference, holm, mean_interval
from agon.experiments.results import Result, SystemResult
from agon.experiments.spec import ContrastSpec, Experiment, Reported, Side


@dataclass(frozen=True, slots=True)
class ArmRow:
    """An arm's figures under one word of `Reported`, on the test split.

    Attributes:
        arm: Its name.
        about: What it is.
        reported: Which of its systems.
        systems: The system of each seed, chosen on dev.
        seeds: Whose runs there are.
        by_seed: pass@1 of each.
        mean: Over seeds and problems.
        low: Lower end of its 95 % interval.
        high: Upper end.
        passes: Inference passes for one answer.
        generated: Mean generated tokens of all stages.
        last: Mean generated tokens of the last stage.
        read: Mean prompt tokens of all stages.
        rollouts: Training rollouts of a run.
        converted: Share of attempts with a wrong draft answered right; None for one pass.
        lost: Share with a right draft answered wrong; None for one pass.
        stopped: Seeds whose training ended early.
    """

    arm: str
    about: str
    reported: Reported
    systems: tuple[str, ...]
    seeds: tuple[int, ...]
    by_seed: tuple[float, ...]
    mean: float
    low: float
    high: float
    passes: int
    generated: float
    last: float
    read: float
    rollouts: int
    converted: float | None
    lost: float | None
    stopped: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two systems of trained arms over the seeds that both have, left minus right.

    Attributes:
        left: One side.
        right: The other.
        seeds: The seeds of both.
        left_by_seed: pass@1 of each.
        right_by_seed: Likewise.
        difference: Over seeds and problems.
    """

    left: Side
    right: Side
    seeds: tuple[int, ...]
    left_by_seed: tuple[float, ...]
    right_by_seed: tuple[float, ...]
    difference: Difference


@dataclass(frozen=True, slots=True)
class ContrastRow:
    """A primary contrast; `p_holm` is corrected over all of them."""

    spec: ContrastSpec
    comparison: Comparison
    p_holm: float | None

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of both sides."""
        return self.comparison.seeds

    @property
    def difference(self) -> Difference:
        """Left minus right."""
        return self.comparison.difference


def by_arm(results: Sequence[Result]) -> dict[str, dict[int, Result]]:
    """Results by arm and then seed.

    Raises:
        DataError: Two files are of one cell, or the files do not belong together.
    """
    found: dict[str, dict[int, Result]] = {}
    for result in results:
        seeds = found.setdefault(result.cell.arm, {})
        if result.cell.seed in seeds:
            raise DataError(f"{result.path} and {seeds[result.cell.seed].path} are of one cell")
        seeds[result.cell.seed] = result
    problems = {tuple(result.data["evaluations"]["test"]["problems"]) for result in results}
    if len({frozenset(ids) for ids in problems}) > 1:
        raise DataError("the result files answer different test problems: they are not comparable")
    return {arm: dict(sorted(seeds.items())) for arm, seeds in found.items()}


def arm_row(arm: str, runs: Mapping[int, Result], reported: Reported | None = None) -> ArmRow:
    """Figures of one arm.

    Args:
        arm: Its name.
        runs: Its results by seed; at least one.
        reported: Which system; None is the arm's own.

    Raises:
        DataError: The runs have no such system.
    """
    some = next(iter(runs.values()))
    word: Reported = reported or some.data["reported"]
    names = {seed: run.reported(word) for seed, run in runs.items()}
    tries = {seed: run.system("test", names[seed]) for seed, run in runs.items()}
    rates_SP = test_rates(runs, names)
    mean, low, high = mean_interval(rates_SP)
    drafts = [t for t in tries.values() if t.drafts_PK is not None]
    return ArmRow(
        arm=arm,
        about=some.data["about"],
        reported=word,
        systems=tuple(names.values()),
        seeds=tuple(runs),
        by_seed=by_seed(rates_SP),
        mean=mean,
        low=low,
        high=high,
        passes=max(name.count("->") for name in names.values()) + 1,
        generated=_mean([t.generated_PK for t in tries.values()]),
        last=_mean([t.last_PK for t in tries.values()]),
        read=_mean([t.read_PK for t in tries.values()]),
        rollouts=0 if word in ("base", "mixture") else some.data.get("rollouts", 0),
        converted=_changed(drafts, before=0, after=1),
        lost=_changed(drafts, before=1, after=0),
        stopped=tuple(seed for seed, run in runs.items() if run.data["stopped"]),
    )


def contrast_rows(
    experiment: Experiment, arms: Mapping[str, Mapping[int, Result]]
) -> list[ContrastRow]:
    """The primary contrasts that both arms have seeds for, in their order.

    Holm's correction counts every named contrast, the ones without results too: what is missing
    cannot make the rest more certain.
    """
    found = []
    for spec in experiment.primary:
        comparison = compare(arms, spec.left, spec.right)
        if comparison is not None:
            found.append((spec, comparison))
    tested = {s.name: c.difference.p for s, c in found if c.difference.p is not None}
    missing = len(experiment.primary) - len(tested)
    corrected = holm(tested | {f"\0{index}": 1.0 for index in range(missing)})
    return [ContrastRow(spec, c, corrected.get(spec.name)) for spec, c in found]


def compare(arms: Mapping[str, Mapping[int, Result]], left: Side, right: Side) -> Comparison | None:
    """Two arms over the seeds that both have; None where there is no such seed.

    Raises:
        DataError: A run has no such system.
    """
    ours, theirs = arms.get(left.arm, {}), arms.get(right.arm, {})
    seeds = tuple(seed for seed in ours if seed in theirs)
    if not seeds:
        return None
    left_SP, right_SP = side_rates(arms, left, seeds), side_rates(arms, right, seeds)
    return Comparison(
        left, right, seeds, by_seed(left_SP), by_seed(right_SP), arm_difference(left_SP, right_SP)
    )


def side_rates(
    arms: Mapping[str, Mapping[int, Result]], side: Side, seeds: Sequence[int]
) -> np.ndarray:
    """Share of right test attempts, (S, P), of the system that dev chose under each seed."""
    chosen = {seed: arms[side.arm][seed] for seed in seeds}
    return test_rates(chosen, {seed: run.reported(side.reported) for seed, run in chosen.items()})


def by_seed(rates_SP: np.ndarray) -> tuple[float, ...]:
    """pass@1 of each run."""
    return tuple(float(np.nanmean(rates_P)) for rates_P in rates_SP)


def test_rates(runs: Mapping[int, Result], names: Mapping[int, str]) -> np.ndarray:
    """Share of right test attempts, (S, P), problems in the order of their ids."""
    return np.array([run.system("test", names[seed]).rates_P for seed, run in runs.items()])


def _mean(arrays: Sequence[np.ndarray]) -> float:
    return float(np.mean([array.mean() for array in arrays]))


def _changed(tries: Sequence[SystemResult], before: int, after: int) -> float | None:
    if not tries:
        return None
    shares = []
    for one in tries:
        assert one.drafts_PK is not None
        scored = ~(np.isnan(one.drafts_PK) | np.isnan(one.outcomes_PK))
        changed = (one.drafts_PK == before) & (one.outcomes_PK == after)
        shares.append(float(changed[scored].mean()))
    return float(np.mean(shares))
