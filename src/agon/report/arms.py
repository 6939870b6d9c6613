"""How arms look: a colour and a marker each, the same in every figure.

The hues are Okabe and Ito's, some darkened for light ground and lightened for dark so that every
one stands out from its ground by 3:1; arms of one hue differ in their marker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

COLOURS = {
    "ink": ("#3a3a3a", "#d5d5d5"),
    "blue": ("#0072b2", "#4aa8e0"),
    "sky": ("#2b8cc4", "#8fd3ff"),
    "green": ("#00805c", "#22b88f"),
    "vermillion": ("#d55e00", "#ff8a3d"),
    "orange": ("#b07800", "#f0b429"),
    "purple": ("#b3568c", "#e39cc5"),
}
"""Each hue on light and on dark ground."""


@dataclass(frozen=True, slots=True)
class Look:
    """Colour (a key of `COLOURS`), matplotlib marker and dash of an arm."""

    colour: str
    marker: str
    dash: str = "-"


LOOKS = {
    "base": Look("ink", "X", ":"),
    "grpo": Look("blue", "o"),
    "grpo-2n": Look("sky", "s", "--"),
    "self-refine": Look("purple", "D", "-."),
    "cooperative": Look("green", "^", "--"),
    "agon": Look("vermillion", "*"),
    "agon-equal": Look("vermillion", "v", ":"),
    "margin": Look("orange", "<"),
    "tiebreak": Look("orange", ">", "--"),
    "fixed": Look("orange", "h", "-."),
    "hidden-shared": Look("purple", "p", ":"),
    "hidden-paired": Look("purple", "d"),
    "shuffled": Look("green", "P", ":"),
    "filler": Look("ink", "p", "--"),
    "length-penalty": Look("blue", "h", ":"),
}

MAIN = ("grpo", "grpo-2n", "self-refine", "cooperative", "agon")
"""The arms that training curves are drawn of first."""

ABLATIONS = ("agon-equal", "margin", "tiebreak", "fixed")
"""Agon with one thing changed, in a panel of their own."""

PAIRS = ("cooperative", "agon", "agon-equal", "hidden-paired")
"""Arms with two policies whose blind spots are drawn."""

_SPARE = tuple(
    Look(colour, marker) for marker in ("o", "s", "^", "D") for colour in tuple(COLOURS)[1:]
)


def look(arm: str, arms: Sequence[str] = ()) -> Look:
    """An arm's look; an arm without one of its own takes one by its place among `arms`."""
    if arm in LOOKS:
        return LOOKS[arm]
    others = [name for name in arms if name not in LOOKS]
    return _SPARE[others.index(arm) % len(_SPARE)] if arm in others else _SPARE[0]


def protocol(reported: str) -> str:
    """What a word of `Reported` means, for tables."""
    return {
        "base": "untrained",
        "mixture": "untrained, twice",
        "alone": "one adapter",
        "self-cascade": "self-cascade",
        "cascade": "cascade",
        "a->b": "cascade, fixed",
    }[reported]
