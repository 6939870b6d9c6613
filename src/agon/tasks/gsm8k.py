"""GSM8K: grade-school word problems with integer answers.

The hub's test split is test. Dev is held out of its train split by the questions' hashes. A
question of both hub splits stays in test alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from agon.config import TaskConfig
from agon.errors import DataError
from agon.records import Problem
from agon.tasks.rows import HubSplit, Row, data_path, read_files, read_hub, split_files
from agon.tasks.selection import hold_out, without_conflicts
from agon.tasks.splits import Split, stable_id

COLUMNS = ("question", "answer")
GOLD_MARK = "####"


def load(config: TaskConfig) -> tuple[dict[Split, tuple[Problem, ...]], list[str]]:
    """The problems of each split and notes on what was dropped.

    Raises:
        DataError: The data cannot be read, or a row has no question or no gold answer.
    """
    test_rows = [problem_of(row) for row in _rows(config, "test")]
    train_rows = [problem_of(row) for row in _rows(config, "train")]
    kept, notes = without_conflicts([*test_rows, *train_rows])
    test_ids = {problem.id for problem in test_rows}
    train_ids = {problem.id for problem in train_rows}
    if shared := len(test_ids & train_ids & {problem.id for problem in kept}):
        notes.append(f"{shared} questions of the train split also stand in test, and stay there.")
    test = tuple(problem for problem in kept if problem.id in test_ids)
    rest = [problem for problem in kept if problem.id not in test_ids]
    held_out = hold_out(rest, dev=config.dev_problems, test=0)
    return {**held_out, Split.TEST: test}, notes


def problem_of(row: Row) -> Problem:
    """A row of the hub's schema as a problem; the gold stands after `####`, commas removed."""
    question, answer = row.text("question"), row.text("answer")
    gold = answer.rpartition(GOLD_MARK)[2].replace(",", "").strip()
    if GOLD_MARK not in answer or not gold:
        raise row.fault("answer", f"no gold answer after '{GOLD_MARK} '")
    return Problem(stable_id("gsm8k", question), question, gold, "math")


def _rows(config: TaskConfig, split: str) -> Iterable[Row]:
    if config.path is None:
        return read_hub(HubSplit("openai/gsm8k", "main", split), COLUMNS)
    path = data_path(config.path)
    if not path.is_dir():
        raise DataError(
            f"task.path: {path} is a file, but gsm8k comes with a train and a test split. Give a "
            "folder with the files train.jsonl and test.jsonl (or .json or .parquet)."
        )
    return read_files(split_files(path, split), COLUMNS)
