"""Which problems of a data set are kept, and which are held out.

Two problems are the same when their normalised questions are, which is when their ids are. All
functions keep the data set's order.

What this module does not do: read data, or judge answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agon.errors import DataError
from agon.records import Problem
from agon.tasks.splits import Split, hash_fraction


def without_conflicts(problems: Iterable[Problem]) -> tuple[list[Problem], list[str]]:
    """One problem for each question; none where its occurrences have different golds.

    Golds are compared as text, so two notations of one value count as different: which of them
    is right is not for a loader to decide.

    Returns:
        The kept problems and, for people, sentences with the counts of what was dropped.
    """
    first: dict[str, Problem] = {}
    conflicting: set[str] = set()
    rows = 0
    for problem in problems:
        rows += 1
        if first.setdefault(problem.id, problem).gold != problem.gold:
            conflicting.add(problem.id)
    kept = [problem for problem in first.values() if problem.id not in conflicting]
    notes = []
    if repeated := rows - len(first):
        notes.append(f"{repeated} of {rows} rows repeat a question and were merged with it.")
    if conflicting:
        notes.append(
            f"{len(conflicting)} questions occur with different gold answers and were dropped."
        )
    return kept, notes


def hold_out(
    problems: Sequence[Problem], *, dev: int, test: int
) -> dict[Split, tuple[Problem, ...]]:
    """Hold out exactly `test` and `dev` problems, those with the lowest hashes of their questions.

    The lowest `test` hashes are test, the next `dev` dev, the rest train. The order of the rows
    changes no split. A new row pushes at most one problem over each boundary, from test to dev
    and from dev to train: adding rows never moves a training problem.

    Raises:
        DataError: Nothing would be left to train on.
    """
    if len(problems) <= dev + test:
        raise DataError(
            f"the data set has {len(problems)} usable problems, too few to hold out "
            f"{dev} for dev and {test} for test and train on the rest. Lower task.dev_problems or "
            "task.test_problems, widen task.min_difficulty and task.max_difficulty, or give more "
            "data."
        )
    order = sorted(problems, key=lambda problem: (hash_fraction(problem.question), problem.id))
    split_by_id = {problem.id: Split.TRAIN for problem in problems}
    split_by_id |= {problem.id: Split.DEV for problem in order[: test + dev]}
    split_by_id |= {problem.id: Split.TEST for problem in order[:test]}
    return {
        split: tuple(problem for problem in problems if split_by_id[problem.id] is split)
        for split in Split
    }
