"""The file that a cell leaves behind: everything that tables and figures need, and no more.

    RESULTS/<arm>--seed<k>.json

Attempts stand as one character or number each, by problem and then attempt, so that a cell with
thousands of them stays a few hundred kilobytes. Written aside and renamed: a result file is whole
or absent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np

from agon.errors import DataError
from agon.evaluation.overlap import votes
from agon.evaluation.protocols import Attempt
from agon.experiments.spec import Cell, Reported
from agon.records import Outcome
from agon.runs import write_atomically

SCHEMA = 2
"""1 compared attempts of equal numbers in the snapshots' error overlap too."""

_LETTERS = {Outcome.RIGHT: "1", Outcome.WRONG: "0", Outcome.UNSCORED: "u"}
_VALUES = {"1": 1.0, "0": 0.0, "u": np.nan}


@dataclass(frozen=True, slots=True)
class SystemResult:
    """One system's attempts on one split.

    Attributes:
        outcomes_PK: 1 right, 0 wrong, nan unscored.
        drafts_PK: Likewise of the first of two stages; None for one.
        generated_PK: Generated tokens of all stages.
        last_PK: Those of the last stage.
        read_PK: Prompt tokens of all stages.
        truncated_PK: Whether the last stage hit the completion limit.
        votes_PK: For each attempt the first of its problem with the same answer; -1 without one.
    """

    outcomes_PK: np.ndarray
    drafts_PK: np.ndarray | None
    generated_PK: np.ndarray
    last_PK: np.ndarray
    read_PK: np.ndarray
    truncated_PK: np.ndarray
    votes_PK: np.ndarray

    @property
    def rates_P(self) -> np.ndarray:
        """Share of right attempts at each problem; nan where none is scored."""
        scored_P = (~np.isnan(self.outcomes_PK)).sum(axis=1)
        sums_P = np.nansum(self.outcomes_PK, axis=1)
        return np.where(scored_P > 0, sums_P / np.maximum(scored_P, 1), np.nan)

    def ordered(self, order: Sequence[int]) -> SystemResult:
        """The same attempts with the problems in another order."""
        rows = list(order)
        return SystemResult(
            outcomes_PK=self.outcomes_PK[rows],
            drafts_PK=None if self.drafts_PK is None else self.drafts_PK[rows],
            generated_PK=self.generated_PK[rows],
            last_PK=self.last_PK[rows],
            read_PK=self.read_PK[rows],
            truncated_PK=self.truncated_PK[rows],
            votes_PK=self.votes_PK[rows],
        )


def pack(attempts: Sequence[Attempt], samples: int) -> dict[str, Any]:
    """One system's attempts for the file."""
    groups = [attempts[start : start + samples] for start in range(0, len(attempts), samples)]
    agreed = [vote for group in groups for vote in votes([a.answer for a in group])]
    packed: dict[str, Any] = {
        "outcomes": "".join(_LETTERS[a.outcome] for a in attempts),
        "last": [a.generated[-1] for a in attempts],
        "read": [sum(a.prompt) for a in attempts],
        "truncated": "".join("01"[a.truncated] for a in attempts),
        "votes": [-1 if vote is None else vote for vote in agreed],
    }
    if len(attempts[0].generated) > 1:
        packed["drafts"] = "".join(_LETTERS[a.draft_outcome or Outcome.UNSCORED] for a in attempts)
        packed["generated"] = [sum(a.generated) for a in attempts]
    return packed


def unpack(packed: Mapping[str, Any], samples: int) -> SystemResult:
    """One system's attempts from the file."""

    def numbers(values: Sequence[Any]) -> np.ndarray:
        return np.array(values).reshape(-1, samples)

    def letters(text: str) -> np.ndarray:
        return numbers([_VALUES[letter] for letter in text])

    last_PK = numbers(packed["last"])
    return SystemResult(
        outcomes_PK=letters(packed["outcomes"]),
        drafts_PK=letters(packed["drafts"]) if "drafts" in packed else None,
        generated_PK=numbers(packed["generated"]) if "generated" in packed else last_PK,
        last_PK=last_PK,
        read_PK=numbers(packed["read"]),
        truncated_PK=numbers([letter == "1" for letter in packed["truncated"]]),
        votes_PK=numbers(packed["votes"]),
    )


@dataclass(frozen=True, slots=True)
class Result:
    """A cell's file."""

    path: Path
    data: Mapping[str, Any]
    _read: dict[tuple[str, str], SystemResult] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def cell(self) -> Cell:
        """Which cell it is of."""
        return Cell(self.data["arm"], self.data["seed"])

    def system(self, split: str, name: str) -> SystemResult:
        """A system's attempts on `dev` or `test`, problems in the order of their ids."""
        if (split, name) not in self._read:
            evaluation = self.data["evaluations"][split]
            ids = evaluation["problems"]
            found = unpack(evaluation["systems"][name], evaluation["samples"])
            order = sorted(range(len(ids)), key=ids.__getitem__)
            self._read[split, name] = found.ordered(order)
        return self._read[split, name]

    def systems(self, split: str) -> list[str]:
        """The systems that were evaluated."""
        return list(self.data["evaluations"][split]["systems"])

    def reported(self, what: Reported) -> str:
        """The system that stands for the arm, chosen on dev alone."""
        return reported_system(what, self.systems("dev"), self.dev_rates())

    def dev_rates(self) -> dict[str, float]:
        """Each system's dev pass@1."""
        return {
            name: float(np.nanmean(self.system("dev", name).rates_P))
            for name in self.systems("dev")
        }


