r"""Answers that are words, letters or notation, and are judged as text.

Each rule is stated in docs/verifiers.md with its reason. Texts are `tidy` (`notation`).

What this module does not do: mathematics; a text that no rule here knows is left to `comparing`.
"""

from __future__ import annotations

import re

from agon.records import Outcome, Verdict
from agon.verifiers.notation import letters_of

TRUE_WORDS = frozenset({"yes", "true"})
FALSE_WORDS = frozenset({"no", "false"})
MATHEMATICAL_WORDS = frozenset(
    "pi infinity inf infty oo theta alpha beta gamma delta lambda mu sigma omega phi sin cos tan "
    "log ln exp sqrt".split()
)
"""Words that are mathematics without a backslash."""

SHORT_WORDS = frozenset(
    "yes no odd even none both all one two six ten red blue tie win son mon tue wed thu fri sat "
    "sun heads tails true false never always east west north south".split()
)
"""Short words that are no products of unknowns."""

BASE_WORDS = {
    "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9,
    "ten": 10, "eleven": 11, "twelve": 12, "sixteen": 16,
}  # fmt: skip

_TEXT = re.compile(
    r"\\(?:text|textbf|textit|textrm|textnormal|mbox|hbox|mathrm|mathbf)\s*\{([^{}]*)\}"
)
_WORDS = re.compile(r"[A-Za-z][A-Za-z'\-]*(?:[ ,]+[A-Za-z][A-Za-z'\-]*)*")
_SENTENCE = re.compile(r"(yes|no|true|false)\s*[,.;:!\u2014-]\s*(.+)", re.IGNORECASE | re.DOTALL)
_OPTION = re.compile(r"\(?\s*([A-Za-z])\s*\)?\s*[.:]?")
_VALUED_OPTION = re.compile(r"\(\s*([A-Z])\s*\)(?![A-Za-z(])\s*\S.*", re.DOTALL)
_BASE = re.compile(r"\(?\s*([0-9A-Fa-f]+)\s*\)?\s*_\s*\{?\s*([0-9]+|[a-z]+)\s*\}?")
_PLAIN_DIGITS = re.compile(r"[0-9A-F]+")
_CLOCK = re.compile(r"\d+(?::\d+)+(?: ?[aApP]\.?[mM]\.?)?")
_DOUBT = re.compile(
    r"(?<![A-Za-z\\])(?:not|never|wrong|incorrect|isn't|cannot|can't|maybe|perhaps|possibly|might|"
    r"unsure|unknown|guess)(?![A-Za-z])",
    re.IGNORECASE,
)
_OPAQUE = re.compile(
    r"\\(?:forall|exists|nexists|otimes|oplus|mathcal|mathfrak|mathscr|cong|simeq|sim|mapsto|to|"
    r"rightarrow|implies|iff|ldots|cdots|dots|dotsc|dotsb|vdots|ddots|Theta|Omega|aleph|wedge|vee|"
    r"equiv|pmod|hookrightarrow|subset|subseteq|mid)(?![A-Za-z])|\\mathbb\s*(?:\{(?!R\})|[A-QS-Z])"
    r"|\.\.\.|(?<![A-Za-z\\])O\s*\(|[A-Za-z}]\s*'|\^\s*\{?\s*(?:T|\*|\\(?:top|dagger|prime|ast))(?![A-Za-z])"
    r"|\\(?:bar|hat|tilde|vec|dot|ddot|widehat|mathbf)(?![A-Za-z])|(?<![0-9.])\\overline"
)
_QUOTIENT_GROUP = re.compile(r"\\mathbb\s*\{?Z\}?/(\d+|[a-z])\\mathbb\s*\{?Z\}?")
_SINGLE_BRACES = re.compile(r"([_^])\{([A-Za-z0-9])\}")
_FOR_ALL = re.compile(r"\\text\s*\{\s*for (?:all|every|each|any)\s*\}", re.IGNORECASE)


def decide(gold: str, answer: str) -> Verdict | None:
    """The verdict of the first rule that knows the two; None where none does."""
    for rule in (_words, _doubted, _option, _base, _clock, _notation, _worded):
        verdict = rule(gold, answer)
        if verdict is not None:
            return verdict
    return None


def is_text(gold: str) -> bool:
    """Whether answers to a gold answer are judged as text."""
    return decide(gold, gold) is not None


def word_of(text: str) -> str | None:
    """A text that is words, in lower case without articles; None where it is none."""
    marked = _TEXT.search(text) is not None
    plain = " ".join(_TEXT.sub(r" \1 ", text).split()).strip(" .!?*\"'`")
    if _WORDS.fullmatch(plain) is None:
        return None
    words = plain.replace(",", " , ").casefold().split()
    letters = "".join(words)
    if len(letters) < 2 or (len(words) == 1 and words[0] in MATHEMATICAL_WORDS):
        return None
    # A short run of small letters is a product of unknowns, unless it is marked as text.
    product = len(words) == 1 and len(letters) <= 3 and not marked and letters not in SHORT_WORDS
    if product or (not marked and max(map(len, words)) < 2):
        return None
    return " ".join(word for word in words if word not in ("the", "a", "an")) or letters


