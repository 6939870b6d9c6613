"""Findings gathered from result files agree with the summaries, and with limiting cases."""

from __future__ import annotations

from pathlib import Path

import pytest

from agon.experiments.budget import equal_tokens, vote_points
from agon.experiments.exchange import change_rows, control_rows
from agon.experiments.factorial import square
from agon.experiments.lengths import length_shift
from agon.experiments.matrix import Matrix, read_matrix
from agon.experiments.spec import Experiment, Side
from agon.experiments.summary import arm_row, compare
from agon.report.findings import find, protocols
from made_up_results import SAMPLES, STEPS, all_cells, write_cells


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory, experiment: Experiment) -> Matrix:
    folder = tmp_path_factory.mktemp("results")
    names = [name for name in all_cells(experiment) if name != "hidden-paired--seed3"]
    return read_matrix([write_cells(folder, experiment, names)], experiment)


def test_sides_of_the_square_are_plain_comparisons(matrix: Matrix) -> None:
    found = square(matrix.arms, "as reported")
    visible = found.effects[3].comparison
    sides = [Side(arm=arm, reported="cascade") for arm in ("agon", "cooperative")]
    assert visible == compare(matrix.arms, *sides)
    assert found.seeds == (1, 2)
    (grpo, cooperative), (hidden, agon) = found.cells
    assert agon == arm_row("agon", matrix.arms["agon"], "cascade")
    assert hidden is not None
    assert hidden.seeds == (1, 2)
    # The interaction is the difference of differences over the common seeds.
    means = [
        sum(row.by_seed[:2]) / 2 for row in (agon, hidden, cooperative, grpo) if row is not None
    ]
    assert found.interaction is not None
    assert found.interaction.mean == pytest.approx(means[0] - means[1] - means[2] + means[3])


def test_the_square_stays_empty_where_an_arm_has_no_result(matrix: Matrix) -> None:
    arms = {arm: runs for arm, runs in matrix.arms.items() if arm != "hidden-paired"}
    found = square(arms, "two passes")
    assert found.cells[1][0] is None
    assert found.interaction is None
    assert [effect.comparison is None for effect in found.effects] == [False, True, True, False]


def test_conversions_less_regressions_are_what_the_second_pass_gains(matrix: Matrix) -> None:
    for row in change_rows("agon", matrix.arms["agon"]):
        first, last = row.system.split("->")
        drafts = arm_drafts(matrix, row.system)
        answers = [run.system("test", row.system) for run in matrix.arms["agon"].values()]
        gain = sum(one.outcomes_PK.mean() for one in answers) / len(answers) - drafts
        assert row.converted.mean - row.lost.mean == pytest.approx(gain)
        assert {first, last} <= {"a", "b"}


def arm_drafts(matrix: Matrix, system: str) -> float:
    """Mean correctness of a system's drafts."""
    runs = matrix.arms["agon"].values()
    drafts = [run.system("test", system).drafts_PK for run in runs]
    return sum(float(one.mean()) for one in drafts if one is not None) / len(drafts)


def test_a_fixed_arm_has_one_reported_direction(matrix: Matrix) -> None:
    chosen = {row.system: row.chosen for row in change_rows("fixed", matrix.arms["fixed"])}
    assert chosen["a->b"] == (1, 2, 3)
    assert chosen["b->a"] == ()


def test_controls_follow_the_direction_of_the_arm(matrix: Matrix) -> None:
    shuffled, filler = control_rows("agon", matrix.arms["agon"])
    assert (shuffled.shown, filler.shown) == ("shuffled", "filler")
    assert shuffled.own_by_seed == filler.own_by_seed
    assert shuffled.own_by_seed == arm_row("agon", matrix.arms["agon"]).by_seed
    assert control_rows("base", matrix.arms["base"]) == []


def test_votes_cost_as_many_tokens_as_they_have_tries(matrix: Matrix) -> None:
    points = vote_points(matrix.arms["agon"], "alone")
    assert [point.k for point in points] == list(range(1, SAMPLES + 1))
    assert points[-1].generated == pytest.approx(SAMPLES * points[0].generated)
    assert points[0].majority == pytest.approx(arm_row("agon", matrix.arms["agon"], "alone").mean)
    assert all(point.best >= point.majority for point in points)


def test_the_vote_at_equal_tokens_is_the_nearest(matrix: Matrix) -> None:
    two, one = Side(arm="agon", reported="cascade"), Side(arm="grpo", reported="alone")
    found = equal_tokens(matrix.arms, two, one)
    assert found is not None
    points = vote_points(matrix.arms["grpo"], "alone")
    distance = abs(found.vote.generated - found.budget)
    assert distance == min(abs(point.generated - found.budget) for point in points)
    assert found.difference.mean == pytest.approx(found.two_pass - found.vote.majority)


def test_every_protocol_of_every_arm_has_a_row(matrix: Matrix) -> None:
    found = find(matrix)
    assert len(found.rows) == sum(len(protocols(runs)) for runs in matrix.arms.values())
    assert [row.arm for row in found.headlines] == list(matrix.arms)
    for row in found.headlines:
        assert row == arm_row(row.arm, matrix.arms[row.arm])
    assert {spot.arm for spot in found.spots} == {"cooperative", "agon", "fixed", "hidden-paired"}


def test_lengths_that_grow_alike_are_no_pathology(matrix: Matrix) -> None:
    run = matrix.arms["grpo"][1]
    curves = run.data["curves"]
    for verdict in ("right", "wrong"):
        curves[f"draft.length_{verdict}"] = [float(step) for step in range(STEPS + 1)]
    shift = length_shift("grpo", {1: run}, "draft")
    assert shift is not None
    assert shift.grew == (0.0,)
    assert length_shift("grpo", {1: run}, "challenge") is None


def test_a_matrix_of_the_base_alone_has_a_page(tmp_path: Path, experiment: Experiment) -> None:
    from agon.report.page import render, sections
    from agon.report.rounds import read_rounds

    matrix = read_matrix([write_cells(tmp_path, experiment, ["base--seed1"])], experiment)
    found = find(matrix)
    page = render(found, sections(found), read_rounds(matrix))
    assert "1 of 24" in page
    assert "The result files hold no rounds." in page
