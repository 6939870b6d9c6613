"""A data set of the user's own: a file of rows with a question and a gold answer.

`task.path` is one file, from which dev and test are held out by the questions' hashes, or a folder
with the files train, dev (or valid, validation) and test of any known format. In a folder, dev is
held out of train where it has no file of its own, and test may be missing. A question of test
stands in no other split, one of dev not in train.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from agon.config import TaskConfig
from agon.errors import DataError
from agon.records import Problem
from agon.tasks.rows import SUFFIXES, Row, data_path, read_files, split_files
from agon.tasks.selection import hold_out, without_conflicts
from agon.tasks.splits import Split, stable_id

_SPLIT_NAMES = {Split.TRAIN: "train", Split.DEV: "(?:dev|valid|validation)", Split.TEST: "test"}
_OTHER_FORMATS = frozenset({".csv", ".tsv", ".txt", ".arrow", ".xlsx", ".zip", ".gz", ".zst"})


def load(config: TaskConfig) -> tuple[dict[Split, tuple[Problem, ...]], list[str]]:
    """The problems of each split and notes on what was dropped.

    Raises:
        DataError: The data cannot be read, a row lacks a field, or too few problems are left.
    """
    path = data_path(config.path or "")
    if not path.is_dir():
        kept, notes = without_conflicts(_problems([path], config))
        return _held_out(kept, config.dev_problems, config.test_problems), notes
    files = {split: _files(path, split) for split in Split}
    read = {split: list(_problems(files[split], config)) for split in Split}
    # Later splits give way: what is tested on is never trained on.
    order = (Split.TEST, Split.DEV, Split.TRAIN)
    kept, notes = without_conflicts(problem for split in order for problem in read[split])
    home: dict[str, Split] = {}
    for split in order:
        for problem in read[split]:
            home.setdefault(problem.id, split)
    parts = {split: [p for p in kept if home[p.id] is split] for split in Split}
    if not parts[Split.DEV]:
        held_out = _held_out(parts[Split.TRAIN], config.dev_problems, 0)
        return {**held_out, Split.TEST: tuple(parts[Split.TEST])}, notes
    return {split: tuple(members) for split, members in parts.items()}, notes


def problem_of(row: Row, config: TaskConfig) -> Problem:
    """A row as a problem; numbers and true or false are taken as their JSON text."""
    question = row.text(config.question_field)
    gold = row.plain_text(config.answer_field)
    return Problem(stable_id("jsonl", question), question, gold, config.verifier or "math")


def _problems(files: Iterable[Path], config: TaskConfig) -> Iterable[Problem]:
    columns = (config.question_field, config.answer_field)
    return (problem_of(row, config) for row in read_files(files, columns))


def _files(folder: Path, split: Split) -> list[Path]:
    """A split's files; none where the folder may do without.

    Raises:
        DataError: There are none for train, or the only ones are of another format.
    """
    pattern = _SPLIT_NAMES[split]
    try:
        return split_files(folder, pattern)
    except DataError:
        if split is Split.TRAIN:
            raise
    named = re.compile(rf"{pattern}([-_.].*)?", re.IGNORECASE)
    for file in sorted(folder.iterdir()):
        if file.suffix in _OTHER_FORMATS and named.fullmatch(file.stem) and file.is_file():
            raise DataError(
                f"task.path: {file} looks like the {split.value} split and is of no known format. "
                f"Make it a file ending in {', '.join(SUFFIXES)}, or give it another name"
            )
    return []


def _held_out(problems: list[Problem], dev: int, test: int) -> dict[Split, tuple[Problem, ...]]:
    if len(problems) <= dev + test:
        raise DataError(
            f"task.path holds {len(problems)} usable problems, too few to hold out {dev} for dev "
            f"(task.dev_problems) and {test} for test (task.test_problems) and train on the rest: "
            "lower these, give more rows, or give a folder with train, dev and test files"
        )
    return hold_out(problems, dev=dev, test=test)
