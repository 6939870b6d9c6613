r"""Mathematical answers, compared through math-verify.

`verify` is a pure function that is meant to run inside a worker process: the comparison of two
harmless-looking expressions may take for ever, and only killing the process ends it. So no time
limit is set here. What can be seen to be too large from the text alone is refused before any
symbolic object is built (`bounds`).

The answer is the content of the answer block. Like the gold answers it is read as LaTeX, whether
or not it stands in dollar signs.

What this module does not do: look for an answer in running text, run any part of the text, keep
to a time or memory limit (`pool` does).
"""

from __future__ import annotations

import logging
import re
from typing import Any

from agon.records import Outcome, Verdict
from agon.verifiers.bounds import over_bounds

BINARY_WORDS = frozenset({"yes", "no", "true", "false"})
EQUAL = Verdict(Outcome.RIGHT, "equal")
DIFFERENT = Verdict(Outcome.WRONG, "different")

_INTEGER = re.compile(r"([+-]?)([0-9]+|[0-9]{1,3}(?:,[0-9]{3})+)")
_TEXT_COMMAND = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_PLAIN_ARITHMETIC = re.compile(r"[0-9\s.,+\-*/^()%$]+")
_MATH_DELIMITER = re.compile(r"(?<!\\)\$|\\\(|\\\[")


def verify(gold: str, answer: str) -> Verdict:
    """Judge an answer block against a gold answer.

    Args:
        gold: The gold answer, usually LaTeX without dollar signs.
        answer: Content of the reply's answer block.

    Returns:
        Right or wrong; unscored where the gold answer itself cannot be read, which is not the
        reply's doing.

    Raises:
        MemoryError: Memory ran out; whoever set the limit decides what that means.
    """
    if (verdict := verify_quickly(gold, answer)) is not None:
        return verdict
    try:
        expected = _parse(gold)
    except MemoryError:
        raise
    except Exception as error:  # the parser's many exceptions have no common base
        return Verdict(Outcome.UNSCORED, f"the gold answer cannot be read: {_kind(error)}")
    if not expected:
        return Verdict(Outcome.UNSCORED, "the gold answer cannot be read")
    try:
        given = _parse(answer)
        if not given:
            return Verdict(Outcome.WRONG, "the answer cannot be read as mathematics")
        return EQUAL if _equal(expected, given) else DIFFERENT
    except MemoryError:
        raise
    except Exception as error:  # the reply's own content is the cause
        return Verdict(Outcome.WRONG, f"the answer cannot be compared: {_kind(error)}")


def verify_quickly(gold: str, answer: str) -> Verdict | None:
    """The verdict where it needs no symbolic mathematics, None where it does.

    Safe and fast in any process: it looks at the two texts alone.
    """
    expected, given = undress(gold), undress(answer)
    if not given:
        return Verdict(Outcome.WRONG, "the answer is empty")
    if given == expected:
        return Verdict(Outcome.RIGHT, "same text")
    if expected.casefold() in BINARY_WORDS:  # as mathematics, `no` would be a product n * o
        return EQUAL if given.casefold() == expected.casefold() else DIFFERENT
    expected_integer, given_integer = _integer(expected), _integer(given)
    if expected_integer is not None and given_integer is not None:
        return EQUAL if given_integer == expected_integer else DIFFERENT
    if (excess := over_bounds(answer)) is not None:
        return Verdict(Outcome.WRONG, f"the answer is over a bound: {excess}")
    if (excess := over_bounds(gold)) is not None:
        return Verdict(Outcome.UNSCORED, f"the gold answer is over a bound: {excess}")
    return None


def verify_gold(gold: str) -> Verdict:
    """Whether answers can be judged against a gold answer: it parses and equals itself.

    Raises:
        MemoryError: Memory ran out; whoever set the limit decides what that means.
    """
    if (verdict := verify_gold_quickly(gold)) is not None:
        return verdict
    try:
        parsed = _parse(gold)
        equal = bool(parsed) and _equal(parsed, _parse(gold))
    except MemoryError:
        raise
    except Exception as error:  # as in `verify`
        return Verdict(Outcome.WRONG, f"the gold answer cannot be read: {_kind(error)}")
    return EQUAL if equal else Verdict(Outcome.WRONG, "the gold answer does not equal itself")


def verify_gold_quickly(gold: str) -> Verdict | None:
    """The verdict of `verify_gold` where it needs no symbolic mathematics, None where it does."""
    text = undress(gold)
    if not text:
        return Verdict(Outcome.WRONG, "the gold answer is empty")
    if text.casefold() in BINARY_WORDS or _integer(text) is not None:
        return Verdict(Outcome.RIGHT, "an integer or a word")
    if (excess := over_bounds(gold)) is not None:
        return Verdict(Outcome.WRONG, f"the gold answer is over a bound: {excess}")
    return None


def check_gold(gold: str) -> bool:
    """Whether a gold answer parses and verifies against itself."""
    return verify_gold(gold).outcome is Outcome.RIGHT


def undress(text: str) -> str:
    r"""A text without what never changes its value: `$\text{Yes}$.` becomes `Yes`."""
    text = _without_full_stop(text)
    if len(text) > 2 and text[0] == text[-1] == "$" and "$" not in text[1:-1]:
        text = _without_full_stop(text[1:-1])
    match = _TEXT_COMMAND.fullmatch(text)
    return _without_full_stop(match.group(1)) if match else text


def _without_full_stop(text: str) -> str:
    return text.strip().removesuffix(".").strip()


def _integer(text: str) -> tuple[str, str] | None:
    """Sign and digits of a plain integer, without leading zeros; None for any other text.

    As text, since numbers of any length can be compared so.
    """
    match = _INTEGER.fullmatch(text)
    if match is None:
        return None
    digits = match.group(2).replace(",", "").lstrip("0") or "0"
    return ("-" if match.group(1) == "-" and digits != "0" else "", digits)


def _parse(text: str) -> list[Any]:
    """math-verify's readings of a text, as symbolic objects; none where it finds none.

    Only the whole text counts. math-verify's usual fallbacks are off: they take a number or a
    piece of LaTeX out of a text that it cannot read, so two different texts that share the piece
    would be equal.
    """
    # Imported late, so that `verify_quickly` serves the parent process without sympy.
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    # math-verify warns that its own time limits are off, once in each process. They use signals,
    # which work in main threads alone.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    text = _without_full_stop(text)
    latex = text if _MATH_DELIMITER.search(text) else f"\\({' '.join(text.split())}\\)"
    parsed: list[Any] = parse(
        latex, [LatexExtractionConfig()], fallback_mode="no_fallback", parsing_timeout=None
    )
    if not parsed and _PLAIN_ARITHMETIC.fullmatch(text):
        parsed = parse(
            text, [ExprExtractionConfig()], fallback_mode="no_fallback", parsing_timeout=None
        )
    return parsed


def _equal(gold: list[Any], answer: list[Any]) -> bool:
    import math_verify

    return bool(math_verify.verify(gold, answer, timeout_seconds=None))


def _kind(error: Exception) -> str:
    """The type alone: the text of a symbolic object's error may itself take for ever to build."""
    return type(error).__name__
