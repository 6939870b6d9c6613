"""DeepMath-103K: hard mathematics with a difficulty for each problem.

The hub has one split, so dev and test are held out by the questions' hashes, after the filters:
their problems are of the difficulty that is asked for. So a test problem of one difficulty range
may be a training problem of another; compare adapters on the range that they were trained on.

The hub's files are 2.1 GB, nearly all of it worked solutions: three columns are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from agon.config import TaskConfig
from agon.records import Problem
from agon.tasks.rows import HubSplit, Row, data_path, read_files, read_hub, split_files
from agon.tasks.selection import hold_out, without_conflicts
from agon.tasks.splits import Split, stable_id

COLUMNS = ("question", "final_answer", "difficulty")
BINARY_ANSWERS = frozenset({"yes", "no", "true", "false"})
_TEXT_COMMAND = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|boxed)\b")
_DECORATION = "{}$ \t\n\r.,;:!?*\"'`"


def load(config: TaskConfig) -> tuple[dict[Split, tuple[Problem, ...]], list[str]]:
    """The problems of each split and notes on what was dropped.

    Raises:
        DataError: The data cannot be read, a row lacks a field, or too few problems are left.
    """
    ranged = config.min_difficulty is not None or config.max_difficulty is not None
    problems = []
    difficulties: dict[str, float] = {}
    for row in _rows(config):
        problems.append(problem_of(row))
        if ranged:  # a question that occurs twice has the difficulty of its first row
            difficulties.setdefault(problems[-1].id, row.number_field("difficulty"))
    kept, notes = without_conflicts(problems)
    if ranged:
        inside = [problem for problem in kept if _in_range(difficulties[problem.id], config)]
        notes += _note(len(kept) - len(inside), len(kept), "their difficulty is out of the range")
        kept = inside
    if config.drop_binary:
        open_ended = [problem for problem in kept if not is_binary(problem.gold)]
        notes += _note(len(kept) - len(open_ended), len(kept), "answers yes, no, true or false")
        kept = open_ended
    return hold_out(kept, dev=config.dev_problems, test=config.test_problems), notes


def problem_of(row: Row) -> Problem:
    """A row of the hub's schema as a problem."""
    question = row.text("question")
    return Problem(stable_id("deepmath", question), question, row.text("final_answer"), "math")


def is_binary(gold: str) -> bool:
    r"""Whether an answer is yes, no, true or false, whatever dress it wears: `\text{Yes}.`."""
    return _TEXT_COMMAND.sub("", gold).strip(_DECORATION).casefold() in BINARY_ANSWERS


def _in_range(difficulty: float, config: TaskConfig) -> bool:
    low, high = config.min_difficulty, config.max_difficulty
    return (low is None or difficulty >= low) and (high is None or difficulty <= high)


def _note(dropped: int, total: int, reason: str) -> list[str]:
    return [f"{dropped} of {total} problems were dropped: {reason}."] if dropped else []


def _rows(config: TaskConfig) -> Iterable[Row]:
    if config.path is None:
        return read_hub(HubSplit("zwhe99/DeepMath-103K", None, "train", stream=True), COLUMNS)
    path = data_path(config.path)
    return read_files(split_files(path, "train") if path.is_dir() else [path], COLUMNS)
