"""`agon audit`: can the answers of a data set be judged at all? Asked before training, not after.

Every gold answer of every split is judged against itself, as training does when it starts; here
the answers that fail are listed. What loading drops, such as questions with two different answers,
is said in the notes.

Exit status: 0 where every gold answer verifies against itself, 1 where one does not or could not be
judged, 2 where the data cannot be used.

What this module does not do: change the data, or say whether an answer is true.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from agon.commands.verdicts import Reasons, reason_lines, reason_records, shown, write_line
from agon.commands.verify import CHUNK, open_judge, open_target
from agon.config import TaskConfig
from agon.errors import ConfigError, DataError
from agon.recipes import build_task, parse_override
from agon.records import Outcome, Problem, Verdict
from agon.tasks import TaskData, load_task
from agon.tasks.splits import Split
from agon.verifiers import PooledJudge


@dataclass(slots=True)
class Audit:
    """Counts over a data set's gold answers, and the ones that cannot be used.

    Attributes:
        task: Name of the data set.
        notes: What loading dropped.
        outcomes: Verdicts by split, or under `file` for one file, which only training cuts.
        reasons: Verdicts by outcome and rule.
        failures: The gold answers that do not verify against themselves or could not be judged.
    """

    task: str
    notes: tuple[str, ...]
    outcomes: dict[str, Counter[Outcome]] = field(default_factory=dict)
    reasons: Reasons = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)

    def add(self, split: str, problem: Problem, verdict: Verdict) -> None:
        """Count one gold answer."""
        self.outcomes.setdefault(split, Counter())[verdict.outcome] += 1
        self.reasons[verdict.outcome, verdict.reason] += 1
        if verdict.outcome is not Outcome.RIGHT:
            self.failures.append(
                {
                    "id": problem.id,
                    "split": split,
                    "gold": problem.gold,
                    "outcome": verdict.outcome.value,
                    "reason": verdict.reason,
                    "detail": verdict.detail,
                }
            )

    @property
    def total(self) -> Counter[Outcome]:
        """Verdicts of all splits."""
        return sum(self.outcomes.values(), Counter())

    def record(self) -> dict[str, Any]:
        """For machines; the failures go elsewhere."""
        return {
            "task": self.task,
            "notes": list(self.notes),
            "splits": {
                split: {outcome.value: counts[outcome] for outcome in Outcome}
                for split, counts in self.outcomes.items()
            },
            "reasons": reason_records(self.reasons),
            "failures": len(self.failures),
        }

    def lines(self, most: int) -> Iterator[str]:
        """For people, with at most so many failures."""
        yield from self.notes
        for split, counts in self.outcomes.items():
            yield f"{split:<5}  {_counts(counts)}"
        yield f"all    {_counts(self.total)}"
        yield from reason_lines(self.reasons)
        for row in self.failures[:most]:
            yield f"  {row['id']} ({row['split']}): {shown(row['gold'])}: {shown(row['reason'])}"
        if len(self.failures) > most:
            yield f"  and {len(self.failures) - most} more; --out FILE writes all of them"


def audit(
    task: str,
    changes: dict[str, Any],
    overrides: Sequence[str],
    out: Path | None,
    most: int,
    as_json: bool,
    console: Console,
) -> int:
    """Judge every gold answer of a data set against itself.

    Args:
        task: Name of a task, or a JSON Lines file of the user's own.
        changes: Task settings of the command's own options; None leaves a setting alone.
        overrides: `section.field=value`; sections other than `task` go to the judge.
        out: Where the failures go, one JSON object each.
        most: Most failures that are shown.
        as_json: Whether the counts are one JSON object.
        console: Where to write.

    Returns:
        The exit status: 0 where every gold answer can be used, else 1.

    Raises:
        AgonError: Anything that the user can mend.
    """
    config, others = task_config(task, changes, overrides)
    with open_target(out, console) as target, open_judge(others) as judge:
        data = load_task(config)
        whole_file = config.name == "jsonl" and Path(config.path or "").is_file()
        parts = _one_part(data) if whole_file else {s.value: data.problems[s] for s in Split}
        report = run_audit(config.name, data.notes, parts, judge)
        if out is not None:
            for row in report.failures:
                write_line(target, row)
    if as_json:
        write_line(console.file, report.record())
    else:
        for line in report.lines(most):
            console.out(line, highlight=False)
    return int(bool(report.failures))


def run_audit(
    task: str,
    notes: tuple[str, ...],
    parts: Mapping[str, Sequence[Problem]],
    judge: PooledJudge,
) -> Audit:
    """Judge the gold answers of every part of a data set.

    Raises:
        DataError: There are no problems.
    """
    report = Audit(task, notes)
    for part, problems in parts.items():
        for start in range(0, len(problems), CHUNK):
            chunk = problems[start : start + CHUNK]
            for problem, verdict in zip(chunk, judge.judge_golds(chunk), strict=True):
                report.add(part, problem, verdict)
    if not report.outcomes:
        raise DataError(f"the task {task} has no problems. Check task.path and the task's filters.")
    return report


def _one_part(data: TaskData) -> dict[str, list[Problem]]:
    return {"file": [problem for problems in data.problems.values() for problem in problems]}


def task_config(
    task: str, changes: dict[str, Any], overrides: Sequence[str]
) -> tuple[TaskConfig, list[str]]:
    """The task's settings, and the overrides of other sections.

    Args:
        task: Name of a task, or a file, which is the task `jsonl`.
        changes: Settings by field; None leaves a setting alone.
        overrides: `section.field=value`.

    Raises:
        ConfigError: An unknown task or setting, or a wrong value.
    """
    own_file = Path(task).is_file()
    values: dict[str, Any] = {"name": "jsonl", "path": task} if own_file else {"name": task}
    if own_file:  # a short file can be audited though it is too short to train on
        values |= {"dev_problems": 1, "test_problems": 1}
    values |= {field: value for field, value in changes.items() if value is not None}
    others = []
    for override in overrides:
        section, name, value = parse_override(override)
        if section == "task":
            values[name] = value
        else:
            others.append(override)
    try:
        return build_task(values), others
    except ConfigError as error:
        raise ConfigError(f"{error}. TASK is the name of a task or a JSON Lines file") from error


def _counts(counts: Counter[Outcome]) -> str:
    return (
        f"{counts.total()} gold answers: {counts[Outcome.RIGHT]} verify against themselves, "
        f"{counts[Outcome.WRONG]} do not, {counts[Outcome.UNSCORED]} could not be judged"
    )
