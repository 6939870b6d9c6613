"""An experiment: arms that change settings of one recipe, seeds, and what is compared.

    name = "countdown"
    recipe = "countdown-agon"
    seeds = [1, 2, 3, 4, 5]

    [settings]                              # for every arm, over the recipe
    "training.steps" = 150

    [arms.grpo]
    about = "plain GRPO"
    reported = "alone"
    settings = { "game.policies" = 1, "game.exchange" = "none", "reward.credit" = "correctness" }

    [[primary]]                             # named before anything has run
    name = "agon against plain GRPO"
    left = { arm = "agon", reported = "cascade" }
    right = { arm = "grpo", reported = "alone" }

A cell is one arm under one seed. This module runs nothing and reads no results.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, JsonValue, ValidationError, model_validator

from agon.config import Config, Section
from agon.errors import ConfigError
from agon.recipes import build_config, find_recipe, sentences

Reported = Literal["base", "mixture", "alone", "self-cascade", "cascade", "a->b"]
"""Which system of a run stands for its arm:

    base          the untrained base
    mixture       base->base
    alone         the adapter; of two, the better on dev
    self-cascade  an adapter that reads its own draft's summary; of two, the better on dev
    cascade       one adapter drafts, the other answers, in the better direction on dev
    a->b          the cascade in that direction
"""

NAME = re.compile(r"[a-z0-9][a-z0-9-]*")


class ArmSpec(Section):
    """One arm: the recipe under other settings."""

    about: str
    """What it is, for tables."""

    reported: Reported
    """The system that its headline figure is of."""

    train: bool = True
    """Whether there is anything to train; an arm without evaluates the base alone."""

    settings: dict[str, JsonValue] = Field(default_factory=dict)
    """`section.field` and its value."""


class Side(Section):
    """One side of a contrast."""

    arm: str
    """Its name."""

    reported: Reported
    """Its system."""


class ContrastSpec(Section):
    """Two arms whose difference is tested."""

    name: str
    """What is asked."""

    left: Side
    """Minus `right`."""

    right: Side
    """What it is compared with."""


class EvaluationSpec(Section):
    """What a cell evaluates once it is trained."""

    dev_problems: int = Field(300, ge=2)
    """Choose the direction and the adapter."""

    test_problems: int = Field(500, ge=2)
    """Give the figures; read once."""

    samples: int = Field(4, ge=1)
    """Attempts of every system at every problem."""

    snapshots: int = Field(4, ge=0)
    """Checkpoints at which blind spots are looked at, evenly spread, the last step among them."""

    snapshot_problems: int = Field(200, ge=2)
    """Dev problems of each."""

    rounds: int = Field(12, ge=0)
    """Training steps of which one problem's round is kept to be read."""


class Experiment(Section):
    """The whole matrix."""

    name: str
    """Names its folders."""

    recipe: str
    """What every arm starts from."""

    seeds: tuple[int, ...] = Field(min_length=1)
    """Each sets data order, adapters' start, sampling and evaluation of its cells."""

    settings: dict[str, JsonValue] = Field(default_factory=dict)
    """`section.field` and its value, for every arm."""

    evaluation: EvaluationSpec = EvaluationSpec()

    arms: dict[str, ArmSpec] = Field(min_length=1)

    primary: tuple[ContrastSpec, ...] = ()
    """The contrasts that are tested, with Holm's correction over all of them."""

    @model_validator(mode="after")
    def _names(self) -> Experiment:
        for kind, names in (("name", [self.name]), ("arms", list(self.arms))):
            for name in names:
                if NAME.fullmatch(name) is None:
                    raise ValueError(f"{kind}: {name!r} is no name: use a-z, 0-9 and -")
        if len(set(self.seeds)) != len(self.seeds):
            raise ValueError("seeds: one stands twice")
        for contrast in self.primary:
            for side in (contrast.left, contrast.right):
                if side.arm not in self.arms:
                    known = ", ".join(self.arms)
                    raise ValueError(
                        f"primary: {contrast.name!r} names the arm {side.arm!r}, expected one of "
                        f"{known}"
                    )
        return self


@dataclass(frozen=True, slots=True)
class Cell:
    """One arm under one seed."""

    arm: str
    seed: int

    @property
    def name(self) -> str:
        """Of its files: `agon--seed3`."""
        return f"{self.arm}--seed{self.seed}"


def load_experiment(path: Path) -> Experiment:
    """Read an experiment's file and check the settings of all its arms.

    Raises:
        ConfigError: The file cannot be read, a key is unknown, a value is wrong, or an arm's
            settings cannot be combined; the arm and the field are named.
    """
    try:
        tables = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    try:
        experiment = Experiment.model_validate(tables)
    except ValidationError as error:
        raise ConfigError(f"{path} cannot be used:\n{sentences(error)}") from error
    for arm in experiment.arms:
        cell_config(experiment, Cell(arm, experiment.seeds[0]))
    return experiment


def cells(experiment: Experiment, part: tuple[int, int] = (1, 1)) -> list[Cell]:
    """All cells by seed and then arm, so that whole seeds are done first.

    Args:
        experiment: The matrix.
        part: (i, n) takes the i-th of n slices, whose cells take turns.
    """
    every = [Cell(arm, seed) for seed in experiment.seeds for arm in experiment.arms]
    index, count = part
    return every[index - 1 :: count]


def cell_config(experiment: Experiment, cell: Cell) -> Config:
    """A cell's whole configuration.

    Raises:
        ConfigError: The settings cannot be combined; the arm is named.
    """
    tables: dict[str, Any] = tomllib.loads(find_recipe(experiment.recipe).read_text())
    arm = experiment.arms[cell.arm]
    seeds = {f"seeds.{field}": cell.seed for field in ("data", "init", "sampling", "evaluation")}
    changes = {"logging.rounds": "sampled"} | dict(experiment.settings) | dict(arm.settings)
    for name, value in (changes | seeds).items():
        section, dot, field = name.partition(".")
        table = tables.setdefault(section, {})
        if not dot or not isinstance(table, dict):
            raise ConfigError(f"settings: {name!r} is no setting: write section.field")
        table[field] = value
        tables.get("sources", {}).pop(name, None)
    return build_config(tables, origin=f"arm {cell.arm}")


def parse_slice(text: str) -> tuple[int, int]:
    """`2/3` as (2, 3).

    Raises:
        ConfigError: Another form.
    """
    parts = text.split("/")
    if len(parts) == 2 and all(part.isdecimal() for part in parts):
        index, count = map(int, parts)
        if 1 <= index <= count:
            return index, count
    raise ConfigError(f"--slice: got {text!r}, expected I/N with I from 1 to N, such as 2/3")


def choose_arms(experiment: Experiment, arms: Sequence[str]) -> Experiment:
    """The experiment with some of its arms.

    Raises:
        ConfigError: There is no such arm.
    """
    for arm in arms:
        if arm not in experiment.arms:
            raise ConfigError(f"--arm: got {arm!r}, expected one of {', '.join(experiment.arms)}")
    kept = {name: spec for name, spec in experiment.arms.items() if not arms or name in arms}
    return experiment.model_copy(update={"arms": kept, "primary": ()})
