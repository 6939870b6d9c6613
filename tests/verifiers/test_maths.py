"""Mathematical answers: collected cases, bounds on text, and what must never be equal."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agon.config import VerifierConfig
from agon.records import Outcome, Problem
from agon.verifiers import PooledJudge, comparing, maths, numbers
from agon.verifiers.bounds import MAX_CHARACTERS, over_bounds
from agon.verifiers.extraction import extract
from agon.verifiers.maths import undress, verify, verify_gold, verify_quickly
from agon.verifiers.notation import tidy

SECONDS = 2.0

OWN_CASES = Path(__file__).with_name("maths_cases.jsonl")
"""Cases of this project's own, written without a look at the rules that they test."""


@pytest.fixture(scope="module")
def cases(shared_data: Path) -> list[dict[str, Any]]:
    lines = (shared_data / "verifier_cases.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [row for row in rows if row["pred_kind"] == "answer"]


@pytest.fixture(scope="module")
def judge() -> Any:
    with PooledJudge(VerifierConfig(workers=1, seconds=SECONDS)) as judge:
        yield judge


def right(gold: str, answer: str) -> bool:
    return verify(gold, answer).outcome is Outcome.RIGHT


def test_uncontested_cases_are_decided_rightly(cases: list[dict[str, Any]]) -> None:
    chosen = [row for row in cases if not row["contested"] and not row["bounded"]]
    assert len(chosen) == 186
    verdicts = {row["id"]: verify(row["gold"], row["pred"]) for row in chosen}
    wrong = [row["id"] for row in chosen if verdicts[row["id"]].correct != row["equal"]]
    assert wrong == []
    assert all(verdict.scored and verdict.reason for verdict in verdicts.values())


def own_cases(kind: str, bounded: bool) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in OWN_CASES.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if row["pred_kind"] == kind and row["bounded"] == bounded]


def test_our_own_cases_are_decided_rightly() -> None:
    rows = own_cases("answer", bounded=False)
    assert len(rows) > 450
    assert [r["id"] for r in rows if verify(r["gold"], r["pred"]).correct != r["equal"]] == []


def test_both_kinds_of_error_are_in_the_cases() -> None:
    """A verifier that always says right, or always wrong, fails on many."""
    rows = own_cases("answer", bounded=False)
    assert 200 < sum(row["equal"] for row in rows) < len(rows) - 200


