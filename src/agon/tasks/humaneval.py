"""HumanEval: Python functions to complete, judged by assertions. For evaluation only.

The 164 problems are all test. What a row's prompt defines besides the function, such as a helper,
is also known to the assertions, from the prompt and not from the program.
"""

from __future__ import annotations

from collections.abc import Iterable

from agon.config import TaskConfig
from agon.records import Problem
from agon.tasks.rows import SUFFIXES, HubSplit, Row, data_path, read_files, read_hub, split_files
from agon.tasks.selection import without_conflicts
from agon.tasks.splits import Split, stable_id
from agon.verifiers.programs import ProgramTests

COLUMNS = ("task_id", "prompt", "test", "entry_point")
_INSTRUCTION = (
    "Complete this Python function. The answer is a whole Python 3 program that defines it: with "
    "the imports and any helpers that it needs, and without tests.\n\n```python\n{prompt}\n```"
)


def load(config: TaskConfig) -> tuple[dict[Split, tuple[Problem, ...]], list[str]]:
    """The problems, all in the test split, and notes on what was dropped.

    Raises:
        DataError: The data cannot be read, or a row lacks a field.
    """
    kept, notes = without_conflicts(problem_of(row) for row in _rows(config))
    return {Split.TRAIN: (), Split.DEV: (), Split.TEST: tuple(kept)}, notes


def problem_of(row: Row) -> Problem:
    """A row of the hub's schema as a problem."""
    prompt, entry_point = row.text("prompt"), row.text("entry_point")
    question = _INSTRUCTION.format(prompt=prompt)
    tests = ProgramTests(
        "asserts",
        asserts=(f"{row.text('test')}\n\ncheck({entry_point})\n",),
        prelude=f"{prompt}\n",
        names=(entry_point,),
    )
    return Problem(stable_id("humaneval", question), question, tests.to_gold(), "code")


def _rows(config: TaskConfig) -> Iterable[Row]:
    if config.path is None:
        hub = HubSplit("openai/openai_humaneval", "openai_humaneval", "test")
        return read_hub(hub, COLUMNS)
    path = data_path(config.path)
    if not path.is_dir():
        return read_files([path], COLUMNS)
    own = [file for suffix in SUFFIXES for file in sorted(path.glob(f"[Hh]uman[Ee]val{suffix}"))]
    return read_files(own[:1] or split_files(path, "test"), COLUMNS)
