"""Answers to be judged: found in a text, or read from rows of a JSON Lines file.

An answer is read in one of three ways:

    answer      the text itself, as it would stand in an answer block
    reply       a reply in the form that training asks for: its single closed answer block
    completion  running text: what it claims is looked for (`agon.verifiers.extraction`)

What this module does not do: judge. Training reads the answer block alone and never looks for
answers in running text.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from agon.errors import DataError
from agon.parsing import parse
from agon.records import Problem
from agon.tasks.rows import Row
from agon.verifiers.extraction import extract

Kind = Literal["answer", "completion", "reply"]
KINDS: tuple[Kind, ...] = get_args(Kind)

STDIN = "-"


@dataclass(frozen=True, slots=True)
class Claim:
    """An answer to be judged.

    Attributes:
        id: Name of the row, or its number.
        gold: The gold answer.
        answer: What the reply claims; None where it claims nothing that can be read.
        rule: How the answer was found.
        verifier: Who judges it.
        equal: The expected verdict, where there is one.
    """

    id: str
    gold: str
    answer: str | None
    rule: str
    verifier: str
    equal: bool | None = None

    @property
    def problem(self) -> Problem:
        """The problem as judges know it."""
        return Problem(self.id, "", self.gold, self.verifier)


def find_answer(text: str, kind: Kind, thinking_open: bool = False) -> tuple[str | None, str]:
    """The answer that a text claims, and the rule by which it was found or not found.

    Args:
        text: An answer, a reply or running text.
        kind: Which of these it is.
        thinking_open: For a reply: whether its prompt ended inside a thinking block.
    """
    if kind == "answer":
        return text, "the text itself"
    if kind == "reply":
        answer = parse(text, thinking_open).answer
        found = "a single closed answer block after the thinking"
        return answer, found if answer is not None else f"not {found}"
    extraction = extract(text)
    return extraction.answer, extraction.rule


def read_claims(
    file: str, kind: Kind, verifier: str, thinking_open: bool = False
) -> Iterator[Claim]:
    """The rows of a JSON Lines file, one after the other.

    Args:
        file: The file, or `-` for standard input.
        kind: How `pred` is read where the row has no `pred_kind`.
        verifier: Who judges where the row has no `verifier`.
        thinking_open: For replies: whether their prompts ended inside a thinking block.

    Raises:
        DataError: The file or a row of it cannot be used; named with the remedy.
    """
    with _lines(file) as lines:
        for row in _rows(lines, file):
            yield _claim(row, kind, verifier, thinking_open)


@contextmanager
def _lines(file: str) -> Iterator[Iterable[str]]:
    if file == STDIN:
        yield sys.stdin
        return
    path = Path(file)
    if not path.is_file():
        raise DataError(
            f"FILE: {file} is no file. Give a JSON Lines file, or - for standard input."
        )
    with path.open(encoding="utf-8") as opened:
        yield opened


def _rows(lines: Iterable[str], file: str) -> Iterator[Row]:
    source = "standard input" if file == STDIN else file
    try:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                fields = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(
                    f"{source}, row {number}: not a JSON object ({error}). Mend or remove the row."
                ) from error
            if not isinstance(fields, dict):
                raise DataError(
                    f"{source}, row {number}: got {type(fields).__name__}, expected an object with "
                    "the fields gold and pred. Mend or remove the row."
                )
            yield Row(source, number, fields, "Mend or remove the row.")
    except UnicodeDecodeError as error:
        raise DataError(f"{source} is not UTF-8 ({error}). Write it as UTF-8.") from error


def _claim(row: Row, kind: Kind, verifier: str, thinking_open: bool) -> Claim:
    gold = _text(row, "gold")
    if gold is None:
        raise row.fault("gold", "got null, expected text")
    named = row.fields.get("pred_kind", kind)
    if named not in KINDS:
        raise row.fault("pred_kind", f"got {named!r}, expected one of {', '.join(KINDS)}")
    judge = row.fields.get("verifier", verifier)
    if not isinstance(judge, str):
        raise row.fault("verifier", f"got {type(judge).__name__}, expected text")
    equal = row.fields.get("equal")
    if equal is not None and not isinstance(equal, bool):
        raise row.fault("equal", f"got {type(equal).__name__}, expected true or false")
    pred = _text(row, "pred")
    answer, rule = (None, "null") if pred is None else find_answer(pred, named, thinking_open)
    name = str(row.fields.get("id", row.number))
    return Claim(name, gold, answer, rule, judge, equal)


def _text(row: Row, field: str) -> str | None:
    """A field that is text, a number or null; blank text is an answer too."""
    if field not in row.fields:
        raise row.fault(field, f"missing; the row has the columns {', '.join(row.fields)}")
    value = row.fields[field]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return json.dumps(value)
    if value is not None and not isinstance(value, str):
        raise row.fault(field, f"got {type(value).__name__}, expected text")
    return value
