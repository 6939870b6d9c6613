"""Scores answers to reasoning-gym's problems; runs in a worker process.

The entry is generated again from its name, so that nothing of it has to survive a trip through
JSON, and its data set's own scorer judges. An answer is right at the full score alone: a part of it
is for an answer that is nearly right, or only well formed.

Some scorers give the answer to `eval`, or to sympy, which does the same with text. They are found
by following what the scorer's code calls (`runs_answers`), and their answers must first consist of
numbers, operators, brackets, short quoted words and known names only (`HARMLESS`), within the
bounds of `bounds`.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from functools import cache, lru_cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

import reasoning_gym  # type: ignore[import-untyped]
from reasoning_gym.composite import (  # type: ignore[import-untyped]
    CompositeDataset,
    DatasetSpec,
)

from agon.records import Outcome, Verdict
from agon.verifiers.bounds import over_bounds
from agon.verifiers.generated import not_finite

FULL_SCORE = 1.0 - 1e-9

NONSENSE = ("nonsense", "nan")
"""What no scorer may take; one of reasoning-gym 0.1.25 (game_of_life_halting) does."""

RUNNERS = frozenset({"eval", "exec"})

NAMES = frozenset(
    {"sin", "cos", "tan", "exp", "log", "sqrt", "asin", "acos", "atan", "sinh", "cosh", "tanh"}
    | {"pi", "True", "False", "Abs"}
)
"""Words that may stand in an answer that is going to be evaluated, besides single letters."""

HARMLESS = re.compile(
    r"(?:\s|[0-9]+(?:\.[0-9]+)?|\.[0-9]+|[-+*/^()\[\],=]|"
    r"(?P<quote>['\"])(?:[A-Za-z0-9_ +-]*|-?[0-9]+\.[0-9]+)(?P=quote)|"
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
    if runs_answers(dataset.__class__) and (reason := not_harmless(answer)) is not None:
        return Verdict(Outcome.WRONG, reason)
    if not_finite(entry["answer"], answer):
        return Verdict(Outcome.WRONG, "no finite number")
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
    for text in NONSENSE:
        if not not_finite(entry["answer"], text) and _scores(dataset, entry, text):
            return Verdict(Outcome.WRONG, f"its scorer takes {text!r}, and so perhaps anything")
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
    """One of a data set's entries, generated again, and the data set that scores it."""
    fields = json.loads(gold)
    options = json.dumps(fields["options"], sort_keys=True)
    dataset = _dataset(fields["dataset"], options, fields["seed"], fields["size"])
    entry: dict[str, Any] = dataset[fields["index"]]
    if entry["answer"] != fields["answer"]:
        raise ValueError(
            f"{fields['dataset']} gives another entry {fields['index']} than when the problem was "
            "made: the installed reasoning-gym is another version"
        )
    if isinstance(dataset, CompositeDataset):
        dataset = dataset.datasets[entry["metadata"]["source_dataset"]]
    return dataset, entry


@lru_cache(maxsize=8)
def _dataset(name: str, options: str, seed: int, size: int) -> Any:
    return create(name, json.loads(options), seed, size)


def create(name: str, options: dict[str, Any], seed: int, size: int) -> Any:
    """A data set; the parts of a composite one are plain tables with name, weight and config.

    Raises:
        TypeError: The data set has no such option.
        ValueError: An option has a value that cannot be.
        AssertionError: Likewise, in reasoning-gym's own words.
    """
    if name == "composite" and "datasets" in options:
        parts = [DatasetSpec(**part) for part in options["datasets"]]
        options = options | {"datasets": parts}
    return reasoning_gym.create_dataset(name, seed=seed, size=size, **options)


@cache
def runs_answers(kind: Any) -> bool:
    """Whether a data set's scorer, or what it may call, evaluates text as a program.

    The library's code is followed by the names in it, whatever they are called on, so that too
    much is followed and not too little. Anything of sympy's counts: its functions parse text.
    """
    classes = [base for base in kind.__mro__ if _of_library(base)]
    waiting: list[Any] = [kind.score_answer, kind.__init__]
    seen = set()
    while waiting:
        function = inspect.unwrap(waiting.pop())
        if not isinstance(function, FunctionType) or function in seen:
            continue
        seen.add(function)
        for name in _names(function.__code__):
            known = function.__globals__.get(name)
            if name == "sympy" or _home(known).partition(".")[0] == "sympy":
                return True
            if name in RUNNERS and not _of_library(known):
                return True
            meant = [vars(base)[name] for base in classes if name in vars(base)]
            if not any(known is base for base in classes):  # their parts are followed by name
                meant.append(known)
            waiting += [part for value in meant for part in _functions(value)]
    return False


def _names(code: CodeType) -> Iterator[str]:
    """The global names and attributes in a function's code and in the functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _functions(value: Any) -> Iterator[Any]:
    """The library's functions that a value is, or holds as a class, property or table."""
    if isinstance(value, type):
        if _of_library(value):
            for part in vars(value).values():
                yield from () if isinstance(part, type) else _functions(part)
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _functions(part) if callable(part) else ()
    elif isinstance(value, property):
        yield value.fget
    elif isinstance(value, classmethod | staticmethod):
        yield value.__func__
    elif callable(value) and _of_library(value):
        yield value


def _of_library(value: Any) -> bool:
    return _home(value).partition(".")[0] == "reasoning_gym"


def _home(value: Any) -> str:
    """The module that a value is, or was defined in."""
    if isinstance(value, ModuleType):
        return value.__name__
    return str(getattr(value, "__module__", ""))


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
