"""Countdown: reach a target from three numbers, each used once. Generated, exactly verified.

An answer is a chain such as `5*3+7`, evaluated from left to right without precedence, with the
operators + - *. Every chain's values stay within 0..99. The set of all problems is enumerated,
so the splits are exact: no problem of one split occurs in another, in whatever order its
numbers are shown.

What this module does not do: parentheses, division, precedence.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator
from functools import cache

from agon.records import Outcome, Problem, Verdict
from agon.tasks.splits import Split, split_of, stable_id

LARGEST_VALUE = 99
OPERATORS = "+-*"
_CHAIN = re.compile(r"(\d{1,4})([+\-*])(\d{1,4})([+\-*])(\d{1,4})", re.ASCII)
_QUESTION = re.compile(r"make (\d{1,4}) from (\d{1,4}),(\d{1,4}),(\d{1,4})", re.ASCII)

Chain = tuple[int, str, int, str, int]


def apply(left: int, operator: str, right: int) -> int:
    """One operation of a chain, on exact integers."""
    if operator == "+":
        return left + right
    return left - right if operator == "-" else left * right


def evaluate(chain: Chain) -> tuple[int, int]:
    """Values after the first and the second operation, from left to right."""
    first = apply(chain[0], chain[1], chain[2])
    return first, apply(first, chain[3], chain[4])


@cache
def chains(numbers: tuple[int, int, int]) -> tuple[Chain, ...]:
    """Every distinct chain over sorted numbers whose values stay within 0..LARGEST_VALUE."""
    return tuple(
        (x, first, y, second, z)
        for x, y, z in sorted(set(itertools.permutations(numbers)))
        for first in OPERATORS
        for second in OPERATORS
        if all(0 <= value <= LARGEST_VALUE for value in evaluate((x, first, y, second, z)))
    )


def solutions(numbers: tuple[int, int, int], target: int) -> list[Chain]:
    """The chains over sorted numbers that reach the target."""
    return [chain for chain in chains(numbers) if evaluate(chain)[1] == target]


def enumerate_problems(split: Split, largest: int = 20) -> Iterator[Problem]:
    """All problems of a split, in a fixed order: numbers 1..largest, reachable targets 1..99.

    Targets that are one of the three numbers are left out: most of them are trivial.
    """
    for numbers in itertools.combinations_with_replacement(range(1, largest + 1), 3):
        targets = {evaluate(chain)[1] for chain in chains(numbers)} - {0, *numbers}
        for target in sorted(targets):
            key = f"{target} from {','.join(map(str, numbers))}"
            if split_of(f"countdown:{key}") is split:
                yield make_problem(numbers, target)


def make_problem(numbers: tuple[int, int, int], target: int) -> Problem:
    """The problem of sorted numbers and target; the order they are shown in hangs on both alone."""
    key = f"{target} from {','.join(map(str, numbers))}"
    shown = list(numbers)
    random.Random(f"countdown:{key}").shuffle(shown)
    question = f"make {target} from {','.join(map(str, shown))}"
    return Problem(stable_id("countdown", key), question, f"{key}", "countdown")


def read_question(question: str) -> tuple[tuple[int, int, int], int]:
    """Sorted numbers and target of a question's text.

    Raises:
        ValueError: The text is not of the form `make 22 from 3,5,7`.
    """
    match = _QUESTION.fullmatch(question.strip())
    if match is None:
        raise ValueError(
            f"countdown question: got {question[:60]!r}, expected the form 'make 22 from 3,5,7'"
        )
    target, *numbers = (int(group) for group in match.groups())
    low, middle, high = sorted(numbers)
    return (low, middle, high), target


def verify(gold: str, answer: str) -> Verdict:
    """Judge an answer block: the chain must use each number once and reach the target.

    Args:
        gold: `22 from 3,5,7`, the numbers sorted.
        answer: Content of the reply's answer block.
    """
    match = _CHAIN.fullmatch("".join(answer.split()))
    if match is None:
        return Verdict(Outcome.WRONG, "not a chain of three numbers")
    x, first, y, second, z = match.groups()
    target_text, _, numbers_text = gold.partition(" from ")
    if sorted(map(int, (x, y, z))) != [int(number) for number in numbers_text.split(",")]:
        return Verdict(Outcome.WRONG, "does not use each number once")
    _, value = evaluate((int(x), first, int(y), second, int(z)))
    if value != int(target_text):
        return Verdict(Outcome.WRONG, f"evaluates to {value}")
    return Verdict(Outcome.RIGHT, "reaches the target")
