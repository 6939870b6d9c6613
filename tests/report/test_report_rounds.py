"""Rounds in the page: what each is, what fits, and that no text gets out of its place."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agon.experiments.matrix import Matrix, read_matrix
from agon.experiments.spec import Experiment
from agon.report.rounds import KINDS, as_json, kind, read_rounds
from made_up_results import write_cells


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory, experiment: Experiment) -> Matrix:
    names = ["grpo--seed1", "agon--seed1", "agon--seed2", "hidden-paired--seed1"]
    folder = write_cells(tmp_path_factory.mktemp("results"), experiment, names)
    return read_matrix([folder], experiment)


@pytest.mark.parametrize(
    ("rival", "challenge", "expected"),
    [
        ("wrong", "right", "conversion"),
        ("right", "wrong", "regression"),
        ("right", "right", "both-right"),
        ("wrong", "wrong", "both-wrong"),
        ("unscored", "right", "unscored"),
        ("wrong", "unscored", "unscored"),
    ],
)
def test_a_round_is_what_the_challenge_makes_of_its_rival(
    rival: str, challenge: str, expected: str
) -> None:
    own = {"outcome": "right"}
    assert kind(own, {"outcome": challenge}, {"outcome": rival}) == expected
    assert expected in KINDS


@pytest.mark.parametrize("outcome", ["right", "wrong", "unscored"])
def test_a_round_of_one_pass_is_its_own_outcome(outcome: str) -> None:
    assert kind({"outcome": outcome}, None, None).endswith(outcome)


def test_everything_is_kept_where_it_fits(matrix: Matrix) -> None:
    found = read_rounds(matrix)
    assert len(found.rows) == found.total == 4 * 12
    assert found.rule == "All 48 rounds of the result files."


@pytest.mark.parametrize("limit", [12_000, 6_000, 2_500, 1_500])
def test_what_does_not_fit_is_left_out_alike_in_every_cell(matrix: Matrix, limit: int) -> None:
    found = read_rounds(matrix, limit)
    assert len(as_json(found.rows).encode()) <= limit
    counts = Counter((row["a"], row["s"]) for row in found.rows)
    assert len(counts) == 4
    assert len(set(counts.values())) == 1
    assert {row["t"] for row in found.rows} & {11} == {11}
    assert f"{len(found.rows)} of the 48 rounds" in found.rule


def test_texts_are_cut_visibly_and_last(matrix: Matrix) -> None:
    found = read_rounds(matrix, 1_500)
    assert "texts cut at" in found.rule
    assert "texts cut at" not in read_rounds(matrix, 6_000).rule


@given(
    st.recursive(
        st.text() | st.none() | st.floats(allow_nan=False),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_json_in_the_page_says_the_same_and_opens_no_element(value: object) -> None:
    text = as_json(value)
    assert json.loads(text) == value
    assert not set(text) & set("<>&\u2028\u2029")


def test_lone_surrogates_can_be_written(tmp_path: Path) -> None:
    text = as_json({"x": "a\ud800b"})
    text.encode()
    assert json.loads(text) == {"x": "a\ud800b"}
