"""Figures of attempts, against published intervals and by hand."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import pytest
from rich.console import Console

from agon.evaluation.protocols import Attempt
from agon.evaluation.statistics import bootstrap_interval, exact_interval, summarise
from agon.evaluation.table import COLUMNS, as_records, render, table_rows
from agon.records import Outcome

OUTCOMES = {"r": Outcome.RIGHT, "w": Outcome.WRONG, "?": Outcome.UNSCORED}


def attempt(problem: int, sample: int, outcome: str, draft: str = "", **more) -> Attempt:
    values = {
        "generated": (10,) if not draft else (10, 5),
        "prompt": (20,) if not draft else (20, 30),
        "truncated": False,
    }
    return Attempt(
        problem=f"p{problem}",
        sample=sample,
        outcome=OUTCOMES[outcome],
        draft_outcome=OUTCOMES[draft] if draft else None,
        answer=None,
        **(values | more),
    )


def attempts(*problems: str, drafts: Sequence[str] | None = None) -> list[Attempt]:
    """One text for each problem with a letter for each sample: right, wrong, ? unscored."""
    return [
        attempt(p, n, letter, drafts[p][n] if drafts else "")
        for p, letters in enumerate(problems)
        for n, letter in enumerate(letters)
    ]


@pytest.mark.parametrize(
    ("right", "of", "low", "high"),
    [
        (0, 10, 0.0, 0.3085),
        (10, 10, 0.6915, 1.0),
        (5, 10, 0.1871, 0.8129),
        (1, 10, 0.0025, 0.4450),
        (300, 1000, 0.2717, 0.3295),
        (0, 1, 0.0, 0.975),
    ],
)
def test_the_exact_interval_is_clopper_and_pearsons(right, of, low, high) -> None:
    assert exact_interval(right, of) == pytest.approx((low, high), abs=5e-5)


def test_one_sample_for_each_problem_takes_the_exact_interval() -> None:
    summary = summarise(attempts(*"rrrrrwwwww"))
    assert (summary.pass_1, summary.k, summary.pass_k) == (0.5, 1, 0.5)
    assert (summary.low, summary.high) == exact_interval(5, 10)


def test_several_samples_take_a_bootstrap_over_problems() -> None:
    tried = attempts("rrww", "rrrr", "wwww", "rwww", "rrrw")
    summary = summarise(tried)
    assert summary.pass_1 == pytest.approx((0.5 + 1 + 0 + 0.25 + 0.75) / 5)
    assert summary.low <= summary.pass_1 <= summary.high
    # Wider than if the samples of a problem were 20 problems of their own
    assert summary.high - summary.low > np.subtract(*exact_interval(10, 20)[::-1])


def test_the_bootstrap_is_seeded() -> None:
    rates = np.random.default_rng(3).uniform(size=30)
    assert bootstrap_interval(rates, 0) == bootstrap_interval(rates, 0)
    assert bootstrap_interval(rates, 0) != bootstrap_interval(rates, 1)


@pytest.mark.parametrize("count", [2, 30, 300])
def test_the_bootstrap_holds_the_mean_and_is_about_the_normal_one(count: int) -> None:
    rates = np.random.default_rng(count).uniform(size=count)
    low, high = bootstrap_interval(rates, 0)
    assert low < rates.mean() < high
    if count > 2:
        half = 1.96 * rates.std() / count**0.5
        assert (low, high) == pytest.approx((rates.mean() - half, rates.mean() + half), abs=0.02)


def test_equal_rates_have_an_interval_of_no_width() -> None:
    assert bootstrap_interval(np.full(9, 0.5), 0) == (0.5, 0.5)


@pytest.mark.parametrize(
    ("problems", "pass_k"),
    [(["rw", "wr", "ww"], 2 / 3), (["ww", "ww"], 0.0), (["rr", "rr"], 1.0), (["w?", "?r"], 0.5)],
)
def test_pass_k_counts_problems_with_one_right_attempt(problems: list[str], pass_k) -> None:
    summary = summarise(attempts(*problems))
    assert summary.k == 2
    assert summary.pass_k == pytest.approx(pass_k)


def test_unscored_attempts_are_left_out_and_counted() -> None:
    summary = summarise(attempts(*"rw??r"))
    assert (summary.problems, summary.unscored) == (3, 2)
    assert summary.pass_1 == pytest.approx(2 / 3)
    assert (summary.low, summary.high) == exact_interval(2, 3)


def test_an_unscored_sample_does_not_weigh_its_problem_down() -> None:
    assert summarise(attempts("r?", "ww")).pass_1 == pytest.approx(0.5)


def test_nothing_scored_is_an_error_and_no_zero() -> None:
    with pytest.raises(ValueError, match="no attempt is scored"):
        summarise(attempts("??"))


def test_conversions_and_regressions_are_shares_of_attempts_with_both_stages_scored() -> None:
    summary = summarise(attempts(*"rwrwr?", drafts="wrrw?w"))
    # wrong->right, right->wrong, right->right, wrong->wrong; the last two are not scored twice
    assert (summary.conversions, summary.regressions) == (0.25, 0.25)
    assert summary.passes == 2
    assert summarise(attempts(*"rw")).conversions is None


def test_tokens_are_means_over_all_attempts_of_all_stages() -> None:
    tried = [
        attempt(0, 0, "r", "w", generated=(10, 4), prompt=(20, 30), truncated=True),
        attempt(1, 0, "?", "w", generated=(30, 6), prompt=(22, 40)),
    ]
    summary = summarise(tried)
    assert (summary.generated, summary.last_length, summary.prompt) == (25.0, 5.0, 56.0)
    assert summary.truncated == 0.5


def test_the_table_has_passes_tokens_and_training_rollouts_for_every_system() -> None:
    summaries = {
        "base": summarise(attempts(*"rwww")),
        "a->b": summarise(attempts(*"rrww", drafts="wrww")),
    }
    base, cascade = table_rows(summaries, {"a->b": 12_800})
    columns = [column.replace("-\n", "").replace("\n", " ") for column in COLUMNS]
    assert dict(zip(columns, base, strict=True)) == {
        "system": "base",
        "passes": "1",
        "pass@1 [95 %]": "25.0 [0.6, 80.6]",
        "tokens written": "10",
        "last stage": "10",
        "tokens read": "20",
        "training rollouts": "0",
        "converted": "",
        "lost": "",
    }
    assert cascade == ["a->b", "2", "50.0 [6.8, 93.2]", "15", "5", "50", "12,800", "25.0", "0.0"]


def test_pass_k_has_a_row_below_its_systems_with_what_k_tries_cost() -> None:
    rows = table_rows({"a": summarise(attempts("rw", "ww"))}, {"a": 10})
    assert rows[1] == ["  pass@2", "2", "50.0", "20", "", "40", "10", "", ""]


def test_nothing_of_the_table_is_cut_in_eighty_columns() -> None:
    drafts = ["ww"] * 1000
    summaries = {
        name: summarise(attempts(*["rw"] * 1000, drafts=drafts)) for name in ("base->base", "a->b")
    }
    console = Console(width=80, file=io.StringIO())
    console.print(render(table_rows(summaries, {"a->b": 1_920_000}), "title"))
    assert "…" not in console.file.getvalue()
    assert "1,920,000" in console.file.getvalue()


def test_the_records_hold_the_same_figures() -> None:
    summary = summarise(attempts(*"rrww"))
    records = as_records({"a": summary}, {"a": 64})
    assert records["a"]["training_rollouts"] == 64
    assert records["a"]["pass_1"] == summary.pass_1
