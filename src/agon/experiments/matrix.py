"""All result files of one experiment, checked to belong together, and what is missing.

Reads files alone: nothing here needs the machine that made them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agon.errors import DataError
from agon.experiments.results import Result, check_result, read_results
from agon.experiments.spec import Cell, Experiment, cells
from agon.experiments.summary import by_arm

Runs = Mapping[int, Result]
"""One arm's results by seed."""

SAME_IN_ALL = ("model", "task")
"""Sections of the configuration that every cell of a comparison shares."""

SAME_IN_ARM = (
    *SAME_IN_ALL,
    "adapters",
    "game",
    "reward",
    "sampling",
    "objective",
    "optimizer",
    "training",
    "prompts",
)
"""Sections that the cells of one arm share under every seed."""

MACHINE = ("threads", "device", "microbatch_tokens", "slots", "fold_weights", "share_prefixes")
"""Settings that do not change what is computed, and may differ between machines."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """An experiment's results as far as they are there.

    Attributes:
        name: The experiment's.
        experiment: Its file, which names the cells and the primary contrasts; None without one.
        arms: Results by arm and seed, in the experiment's order, arms without any left out.
        wanted: All cells; without the experiment's file every arm there is under every seed.
        left_out: Files that the experiment does not name.
    """

    name: str
    experiment: Experiment | None
    arms: Mapping[str, Runs]
    wanted: tuple[Cell, ...]
    left_out: tuple[Path, ...] = ()

    @property
    def missing(self) -> tuple[Cell, ...]:
        """Cells without a file."""
        return tuple(c for c in self.wanted if c.seed not in self.arms.get(c.arm, {}))

    @property
    def done(self) -> int:
        """Cells with a file."""
        return len(self.wanted) - len(self.missing)

    @property
    def complete(self) -> bool:
        """Whether every cell has its file."""
        return not self.missing

    @property
    def results(self) -> tuple[Result, ...]:
        """All files in the order of arms and seeds."""
        return tuple(result for runs in self.arms.values() for result in runs.values())

    @property
    def seeds(self) -> tuple[int, ...]:
        """All seeds, in order."""
        return tuple(dict.fromkeys(cell.seed for cell in self.wanted))

    @property
    def arm_names(self) -> tuple[str, ...]:
        """All arms, in the experiment's order."""
        return tuple(dict.fromkeys(cell.arm for cell in self.wanted))

    def about(self, arm: str) -> str:
        """What an arm is."""
        if self.experiment is not None:
            return self.experiment.arms[arm].about
        return str(next(iter(self.arms[arm].values())).data["about"])


def read_matrix(folders: Sequence[Path], experiment: Experiment | None) -> Matrix:
    """Read, check and order the result files of one or more folders.

    Args:
        folders: Where they lie; a cell may lie in two of them if the files are equal.
        experiment: Which cells there are to be.

    Raises:
        DataError: There is no file, one is damaged, or they do not belong together.
    """
    results = _without_copies([result for folder in folders for result in _folder(folder)])
    if not results:
        listed = ", ".join(map(str, folders))
        raise DataError(
            f"{listed}: no result file (<arm>--seed<k>.json) is there; "
            "`agon experiment run FILE` writes them"
        )
    for result in results:
        check_result(result)
    name = _one_experiment(results, experiment)
    left_out: list[Path] = []
    if experiment is not None:
        known = set(cells(experiment))
        left_out = [result.path for result in results if result.cell not in known]
        results = [result for result in results if result.cell in known]
        if not results:
            raise DataError(f"no result file is of a cell that the experiment {name} names")
    _check_settings(results)
    found = by_arm(sorted(results, key=lambda result: (result.cell.arm, result.cell.seed)))
    if experiment is not None:
        wanted = cells(experiment)
    else:
        seeds = sorted({result.cell.seed for result in results})
        wanted = [Cell(arm, seed) for seed in seeds for arm in found]
    order = dict.fromkeys(cell.arm for cell in wanted)
    arms = {arm: found[arm] for arm in order if arm in found}
    return Matrix(name, experiment, arms, tuple(wanted), tuple(left_out))


def _folder(folder: Path) -> list[Result]:
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder: name the folder that holds the result files")
    return read_results(folder)


def _without_copies(results: Sequence[Result]) -> list[Result]:
    """Results without equal copies of one cell; unequal ones are left for `by_arm` to refuse."""
    kept: list[Result] = []
    for result in results:
        if not any(result.data == other.data for other in kept):
            kept.append(result)
    return kept


def _one_experiment(results: Sequence[Result], experiment: Experiment | None) -> str:
    names = {str(result.data["experiment"]): result.path for result in results}
    if experiment is not None:
        names = {experiment.name: Path("the experiment's file")} | names
    if len(names) > 1:
        listed = "; ".join(f"{path}: {name}" for name, path in names.items())
        raise DataError(
            f"results of several experiments are not comparable ({listed}): make a report of each"
        )
    return next(iter(names))


def _check_settings(results: Sequence[Result]) -> None:
    """See that cells which are averaged or compared ran under the same settings.

    Raises:
        DataError: They did not; both files and the section are named.
    """
    first: dict[str, Result] = {}
    for result in results:
        for other, sections in (
            (results[0], SAME_IN_ALL),
            (first.setdefault(result.cell.arm, result), SAME_IN_ARM),
        ):
            for section in sections:
                if _settings(result, section) != _settings(other, section):
                    raise DataError(
                        f"{result.path} and {other.path} are not comparable: their settings differ "
                        f"in {section} ({_difference(result, other, section)})"
                    )
        for split in ("dev", "test"):
            here, there = (r.data["evaluations"][split]["samples"] for r in (result, results[0]))
            if here != there:
                raise DataError(
                    f"{result.path} has {here} attempts at each {split} problem, "
                    f"{results[0].path} {there}: they are not comparable"
                )


def _settings(result: Result, section: str) -> dict[str, Any]:
    values = result.data["config"].get(section) or {}
    return {key: value for key, value in values.items() if key not in MACHINE}


def _difference(result: Result, other: Result, section: str) -> str:
    here, there = _settings(result, section), _settings(other, section)
    keys = sorted(key for key in here.keys() | there.keys() if here.get(key) != there.get(key))
    return ", ".join(
        f"{key}: {json.dumps(here.get(key))} and {json.dumps(there.get(key))}" for key in keys
    )
