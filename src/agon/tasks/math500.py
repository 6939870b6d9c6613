"""MATH-500: competition problems with LaTeX answers. For evaluation only: all of it is test."""

from __future__ import annotations

from collections.abc import Iterable

from agon.config import TaskConfig
from agon.records import Problem
from agon.tasks.rows import HubSplit, Row, data_path, read_files, read_hub, split_files
from agon.tasks.selection import without_conflicts
from agon.tasks.splits import Split, stable_id

COLUMNS = ("problem", "answer")


def load(config: TaskConfig) -> tuple[dict[Split, tuple[Problem, ...]], list[str]]:
    """The problems, all in the test split, and notes on what was dropped.

    Raises:
        DataError: The data cannot be read, or a row has no problem or no answer.
    """
    kept, notes = without_conflicts(problem_of(row) for row in _rows(config))
    return {Split.TRAIN: (), Split.DEV: (), Split.TEST: tuple(kept)}, notes


def problem_of(row: Row) -> Problem:
    """A row of the hub's schema as a problem."""
    question = row.text("problem")
    return Problem(stable_id("math500", question), question, row.text("answer"), "math")


def _rows(config: TaskConfig) -> Iterable[Row]:
    if config.path is None:
        return read_hub(HubSplit("HuggingFaceH4/MATH-500", None, "test"), COLUMNS)
    path = data_path(config.path)
    return read_files(split_files(path, "test") if path.is_dir() else [path], COLUMNS)
