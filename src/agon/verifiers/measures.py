r"""Units, currencies, per cent and degree signs around an answer's value.

What this module does not do: convert between units; 5 m and 500 cm are different answers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

PERCENT, DEGREE, DOLLAR = "percent", "degree", "dollar"

_SPELLINGS = {
    "mm": "mm millimeter millimetre", "cm": "cm centimeter centimetre", "m": "m meter metre",
    "km": "km kilometer kilometre", "in": "in inch inches", "ft": "ft foot feet",
    "yd": "yd yard", "mi": "mi mile", "mg": "mg milligram", "g": "g gram", "kg": "kg kilogram",
    "t": "ton tonne", "lb": "lb lbs pound", "oz": "oz ounce", "ml": "ml milliliter millilitre",
    "l": "liter litre", "gal": "gal gallon", "ms": "ms millisecond", "s": "sec second",
    "min": "min minute", "h": "h hr hour", "day": "day", "week": "week", "month": "month",
    "year": "year yr", DOLLAR: "dollar usd", "cent": "cent", "euro": "euro eur",
    "radian": "radian rad", DEGREE: "degree deg", PERCENT: "percent percentage", "N": "newton",
    "J": "joule", "W": "watt", "V": "volt", "Hz": "hz hertz",
}  # fmt: skip
_UNITS = {spelling: unit for unit, line in _SPELLINGS.items() for spelling in line.split()}
_NO_UNITS = frozenset(
    "pi e i and or sqrt sin cos tan log ln exp inf infinity mod times plus minus theta alpha "
    "beta gamma x y z n k a b c to".split()
)
_LEADING = re.compile(r"(-?)\s*(?:\\\$|\$|\\text\{\s*\\?\$\s*\})\s*(?=[\d.])")
_PERCENT = re.compile(r"\s*\\?%$")
_DEGREE = re.compile(r"\s*(?:\^\s*\{?\s*\\circ\s*\}?|\\degree)\s*(?:C|F)?$")
_MARKED = re.compile(
    r"\s*\\(?:text|mbox|textrm|textnormal|mathrm|textbf|hbox)\s*\{([^{}]*)\}\s*"
    r"(?:\^\s*\{?\s*([23])\s*\}?)?$"
)
_WORDS = re.compile(
    r"(?<=[\d})\]])\s*([A-Za-z][A-Za-z.]*(?:[ /][A-Za-z][A-Za-z.]*)*)\s*(?:\^\{?([23])\}?)?$"
)
_VALUE = re.compile(r".*[\d})\]]\s*$|\\?[A-Za-z]+", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Measured:
    """A value and what it is measured in.

    Attributes:
        value: The text without its unit.
        unit: A unit's canonical name, other words as they stand, or empty.
        known: Whether the unit is one that differs from other units.
    """

    value: str
    unit: str = ""
    known: bool = False


def split(text: str) -> Measured:
    """A tidy text as value and unit."""
    leading = _LEADING.match(text)
    if leading is not None:
        rest = split(text[leading.end() :])
        return Measured(leading[1] + rest.value, DOLLAR, True)
    for pattern, unit in ((_PERCENT, PERCENT), (_DEGREE, DEGREE)):
        match = pattern.search(text)
        if match is not None and text[: match.start()].strip():
            value = text[: match.start()].strip()
            if unit == DEGREE and not _bare_number(value):
                return Measured(text)
            return Measured(value, unit, True)
    match = _MARKED.search(text)
    if match is not None and _VALUE.fullmatch(text[: match.start()]) and match[1].strip():
        return _measured(text[: match.start()], match[1], match[2])
    match = _WORDS.search(text)
    if match is not None and _worded(match[1]):
        return _measured(text[: match.start()], match[1], match[2])
    return Measured(text)


def differ(gold: Measured, answer: Measured) -> bool:
    """Whether two known units are different ones."""
    return gold.known and answer.known and gold.unit != answer.unit


def _measured(value: str, words: str, power: str | None) -> Measured:
    words = " ".join(words.replace(".", " ").split()).casefold()
    first = words.removeprefix("square ").removeprefix("cubic ")
    power = power or {"square": "2", "cubic": "3"}.get(words.split(" ")[0] if words else "", "")
    unit = _UNITS.get(first) or _UNITS.get(first.removesuffix("s")) or _UNITS.get(words)
    if unit is None:
        return Measured(value.strip(), words)
    return Measured(value.strip(), unit + power, True)


def _worded(words: str) -> bool:
    """Whether plain words after a value are a unit or a noun, and not mathematics."""
    parts = re.split(r"[ /]", words.casefold().strip("."))
    if any(part in _NO_UNITS for part in parts):
        return False
    return all(len(part) >= 2 for part in parts) and (
        any(len(part) >= 3 for part in parts) or parts[0] in _UNITS
    )


def _bare_number(text: str) -> bool:
    """Whether a degree sign after this text is its unit, and not part of an expression."""
    return re.fullmatch(r"[-+]?[\d.,/ ]+|[-+]?\\frac\s*\{\d+\}\s*\{\d+\}", text) is not None
