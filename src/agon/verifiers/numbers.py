r"""Plain numbers, read and compared exactly: integers, decimals, fractions, mixed, scientific.

The rule for decimals. A decimal that is not equal to the other number stands for it if it is that
number correctly rounded, or cut off, at the decimal's own last place, and has at least
`ENOUGH_DIGITS` significant digits; of 15 digits and more, as computers print them, the first 14
count. So 0.333333 is a third and 0.333 is not, 0.500001 is not a half
at any length, and 3.14 is not pi.

What this module does not do: anything with a letter in it; that is `comparing`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from math import floor

from agon.records import Outcome, Verdict

FLOAT_DIGITS = 15
"""From so many on a decimal may be a printed double, whose last digits are not to be relied on."""

ENOUGH_DIGITS = 6
"""Significant digits from which on a decimal may stand for another number."""

MAX_DIGITS = 1_000
MAX_EXPONENT = 300

_DECIMAL = r"(?:\d[\d,]*(?:\.\d*)?|\.\d+)"
_PLAIN = re.compile(
    rf"([+-]?)\s*({_DECIMAL})(?:\s*(?:[eE]|\\times\s*10\s*\^|\\cdot\s*10\s*\^|\*\s*10\s*(?:\^|\*\*))"
    r"\s*\{?\(?\s*([+-]?\d{1,6})\s*\)?\}?)?"
)
_GROUPS = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d*)?|[\d.]+")
_FRACTION = re.compile(
    r"([+-]?)\s*(?:(\d+)\s*/\s*([+-]?\d+)|\\frac\s*\{\s*([+-]?\d+)\s*\}\s*\{\s*([+-]?\d+)\s*\}"
    r"|\\frac\s*(\d)\s*(\d))"
)
_MIXED = re.compile(
    r"([+-]?)\s*(\d+)\s*(?:\s(\d+)\s*/\s*(\d+)|\\frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}"
    r"|\\frac\s*(\d)(\d))"
)


@dataclass(frozen=True, slots=True)
class Plain:
    """A number as it is written.

    Attributes:
        value: What it is, exactly.
        places: Decimal places shown, negative before the point; None for integers and fractions.
        digits: Significant digits shown.
    """

    value: Fraction
    places: int | None
    digits: int


def read(text: str) -> Plain | None:
    """A tidy text as a plain number; None for any other text."""
    if len(text) > MAX_DIGITS + 20 or not text.isascii():
        return None
    text = text.strip()
    if (match := _PLAIN.fullmatch(text)) is not None:
        return _decimal(*match.groups())
    if (match := _FRACTION.fullmatch(text)) is not None:
        sign, *parts = match.groups()
        numerator, denominator = (int(part) for part in parts if part is not None)
        return _exact(sign, Fraction(numerator, denominator) if denominator else None)
    if (match := _MIXED.fullmatch(text)) is not None:
        sign, whole, *parts = match.groups()
        numerator, denominator = (int(part) for part in parts if part is not None)
        if 0 < numerator < denominator:
            return _exact(sign, int(whole) + Fraction(numerator, denominator))
    return None


def _exact(sign: str, value: Fraction | None) -> Plain | None:
    return None if value is None else Plain(-value if sign == "-" else value, None, 0)


def _decimal(sign: str, number: str, exponent: str | None) -> Plain | None:
    if _GROUPS.fullmatch(number) is None or abs(int(exponent or "0")) > MAX_EXPONENT:
        return None
    number = number.replace(",", "")
    whole, point, fraction = number.partition(".")
    shift = int(exponent or "0")
    digits = (whole + fraction).lstrip("0")
    value = Fraction(int(whole + fraction or "0")) * Fraction(10) ** (shift - len(fraction))
    value = -value if sign == "-" else value
    if not point and exponent is None:
        return Plain(value, None, 0)
    return Plain(value, len(fraction) - shift, len(digits))


def compare(gold: Plain, answer: Plain) -> Verdict:
    """Whether two plain numbers are the same, or one a good decimal of the other."""
    if gold.value == answer.value:
        return Verdict(Outcome.RIGHT, "equal numbers")
    for decimal, other in ((answer, gold), (gold, answer)):
        if stands_for(decimal, other.value):
            return Verdict(Outcome.RIGHT, f"equal to the {decimal.digits} digits given")
    return Verdict(Outcome.WRONG, "different numbers")


def stands_for(decimal: Plain, value: Fraction) -> bool:
    """Whether a decimal is a number rounded or cut off at its own last place."""
    if decimal.places is None or decimal.digits < ENOUGH_DIGITS:
        return False
    unit = Fraction(10) ** -decimal.places
    steps, wanted = abs(value) / unit, abs(decimal.value) / unit
    if value * decimal.value < 0:
        return False
    if wanted in (floor(steps), floor(steps + Fraction(1, 2))):
        return True
    # A number that could have been written out exactly at these places has no such excuse.
    printed = decimal.digits >= FLOAT_DIGITS and steps.denominator != 1
    return printed and abs(decimal.value - value) <= abs(value) * Fraction(1, 10**14)