def reported_system(what: Reported, systems: Sequence[str], dev: Mapping[str, float]) -> str:
    """The system that a word stands for; of two the better on dev, the first of equals.

    Raises:
        DataError: The run has no such system.
    """
    choices = {
        "base": ("base",),
        "mixture": ("base->base",),
        "alone": ("a", "b"),
        "self-cascade": ("a->a", "b->b"),
        "cascade": ("a->b", "b->a"),
        "a->b": ("a->b",),
    }[what]
    there = [name for name in choices if name in systems]
    if not there:
        raise DataError(f"reported = {what!r}: the run has only {', '.join(systems)}")
    return max(there, key=lambda name: dev[name])


def result_path(folder: Path, cell: Cell) -> Path:
    """Where a cell's file lies."""
    return folder / f"{cell.name}.json"


def write_result(path: Path, data: Mapping[str, Any]) -> None:
    """Write a cell's file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(data, separators=(",", ":")) + "\n")


def read_result(path: Path) -> Result:
    """Read a cell's file.

    Raises:
        DataError: It is damaged or of another schema.
    """
    try:
        data = json.loads(path.read_text())
        schema = data["schema"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is no result file: {error}") from error
    if schema != SCHEMA:
        raise DataError(f"{path} has schema {schema}, this version reads {SCHEMA}")
    return Result(path, data)


def check_result(result: Result) -> None:
    """See that everything is there which a report reads, and that lengths agree.

    Raises:
        DataError: Something is missing or damaged; the file and the field are named.
    """
    data = result.data
    for key, kind in _FIELDS.items():
        if key not in data or not isinstance(data[key], kind):
            raise DataError(f"{result.path}: the field {key} is missing or damaged")
    for split in ("dev", "test"):
        place = f"evaluations.{split}"
        try:
            evaluation = data["evaluations"][split]
            tries = len(evaluation["problems"]) * evaluation["samples"]
            systems = evaluation["systems"]
            if not tries or not systems:
                raise DataError(f"{result.path}: {place} is empty")
            for name, packed in systems.items():
                _check_packed(packed, tries, f"{result.path}: {place}.systems.{name}", "->" in name)
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{result.path}: {place} is damaged: {error!r}") from error
    if data["reported"] not in get_args(Reported):
        known = ", ".join(get_args(Reported))
        raise DataError(f"{result.path}: reported is {data['reported']!r}, expected one of {known}")
    for section in _SECTIONS:
        if not isinstance(data["config"].get(section), dict):
            raise DataError(f"{result.path}: config.{section} is missing or damaged")
    for key, check in (("curves", _curves), ("snapshots", _snapshots), ("rounds", _rounds)):
        try:
            whole = key not in data or check(data[key])
        except (KeyError, TypeError, AttributeError):
            whole = False
        if not whole:
            raise DataError(f"{result.path}: {key} are damaged")


_SECTIONS = (
    "model",
    "adapters",
    "game",
    "reward",
    "sampling",
    "objective",
    "optimizer",
    "training",
    "task",
    "evaluation",
)
"""Sections of the configuration that a report reads."""

_ROUND = ("step", "sample", "question", "gold")
_ROLLOUT = {
    "policy",
    "version",
    "text",
    "summary",
    "tokens",
    "prompt_tokens",
    "truncated",
    "outcome",
    "reason",
    "reward",
    "advantage",
}


def _curves(table: Mapping[str, Any]) -> bool:
    """Whether every column has a value a step."""
    return all(len(column) == len(table["step"]) for column in table.values())


def _snapshots(shots: Sequence[Mapping[str, Any]]) -> bool:
    return all({"step", "overlap", "kl", "weights"} <= shot.keys() for shot in shots)


def _rounds(rows: Sequence[Mapping[str, Any]]) -> bool:
    outcomes = {str(outcome) for outcome in Outcome}
    for row in rows:
        rollouts = [row["draft"]]
        if "challenge" in row:
            rollouts.append(row["challenge"])
            if not {"shown", "rival_sample"} <= row["challenge"].keys():
                return False
        if not all(one.keys() >= _ROLLOUT and one["outcome"] in outcomes for one in rollouts):
            return False
        if not all(key in row for key in _ROUND):
            return False
    return True


_FIELDS: dict[str, type | tuple[type, ...]] = {
    "experiment": str,
    "arm": str,
    "seed": int,
    "about": str,
    "reported": str,
    "stopped": (str, type(None)),
    "trained": bool,
    "config": dict,
    "environment": dict,
    "evaluations": dict,
}
"""What every result file has at its top."""


def _check_packed(packed: Mapping[str, Any], tries: int, place: str, two: bool) -> None:
    for key in ("outcomes", "last", "read", "truncated", "votes", *(("drafts", "generated") * two)):
        if len(packed[key]) != tries:
            raise DataError(f"{place}.{key} has {len(packed[key])} entries, expected {tries}")
    for key in ("outcomes", *(("drafts",) * two)):
        if not set(packed[key]) <= set(_VALUES):
            raise DataError(f"{place}.{key} has letters that stand for no outcome")
    for key in ("last", "read", "votes", *(("generated",) * two)):
        if not all(type(value) in (int, float) for value in packed[key]):
            raise DataError(f"{place}.{key} has entries that are no numbers")


def read_results(folder: Path) -> list[Result]:
    """All cells' files of a folder, by name."""
    return [read_result(path) for path in sorted(folder.glob("*--seed*.json"))]
