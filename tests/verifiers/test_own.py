"""A user's own verifier: what it may return, what its failures mean, and how it is found."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agon.config import TaskConfig, VerifierConfig
from agon.errors import ConfigError
from agon.preflight import check_own_verifier
from agon.records import Outcome, Problem
from agon.verifiers import PooledJudge, text

LIMITS = VerifierConfig(workers=1, seconds=2)


@pytest.fixture(scope="module")
def reports() -> list[str]:
    return []


@pytest.fixture(scope="module")
def judge(reports: list[str]) -> Iterator[PooledJudge]:
    with PooledJudge(LIMITS, report=reports.append) as judge:
        yield judge


def problem(function: str, gold: str) -> Problem:
    return Problem(f"{function}-{gold}", "?", gold, f"own_functions:{function}")


@pytest.mark.parametrize(
    ("function", "gold", "right", "wrong"),
    [
        ("folded", "Paris", "pARIS", "Lyon"),
        ("verdict", "a", "a", "b"),
        ("numpy_bool", "0.5", "0.50", "0.6"),
        ("longer", "3", "abc", "ab"),
    ],
)
def test_a_function_decides(
    judge: PooledJudge, function: str, gold: str, right: str, wrong: str
) -> None:
    asked = problem(function, gold)
    verdicts = judge.judge([(asked, right), (asked, wrong), (asked, None)])
    assert [v.outcome for v in verdicts] == [Outcome.RIGHT, Outcome.WRONG, Outcome.WRONG]


def test_its_own_verdict_is_kept_whole(judge: PooledJudge) -> None:
    (verdict,) = judge.judge([(problem("verdict", "a"), "a")])
    assert (verdict.reason, verdict.detail) == ("my rule", "more")


@pytest.mark.parametrize(
    ("function", "words"),
    [("failing", "cannot judge 'b'"), ("says_yes", "returned str, expected a bool")],
)
def test_a_failure_is_unscored_and_tells_all(judge: PooledJudge, function: str, words: str) -> None:
    (verdict,) = judge.judge([(problem(function, "a"), "b")])
    assert verdict.outcome is Outcome.UNSCORED
    assert "Traceback" in verdict.detail
    assert words in verdict.detail


def test_each_failure_is_reported_once(judge: PooledJudge, reports: list[str]) -> None:
    for _ in range(2):
        judge.judge([(problem("failing", "a"), f"b{n}") for n in range(3)])
    assert len([report for report in reports if "ValueError" in report]) == 1
    assert "Traceback" in "".join(reports)


def test_a_check_without_end_is_wrong() -> None:
    with PooledJudge(VerifierConfig(workers=1, seconds=0.5)) as judge:
        (verdict,) = judge.judge([(problem("hanging", "a"), "b")])
    assert verdict.outcome is Outcome.WRONG


def test_a_slow_import_costs_no_check_its_time() -> None:
    asked = Problem("slow", "?", "a", "own_slow:same")
    limits = VerifierConfig(workers=1, seconds=1)
    check_own_verifier(TaskConfig(name="jsonl", path="x", verifier=asked.verifier), limits)
    with PooledJudge(limits) as judge:
        verdicts = judge.judge([(asked, "a"), (asked, "b")])
    assert [v.outcome for v in verdicts] == [Outcome.RIGHT, Outcome.WRONG]
    assert {v.reason for v in verdicts} == {"own_slow:same says so"}


def test_golds_are_checked_against_themselves_unless_they_are_no_answers(
    judge: PooledJudge,
) -> None:
    golds = [problem("folded", "x"), problem("longer", "3"), problem("longer", "three")]
    golds += [problem("numpy_bool", "nan"), problem("failing", "x")]
    verdicts = judge.judge_golds(golds)
    right, wrong, unscored = Outcome.RIGHT, Outcome.WRONG, Outcome.UNSCORED
    assert [v.outcome for v in verdicts] == [right, right, unscored, wrong, right]
    assert "numpy_bool.gold_is_answer = False" in verdicts[3].reason


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("nowhere_at_all:verify", "No module named 'nowhere_at_all'"),
        ("own_functions:missing", "has no attribute 'missing'"),
        ("own_functions:one_argument", "too many positional arguments"),
        ("own_functions:constant", "is int, expected a function"),
        ("own_exit:verify", "SystemExit: 3"),
    ],
)
def test_a_function_that_cannot_be_used_is_refused_by_name(spec: str, words: str) -> None:
    with pytest.raises(ConfigError, match=r"task\.verifier") as refused:
        check_own_verifier(TaskConfig(name="jsonl", path="x", verifier=spec), LIMITS)
    assert spec in str(refused.value)
    assert words in str(refused.value)


@pytest.mark.parametrize("spec", ["own_functions:folded", "math", "text", None])
def test_what_can_be_used_passes(spec: str | None) -> None:
    check_own_verifier(TaskConfig(name="jsonl", path="x", verifier=spec), LIMITS)


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        ("New York", " New\n York ", True),
        ("12", "\uff11\uff12", True),
        ("New York", "new york", False),
        ("New York", "NewYork", False),
        ("yes", "yes.", False),
    ],
)
def test_the_text_verifier_compares_texts(gold: str, answer: str, right: bool) -> None:
    assert text.verify(gold, answer).correct == right


def test_a_blank_gold_is_no_gold() -> None:
    assert text.verify_gold(" \n").outcome is Outcome.WRONG
