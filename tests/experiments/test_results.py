"""Result files give back what was put in, and choose systems on dev alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from agon.errors import DataError
from agon.evaluation.protocols import Attempt
from agon.experiments.results import (
    pack,
    read_result,
    reported_system,
    unpack,
    write_result,
)
from agon.records import Outcome

RIGHT, WRONG, UNSCORED = Outcome.RIGHT, Outcome.WRONG, Outcome.UNSCORED


def attempt(problem: str, sample: int, outcome: Outcome, draft: Outcome | None = None) -> Attempt:
    stages = 1 if draft is None else 2
    return Attempt(
        problem, sample, outcome, draft, f"answer {sample % 2}", (10 + sample, 7)[-stages:],
        (20, 30)[:stages], outcome is WRONG,
    )  # fmt: skip


def test_attempts_survive_the_file() -> None:
    tries = [
        attempt("p", 0, RIGHT, WRONG),
        attempt("p", 1, UNSCORED, RIGHT),
        attempt("p", 2, RIGHT, RIGHT),
        attempt("q", 0, WRONG, UNSCORED),
        attempt("q", 1, WRONG, WRONG),
        attempt("q", 2, RIGHT, WRONG),
    ]
    found = unpack(json.loads(json.dumps(pack(tries, 3))), 3)
    nan = np.nan
    np.testing.assert_array_equal(found.outcomes_PK, [[1, nan, 1], [0, 0, 1]])
    np.testing.assert_array_equal(found.drafts_PK, [[0, 1, 1], [nan, 0, 0]])
    np.testing.assert_array_equal(found.generated_PK, [[17, 18, 19]] * 2)
    np.testing.assert_array_equal(found.last_PK, [[7] * 3] * 2)
    np.testing.assert_array_equal(found.read_PK, [[50] * 3] * 2)
    np.testing.assert_array_equal(found.truncated_PK, [[False] * 3, [True, True, False]])
    np.testing.assert_array_equal(found.votes_PK, [[0, 1, 0]] * 2)
    np.testing.assert_allclose(found.rates_P, [1, 1 / 3])


def test_a_problem_without_any_verdict_has_no_rate() -> None:
    found = unpack(pack([attempt("p", 0, UNSCORED), attempt("q", 0, RIGHT)], 1), 1)
    np.testing.assert_array_equal(found.rates_P, [np.nan, 1])
    assert found.drafts_PK is None


def test_of_two_adapters_or_directions_the_better_on_dev_is_reported() -> None:
    systems = ["base", "a", "b", "a->b", "b->a", "a->a", "b->b"]
    dev = dict(zip(systems, (0.2, 0.5, 0.6, 0.7, 0.65, 0.4, 0.4), strict=True))
    chosen = {
        what: reported_system(what, systems, dev)
        for what in ("base", "alone", "cascade", "self-cascade", "a->b")
    }
    assert chosen == {
        "base": "base", "alone": "b", "cascade": "a->b", "self-cascade": "a->a", "a->b": "a->b",
    }  # fmt: skip
    with pytest.raises(DataError, match="has only base, a"):
        reported_system("cascade", ["base", "a"], dev)


def test_the_direction_does_not_look_at_the_test_split(tmp_path: Path) -> None:
    """A result whose test split says the opposite of its dev split."""

    def split(good: str) -> dict:
        systems = {
            name: pack([attempt("p", 0, RIGHT if name == good else WRONG, WRONG)], 1)
            for name in ("a->b", "b->a")
        }
        return {"samples": 1, "problems": ["p"], "systems": systems}

    data = {"schema": 2, "arm": "agon", "seed": 3}
    data["evaluations"] = {"dev": split("b->a"), "test": split("a->b")}
    path = tmp_path / "agon--seed3.json"
    write_result(path, data)
    result = read_result(path)
    assert result.reported("cascade") == "b->a"
    assert result.cell.name == "agon--seed3"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 99}'])
def test_other_files_are_no_results(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x--seed1.json"
    path.write_text(text)
    with pytest.raises(DataError, match=str(path)):
        read_result(path)
