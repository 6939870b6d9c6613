"""Competition x exchange: the four arms that differ in these two things alone.

                       hidden           visible
    no competition     grpo             cooperative
    competition        hidden-paired    agon

The visible arms are reported with two passes and the hidden ones with one, so what the exchange
does to training cannot be told from what a second pass does to an answer. The square is therefore
read three times: as each arm is reported, with one pass everywhere, with two passes everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agon.evaluation.comparisons import Difference, arm_difference
from agon.experiments.results import Result
from agon.experiments.spec import Reported, Side
from agon.experiments.summary import ArmRow, Comparison, arm_row, compare, side_rates

COMPETITION = ("no competition", "competition")
EXCHANGE = ("hidden", "visible")
ARMS = (("grpo", "cooperative"), ("hidden-paired", "agon"))
"""By competition and then exchange."""

READINGS: Mapping[str, tuple[tuple[Reported, Reported], tuple[Reported, Reported]]] = {
    "as reported": (("alone", "cascade"), ("alone", "cascade")),
    "one pass": (("alone", "alone"), ("alone", "alone")),
    "two passes": (("self-cascade", "cascade"), ("cascade", "cascade")),
}
"""The system of each cell; GRPO has one adapter, so its two passes are a self-cascade."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What one of the two things does, the other held.

    Attributes:
        name: In words.
        comparison: The arm with it minus the arm without; None without a common seed.
    """

    name: str
    comparison: Comparison | None


@dataclass(frozen=True, slots=True)
class Square:
    """The four cells under one reading.

    Attributes:
        reading: A key of `READINGS`.
        cells: By competition and then exchange; None without a result.
        effects: The four sides of the square.
        interaction: How much more the exchange brings with competition than without; None unless
            all four cells have a common seed.
        seeds: Those common seeds.
    """

    reading: str
    cells: tuple[tuple[ArmRow | None, ...], ...]
    effects: tuple[Effect, ...]
    interaction: Difference | None
    seeds: tuple[int, ...]


def square(arms: Mapping[str, Mapping[int, Result]], reading: str) -> Square:
    """Fill the square in as far as there are results."""
    words = READINGS[reading]
    sides = [
        [Side(arm=arm, reported=word) for arm, word in zip(*row, strict=True)]
        for row in zip(ARMS, words, strict=True)
    ]
    (grpo, cooperative), (hidden, agon) = sides
    effects = (
        Effect("exchange, without competition", compare(arms, cooperative, grpo)),
        Effect("exchange, with competition", compare(arms, agon, hidden)),
        Effect("competition, hidden", compare(arms, hidden, grpo)),
        Effect("competition, visible", compare(arms, agon, cooperative)),
    )
    common = [
        seed
        for seed in arms.get("agon", {})
        if all(seed in arms.get(side.arm, {}) for row in sides for side in row)
    ]
    interaction = None
    if common:
        rates = {side.arm: side_rates(arms, side, common) for row in sides for side in row}
        interaction = arm_difference(
            rates["agon"] + rates["grpo"], rates["cooperative"] + rates["hidden-paired"]
        )
    cells = tuple(
        tuple(
            arm_row(side.arm, arms[side.arm], side.reported) if side.arm in arms else None
            for side in row
        )
        for row in sides
    )
    return Square(reading, cells, effects, interaction, tuple(common))
