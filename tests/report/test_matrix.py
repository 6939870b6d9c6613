"""Result files are read as one matrix, or refused with a sentence that names the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agon.errors import DataError
from agon.experiments.matrix import read_matrix
from agon.experiments.spec import Experiment
from made_up_results import all_cells, write_cells


def test_missing_cells_are_those_that_the_experiment_names(
    tmp_path: Path, experiment: Experiment
) -> None:
    names = all_cells(experiment)
    write_cells(tmp_path, experiment, [n for n in names if n not in ("agon--seed2", "base--seed3")])
    matrix = read_matrix([tmp_path], experiment)
    assert {cell.name for cell in matrix.missing} == {"agon--seed2", "base--seed3"}
    assert (matrix.done, len(matrix.wanted)) == (22, 24)
    assert tuple(matrix.arms) == tuple(experiment.arms)


def test_slices_of_several_machines_are_one_matrix(tmp_path: Path, experiment: Experiment) -> None:
    write_cells(tmp_path / "one", experiment, ["agon--seed1", "grpo--seed1"])
    write_cells(tmp_path / "two", experiment, ["agon--seed2", "grpo--seed1"])
    found = [
        read_matrix([tmp_path / x, tmp_path / y], experiment)
        for x, y in (("one", "two"), ("two", "one"))
    ]
    for matrix in found:
        assert [r.cell.name for r in matrix.results] == [
            "grpo--seed1",
            "agon--seed1",
            "agon--seed2",
        ]


def test_without_the_experiment_every_arm_is_wanted_under_every_seed(
    tmp_path: Path, experiment: Experiment
) -> None:
    write_cells(tmp_path, experiment, ["agon--seed1", "agon--seed2", "grpo--seed2"])
    matrix = read_matrix([tmp_path], None)
    assert [cell.name for cell in matrix.missing] == ["grpo--seed1"]


def test_cells_that_the_experiment_does_not_name_are_left_out(
    tmp_path: Path, experiment: Experiment
) -> None:
    write_cells(tmp_path, experiment, ["agon--seed1", "grpo--seed1"])
    fewer = experiment.model_copy(update={"seeds": (1,), "arms": {"agon": experiment.arms["agon"]}})
    matrix = read_matrix([tmp_path], fewer)
    assert [path.name for path in matrix.left_out] == ["grpo--seed1.json"]
    assert list(matrix.arms) == ["agon"]


@pytest.mark.parametrize("folder", ["nowhere", "empty"])
def test_a_folder_without_results_is_named(
    tmp_path: Path, experiment: Experiment, folder: str
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=folder):
        read_matrix([tmp_path / folder], experiment)


def damage(path: Path, *keys: str, value: object) -> None:
    """Replace one field of a file."""
    data = json.loads(path.read_text())
    place = data
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    path.write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("keys", "value", "said"),
    [
        (("evaluations", "test"), None, "evaluations.test is damaged"),
        (("evaluations", "dev", "problems"), [], "evaluations.dev is empty"),
        (("evaluations", "test", "systems", "a", "last"), [1], r"systems.a.last has 1 entries"),
        (("evaluations", "test", "systems", "a", "outcomes"), "x" * 18, "stand for no outcome"),
        (("evaluations", "test", "systems", "a", "votes"), ["x"] * 18, "no numbers"),
        (("config",), None, "config is missing or damaged"),
        (("schema",), 7, "schema 7"),
        (("stopped",), 3, "stopped is missing or damaged"),
        (("reported",), "best", "reported is 'best', expected one of base, mixture"),
        (("config", "game"), None, "config.game is missing"),
        (("curves", "step"), [0], "curves are damaged"),
        (("snapshots",), [{"step": 0}], "snapshots are damaged"),
        (("rounds",), [{"step": 0, "draft": {}}], "rounds are damaged"),
    ],
)
def test_damage_is_named_with_its_file(
    tmp_path: Path, experiment: Experiment, keys: tuple[str, ...], value: object, said: str
) -> None:
    write_cells(tmp_path, experiment, ["agon--seed1"])
    path = tmp_path / "agon--seed1.json"
    damage(path, *keys, value=value)
    with pytest.raises(DataError, match=said) as error:
        read_matrix([tmp_path], experiment)
    assert str(path) in str(error.value)


def test_a_file_that_was_cut_short_is_named(tmp_path: Path, experiment: Experiment) -> None:
    write_cells(tmp_path, experiment, ["agon--seed1"])
    path = tmp_path / "agon--seed1.json"
    path.write_text(path.read_text()[:500])
    with pytest.raises(DataError, match="is no result file"):
        read_matrix([tmp_path], experiment)


@pytest.mark.parametrize(
    ("keys", "value", "said"),
    [
        (("experiment",), "another", "several experiments are not comparable"),
        (("config", "task", "name"), "gsm8k", 'task .*"gsm8k"'),
        (("config", "optimizer", "learning_rate"), 7.0, r"optimizer .*learning_rate: 7.0"),
    ],
)
def test_files_of_other_settings_are_not_comparable(
    tmp_path: Path, experiment: Experiment, keys: tuple[str, ...], value: object, said: str
) -> None:
    write_cells(tmp_path, experiment, ["agon--seed1", "agon--seed2"])
    damage(tmp_path / "agon--seed2.json", *keys, value=value)
    with pytest.raises(DataError, match=said):
        read_matrix([tmp_path], experiment)


def test_settings_of_the_machine_may_differ(tmp_path: Path, experiment: Experiment) -> None:
    write_cells(tmp_path, experiment, ["agon--seed1", "agon--seed2"])
    damage(tmp_path / "agon--seed2.json", "config", "training", "threads", value=64)
    assert read_matrix([tmp_path], experiment).done == 2
