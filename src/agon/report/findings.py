"""Everything that the page shows, computed once from the result files.

Tables and charts read these records and compute nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agon.evaluation.bands import Band
from agon.experiments.blindspots import BlindSpots, blind_spots
from agon.experiments.budget import EqualTokens, VotePoint, equal_tokens, vote_points
from agon.experiments.curves import dev_curve, training_curve
from agon.experiments.exchange import ChangeRow, ControlRow, change_rows, control_rows
from agon.experiments.factorial import READINGS, Square, square
from agon.experiments.lengths import ROLES, LengthRow, LengthShift, length_row, length_shift
from agon.experiments.matrix import Matrix, Runs
from agon.experiments.spec import ContrastSpec, Reported, Side
from agon.experiments.summary import (
    ArmRow,
    Comparison,
    ContrastRow,
    arm_row,
    compare,
    contrast_rows,
)
from agon.report.published import CLAIMS, Claim

SMOOTHED = 10
"""Steps that a length curve is averaged over."""

VOTERS: tuple[tuple[str, Reported], ...] = (
    ("base", "base"),
    ("grpo", "alone"),
    ("grpo-2n", "alone"),
    ("self-refine", "alone"),
    ("cooperative", "cascade"),
    ("agon", "cascade"),
)
"""Systems whose votes are drawn, by arm and word."""

REFERENCES = {
    "grpo-2n": "grpo",
    "self-refine": "grpo",
    "length-penalty": "grpo",
}
"""What an arm with one policy is an ablation of; arms with two are ablations of Agon."""

NO_ABLATIONS = ("base", "grpo", "agon")


@dataclass(frozen=True, slots=True)
class Findings:
    """What the result files say.

    Attributes:
        matrix: The files.
        problems: Test problems.
        samples: Attempts of each system at each.
        dev_problems: Dev problems, on which directions are chosen.
        rows: For each arm its headline system, then its other protocols.
        contrasts: Primary contrasts with results.
        waiting: Primary contrasts without a common seed.
        squares: Competition x exchange under each reading.
        claims: The paper's orderings held against the results.
        votes: Votes of `VOTERS`.
        equal: Two passes against votes at equal tokens.
        curves: Dev accuracy over training by arm.
        changes: Conversions and regressions by direction.
        spots: Blind spots of the arms with two policies.
        ablations: Arms against what they change one thing of.
        controls: Own summaries against shuffled and filler ones.
        lengths: On test by verdict.
        shifts: Lengths at both ends of training.
        length_curves: Over training by arm, role and verdict.
    """

    matrix: Matrix
    problems: int
    samples: int
    dev_problems: int
    rows: tuple[ArmRow, ...]
    contrasts: tuple[ContrastRow, ...]
    waiting: tuple[ContrastSpec, ...]
    squares: tuple[Square, ...]
    claims: tuple[tuple[Claim, Comparison | None], ...]
    votes: Mapping[tuple[str, Reported], list[VotePoint]]
    equal: tuple[EqualTokens, ...]
    curves: Mapping[str, Band]
    changes: tuple[ChangeRow, ...]
    spots: tuple[BlindSpots, ...]
    ablations: tuple[Comparison, ...]
    controls: tuple[ControlRow, ...]
    lengths: tuple[LengthRow, ...]
    shifts: tuple[LengthShift, ...]
    length_curves: Mapping[tuple[str, str, str], Band]

    @property
    def headlines(self) -> tuple[ArmRow, ...]:
        """One row for each arm."""
        return tuple({row.arm: row for row in reversed(self.rows)}.values())[::-1]


def find(matrix: Matrix) -> Findings:
    """Compute all of it."""
    arms = matrix.arms
    test = matrix.results[0].data["evaluations"]["test"]
    contrasts = contrast_rows(matrix.experiment, arms) if matrix.experiment else []
    named = matrix.experiment.primary if matrix.experiment else ()
    tested = {row.spec.name for row in contrasts}
    spots = [blind_spots(arm, runs) for arm, runs in arms.items()]
    shifts = [length_shift(arm, runs, role) for arm, runs in arms.items() for role in ROLES]
    return Findings(
        matrix=matrix,
        problems=len(test["problems"]),
        samples=test["samples"],
        dev_problems=len(matrix.results[0].data["evaluations"]["dev"]["problems"]),
        rows=tuple(
            arm_row(arm, runs, word) for arm, runs in arms.items() for word in protocols(runs)
        ),
        contrasts=tuple(contrasts),
        waiting=tuple(spec for spec in named if spec.name not in tested),
        squares=tuple(square(arms, reading) for reading in READINGS),
        claims=tuple((claim, _claim(arms, claim)) for claim in CLAIMS),
        votes={
            (arm, word): vote_points(arms[arm], word) for arm, word in VOTERS if arm in arms
        },
        equal=tuple(_equal(arms)),
        curves=_curves(arms),
        changes=tuple(row for arm, runs in arms.items() for row in change_rows(arm, runs)),
        spots=tuple(spot for spot in spots if spot is not None),
        ablations=tuple(_ablations(arms)),
        controls=tuple(row for arm, runs in arms.items() for row in control_rows(arm, runs)),
        lengths=tuple(length_row(arm, runs) for arm, runs in arms.items()),
        shifts=tuple(shift for shift in shifts if shift is not None),
        length_curves=_length_curves(arms),
    )  # fmt: skip


def headline(runs: Runs) -> Reported:
    """The word of an arm's headline system."""
    word: Reported = next(iter(runs.values())).data["reported"]
    return word


