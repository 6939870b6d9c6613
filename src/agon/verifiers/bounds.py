r"""Bounds on mathematical text, checked on the text alone before any symbolic object is built.

`9^{9^{9}}` is nine characters and has 369 million digits. What is estimated here is how many
digits a text's numbers would have if its powers, factorials and binomials were written out. The
estimate errs upwards: sums and quotients count as products.

What this module does not do: parse mathematics. A text within the bounds may still take for ever
to compare, which the limits of the worker processes end.
"""

from __future__ import annotations

import math
import re

MAX_CHARACTERS = 2_000
MAX_DIGITS = 200
MAX_NESTING = 30
MAX_WRITTEN_DIGITS = 20_000
MAX_EXPONENT = 1_000_000

_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|[0-9]+|\*\*|\S", re.DOTALL)
_SIZING = re.compile(r"\\(?:left|right|[bB]igg?[lrm]?)")
_OPENING = frozenset({"(", "[", "{", "\\{"})
_CLOSING = frozenset({")", "]", "}", "\\}"})
_BINOMIALS = frozenset({"\\binom", "\\dbinom", "\\tbinom"})
_CONSTANTS = {"e": math.log10(3), "\\pi": math.log10(4), "\u03c0": math.log10(4)}


class OverBound(Exception):
    """Says which bound a text exceeds."""


def over_bounds(text: str) -> str | None:
    """Which bound a text exceeds, in words; None when it exceeds none."""
    if len(text) > MAX_CHARACTERS:
        return f"more than {MAX_CHARACTERS} characters"
    tokens = [token for token in _TOKEN.findall(text) if not _SIZING.fullmatch(token)]
    if any(len(token) > MAX_DIGITS and token[0].isdigit() for token in tokens):
        return f"a number of more than {MAX_DIGITS} digits"
    try:
        if _Estimate(tokens).all() > MAX_WRITTEN_DIGITS:
            return f"more than {MAX_WRITTEN_DIGITS} digits written out"
    except OverBound as excess:
        return str(excess)
    return None


class _Estimate:
    """Walks over tokens once; sizes are decimal logarithms, so products are sums.

    A symbol has no size of its own, but counts as one digit when it is raised to a power.
    """

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._position = 0

    def all(self) -> float:
        """Size of the whole text, stray closing brackets included."""
        total = 0.0
        while self._position < len(self._tokens):
            total += self._group(depth=0)
        return total

    def _peek(self) -> str:
        return self._tokens[self._position] if self._position < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        self._position += 1
        return token

    def _group(self, depth: int) -> float:
        total = 0.0
        while (token := self._peek()) and token not in _CLOSING:
            total += self._factor(depth)
        self._next()
        return total

    def _factor(self, depth: int) -> float:
        """Size of a token or group with the factorials and powers that follow it."""
        if depth > MAX_NESTING:
            raise OverBound(f"nested more than {MAX_NESTING} deep")
        size, base = self._atom(self._next(), depth)
        while True:
            token = self._peek()
            if token == "!":
                self._next()
                value = _value(size)
                size = base = value * math.log10(max(value, 1.0))
            elif token in ("^", "**"):
                self._next()
                size = base = base * _value(self._exponent(depth + 1))
            elif token == "_":  # a subscript writes no digits, and may stand before a power
                self._next()
                self._factor_unless_closed(depth + 1)
            else:
                return size

    def _exponent(self, depth: int) -> float:
        while self._peek() in ("+", "-"):
            self._next()
        return self._factor_unless_closed(depth)

    def _factor_unless_closed(self, depth: int) -> float:
        token = self._peek()
        return self._factor(depth) if token and token not in _CLOSING else 0.0

    def _atom(self, token: str, depth: int) -> tuple[float, float]:
        """Size of a token or group by itself, and its size as the base of a power."""
        if token in _OPENING:
            size = self._group(depth + 1)
            return size, max(size, 1.0)
        if token[0] in "0123456789":
            size = math.log10(max(int(token), 1))
            return size, size
        if token in _CONSTANTS:
            return _CONSTANTS[token], _CONSTANTS[token]
        if token in _BINOMIALS:
            size = _value(self._factor_unless_closed(depth + 1)) * math.log10(2)
            return size, size
        return 0.0, 1.0


def _value(size: float) -> float:
    """A number from its decimal logarithm.

    Raises:
        OverBound: It is too large to be an exponent or the argument of a factorial.
    """
    if size > math.log10(MAX_EXPONENT):
        raise OverBound(f"an exponent or factorial beyond {MAX_EXPONENT}")
    return float(10.0**size)
