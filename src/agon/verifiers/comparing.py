r"""Symbolic answers, compared through math-verify and, where it is not exact, by our own rules.

math-verify reads LaTeX and compares expressions with unknowns. Numbers, and the numbers inside
tuples, sets, intervals and matrices, are compared here: exact ones exactly, others to
`PRECISION` digits relative to their size, so that 1/2004! is not 1/2006! though both are 0.0 as
floats. Meant to run inside a worker process: a comparison may take for ever.

What this module does not do: bounds, text rules, limits of time (`maths`, `bounds`, `pool`).
"""

from __future__ import annotations

import logging
import re
from fractions import Fraction
from typing import Any

from agon.verifiers import numbers

PRECISIONS = (80, 1_200)
"""Decimal digits to which two numbers that are no rationals have to agree, the second if the first
finds them equal: e^1000 + 1 and e^1000 differ in the 435th digit."""

MAX_MEMBERS = 40
"""Members of a list up to which each is compared with each."""

_RELATION = re.compile(r"\\(?:leq|geq|neq|in|lt|gt)(?![A-Za-z])|[<>=]")
_EQUALS = re.compile(r"(?<![<>!\\])=(?!=)")
_CHAIN = re.compile(r"(<|>|\\leq|\\geq|\\lt(?![A-Za-z])|\\gt(?![A-Za-z]))")
_MIRROR = {"<": ">", ">": "<", r"\leq": r"\geq", r"\geq": r"\leq", r"\lt": r"\gt", r"\gt": r"\lt"}


def read(text: str) -> Any | None:
    """A LaTeX text as a symbolic object; None where it cannot be read whole.

    math-verify's usual fallbacks are off: they take a number or a piece of LaTeX out of a text
    that they cannot read, so two different texts that share the piece would be equal.
    """
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse

    # math-verify warns that its own time limits are off, once in each process. They use signals,
    # which work in main threads alone.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    # Units are taken off before (`measures`); math-verify would take every `m` and `c` for one.
    config = LatexExtractionConfig(
        normalization_config=NormalizationConfig(
            basic_latex=True,
            units=False,
            malformed_operators=True,
            nits=True,
            boxed="none",
            equations=False,
        )
    )
    parsed = parse(rf"\({text}\)", [config], fallback_mode="no_fallback", parsing_timeout=None)
    return _with_imaginary_unit(parsed[0]) if parsed else None


def _with_imaginary_unit(parsed: Any) -> Any:
    """I is the imaginary unit; both sides are read so, and an index i loses nothing by it."""
    import sympy  # type: ignore[import-untyped]

    try:
        units = [symbol for symbol in parsed.free_symbols if symbol.name in ("i", "imath")]
        return parsed.xreplace(dict.fromkeys(units, sympy.I)) if units else parsed
    except (AttributeError, TypeError):  # a text, or an inequality that i may not enter
        return parsed


def same(gold_text: str, answer_text: str, gold: Any, answer: Any) -> bool:
    """Whether two symbolic objects are equal as answers.

    Args:
        gold_text: The gold answer in LaTeX, for rules about its form.
        answer_text: The answer in LaTeX.
        gold: The gold answer, from `read`.
        answer: The answer, from `read`.
    """
    if {_brackets(gold_text), _brackets(answer_text)} == {"set", "ordered"}:
        return False
    if not _consistent(answer_text):
        return False
    parts, given = _members(gold_text), _members(answer_text)
    if parts is not None and given is not None:
        return _same_list(parts, given)
    verdict = _alike(_evaluated(gold), _evaluated(answer), gold_text, answer_text)
    if verdict is not None:
        return verdict
    if (
        _same_inequality(gold, answer)
        or _same_equation(gold, answer)
        or _same_chain(gold_text, answer_text)
    ):
        return True
    import math_verify

    if _other_unknowns(gold, answer):
        return False
    return bool(
        math_verify.verify(gold, answer, allow_set_relation_comp=True, timeout_seconds=None)
    )


def _brackets(text: str) -> str | None:
    """Whether a text of several members is a set or ordered, where its brackets say so."""
    if "," not in text:
        return None
    if text.startswith(r"\{") and text.endswith(r"\}"):
        return "set"
    if text.startswith(("(", "[")) and text.endswith((")", "]")) and r"\cup" not in text:
        return "ordered"
    return None


