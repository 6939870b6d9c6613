"""Splits by hash: a problem's split hangs on its normalised question alone.

So the splits of a data set never overlap, duplicates stay together, and adding rows moves none.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from enum import StrEnum


class Split(StrEnum):
    """Train on one, choose on dev, report on test."""

    TRAIN = "train"
    DEV = "dev"
    TEST = "test"


def normalise_question(question: str) -> str:
    """Unicode compatibility form, case folded, white space collapsed."""
    return re.sub(r"\s+", " ", unicodedata.normalize("NFKC", question)).strip().casefold()


def stable_id(task: str, question: str) -> str:
    """A problem's name: the task and 12 hex digits of its normalised question's hash."""
    digest = hashlib.sha256(f"{task}\n{normalise_question(question)}".encode()).hexdigest()
    return f"{task}-{digest[:12]}"


def hash_fraction(question: str) -> float:
    """A number in [0, 1), uniform over normalised questions."""
    digest = hashlib.sha256(f"split\n{normalise_question(question)}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def split_of(question: str, dev: float = 0.1, test: float = 0.1) -> Split:
    """The split of a question: the lowest `test` of the hash range is test, the next `dev` dev."""
    fraction = hash_fraction(question)
    if fraction < test:
        return Split.TEST
    return Split.DEV if fraction < test + dev else Split.TRAIN