def test_claims_in_running_text_are_found(shared_data: Path) -> None:
    lines = (shared_data / "verifier_cases.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if row["pred_kind"] == "completion"]
    rows = [row for row in rows if not row["contested"]] + own_cases("completion", bounded=False)
    assert len(rows) > 90
    for row in rows:
        answer = extract(row["pred"]).answer
        right = answer is not None and verify(row["gold"], answer).correct == 1
        assert right == row["equal"], row


def test_hostile_answers_are_wrong_within_the_limit(
    cases: list[dict[str, Any]], judge: PooledJudge
) -> None:
    bounded = [row for row in cases if row["bounded"]]
    assert len(bounded) == 24
    judge.judge([(Problem("warm", "?", "1/2", "math"), "0.5")])
    for row in bounded:
        begin = time.monotonic()
        verdict = judge.judge([(Problem(row["id"], "?", row["gold"], "math"), row["pred"])])[0]
        # Two attempts and the start of the second one's worker.
        assert time.monotonic() - begin < 2 * (SECONDS + 1) + 2, row["id"]
        assert verdict.scored, row["id"]
        if not row["contested"]:
            assert verdict.correct == row["equal"], row["id"]


def test_no_text_is_run(tmp_path: Path, judge: PooledJudge) -> None:
    marker = tmp_path / "marker"
    for text in (
        f"__import__('os').system('touch {marker}')",
        f"$__import__('pathlib').Path('{marker}').touch()$",
        f"\\text{{__import__('os').system('touch {marker}')}}",
        f"1+__import__('os').system('touch {marker}')",
    ):
        judge.judge([(Problem("p", "?", "0", "math"), text)])
    assert not marker.exists()


@pytest.mark.parametrize(
    "text",
    [
        "9^9^9^9",
        "9**9**9**9",
        r"2^{10^{8}}",
        r"\left(9^{999}\right)^{999}",
        r"x^{10^{7}}",
        "1000000!",
        "9!!!",
        "(10!)!",
        r"\binom{10^9}{5}",
        r"\dbinom{123456}{61728}",
        r"\sum_{n=1}^{10^{12}} n",
        "(" * 31 + "1" + ")" * 31,
        r"\frac{1}{" * 31 + "2" + "}" * 31,
        "9" * 201,
        "1+" * MAX_CHARACTERS,
        "^" * 1999,
        "9^" * 999 + "9",
    ],
)
def test_what_would_grow_too_large_is_over_a_bound(text: str) -> None:
    assert over_bounds(text) is not None
    assert verify("1", text).outcome is Outcome.WRONG


@pytest.mark.parametrize(
    "text",
    [
        r"2^{2^{2^{2}}}",
        r"e^{e^{x}}",
        r"e^{-x^{2}}",
        r"x^{2000}",
        r"2^{2005}+1",
        "100!",
        "5!!",
        r"\binom{2n}{n}",
        r"\binom{1000}{500}",
        r"\sum_{k=0}^{2024} k",
        r"6.02 \times 10^{23}",
        r"10^{-15}",
        r"\int_0^{\infty} e^{-t} t^{n-1} \, dt",
        r"(-\infty,1) \cup [2,3)",
        ")" * 100,
    ],
)
def test_ordinary_mathematics_is_within_the_bounds(text: str) -> None:
    assert over_bounds(text) is None


@settings(max_examples=300, deadline=500)
@given(st.text(st.sampled_from("0123456789^*!(){}[]\\_+-e x.$") | st.characters(), max_size=300))
def test_the_quick_look_at_a_text_never_fails(text: str) -> None:
    for gold in ("1", r"\frac{1}{2}", "Yes", text):
        verify_quickly(gold, text)


@pytest.mark.parametrize("text", ["0" * 200_000 + "x", "," * 200_000, "{" * 200_000, "$" * 200_000])
def test_the_quick_look_at_a_long_text_is_quick(text: str) -> None:
    begin = time.monotonic()
    assert not verify_quickly("12", text).correct  # type: ignore[union-attr]
    assert time.monotonic() - begin < 0.5


@settings(max_examples=100, deadline=None)
@given(st.integers(), st.integers())
def test_integers_are_equal_as_numbers(first: int, second: int) -> None:
    assert right(str(first), f"{second:,}") == (first == second)
    assert right(str(first), f"$ {first:,} $.")
    assert right(str(first), f"{first:+}".replace("+", "+000").replace("-", "-000"))


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("No", "oN"),  # as mathematics a product of the same letters
        ("Yes", "Yes and no"),
        ("12", "1 2"),
        ("12", "12, 13"),
        (r"1+\mathrm{e}^{2}", r"1+\mathrm{e}^{3}"),  # math-verify reads `1` out of both
        (r"2\aleph_0 + 7", r"3\aleph_0 + 7"),
        ("5", ""),
        ("5", "  . "),
        ("5", r"\text{}"),
        ("3", "the answer might be 3"),
    ],
)
def test_these_are_never_right(gold: str, answer: str) -> None:
    assert not right(gold, answer)


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("72", "$72"),
        ("72", "$72$"),
        ("72", "72.0"),
        ("72", "72."),
        ("Yes", r"$\text{yes}$."),
        (r"\frac{1}{2}", "1/2"),
        (r"\frac{1}{2}", r"\( \frac12 \)"),
        (r"\frac{1}{2}", "\\frac{1}\n{2}"),
        (r"x^2-1", "(x-1)(x+1)"),
    ],
)
def test_these_are_right(gold: str, answer: str) -> None:
    assert right(gold, answer)


