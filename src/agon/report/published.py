"""The paper's published figures, and the order of systems that they claim.

One training run each, 300 held-out problems with one sample (about 5.5 points either way), the
cascade's direction picked on the held-out set. Cells that are not published stay empty. These
figures are of another model and another task than ours: they are shown beside ours for the order
of systems, never averaged or compared in size.
"""

from __future__ import annotations

from dataclasses import dataclass

from agon.experiments.spec import Reported

SOURCE = "Qwen3-0.6B, DeepMath-hard"

UNCERTAINTY = "one run each, 300 problems, one sample: about ±5.5 points"


@dataclass(frozen=True, slots=True)
class Published:
    """A row of the paper's comparison.

    Attributes:
        arm: The arm here that is the same system.
        reported: And which of its systems.
        what: What the paper calls it.
        pass_1: In percent, as text.
        last: Mean trace of the last stage, tokens; empty where it is not given.
        passes: Inference passes; None where it is not given.
    """

    arm: str
    reported: Reported
    what: str
    pass_1: str
    last: str = ""
    passes: int | None = None


ROWS = (
    Published("base", "base", "base, zero-shot", "23", "6.1k", 1),
    Published("base", "mixture", "untrained mixture of agents", "27", "", 2),
    Published("grpo", "alone", "GRPO", "30", "8.1k", 1),
    Published("self-refine", "self-cascade", "self-refinement", "about 30", "", 2),
    Published("cooperative", "cascade", "cooperative exchange (no bonus)", "46", "", 2),
    Published("agon", "alone", "Agon, drafter alone", "46", "", 1),
    Published("agon", "cascade", "Agon, cascade", "61", "3.5k", 2),
    Published("margin", "cascade", "ablation: margin reward", "49", "", 2),
    Published("hidden-shared", "alone", "ablation: exchange hidden, one shared draft", "32"),
    Published("fixed", "a->b", "ablation: fixed roles", "52", "", 2),
    Published("tiebreak", "cascade", "Agon with length tiebreak", "60", "2.6k", 2),
)


@dataclass(frozen=True, slots=True)
class Claim:
    """One system ahead of another by so many published points."""

    higher: tuple[str, Reported]
    lower: tuple[str, Reported]
    points: str


CLAIMS = (
    Claim(("base", "mixture"), ("base", "base"), "+4"),
    Claim(("grpo", "alone"), ("base", "base"), "+7"),
    Claim(("agon", "cascade"), ("grpo", "alone"), "+31"),
    Claim(("agon", "alone"), ("grpo", "alone"), "+16"),
    Claim(("agon", "cascade"), ("cooperative", "cascade"), "+15"),
    Claim(("agon", "cascade"), ("self-refine", "self-cascade"), "about +31"),
    Claim(("cooperative", "cascade"), ("grpo", "alone"), "+16"),
    Claim(("agon", "cascade"), ("agon", "alone"), "+15"),
    Claim(("agon", "cascade"), ("margin", "cascade"), "+12"),
    Claim(("agon", "cascade"), ("hidden-shared", "alone"), "+29"),
    Claim(("agon", "cascade"), ("fixed", "a->b"), "+9"),
    Claim(("agon", "cascade"), ("tiebreak", "cascade"), "+1"),
)
"""The published orderings that the arms here can be held against."""


def published(arm: str, reported: Reported) -> Published | None:
    """The paper's row of a system, where it has one."""
    found = [row for row in ROWS if (row.arm, row.reported) == (arm, reported)]
    return found[0] if found else None