def _consistent(text: str) -> bool:
    """Whether the numbers of a chain of equalities are equal: `1 = 2 = 3` lists guesses."""
    parts = _EQUALS.split(text)
    if len(parts) < 2 or "," in text:
        return True
    numbers_found = [_evaluated(value) for part in parts if (value := read(part)) is not None]
    numbers_found = [value for value in numbers_found if _is_number(value)]
    return all(_same_number(numbers_found[0], other) for other in numbers_found[1:])


def _members(text: str) -> list[str] | None:
    """The members of a bare comma list; None for anything else."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    if not 2 <= len(parts) <= MAX_MEMBERS or _RELATION.search(text) or r"\pm" in text:
        return None
    members = [part.strip() for part in parts]
    return members if all(members) else None


def _same_list(gold: list[str], answer: list[str]) -> bool:
    """Whether two bare lists have the same members, as often, in whatever order."""
    if len(gold) != len(answer):
        return False
    left = [(text, read(text)) for text in answer]
    for text in gold:
        value = read(text)
        found = next(
            (
                place
                for place, (other, given) in enumerate(left)
                if text.replace(" ", "") == other.replace(" ", "")
                or (value is not None and given is not None and same(text, other, value, given))
            ),
            None,
        )
        if found is None:
            return False
        del left[found]
    return True


def _same_inequality(gold: Any, answer: Any) -> bool:
    """Whether two inequalities of one unknown have the same solutions."""
    import sympy

    kinds = (sympy.Lt, sympy.Le, sympy.Gt, sympy.Ge)
    if not isinstance(gold, kinds) or not isinstance(answer, kinds):
        return False
    if len(gold.free_symbols) != 1 or gold.free_symbols != answer.free_symbols:
        return False
    if not all(side.is_polynomial() for side in (*gold.args, *answer.args)):
        return False
    return bool(gold.as_set() == answer.as_set())


def _other_unknowns(gold: Any, answer: Any) -> bool:
    """Whether two equations are about different unknowns; renaming one makes another equation."""
    import sympy

    if not isinstance(gold, sympy.Eq) or not isinstance(answer, sympy.Eq):
        return False
    return bool(gold.free_symbols != answer.free_symbols)


def _evaluated(value: Any) -> Any:
    """An object with its postponed arithmetic done."""
    try:
        return value.doit()
    except MemoryError:
        raise
    except Exception:
        return value


def _alike(gold: Any, answer: Any, gold_text: str = "", answer_text: str = "") -> bool | None:
    """Equality of numbers and of collections of them; None where something else is in them."""
    import sympy
    from latex2sympy2_extended.sets import FiniteSet

    if _is_number(gold) and _is_number(answer):
        return _same_number(gold, answer, gold_text, answer_text)
    pairs: tuple[type[Any], ...] = (sympy.Tuple, sympy.MatrixBase)
    for kind in pairs:
        if isinstance(gold, kind) and isinstance(answer, kind):
            return _all_alike(gold, answer)
    sets = (FiniteSet, sympy.FiniteSet)
    if isinstance(gold, sets) and isinstance(answer, sets):
        return _same_members(list(gold.args), list(answer.args))
    if isinstance(gold, sympy.Interval) and isinstance(answer, sympy.Interval):
        if (gold.left_open, gold.right_open) != (answer.left_open, answer.right_open):
            return False
        return _conjunction([_alike(gold.start, answer.start), _alike(gold.end, answer.end)])
    return None


def _all_alike(gold: Any, answer: Any) -> bool | None:
    if getattr(gold, "shape", None) != getattr(answer, "shape", None) or len(gold) != len(answer):
        return False
    return _conjunction([_alike(g, a) for g, a in zip(gold, answer, strict=True)])


def _conjunction(parts: list[bool | None]) -> bool | None:
    if any(part is False for part in parts):
        return False
    return None if any(part is None for part in parts) else True


def _same_members(gold: list[Any], answer: list[Any]) -> bool | None:
    """Whether two sets of numbers have the same members, in time of sorting."""
    if not all(map(_is_number, (*gold, *answer))):
        return None
    try:
        first, second = (sorted(members, key=_place) for members in (gold, answer))
    except (TypeError, ValueError):
        return None
    kept_first, kept_second = _without_repeats(first), _without_repeats(second)
    if len(kept_first) != len(kept_second):
        return False
    return all(_same_number(g, a) for g, a in zip(kept_first, kept_second, strict=True))


def _place(value: Any) -> tuple[float, float]:
    approximate = complex(value.evalf(30))
    return (round(approximate.real, 9), round(approximate.imag, 9))


def _without_repeats(members: list[Any]) -> list[Any]:
    kept: list[Any] = []
    for member in members:
        if not kept or not _same_number(kept[-1], member):
            kept.append(member)
    return kept


def _is_number(value: Any) -> bool:
    import sympy

    if not isinstance(value, sympy.Expr) or value.free_symbols:
        return False
    return bool(value.is_number)


def _same_number(gold: Any, answer: Any, gold_text: str = "", answer_text: str = "") -> bool:
    import sympy

    if gold.is_infinite or answer.is_infinite or gold is sympy.nan or answer is sympy.nan:
        return bool(gold == answer)
    gold, answer = _exact_float(gold), _exact_float(answer)
    if gold.is_Rational and answer.is_Rational:
        if gold == answer:
            return True
    else:
        if gold == answer or all(_agree(gold, answer, digits) for digits in PRECISIONS):
            return True
    return any(
        _decimal_of(text, other) for text, other in ((answer_text, gold), (gold_text, answer))
    )


def _agree(gold: Any, answer: Any, digits: int) -> bool:
    """Whether two numbers agree to so many digits, relative to their size."""
    import sympy

    first, second = gold.evalf(digits), answer.evalf(digits)
    scale = max(abs(first), abs(second))
    return bool(scale == 0 or abs(first - second) <= scale * sympy.Float(10) ** (20 - digits))


def _exact_float(value: Any) -> Any:
    """A decimal is the rational number that is written, and not the float next to it."""
    import sympy

    if not value.has(sympy.Float):
        return value
    return value.xreplace({f: sympy.Rational(str(f)) for f in value.atoms(sympy.Float)})


def _decimal_of(text: str, value: Any) -> bool:
    """Whether a text is a good decimal of a real number; see `numbers`."""
    import sympy

    plain = numbers.read(text)
    if plain is None or plain.places is None or not value.is_real:
        return False
    digits = max(PRECISIONS[0], plain.digits + 20)
    exact = sympy.Rational(str(value.evalf(digits)))
    return numbers.stands_for(plain, Fraction(int(exact.p), int(exact.q)))


def _same_equation(gold: Any, answer: Any) -> bool:
    """Whether two equations say the same: their differences are multiples of each other."""
    import sympy

    if not isinstance(gold, sympy.Eq) or not isinstance(answer, sympy.Eq):
        return False
    if any(not isinstance(side, sympy.Expr) for side in (*gold.args, *answer.args)):
        return False
    first, second = (equation.lhs - equation.rhs for equation in (gold, answer))
    if not first.free_symbols or first.free_symbols != second.free_symbols:
        return False
    if not all(part.is_polynomial(*part.free_symbols) for part in (first, second)):
        return False
    ratio = sympy.cancel(first / second)
    return bool(ratio.is_number and ratio.is_finite and ratio != 0)


def _same_chain(gold: str, answer: str) -> bool:
    """Whether a chain of inequalities is another one, forwards or backwards, term by term."""
    first, second = _CHAIN.split(gold), _CHAIN.split(answer)
    if len(first) < 5 or len(first) != len(second):
        return False
    mirrored = [_MIRROR.get(part.strip(), part) for part in reversed(second)]
    return any(_same_terms(first, other) for other in (second, mirrored))


def _same_terms(first: list[str], second: list[str]) -> bool:
    for one, other in zip(first, second, strict=True):
        one, other = one.strip(), other.strip()
        if one.replace(" ", "") == other.replace(" ", ""):
            continue
        if one in _MIRROR or other in _MIRROR:
            return False
        gold, answer = read(one), read(other)
        if gold is None or answer is None or not same(one, other, gold, answer):
            return False
    return True
