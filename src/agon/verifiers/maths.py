r"""Mathematical answers: text rules, exact numbers, and math-verify for the rest.

The rules are tried in order, and the one that decides names itself in the verdict's reason; the
page docs/verifiers.md states each with its reason:

    the same text after undressing         `notation`
    words, options, numerals, notation     `wording`
    units, per cent, degrees               `measures`
    plain numbers, exactly                 `numbers`
    everything else, symbolically          `comparing`, through math-verify

All but the last take time linear in the text and run in any process (`verify_quickly`). The last
is meant to run inside a worker process: the comparison of two harmless-looking expressions may
take for ever, and only killing the process ends it. What can be seen to be too large from the text
alone is refused before any symbolic object is built (`bounds`).

The answer is the content of the answer block. What this module does not do: look for an answer in
running text (`extraction`), run any part of the text, keep to a limit (`pool`).
"""

from __future__ import annotations

import re
from fractions import Fraction

from agon.records import Outcome, Verdict
from agon.verifiers import comparing, measures, numbers, wording
from agon.verifiers.bounds import MAX_CHARACTERS, over_bounds
from agon.verifiers.measures import Measured
from agon.verifiers.notation import latex, letters_of, tidy, undress

__all__ = ["undress", "verify", "verify_gold", "verify_gold_quickly", "verify_quickly"]

EQUAL = Verdict(Outcome.RIGHT, "equal")
DIFFERENT = Verdict(Outcome.WRONG, "different")
SHOWN = 200
"""Characters of each reading that a verdict's detail shows."""

_DEGREES = re.compile(r"\s*\^\s*\{?\s*\\circ\s*\}?|\\degree(?![A-Za-z])")


def verify(gold: str, answer: str) -> Verdict:
    """Judge an answer block against a gold answer.

    Args:
        gold: The gold answer, usually LaTeX without dollar signs.
        answer: Content of the reply's answer block.

    Returns:
        Right or wrong; unscored where the gold answer itself cannot be read, which is not the
        reply's doing. The reason names the rule, the detail how both were read.

    Raises:
        MemoryError: Memory ran out; whoever set the limit decides what that means.
    """
    if (verdict := verify_quickly(gold, answer)) is not None:
        return verdict
    expected, given = tidy(gold), tidy(answer)
    wanted, offered = measures.split(expected), measures.split(given)
    verdicts = [
        _compare(wanted.value, scale.format(offered.value)) for scale in _scales(wanted, offered)
    ]
    best = next((v for v in verdicts if v.outcome is not Outcome.WRONG), verdicts[0])
    return _explained(best, expected, given)


def verify_quickly(gold: str, answer: str) -> Verdict | None:
    """The verdict where it needs no symbolic mathematics, None where it does.

    Safe and fast in any process: it looks at the two texts alone.
    """
    if not answer.strip():
        return Verdict(Outcome.WRONG, "the answer is empty")
    if answer.strip() == gold.strip():
        return Verdict(Outcome.RIGHT, "same text")
    if len(answer) > MAX_CHARACTERS:
        return Verdict(
            Outcome.WRONG, f"the answer is over a bound: more than {MAX_CHARACTERS} characters"
        )
    if len(gold) > MAX_CHARACTERS:
        return Verdict(Outcome.UNSCORED, f"the gold answer is over a bound: {over_bounds(gold)}")
    expected, given = tidy(gold), tidy(answer)
    if not given:
        return Verdict(Outcome.WRONG, "the answer is empty")
    known = _known_by_text(expected, given)
    if known is not None:
        return _explained(known, expected, given)
    for text, outcome, who in (
        (answer, Outcome.WRONG, "the answer"),
        (gold, Outcome.UNSCORED, "the gold answer"),
    ):
        if (excess := over_bounds(text)) is not None:
            return Verdict(outcome, f"{who} is over a bound: {excess}")
    return None


def verify_gold(gold: str) -> Verdict:
    """Whether answers can be judged against a gold answer: it is read, and equals itself.

    Raises:
        MemoryError: Memory ran out; whoever set the limit decides what that means.
    """
    if (verdict := verify_gold_quickly(gold)) is not None:
        return verdict
    value = latex(measures.split(tidy(gold)).value)
    try:
        parsed = comparing.read(value)
        equal = parsed is not None and comparing.same(value, value, parsed, comparing.read(value))
    except MemoryError:
        raise
    except Exception as error:  # the parser's many exceptions have no common base
        return Verdict(Outcome.WRONG, f"the gold answer cannot be read: {_kind(error)}")
    return EQUAL if equal else Verdict(Outcome.WRONG, "the gold answer cannot be read")


