"""CodeContests: programming contests, judged by running programs on tests.

The hub's train split is train, its valid split dev and its test split test. Where a local folder
has no valid split, dev is held out of train by the questions' hashes. Public, private and
generated tests count alike.

Left out, with a count: problems without tests; problems that read or write named files; problems
that accept several outputs, which comparison cannot judge. The last are known in three ways: by
name for the hub's test split (`codecontests_checkers.txt`); by the statement's wording; and by a
test input that is stored with two different outputs.

What this module does not do: raise the problems' time limits, which were set for all languages
alike, or use the example solutions.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from importlib.resources import files

from agon.config import TaskConfig
from agon.errors import DataError
from agon.records import Problem
from agon.tasks.rows import HubSplit, Row, data_path, read_files, read_hub, split_files
from agon.tasks.selection import hold_out, without_conflicts
from agon.tasks.splits import Split, stable_id
from agon.verifiers.programs import ProgramTests

TEST_FIELDS = ("public_tests", "private_tests", "generated_tests")
COLUMNS = (
    "name",
    "description",
    *TEST_FIELDS,
    "time_limit",
    "input_file",
    "output_file",
    "cf_rating",
)
NO_TESTS = "they have no tests"
NAMED_FILES = "they read or write named files"
SEVERAL_OUTPUTS = "they accept several outputs, which comparing outputs cannot judge"
RATING = "their rating is out of the range"

_SEVERAL = re.compile(
    r"\bif there (?:are|is|exist|exists) (?:multiple|several|many|more than one)\b[^.]*\bany\b"
    r"|\b(?:print|output) any\b|\bany correct\b|\bmultiple (?:answers|solutions)\b"
    r"|\b(?:absolute or relative|relative or absolute)\b",
    re.IGNORECASE,
)
_INSTRUCTION = (
    "Write a Python 3 program that solves this problem. It reads the input from standard input "
    "and prints to standard output what is asked for and nothing else{limit}. Only Python's "
    "standard library is there. The answer is the whole program."
)


def load(config: TaskConfig) -> tuple[dict[Split, tuple[Problem, ...]], list[str]]:
    """The problems of each split and notes on what was dropped.

    Raises:
        DataError: The data cannot be read, or a row lacks a field.
    """
    dropped: dict[str, int] = {}
    total = 0
    read: dict[str, list[Problem]] = {}
    for split in ("test", "valid", "train"):
        read[split] = []
        for row in _rows(config, split):
            total += 1
            problem, reason = problem_of(row, config)
            if problem is None:
                dropped[reason] = dropped.get(reason, 0) + 1
            else:
                read[split].append(problem)
    notes = [
        f"{count} of {total} problems were dropped: {reason}." for reason, count in dropped.items()
    ]
    kept, more = without_conflicts([problem for split in read.values() for problem in split])
    return _splits(config, kept, read), notes + more


def problem_of(row: Row, config: TaskConfig) -> tuple[Problem | None, str]:
    """A row of the hub's schema as a problem; None with the reason where it is left out."""
    name, description = row.text("name"), row.text("description")
    if any(row.fields.get(field) for field in ("input_file", "output_file")):
        return None, NAMED_FILES
    pairs = [pair for field in TEST_FIELDS for pair in _pairs(row, field)]
    if not pairs:
        return None, NO_TESTS
    outputs: dict[str, str] = {}
    several = name in needing_checkers() or _SEVERAL.search(description) is not None
    for stdin, expected in pairs:
        several = several or outputs.setdefault(stdin, expected).split() != expected.split()
    if several:
        return None, SEVERAL_OUTPUTS
    if not _in_range(row, config):
        return None, RATING
    seconds = _seconds(row)
    limit = "" if seconds is None else f", within {seconds:g} seconds for each test"
    question = f"{description}\n\n{_INSTRUCTION.format(limit=limit)}"
    tests = ProgramTests("stdio", stdio=tuple(outputs.items()), seconds=seconds)
    return Problem(stable_id("codecontests", question), question, tests.to_gold(), "code"), ""


@functools.cache
def needing_checkers() -> frozenset[str]:
    """Names of the hub's test problems that accept several outputs."""
    text = (files("agon.tasks") / "codecontests_checkers.txt").read_text(encoding="utf-8")
    return frozenset(line for line in text.splitlines() if line and not line.startswith("#"))


def _splits(
    config: TaskConfig, kept: list[Problem], read: dict[str, list[Problem]]
) -> dict[Split, tuple[Problem, ...]]:
    """Each problem in one split: test before dev before train."""
    ids = {name: {problem.id for problem in problems} for name, problems in read.items()}
    test = tuple(problem for problem in kept if problem.id in ids["test"])
    rest = [problem for problem in kept if problem.id not in ids["test"]]
    if not ids["valid"]:
        return {**hold_out(rest, dev=config.dev_problems, test=0), Split.TEST: test}
    dev = tuple(problem for problem in rest if problem.id in ids["valid"])
    train = tuple(problem for problem in rest if problem.id not in ids["valid"])
    return {Split.TRAIN: train, Split.DEV: dev, Split.TEST: test}


def _rows(config: TaskConfig, split: str) -> Iterable[Row]:
    if config.path is None:
        return read_hub(HubSplit("deepmind/code_contests", None, split, stream=True), COLUMNS)
    path = data_path(config.path)
    if not path.is_dir():
        raise DataError(
            f"task.path: {path} is a file, but codecontests comes in splits. Give a folder with "
            "the files train.jsonl, test.jsonl and, if there is one, valid.jsonl (or .parquet)."
        )
    try:
        found = split_files(path, split)
    except DataError:
        if split != "valid":
            raise
        return ()
    return read_files(found, COLUMNS)


def _pairs(row: Row, field: str) -> list[tuple[str, str]]:
    """The (input, output) pairs of one field of tests."""
    value = row.fields.get(field) or {}
    if not isinstance(value, dict):
        raise row.fault(field, f"got {type(value).__name__}, expected lists of input and output")
    inputs, outputs = value.get("input") or [], value.get("output") or []
    if len(inputs) != len(outputs) or not all(isinstance(t, str) for t in (*inputs, *outputs)):
        raise row.fault(field, "expected two lists of texts, input and output, of one length")
    return list(zip(inputs, outputs, strict=True))


def _seconds(row: Row) -> float | None:
    """The problem's own time limit; None where it is not stated."""
    value = row.fields.get("time_limit")
    if value is None:
        return None
    if not isinstance(value, dict):
        raise row.fault("time_limit", f"got {type(value).__name__}, expected seconds and nanos")
    seconds, nanos = value.get("seconds") or 0, value.get("nanos") or 0
    return float(seconds) + float(nanos) / 1e9 or None


def _in_range(row: Row, config: TaskConfig) -> bool:
    low, high = config.min_difficulty, config.max_difficulty
    if low is None and high is None:
        return True
    rating = row.number_field("cf_rating")
    if rating <= 0:  # not rated
        return False
    return (low is None or rating >= low) and (high is None or rating <= high)
