"""Countdown against an independent brute force."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agon.records import Problem
from agon.tasks.countdown import (
    apply,
    enumerate_problems,
    evaluate,
    make_problem,
    read_question,
    solutions,
    verify,
)
from agon.tasks.splits import Split


@pytest.fixture(scope="module")
def problems() -> dict[Split, list[Problem]]:
    return {split: list(enumerate_problems(split)) for split in Split}


def reachable(numbers: tuple[int, ...]) -> dict[int, str]:
    """Every value that a chain over the numbers reaches, by Python's own arithmetic.

    Intermediate values may be anything here, as the verifier allows.
    """
    found = {}
    for x, y, z in itertools.permutations(numbers):
        for first, second in itertools.product("+-*", repeat=2):
            found[eval(f"({x}{first}{y}){second}{z}")] = f"{x}{first}{y}{second}{z}"
    return found


def test_every_problem_has_a_solution_that_the_verifier_accepts(
    problems: dict[Split, list[Problem]],
) -> None:
    for problem in itertools.chain(*problems.values()):
        numbers, target = read_question(problem.question)
        chain = solutions(numbers, target)[0]
        assert verify(problem.gold, "".join(map(str, chain))).correct


def test_every_problem_is_reachable_by_brute_force(problems: dict[Split, list[Problem]]) -> None:
    for problem in itertools.chain(*(some[::17] for some in problems.values())):
        numbers, target = read_question(problem.question)
        assert target in reachable(numbers)
        assert target not in numbers
        assert 1 <= target <= 99


numbers_1_20 = st.tuples(*[st.integers(1, 20)] * 3).map(lambda some: tuple(sorted(some)))


@settings(max_examples=200, deadline=None)
@given(
    numbers_1_20,
    st.integers(0, 99),
    st.permutations(range(3)),
    st.text("+-*", min_size=2, max_size=2),
)
def test_the_verifier_agrees_with_python(
    numbers: tuple[int, int, int], target: int, order: list[int], operators: str
) -> None:
    x, y, z = (numbers[index] for index in order)
    answer = f"{x} {operators[0]} {y}{operators[1]} {z}"
    expected = eval(f"({x}{operators[0]}{y}){operators[1]}{z}") == target
    assert bool(verify(make_problem(numbers, target).gold, answer).correct) == expected


@settings(max_examples=50, deadline=None)
@given(numbers_1_20)
def test_solutions_miss_nothing_within_the_range(numbers: tuple[int, int, int]) -> None:
    for target in range(1, 100):
        brute = {
            chain
            for x, y, z in itertools.permutations(numbers)
            for chain in [(x, f, y, s, z) for f in "+-*" for s in "+-*"]
            if evaluate(chain)[1] == target and all(0 <= value <= 99 for value in evaluate(chain))
        }
        assert set(solutions(numbers, target)) == brute


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "22",
        "5*3",
        "5*3+7+0",
        "5*3+7=22",
        "5*3+8",
        "5*5+7",
        "(5*3)+7",
        "3*5+7.0",
        "15+7",
        "5\u00d73+7",
        "\u0665*3+7",
        "5*3+7; 5*3+7",
        "7+5*3",  # from left to right this is 36
        "5**3+7",
        "5*3--7",
        "__import__('os')",
        "9" * 10_000 + "*3+7",
    ],
)
def test_these_answers_are_wrong(answer: str) -> None:
    assert not verify("22 from 3,5,7", answer).correct


def test_white_space_and_order_do_not_matter() -> None:
    assert verify("22 from 3,5,7", " 3 * 5\n + 7 ").correct
    assert verify("22 from 3,5,7", "5*3+7").correct


def test_a_repeated_number_must_be_used_as_often_as_it_is_given() -> None:
    assert verify("20 from 2,5,5", "5+5*2").correct
    assert not verify("9 from 2,5,5", "5+2+2").correct
    assert not verify("7 from 2,5,5", "5+2").correct


def test_questions_read_back(problems: dict[Split, list[Problem]]) -> None:
    for problem in problems[Split.DEV]:
        numbers, target = read_question(problem.question)
        assert make_problem(numbers, target) == problem


@pytest.mark.parametrize("text", ["", "make 22", "make 22 from 3,5", "make x from 3,5,7"])
def test_a_question_of_another_form_is_refused_with_the_expected_form(text: str) -> None:
    with pytest.raises(ValueError, match="expected the form"):
        read_question(text)


def test_operators_are_those_of_arithmetic() -> None:
    assert [apply(7, operator, 3) for operator in "+-*"] == [10, 4, 21]