def verify_gold_quickly(gold: str) -> Verdict | None:
    """The verdict of `verify_gold` where it needs no symbolic mathematics, None where it does."""
    if not gold.strip():
        return Verdict(Outcome.WRONG, "the gold answer is empty")
    if (excess := over_bounds(gold)) is not None:
        return Verdict(Outcome.WRONG, f"the gold answer is over a bound: {excess}")
    text = tidy(gold)
    if not text:
        return Verdict(Outcome.WRONG, "the gold answer is empty")
    if wording.is_text(text):
        return Verdict(Outcome.RIGHT, "judged as text")
    if numbers.read(measures.split(text).value) is not None:
        return Verdict(Outcome.RIGHT, "a plain number")
    return None


def _known_by_text(expected: str, given: str) -> Verdict | None:
    """The verdict of the rules that look at two tidy texts alone."""
    if letters_of(expected) == letters_of(given):
        return Verdict(Outcome.RIGHT, "same text")
    if (verdict := wording.decide(expected, given)) is not None:
        return verdict
    wanted, offered = measures.split(expected), measures.split(given)
    if measures.differ(wanted, offered) and measures.PERCENT not in (wanted.unit, offered.unit):
        return Verdict(Outcome.WRONG, "another unit")
    number, claimed = numbers.read(wanted.value), numbers.read(offered.value)
    if number is None or claimed is None:
        return None
    verdicts = [numbers.compare(number, claimed)]
    if measures.PERCENT in (wanted.unit, offered.unit):
        verdicts = [
            numbers.compare(number, _scaled(claimed, scale)) for scale in _scales(wanted, offered)
        ]
    return next((v for v in verdicts if v.outcome is Outcome.RIGHT), verdicts[0])


def _scales(wanted: Measured, offered: Measured) -> list[str]:
    """What an answer may be multiplied by: a percentage and its value are the same answer."""
    if wanted.unit == measures.PERCENT:
        return ["{}"] if offered.unit == measures.PERCENT else ["{}", r"100 \cdot ({})"]
    if (measures.DEGREE in (wanted.unit, offered.unit)) and not (wanted.unit and offered.unit):
        # An angle is the same in degrees and in radians.
        radians = wanted.unit == measures.DEGREE
        return [
            "{}",
            r"\frac{{180}}{{\pi}} \cdot ({})" if radians else r"\frac{{\pi}}{{180}} \cdot ({})",
        ]
    if offered.unit == measures.PERCENT:
        number = numbers.read(wanted.value)
        value = [r"\frac{{1}}{{100}} \cdot ({})"]
        return [*value, "{}"] if number is not None and abs(number.value) >= 1 else value
    return ["{}"]


def _scaled(number: numbers.Plain, scale: str) -> numbers.Plain:
    shift = {"{}": 0, r"100 \cdot ({})": -2}.get(scale, 2)
    places = None if number.places is None else number.places + shift
    return numbers.Plain(number.value / Fraction(10) ** shift, places, number.digits)


def _compare(wanted: str, offered: str) -> Verdict:
    """The symbolic comparison of two tidy texts without units."""
    expected_text, given_text = (_readable(text) for text in (wanted, offered))
    try:
        expected = comparing.read(expected_text)
    except MemoryError:
        raise
    except Exception as error:
        return Verdict(Outcome.UNSCORED, f"the gold answer cannot be read: {_kind(error)}")
    if expected is None:
        return Verdict(Outcome.UNSCORED, "the gold answer cannot be read")
    try:
        given = comparing.read(given_text)
        if given is None:
            return Verdict(Outcome.WRONG, "the answer cannot be read as mathematics")
        return EQUAL if comparing.same(expected_text, given_text, expected, given) else DIFFERENT
    except MemoryError:
        raise
    except Exception as error:  # the reply's own content is the cause
        return Verdict(Outcome.WRONG, f"the answer cannot be compared: {_kind(error)}")


def _readable(text: str) -> str:
    """LaTeX in which degrees inside an expression are what they stand for."""
    return _DEGREES.sub(r" \\cdot \\frac{\\pi}{180} ", latex(text))


def _explained(verdict: Verdict, expected: str, given: str) -> Verdict:
    wanted, offered = measures.split(expected), measures.split(given)
    lines = [
        f"{who} read as {_short(part.value)}" + (f" in {part.unit}" if part.unit else "")
        for who, part in (("gold", wanted), ("answer", offered))
    ]
    return Verdict(verdict.outcome, verdict.reason, detail="\n".join(lines))


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _kind(error: Exception) -> str:
    """The type alone: the text of a symbolic object's error may itself take for ever to build."""
    return type(error).__name__
