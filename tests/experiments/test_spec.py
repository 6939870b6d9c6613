"""Experiments as files: arms change one thing each, and bad files are refused with the field."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from agon.config import leaves
from agon.errors import ConfigError
from agon.experiments.spec import Cell, cell_config, cells, load_experiment, parse_slice

FILES = Path(__file__).resolve().parents[2] / "experiments"
COUNTDOWN = FILES / "countdown.toml"

SMALL = """
name = "small"
recipe = "countdown-agon"
seeds = [1, 2]
[settings]
"training.steps" = 2
[arms.agon]
about = "the pair"
reported = "cascade"
[arms.grpo]
about = "one"
reported = "alone"
settings = { "game.policies" = 1, "game.exchange" = "none", "reward.credit" = "correctness" }
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "small.toml"
    path.write_text(text)
    return path


@pytest.fixture
def countdown() -> Path:
    if not COUNTDOWN.is_file():
        pytest.skip("the experiments are not part of this copy")
    return COUNTDOWN


def test_every_experiment_that_comes_with_agon_can_be_used(countdown: Path) -> None:
    for path in countdown.parent.glob("*.toml"):
        experiment = load_experiment(path)
        for cell in cells(experiment):
            cell_config(experiment, cell)


def test_arms_differ_from_each_other_in_their_stated_settings_alone(countdown: Path) -> None:
    experiment = load_experiment(countdown)
    default = dict(leaves(cell_config(experiment, Cell("agon", 1))))
    for name, arm in experiment.arms.items():
        values = dict(leaves(cell_config(experiment, Cell(name, 1))))
        differing = {key for key, value in values.items() if value != default[key]}
        assert differing == {k for k, v in arm.settings.items() if v != default[k]}, name


def test_seeds_of_a_cell_set_every_source_of_randomness(countdown: Path) -> None:
    experiment = load_experiment(countdown)
    one, two = (dict(leaves(cell_config(experiment, Cell("agon", seed)))) for seed in (1, 2))
    differing = {key for key in one if one[key] != two[key]}
    assert differing == {key for key in one if key.startswith("seeds.")}


def test_whole_seeds_come_first_and_slices_part_all_cells(tmp_path: Path) -> None:
    experiment = load_experiment(written(tmp_path, SMALL))
    every = cells(experiment)
    assert [cell.name for cell in every] == [
        "agon--seed1", "grpo--seed1", "agon--seed2", "grpo--seed2",
    ]  # fmt: skip
    for count in (1, 2, 3, 5):
        parts = [cells(experiment, (index, count)) for index in range(1, count + 1)]
        assert sorted(itertools.chain(*parts), key=every.index) == every


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/2/3", "-1/2"])
def test_slices_out_of_range_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected I/N"):
        parse_slice(text)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("seeds = [1, 2]", "seeds = []", "seeds"),
        ("seeds = [1, 2]", "seeds = [1, 1]", "one stands twice"),
        ('name = "small"', 'name = "Not a name"', "is no name"),
        ('"training.steps" = 2', '"training.stepz" = 2', r"arm agon.*did you mean training\.steps"),
        ('"training.steps" = 2', '"training" = 2', "write section.field"),
        ('reported = "alone"', 'reported = "best"', r"arms\.grpo\.reported"),
        ('"game.exchange" = "none", ', "", "arm grpo"),
        ('recipe = "countdown-agon"', 'recipe = "nowhere"', "there is no file nowhere"),
        ('about = "one"', 'abuot = "one"', r"arms\.grpo\.abuot"),
    ],
)
def test_mistakes_in_the_file_are_named(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in SMALL
    text = SMALL.replace(old, new)
    if "game.exchange" in old:  # one policy that is paid for beating itself
        text = text.replace('"reward.credit" = "correctness"', '"reward.credit" = "margin"')
    with pytest.raises(ConfigError, match=f"(?s){words}"):
        load_experiment(written(tmp_path, text))


def test_a_contrast_of_an_unknown_arm_is_refused(tmp_path: Path) -> None:
    contrast = """
[[primary]]
name = "x"
left = { arm = "agon", reported = "cascade" }
right = { arm = "nobody", reported = "alone" }
"""
    with pytest.raises(
        ConfigError, match=r"'x' names the arm 'nobody', expected one of agon, grpo"
    ):
        load_experiment(written(tmp_path, SMALL + contrast))
