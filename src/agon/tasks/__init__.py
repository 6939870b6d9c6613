"""Data sets as problems, one file for each; this file only chooses among them.

What this package does not do: order or sample problems, or apply `task.limit`. That is the
trainer's data cursor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from agon.records import Outcome, Problem, Verdict
from agon.tasks.splits import Split

if TYPE_CHECKING:
    from agon.config import TaskConfig


@dataclass(frozen=True, slots=True)
class TaskData:
    """A loaded data set.

    Attributes:
        problems: The problems of every split, in the data set's order, each question once; no
            question stands in two splits. A split that the data set does not have is empty.
        notes: Sentences for people: what was dropped and why, with counts.
    """

    problems: dict[Split, tuple[Problem, ...]]
    notes: tuple[str, ...]


class GoldJudge(Protocol):
    """Says whether gold answers can be judged at all; `agon.verifiers.PooledJudge` is one."""

    def judge_golds(self, problems: Sequence[Problem]) -> list[Verdict]:
        """One verdict for each problem: does its gold parse and verify against itself?"""
        ...


def load_task(config: TaskConfig) -> TaskData:
    """Load a data set and cut it into train, dev and test.

    Raises:
        DataError: The data cannot be reached or read, or a row cannot be used; the message names
            file, row, field and remedy.
    """
    # Loaders are imported here so that judges can use a task's verifier without them.
    if config.name == "countdown":
        from agon.tasks.countdown import enumerate_problems

        return TaskData({split: tuple(enumerate_problems(split)) for split in Split}, ())
    from agon.tasks import (
        codecontests,
        deepmath,
        gsm8k,
        humaneval,
        jsonl,
        math500,
        mbpp,
        reasoning_gym,
    )

    loaders = {
        "gsm8k": gsm8k.load,
        "math500": math500.load,
        "deepmath": deepmath.load,
        "codecontests": codecontests.load,
        "humaneval": humaneval.load,
        "mbpp": mbpp.load,
        "jsonl": jsonl.load,
        "reasoning_gym": reasoning_gym.load,
    }
    problems, notes = loaders[config.name](config)
    return TaskData(problems, tuple(f"{config.name}: {note}" for note in notes))


def check_golds(
    problems: Sequence[Problem], judge: GoldJudge
) -> tuple[tuple[Problem, ...], tuple[tuple[Problem, Verdict], ...]]:
    """Keep the problems whose gold answer parses and verifies against itself.

    Countdown's golds are exact by construction and always pass.

    Returns:
        The kept problems, and the dropped ones each with its verdict: wrong where the gold
        cannot be used, unscored where the judge failed. `gold_notes` puts them into words.
    """
    kept, dropped = [], []
    for problem, verdict in zip(problems, judge.judge_golds(problems), strict=True):
        if verdict.outcome is Outcome.RIGHT:
            kept.append(problem)
        else:
            dropped.append((problem, verdict))
    return tuple(kept), tuple(dropped)


def gold_notes(dropped: Sequence[tuple[Problem, Verdict]]) -> tuple[str, ...]:
    """Sentences for people on what `check_golds` dropped, failures of the judge apart."""
    notes = []
    for outcome, what in (
        (Outcome.WRONG, "problems were dropped: their gold answer does not verify against itself"),
        (Outcome.UNSCORED, "problems were dropped: the judge failed on their gold answer"),
    ):
        cases = [(problem, verdict) for problem, verdict in dropped if verdict.outcome is outcome]
        if cases:
            problem, verdict = cases[0]
            notes.append(
                f"{len(cases)} {what}, such as {problem.gold[:60]!r} of {problem.id} "
                f"({verdict.reason})."
            )
    return tuple(notes)