def _words(gold: str, answer: str) -> Verdict | None:
    expected = word_of(gold)
    if expected is None:
        return None
    given = word_of(answer)
    if expected in TRUE_WORDS | FALSE_WORDS:
        sentence = _SENTENCE.match(_TEXT.sub(r" \1 ", answer).strip(" *"))
        if given not in TRUE_WORDS | FALSE_WORDS and sentence is not None:
            rest = set(re.findall(r"[a-z]+", sentence[2].casefold()))
            given = None if rest & (TRUE_WORDS | FALSE_WORDS) else sentence[1].casefold()
        same = any(expected in side and given in side for side in (TRUE_WORDS, FALSE_WORDS))
        return _verdict(same, "the same truth value", "not this truth value")
    if given is None:  # `Evelyn` marked in one text alone, or with a bracket
        given = " ".join(_TEXT.sub(r" \1 ", answer).casefold().split())
    return _verdict(given == expected, "the same words", "other words")


def _doubted(gold: str, answer: str) -> Verdict | None:
    r"""`5 \text{ is wrong}` and `not 5` do not claim 5."""
    if _DOUBT.search(answer) and not _DOUBT.search(gold):
        return Verdict(Outcome.WRONG, "negated or doubted")
    return None


def _worded(gold: str, answer: str) -> Verdict | None:
    """Words are no product of the letters that they are written with."""
    if word_of(answer) is not None:
        return Verdict(Outcome.WRONG, "words, where mathematics is asked for")
    return None


def _option(gold: str, answer: str) -> Verdict | None:
    match = _OPTION.fullmatch(_TEXT.sub(r"\1", gold))
    if match is None or not match[1].isupper():
        return None
    plain = _TEXT.sub(r"\1", answer).strip()
    given = _OPTION.fullmatch(plain)
    if given is not None:
        return _verdict(given[1].upper() == match[1], "the same option", "another option")
    valued = _VALUED_OPTION.fullmatch(plain)
    if valued is not None and not re.search(r"\(\s*[A-Z]\s*\)", plain[valued.end(1) + 1 :]):
        return _verdict(valued[1] == match[1], "the same option with its text", "another option")
    if re.fullmatch(r"[A-Za-z ,()]+", plain):
        return Verdict(Outcome.WRONG, "not one option")
    return None


def _base(gold: str, answer: str) -> Verdict | None:
    expected = _numeral(gold)
    if expected is None:
        return None
    given = _numeral(answer)
    if given is not None:
        return _verdict(given == expected, "the same digits and base", "another numeral")
    bare = answer.replace(" ", "")
    if _PLAIN_DIGITS.fullmatch(bare):
        same = bare.lstrip("0") == expected[0]
        return _verdict(same, "the same digits, the base left out", "other digits")
    return Verdict(Outcome.WRONG, "not a numeral of this base")


def _numeral(text: str) -> tuple[str, int] | None:
    """Digits and base of `4210_{7}`."""
    match = _BASE.fullmatch(_TEXT.sub(r"\1", text))
    if match is None:
        return None
    base = BASE_WORDS.get(match[2]) or (int(match[2]) if match[2].isdigit() else 0)
    digits = match[1].upper().lstrip("0") or "0"
    if not 2 <= base <= 36 or any(int(digit, 16) >= base for digit in digits):
        return None
    return digits, base


def _clock(gold: str, answer: str) -> Verdict | None:
    if _CLOCK.fullmatch(gold) is None:
        return None
    same = gold.replace(" ", "").casefold() == answer.replace(" ", "").casefold()
    return _verdict(same, "the same text", "another time or ratio")


def _notation(gold: str, answer: str) -> Verdict | None:
    if not (_OPAQUE.search(gold) or _OPAQUE.search(answer)):
        return None
    return _verdict(canonical(gold) == canonical(answer), "the same notation", "other notation")


def canonical(text: str) -> str:
    """Notation that is compared as text, in one spelling."""
    text = _FOR_ALL.sub(r"\\forall ", text)
    text = re.sub(r"\\(?:text|mathrm)\s*\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"\\(?:ldots|cdots|dotsc|dotsb|dots)(?![A-Za-z])|\.\.\.", r"\\dots", text)
    text = re.sub(r"\\(?:rightarrow)(?![A-Za-z])", r"\\to", text)
    text = text.replace(r"\mathfrak{c}", r"2^{\aleph_0}").replace(r"\colon", ":")
    text = re.sub(r"\\(mathbb|mathcal|mathfrak)\s*([A-Za-z])(?![A-Za-z])", r"\\\1{\2}", text)
    text = letters_of(_SINGLE_BRACES.sub(r"\1\2", text))
    return _QUOTIENT_GROUP.sub(r"\\mathbb{Z}_\1", text).replace(" ", "")


def _verdict(same: bool, right: str, wrong: str) -> Verdict:
    return Verdict(Outcome.RIGHT, right) if same else Verdict(Outcome.WRONG, wrong)
