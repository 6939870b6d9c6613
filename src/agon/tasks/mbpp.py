"""MBPP: short Python functions from a sentence, judged by three assertions each.

The splits are the data set's own, by task_id: 601 to 974 train, 511 to 600 dev, 11 to 510 test;
1 to 10 are its few-shot examples and are left out. The question shows the first assertion, from
which the function's name and arguments can be known. All of them judge, so that a program which
answers the shown one by heart fails.

The names that assertions take from the program are those that the reference solution defines.
What the reference imports, assertions import themselves.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable

from agon.config import TaskConfig
from agon.records import Problem
from agon.tasks.rows import SUFFIXES, HubSplit, Row, data_path, read_files, read_hub, split_files
from agon.tasks.selection import without_conflicts
from agon.tasks.splits import Split, stable_id
from agon.verifiers.programs import ProgramTests

COLUMNS = ("task_id", "text", "code", "test_list", "test_setup_code")
HUB_SPLITS = ("train", "validation", "test", "prompt")
_LAST_PROMPT, _LAST_TEST, _LAST_DEV = 10, 510, 600
_INSTRUCTION = (
    "{text}\n\nWrite Python 3. The answer is a whole program that defines what this test uses, "
    "without the test itself:\n\n```python\n{example}\n```"
)


def load(config: TaskConfig) -> tuple[dict[Split, tuple[Problem, ...]], list[str]]:
    """The problems of each split and notes on what was dropped.

    Raises:
        DataError: The data cannot be read, or a row lacks a field.
    """
    numbers: dict[str, int] = {}
    problems = []
    examples = 0
    for row in _rows(config):
        number = int(row.number_field("task_id"))
        if number <= _LAST_PROMPT:
            examples += 1
            continue
        problems.append(problem_of(row))
        numbers.setdefault(problems[-1].id, number)
    kept, notes = without_conflicts(problems)
    if examples:
        notes.append(f"{examples} rows are the data set's few-shot examples and were left out.")
    by_split: dict[Split, list[Problem]] = {split: [] for split in Split}
    for problem in kept:
        by_split[_split(numbers[problem.id])].append(problem)
    return {split: tuple(chosen) for split, chosen in by_split.items()}, notes


def problem_of(row: Row) -> Problem:
    """A row of the hub's schema as a problem."""
    asserts = row.fields.get("test_list")
    if not isinstance(asserts, list) or not asserts or not all(isinstance(t, str) for t in asserts):
        raise row.fault("test_list", "expected a list of texts")
    setup = str(row.fields.get("test_setup_code") or "").replace("\r\n", "\n").strip()
    example = "\n".join(filter(None, (setup, asserts[0].strip())))
    question = _INSTRUCTION.format(text=row.text("text"), example=example)
    texts = tuple(f"{setup}\n{text.strip()}\n".lstrip() for text in asserts)
    try:
        prelude, names = _borrowed(row.text("code"), "\n".join(texts))
    except SyntaxError as error:
        raise row.fault("code", f"no Python that can be parsed ({error})") from error
    tests = ProgramTests("asserts", asserts=texts, prelude=prelude, names=names)
    return Problem(stable_id("mbpp", question), question, tests.to_gold(), "code")


def _borrowed(reference: str, tests: str) -> tuple[str, tuple[str, ...]]:
    """The imports that tests need, and the names that they take from a program.

    Args:
        reference: The reference solution.
        tests: All tests of the problem.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a reference's odd escapes are not ours to mend
        parsed, own = ast.parse(tests), ast.parse(reference.replace("\r\n", "\n"))
    used = {
        node.id
        for node in ast.walk(parsed)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    imports, defined = [], set()
    for statement in own.body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            bound = {(alias.asname or alias.name).partition(".")[0] for alias in statement.names}
            if bound & used:
                imports.append(ast.unparse(statement))
        elif isinstance(statement, ast.FunctionDef | ast.ClassDef):
            defined.add(statement.name)
        elif isinstance(statement, ast.Assign):
            defined |= {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    return "\n".join(imports), tuple(sorted(defined & used))


def _split(number: int) -> Split:
    if number <= _LAST_TEST:
        return Split.TEST
    return Split.DEV if number <= _LAST_DEV else Split.TRAIN


def _rows(config: TaskConfig) -> Iterable[Row]:
    if config.path is None:
        hub = "google-research-datasets/mbpp"
        return (
            row for split in HUB_SPLITS for row in read_hub(HubSplit(hub, "full", split), COLUMNS)
        )
    path = data_path(config.path)
    if not path.is_dir():
        return read_files([path], COLUMNS)
    own = [file for suffix in SUFFIXES for file in sorted(path.glob(f"mbpp{suffix}"))]
    if own:
        return read_files(own[:1], COLUMNS)
    names = ("train", "validation", "test")
    return read_files([file for name in names for file in split_files(path, name)], COLUMNS)
