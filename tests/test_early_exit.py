"""The cost of `--early-exit`, from an evaluation's records, on cases counted by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def under_the_rule(monkeypatch: pytest.MonkeyPatch) -> Any:
    folder = Path(__file__).resolve().parents[1] / "benchmarks"
    if not folder.is_dir():
        pytest.skip("the benchmarks are not part of this copy")
    monkeypatch.syspath_prepend(str(folder))
    import early_exit

    return early_exit.under_the_rule


def tries(*cases: tuple[str | None, str, int]) -> list[dict[str, Any]]:
    """(answer, outcome, tokens) of samples 0 and 1 of each problem in turn."""
    return [
        {"problem": f"p{i // 2}", "sample": i % 2, "answer": answer, "outcome": outcome,
         "generated": [tokens]}
        for i, (answer, outcome, tokens) in enumerate(cases)
    ]  # fmt: skip


def pairs(*cases: tuple[str, str, int, int]) -> list[dict[str, Any]]:
    return [
        {"problem": f"p{i // 2}", "sample": i % 2, "answer": answer, "outcome": outcome,
         "generated": [draft, challenge]}
        for i, (answer, outcome, draft, challenge) in enumerate(cases)
    ]  # fmt: skip


NOTHING: tuple[str | None, str, int] = (None, "wrong", 1)


def test_agreement_takes_the_draft_and_disagreement_the_cascade(under_the_rule: Any) -> None:
    """p0: both drafts say x, wrong, and the challenge would have converted it. p1: they differ."""
    attempts = {
        "a": tries(("x", "wrong", 10), NOTHING, ("u", "wrong", 10), NOTHING),
        "b": tries(NOTHING, ("x", "wrong", 14), NOTHING, ("v", "wrong", 6)),
        "a->b": pairs(("y", "right", 10, 20), ("", "wrong", 0, 0), ("w", "right", 10, 30),
                      ("", "wrong", 0, 0)),
    }  # fmt: skip
    found = under_the_rule(attempts, "a->b")
    assert found.cascade == 1.0
    assert found.rule == 0.5
    assert found.difference.mean == -0.5
    assert found.skipped == 0.5
    assert found.skipped_right == 0.0
    assert found.tokens == ((30 + 40) / 2, (10 + 14 + 10 + 6 + 30) / 2)
    assert found.waited == ((30 + 40) / 2, (14 + 10 + 30) / 2)


def test_drafts_without_an_answer_never_agree(under_the_rule: Any) -> None:
    attempts = {
        "a": tries(NOTHING, NOTHING),
        "b": tries(NOTHING, NOTHING),
        "a->b": pairs(("y", "right", 1, 2), ("y", "right", 1, 2)),
    }
    found = under_the_rule(attempts, "a->b")
    assert (found.skipped, found.rule) == (0.0, 1.0)
    assert math.isnan(found.skipped_right)


def test_one_sample_a_problem_is_not_enough(under_the_rule: Any) -> None:
    attempts = {name: tries(NOTHING)[:1] for name in ("a", "b")}
    attempts["a->b"] = pairs(("y", "right", 1, 2))
    with pytest.raises(ValueError, match="--samples 2"):
        under_the_rule(attempts, "a->b")
