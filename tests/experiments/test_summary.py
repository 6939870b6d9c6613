"""Tables from result files: means, costs, chosen systems, and contrasts over common seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agon.errors import DataError
from agon.evaluation.protocols import Attempt
from agon.experiments.results import Result, pack
from agon.experiments.spec import Experiment
from agon.experiments.summary import arm_row, by_arm, contrast_rows
from agon.records import Outcome

PROBLEMS = [f"p{index}" for index in range(8)]
RIGHT, WRONG = Outcome.RIGHT, Outcome.WRONG


def packed(right: list[bool], draft: list[bool] | None = None) -> dict[str, Any]:
    tries = [
        Attempt(
            problem,
            0,
            RIGHT if good else WRONG,
            None if draft is None else RIGHT if draft[index] else WRONG,
            "x",
            (30, 20) if draft is not None else (30,),
            (5, 9) if draft is not None else (5,),
            False,
        )
        for index, (problem, good) in enumerate(zip(PROBLEMS, right, strict=True))
    ]
    return pack(tries, 1)


def result(arm: str, seed: int, rights: dict[str, int], reported: str) -> Result:
    """A cell whose systems have the first so many test problems right; dev likes the last one."""
    systems = {}
    for name, count in rights.items():
        right = [index < count for index in range(8)]
        draft = [index < rights[name.split("->")[0]] for index in range(8)]
        systems[name] = packed(right, draft if "->" in name else None)
    dev = {
        name: packed([index <= place for index in range(8)], [False] * 8)
        for place, name in enumerate(rights)
    }
    data = {
        "schema": 2, "arm": arm, "seed": seed, "about": f"about {arm}", "reported": reported,
        "stopped": None, "rollouts": 96,
        "evaluations": {
            "dev": {"samples": 1, "problems": PROBLEMS, "systems": dev},
            "test": {"samples": 1, "problems": PROBLEMS, "systems": systems},
        },
    }  # fmt: skip
    return Result(Path(f"{arm}--seed{seed}.json"), data)


def pair(arm: str, seed: int, cascade: int) -> Result:
    return result(arm, seed, {"a": 2, "b": 3, "a->b": 8, "b->a": cascade}, "cascade")


def experiment(*contrasts: tuple[str, str]) -> Experiment:
    return Experiment.model_validate(
        {
            "name": "x",
            "recipe": "countdown-agon",
            "seeds": [1, 2, 3],
            "arms": {name: {"about": name, "reported": "cascade"} for name in ("x", "y", "z")},
            "primary": [
                {
                    "name": f"{left} against {right}",
                    "left": {"arm": left, "reported": "cascade"},
                    "right": {"arm": right, "reported": "cascade"},
                }
                for left, right in contrasts
            ],
        }
    )


def test_a_row_is_of_the_direction_that_dev_prefers_with_the_costs_of_all_stages() -> None:
    row = arm_row("x", {1: pair("x", 1, 5), 2: pair("x", 2, 7)})
    assert row.systems == ("b->a", "b->a")
    assert row.by_seed == (5 / 8, 7 / 8)
    assert row.mean == 6 / 8
    assert row.low <= row.mean <= row.high
    assert (row.passes, row.generated, row.last, row.read) == (2, 50, 20, 14)
    assert row.converted == pytest.approx(np.mean([2 / 8, 4 / 8]))  # b has 3 right of itself
    assert row.lost == 0
    assert row.rollouts == 96


def test_another_system_of_the_same_runs_can_be_asked_for() -> None:
    row = arm_row("x", {1: pair("x", 1, 5)}, "alone")
    assert (row.systems, row.mean, row.passes, row.converted) == (("b",), 3 / 8, 1, None)


def test_contrasts_take_the_seeds_that_both_arms_have() -> None:
    arms = by_arm([pair("x", s, 6) for s in (1, 2, 3)] + [pair("y", s, 4) for s in (2, 3)])
    (row,) = contrast_rows(experiment(("x", "y")), arms)
    assert row.seeds == (2, 3)
    assert row.difference.mean == pytest.approx(2 / 8)


def test_contrasts_without_results_still_count_in_the_correction() -> None:
    pytest.importorskip("statsmodels")
    arms = by_arm(
        [pair("x", s, right) for s, right in ((1, 6), (2, 7), (3, 6))]
        + [pair("y", s, right) for s, right in ((1, 4), (2, 4), (3, 3))]
    )
    (alone,) = contrast_rows(experiment(("x", "y")), arms)
    (among,) = contrast_rows(experiment(("x", "y"), ("x", "z"), ("y", "z")), arms)
    assert alone.p_holm == alone.difference.p
    assert alone.p_holm is not None
    assert among.p_holm == pytest.approx(3 * alone.p_holm)


def test_files_of_other_problems_or_of_one_cell_twice_are_refused() -> None:
    one, other = pair("x", 1, 5), pair("x", 2, 5)
    with pytest.raises(DataError, match="are of one cell"):
        by_arm([one, pair("x", 1, 5)])
    other.data["evaluations"]["test"]["problems"] = [f"q{index}" for index in range(8)]
    with pytest.raises(DataError, match="different test problems"):
        by_arm([one, other])
