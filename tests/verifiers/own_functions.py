"""Verifiers of a user's own, good and bad, for the tests."""

from __future__ import annotations

from typing import Any

import numpy

from agon.records import Outcome, Verdict


def folded(gold: str, answer: str) -> bool:
    return gold.casefold() == answer.casefold()


def verdict(gold: str, answer: str) -> Verdict:
    return Verdict(Outcome.RIGHT if gold == answer else Outcome.WRONG, "my rule", detail="more")


def numpy_bool(gold: str, answer: str) -> Any:
    return numpy.isclose(float(gold), float(answer))


def longer(gold: str, answer: str) -> bool:
    """Its golds are least lengths, which are no answers."""
    return len(answer) >= int(gold)


longer.gold_is_answer = False  # type: ignore[attr-defined]


def failing(gold: str, answer: str) -> bool:
    if gold != answer:
        raise ValueError(f"cannot judge {answer!r}")
    return True


def says_yes(gold: str, answer: str) -> Any:
    return "yes"


def one_argument(gold: str) -> bool:
    return True


def hanging(gold: str, answer: str) -> bool:
    while True:
        pass


constant = 3
