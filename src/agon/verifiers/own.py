"""A verifier of the user's own, named `package.module:function`.

The function is called with the gold answer and the reply's answer block, both texts, and returns a
bool or a `Verdict`. It runs in a worker process with the time and memory limit of `[verifier]`,
never in the trainer; the current directory counts for its import. What it raises leaves the reply
unscored.

    def verify(gold: str, answer: str) -> bool:
        return answer.casefold() == gold.casefold()

Golds are checked with verify(gold, gold), which must be right. Where a gold is no answer (a
pattern, a list of tests), the function says so with `verify.gold_is_answer = False`; then the
check is only that verify(gold, "") raises nothing.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from agon.records import Outcome, Verdict
from agon.verifiers.base import Prepared, Verifier

GOLD_IS_ANSWER = "gold_is_answer"
"""Attribute by which a function says that its golds are no answers."""


def verifier_of(spec: str) -> Verifier:
    """How the answers of a problem with such a verifier are judged."""
    return Verifier(
        quick=_needs_a_worker,
        quick_gold=_gold_needs_a_worker,
        function="agon.verifiers.own.verify",
        gold_function="agon.verifiers.own.verify_gold",
        arguments=(spec,),
    )


def _verify(spec: str, gold: str, answer: str) -> Verdict:
    """Call the user's function.

    Raises:
        TypeError: It returned neither a bool nor a `Verdict`.
        Exception: Whatever it raises.
    """
    return _verdict(spec, _function(spec)(gold, answer))


def _verify_gold(spec: str, gold: str) -> Verdict:
    """Whether answers can be judged against a gold answer.

    Raises:
        TypeError: It returned neither a bool nor a `Verdict`.
        Exception: Whatever it raises.
    """
    function = _function(spec)
    if not getattr(function, GOLD_IS_ANSWER, True):
        _verdict(spec, function(gold, ""))
        return Verdict(Outcome.RIGHT, "the verifier takes it")
    verdict = _verdict(spec, function(gold, gold))
    if verdict.outcome is not Outcome.WRONG:
        return verdict
    return Verdict(
        Outcome.WRONG,
        f"{spec} calls the gold answer itself wrong; if its golds are no answers, set "
        f"{spec.rpartition(':')[2]}.{GOLD_IS_ANSWER} = False",
    )


def _check(spec: str) -> Verdict:
    """Look at the function.

    Raises:
        TypeError: It cannot be called with a gold answer and an answer.
    """
    function = _function(spec)
    if not callable(function):
        raise TypeError(f"{spec} is {type(function).__name__}, expected a function")
    inspect.signature(function).bind("gold", "answer")
    return Verdict(Outcome.RIGHT, "found")


@cache
def _function(spec: str) -> Callable[[str, str], Any]:
    """The user's function.

    Raises:
        Exception: Whatever the import raises.
    """
    # A console script has its own folder on the path, and not the one that it is called from.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    module, _, name = spec.partition(":")
    function: Callable[[str, str], Any] = getattr(importlib.import_module(module), name)
    return function


verify = Prepared(_function, _verify)
verify_gold = Prepared(_function, _verify_gold)
check = Prepared(_function, _check)
"""What workers are asked to do; the user's import, which may be slow, costs no check its time."""


def _verdict(spec: str, result: Any) -> Verdict:
    if isinstance(result, Verdict):
        return result
    if type(result).__module__ == "numpy" and isinstance(result.item(), bool):
        result = result.item()  # what a comparison of NumPy numbers gives
    if not isinstance(result, bool):
        raise TypeError(
            f"{spec} returned {type(result).__name__}, expected a bool or an agon.records.Verdict"
        )
    return Verdict(Outcome.RIGHT if result else Outcome.WRONG, f"{spec} says so")


def _needs_a_worker(gold: str, answer: str) -> None:
    """The user's code runs in a worker alone."""


def _gold_needs_a_worker(gold: str) -> None:
    """As for answers."""