def test_a_gold_answer_that_cannot_be_read_leaves_the_reply_unscored() -> None:
    assert verify(r"\frac{1", "0.5").outcome is Outcome.UNSCORED
    assert verify(r"9^{9^{9}}", "0.5").outcome is Outcome.UNSCORED


def test_undressing_takes_off_no_more_than_the_dress() -> None:
    assert undress(r" $\text{Yes}.$ ") == "Yes"
    assert undress("$5$ or $6$") == "$5$ or $6$"
    assert undress("$") == "$"
    assert undress(".") == ""


def test_the_golds_of_math500_verify_against_themselves(shared_data: Path) -> None:
    lines = (shared_data / "math500" / "test.jsonl").read_text(encoding="utf-8").splitlines()
    golds = [json.loads(line)["answer"] for line in lines]
    assert len(golds) == 500
    assert [gold for gold in golds if not verify_gold(gold).correct] == []


def test_the_quick_look_needs_no_symbolic_library() -> None:
    code = (
        "import sys; from agon.verifiers import PooledJudge, maths; "
        "maths.verify_quickly('1/2', '0.5'); "
        "sys.exit(bool({'sympy', 'math_verify', 'torch', 'datasets'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# The rules for what people disagree about; docs/verifiers.md gives the reasons


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        # A comma list is a set: order and repeats do not count. A tuple is ordered.
        ("10, 4, -2", "4, 10, -2", True),
        ("(1, 2)", "(2, 1)", False),
        # Units are dropped, but two known units must agree; nothing is converted.
        ("10", r"10 \text{ cm}", True),
        (r"5 \text{ meters}", r"5 \text{ feet}", False),
        (r"5 \text{ m}", r"500 \text{ cm}", False),
        (r"12 \text{ apples}", "12 pears", True),
        ("15 cm^2", "15 square centimeters", True),
        (r"\$5", "5 euros", False),
        # A percentage is its number, and its value.
        (r"10\%", "10", True),
        (r"10\%", "0.1", True),
        (r"20\%", r"\frac{20}{100}", True),
        (r"10\%", "0.01", False),
        ("10", r"10\%", True),
        ("0.1", r"10\%", True),
        ("0.1", r"0.1\%", False),
        # Decimals: at least six digits, rounded or cut off.
        (r"\frac{1}{3}", "0.333", False),
        (r"\frac{1}{3}", "0.333333", True),
        (r"\frac{2}{3}", "0.666667", True),
        (r"\frac{2}{3}", "0.666666", True),
        (r"\frac{2}{3}", "0.666665", False),
        ("0.5", "0.500001", False),
        (r"\pi", "3.14", False),
        (r"\pi", "3.14159", True),
        (r"\pi", "3.141593", True),
        (r"40\pi", "125.663", True),
        ("1000.99", "1000,99", False),
        # Yes is true and no is false; an explained answer counts, a hedged one does not.
        ("True", "Yes", True),
        ("No", "False", True),
        ("No", "No, it does not converge.", True),
        ("No", "No, yes", False),
        ("No", "Not necessarily", False),
        ("Yes", "Yes and no", False),
        # Relation and set, degrees and radians: the same thing in two notations.
        ("(0, 12.5)", "0 < x < 12.5", True),
        (r"(-\infty, 3)", "x<3", True),
        (r"\frac{\pi}{2}", r"90^\circ", True),
        (r"90^\circ", r"\frac{\pi}{2}", True),
        (r"90^\circ", "90", True),
        (r"90^\circ", r"90\pi", False),
        # A numeral of another base: the digits count, the value in base ten does not.
        ("204_5", "204", True),
        ("204_5", "54", False),
        # Renaming makes another equation; unknowns may be negative; factorials are no cries.
        ("m^2 + 1 = 0", "r^2 + 1 = 0", False),
        (r"\sqrt{\frac{1}{n}}", r"\frac{1}{\sqrt{n}}", False),
        ("42", "42!", False),
        # Characters: compatibility forms are folded, digits of other scripts are no digits.
        ("42", "\uff14\uff12", True),
        ("1/2", "\u00bd", True),
        ("x^2", "x\u00b2", True),
        ("12", "1\u200b2", True),
        ("42", "\u0664\u0662", False),
        # Words: letter case, articles and dress do not count; letters do.
        ("the derivative", "derivative", True),
        (r"\text{Evelyn}", "Nyleve", False),
        ("C", r"\textbf{(C)}\ 27", True),
        ("C", r"(C) or (D)", False),
        # Notation that no mathematics is done on is compared as text.
        (r"O(\log \log n)", r"\Theta(\log \log n)", False),
        (r"\mathbb{Z}_2", r"\mathbb{Z}/2\mathbb{Z}", True),
        (r"1, 2, \ldots, n", r"1,2,\dots,n", True),
        (r"\forall x, x \geq 0", r"\exists x, x \geq 0", False),
    ],
)
def test_a_contested_kind_follows_its_rule(gold: str, answer: str, right: bool) -> None:
    assert verify(gold, answer).correct == right


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        ("5", r"5 \text{ is wrong}", False),
        ("5", r"5\text{ not}", False),
        ("3", "1=2=3", False),
        ("3", "1=3", False),
        ("x=3", "x=1=2=3", False),
        ("120", "5! = 120", True),
        ("x = 11", "x = 5+6 = 11", True),
        ("e^{1000}", "e^{1000}+1", False),
        ("10000000000000000.5", "10000000000000000.6", False),
        ("f'(x)", "f(x)", False),
        ("A^T", "A", False),
        ("A^T B", "A^TB", True),
        (r"\{1,2\}", "(1,2)", False),
        ("(1,2)", r"\{1,2\}", False),
        ("1, 1, 2", "1, 2, 2", False),
        (r"\{0,1\}", r"\{0,0,1\}", True),
        ("ddo", r"\text{odd}", False),
        ("On", "No", False),
        (r"\sqrt{2}", "1.4142135623730951", True),
        (r"\frac{1}{3}", "0.3333333333333333", True),
        ("1.5", "1.5000000000000002", False),
        ("2x > 6", "x > 3", True),
        ("2x < 6", "x > 3", False),
        ("17", "17,", True),
        (r"\ln c", "ln(c)", True),
    ],
)
def test_what_a_reviewer_tried_comes_out_right(gold: str, answer: str, right: bool) -> None:
    assert verify(gold, answer).correct == right