def protocols(runs: Runs) -> list[Reported]:
    """An arm's headline system, then what else its policies can do in one pass and in two."""
    some = next(iter(runs.values()))
    names = some.systems("test")
    words: list[Reported] = [headline(runs)]
    if not some.data["trained"]:
        more: tuple[Reported, ...] = ("base", "mixture")
    elif "a->b" in names:
        more = ("alone",) if words[0] == "a->b" else ("alone", "cascade")
    else:
        more = ("alone", "self-cascade")
    return words + [word for word in more if word not in words]


def _side(arms: Mapping[str, Runs], arm: str) -> Side:
    return Side(arm=arm, reported=headline(arms[arm]))


def _claim(arms: Mapping[str, Runs], claim: Claim) -> Comparison | None:
    sides = [Side(arm=arm, reported=word) for arm, word in (claim.higher, claim.lower)]
    return compare(arms, sides[0], sides[1])


def _ablations(arms: Mapping[str, Runs]) -> list[Comparison]:
    found = []
    for arm, runs in arms.items():
        two = "b" in next(iter(runs.values())).systems("test")
        reference = REFERENCES.get(arm, "agon" if two else "grpo")
        if arm in NO_ABLATIONS or reference not in arms:
            continue
        comparison = compare(arms, _side(arms, arm), _side(arms, reference))
        if comparison is not None:
            found.append(comparison)
    return found


def _equal(arms: Mapping[str, Runs]) -> list[EqualTokens]:
    """Each headline of two passes against votes of its own adapter, of GRPO and of GRPO-2N."""
    found = []
    for arm in arms:
        two = _side(arms, arm)
        if two.reported in ("base", "alone"):
            continue
        for other in dict.fromkeys((arm, "grpo", "grpo-2n")):
            pair = equal_tokens(arms, two, Side(arm=other, reported="alone"))
            if pair is not None:
                found.append(pair)
    return found


def _curves(arms: Mapping[str, Runs]) -> dict[str, Band]:
    found = {arm: dev_curve(runs) for arm, runs in arms.items()}
    return {arm: curve for arm, curve in found.items() if curve is not None}


def _length_curves(arms: Mapping[str, Runs]) -> dict[tuple[str, str, str], Band]:
    found = {}
    for arm, runs in arms.items():
        for role in ROLES:
            for verdict in ("right", "wrong"):
                curve = training_curve(runs, f"{role}.length_{verdict}", SMOOTHED)
                if curve is not None:
                    found[arm, role, verdict] = curve
    return found
