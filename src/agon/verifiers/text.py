"""Answers that are right when they are the gold answer's text.

The field's exact match: compatibility forms are folded (a full-width digit is a digit) and white
space is collapsed; letter case counts, and nothing else is taken off.
"""

from __future__ import annotations

import unicodedata

from agon.records import Outcome, Verdict

SAME = Verdict(Outcome.RIGHT, "same text")
OTHER = Verdict(Outcome.WRONG, "another text")


def verify(gold: str, answer: str) -> Verdict:
    """Judge an answer block against a gold answer by its text alone."""
    return SAME if normalise(answer) == normalise(gold) else OTHER


def verify_gold(gold: str) -> Verdict:
    """A gold answer that is not blank can be judged against."""
    if normalise(gold):
        return SAME
    return Verdict(Outcome.WRONG, "the gold answer is empty")


def normalise(text: str) -> str:
    """Compatibility forms folded (NFKC), white space collapsed."""
    return " ".join(unicodedata.normalize("NFKC", text).split())