@pytest.mark.parametrize(
    ("text", "claim"),
    [
        (r"So \boxed{42}. No, that is wrong.", None),
        ("It is unclear whether the answer is yes.", None),
        ("### Final Answer\n73", "73"),
        ("The correct option is (B).", "(B)"),
        ("Thus she has 8 apples.", "8 apples"),
        (r"\boxed{1} and \boxed{2}", "1, 2"),
        (r"\boxed{\frac{1}{", None),
        (r"\fbox{8}", "8"),
        ("<think>The answer is 5.", None),
        ("<think>5</think><answer>6</answer>", "6"),
        ("<think>5</think><answer>6</answer><answer>7</answer>", None),
    ],
)
def test_a_claim_in_running_text(text: str, claim: str | None) -> None:
    assert extract(text).answer == claim


@settings(max_examples=60, deadline=None)
@given(
    st.fractions(max_denominator=200).filter(lambda f: abs(f) < 10**6),
    st.fractions(max_denominator=200).filter(lambda f: abs(f) < 10**6),
)
def test_the_quick_path_never_contradicts_the_symbolic_one(
    first: Fraction, second: Fraction
) -> None:
    for gold, answer in itertools.product(ways_to_write(first), ways_to_write(second)):
        quick = verify_quickly(gold, answer)
        assert quick is not None
        assert quick.correct == (first == second)
        assert maths._compare(tidy(gold), tidy(answer)).correct == quick.correct


