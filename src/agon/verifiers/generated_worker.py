"""Scores answers to reasoning-gym's problems; runs in a worker process.

The entry is generated again from its name, so that nothing of it has to survive a trip through
JSON, and its data set's own scorer judges. An answer is right at the full score alone: a part of it
is for an answer that is nearly right, or only well formed.

Some scorers give the answer to `eval` or to sympy's parser, which is the same thing. They are
found by reading their source, and their answers must first consist of numbers, operators, brackets,
short quoted words and known names only (`HARMLESS`), within the bounds of `bounds`.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from functools import lru_cache
from typing import Any

import reasoning_gym  # type: ignore[import-untyped]

from agon.records import Outcome, Verdict
from agon.verifiers.bounds import over_bounds

FULL_SCORE = 1.0 - 1e-9

_NOT_FINITE = re.compile(r"(?<![a-z])(?:nan|infinity|inf)[ij]?(?![a-z])", re.IGNORECASE)
"""To a scorer that measures a distance, nan may be near every number (complex_arithmetic)."""

NONSENSE = "nonsense"
"""What no scorer may take; one of reasoning-gym 0.1.25 (game_of_life_halting) does."""

RUNNERS = frozenset({"eval", "exec", "compile"})
SYMPY_RUNNERS = frozenset({"parse_expr", "sympify", "S"})

NAMES = frozenset(
    {"sin", "cos", "tan", "exp", "log", "sqrt", "asin", "acos", "atan", "sinh", "cosh", "tanh"}
    | {"pi", "True", "False", "Abs"}
)
"""Words that may stand in an answer that is going to be evaluated, besides single letters."""

HARMLESS = re.compile(
    r"(?:\s|[0-9]+(?:\.[0-9]+)?|\.[0-9]+|[-+*/^()\[\],=]|'[A-Za-z0-9_ .+-]*'|\"[A-Za-z0-9_ .+-]*\"|"
    r"(?<!\w)_(?!\w)|-?0x[0-9a-f]+\b|"
    r"(?P<word>[A-Za-z]+))"
)


def verify(gold: str, answer: str) -> Verdict:
    """Judge an answer block by the entry's own scorer.

    Raises:
        ValueError: The entry is not the one that the gold answer was written for.
    """
    fields = json.loads(gold)
    dataset, entry = _entry(json.dumps(fields, sort_keys=True))
    if runs_answers(type(dataset)) and (reason := not_harmless(answer)) is not None:
        return Verdict(Outcome.WRONG, reason)
    if _NOT_FINITE.search(answer) and re.search(r"[0-9]", entry["answer"] or ""):
        return Verdict(Outcome.WRONG, "not a finite number")
    try:
        score = float(dataset.score_answer(answer, entry))
    except MemoryError:
        raise
    except (
        Exception
    ) as error:  # the scorer took the generator's answer, so this is the reply's doing
        return Verdict(Outcome.WRONG, f"its scorer cannot read it: {type(error).__name__}")
    reason = f"scored {score:.3g} by {fields['dataset']}"
    return Verdict(Outcome.RIGHT if score >= FULL_SCORE else Outcome.WRONG, reason)


def verify_gold(gold: str) -> Verdict:
    """Whether the generator's own answer gets the full score, and nonsense does not.

    Raises:
        ValueError: The entry is not the one that the gold answer was written for.
        Exception: Whatever the scorer raises.
    """
    fields = json.loads(gold)
    dataset, entry = _entry(json.dumps(fields, sort_keys=True))
    if _scores(dataset, entry, NONSENSE):
        return Verdict(Outcome.WRONG, f"its scorer takes {NONSENSE!r}, and so perhaps anything")
    if entry["answer"] is None:
        return Verdict(Outcome.RIGHT, "many answers are right")
    score = float(dataset.score_answer(entry["answer"], entry))
    if score >= FULL_SCORE:
        return Verdict(Outcome.RIGHT, "its scorer takes it")
    return Verdict(Outcome.WRONG, f"its scorer gives the generator's own answer {score:.3g}")


def _scores(dataset: Any, entry: dict[str, Any], answer: str) -> bool:
    """Whether an answer gets the full score; a scorer that raises gives none."""
    try:
        return float(dataset.score_answer(answer, entry)) >= FULL_SCORE
    except Exception:
        return False


@lru_cache(maxsize=512)
def _entry(gold: str) -> tuple[Any, dict[str, Any]]:
    """A data set and one of its entries, generated again."""
    fields = json.loads(gold)
    options = json.dumps(fields["options"], sort_keys=True)
    dataset = _dataset(fields["dataset"], options, fields["seed"], fields["size"])
    entry: dict[str, Any] = dataset[fields["index"]]
    if entry["answer"] != fields["answer"]:
        raise ValueError(
            f"{fields['dataset']} gives another entry {fields['index']} than when the problem was "
            "made: the installed reasoning-gym is another version"
        )
    return dataset, entry


@lru_cache(maxsize=8)
def _dataset(name: str, options: str, seed: int, size: int) -> Any:
    return reasoning_gym.create_dataset(name, seed=seed, size=size, **json.loads(options))


def runs_answers(kind: type[Any]) -> bool:
    """Whether any module that defines a data set's class evaluates text as a program."""
    modules = {base.__module__ for base in kind.__mro__ if base.__module__ != "builtins"}
    return any(map(_evaluates, modules))


@lru_cache(maxsize=256)
def _evaluates(module: str) -> bool:
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    from_sympy = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sympy")
        for alias in node.names
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name):
            if called.id in RUNNERS or (called.id in SYMPY_RUNNERS and called.id in from_sympy):
                return True
        elif isinstance(called, ast.Attribute) and called.attr in SYMPY_RUNNERS:
            return True
    return False


def not_harmless(answer: str) -> str | None:
    """Why an answer may not be evaluated; None where it may."""
    place = 0
    while place < len(answer):
        match = HARMLESS.match(answer, place)
        if match is None:
            return f"{answer[place]!r} may not stand in an answer that its scorer evaluates"
        word = match["word"]
        if word is not None and len(word) > 1 and word not in NAMES:
            return f"{word[:20]!r} may not stand in an answer that its scorer evaluates"
        place = match.end()
    excess = over_bounds(answer)
    return None if excess is None else f"the answer is over a bound: {excess}"