def ways_to_write(value: Fraction) -> list[str]:
    sign = "-" if value < 0 else ""
    top, bottom = abs(value.numerator), value.denominator
    ways = [f"{sign}{top}/{bottom}", rf"{sign}\frac{{{top}}}{{{bottom}}}"]
    return ways + ([f"{sign}{top}", f"{sign}{top}.0"] if bottom == 1 else [])


@settings(max_examples=100, deadline=None)
@given(st.integers(-(10**30), 10**30), st.integers(6, 25))
def test_a_decimal_stands_for_what_rounds_or_is_cut_to_it(numerator: int, places: int) -> None:
    value = Fraction(numerator, 3 * 10**28 + 7)
    unit = Fraction(1, 10**places)
    for steps in (math.floor(abs(value) / unit), math.floor(abs(value) / unit + Fraction(1, 2))):
        plain = numbers.Plain(steps * unit if value >= 0 else -steps * unit, places, 10)
        assert numbers.stands_for(plain, value)
        off = numbers.Plain(plain.value + 2 * unit, places, 10)
        assert not numbers.stands_for(off, value)


def test_no_text_reaches_a_parser_of_python_expressions(
    cases: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """sympify of a text and math-verify's plain expressions both end in `parse_expr`, and eval."""
    import math_verify.parser
    import sympy.parsing.sympy_parser as sympy_parser

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a text was about to be run")

    for module in (sympy_parser, math_verify.parser):
        monkeypatch.setattr(module, "parse_expr", refuse)
    monkeypatch.setattr(sympy_parser, "eval_expr", refuse)
    rows = [row for row in cases if not row["bounded"]] + own_cases("answer", bounded=False)
    hostile = ["exit()", "__import__('os')", "().__class__", "eval('1')", "lambda: 0", "1;2"]
    pairs = [(row["gold"], row["pred"]) for row in rows] + [("0", text) for text in hostile]
    for gold, answer in pairs:
        assert "AssertionError" not in verify(gold, answer).reason
        comparing.read(maths._readable(tidy(answer)))


@pytest.mark.parametrize(
    "piece",
    ["sqrt(", "\\frac{", "1 1/", "^(", "x^", "or ", " and ", "1,", "\\text{", "1e1 ", "\\$", "_{2}",
     "0.\\overline{1}", "[[1],", "(A) ", "yes, ", "\\left[", "\u00b2", "$", "**", "{", "1 000 "],
)  # fmt: skip
def test_text_rules_stay_quick_on_what_repeats(piece: str) -> None:
    text = (piece * MAX_CHARACTERS)[:MAX_CHARACTERS]
    begin = time.monotonic()
    for gold in ("12", r"\frac{1}{2}", "Yes", "C", "204_5", text[:-1]):
        verify_quickly(gold, text)
    maths.latex(tidy(text))
    extract(text * 50)
    assert time.monotonic() - begin < 10


def test_the_detail_tells_how_both_were_read() -> None:
    verdict = verify("10", r"$9 \text{ cm}$.")
    assert verdict.reason == "different numbers"
    assert verdict.detail == "gold read as 10\nanswer read as 9 in cm"


def test_gold_answers_are_told_apart() -> None:
    assert verify_gold("12").reason == "a plain number"
    assert verify_gold("Evelyn").reason == "judged as text"
    assert verify_gold(r"\sqrt{2}").reason == "equal"
    assert verify_gold(r"\frac{1").outcome is Outcome.WRONG
    assert verify_gold(" ").outcome is Outcome.WRONG
    assert verify_gold(r"9^{9^{9}}").outcome is Outcome.WRONG
