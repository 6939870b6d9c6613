"""Answers to generated problems: what is known without the generator.

A gold answer is JSON that names the entry: data set, its options, seed, size and index, and the
generator's own answer. The scorer needs the generator, which runs in a worker
(`generated_worker`); this module does without it.
"""

from __future__ import annotations

import json
import re
from typing import Any

from agon.records import Outcome, Verdict
from agon.verifiers.base import Verifier

HASH_SEED = "0"
"""PYTHONHASHSEED of whatever generates entries: some generators walk over sets of texts."""

MAX_CHARACTERS = 20_000
"""A longer answer is wrong."""

_NOT_FINITE = re.compile(r"(?<![a-z])(?:nan|inf(?:inity)?)(?![a-hk-z])|[0-9]e[+-]?[0-9]{4}")


def gold_of(
    dataset: str, options: dict[str, Any], seed: int, size: int, index: int, answer: str | None
) -> str:
    """The gold answer of one entry."""
    return json.dumps(
        {
            "dataset": dataset,
            "options": options,
            "seed": seed,
            "size": size,
            "index": index,
            "answer": answer,
        },
        sort_keys=True,
    )


def verifier() -> Verifier:
    """How generated problems are judged."""
    return Verifier(
        quick=verify_quickly,
        quick_gold=verify_gold_quickly,
        function="agon.verifiers.generated_worker.verify",
        gold_function="agon.verifiers.generated_worker.verify_gold",
    )


def verify_quickly(gold: str, answer: str) -> Verdict | None:
    """The generator's own answer is right; what is empty or endless is wrong."""
    if not answer.strip():
        return Verdict(Outcome.WRONG, "the answer is empty")
    if answer.strip() == (json.loads(gold)["answer"] or "").strip():
        return Verdict(Outcome.RIGHT, "the generator's own answer")
    if len(answer) > MAX_CHARACTERS:
        return Verdict(Outcome.WRONG, f"more than {MAX_CHARACTERS} characters")
    if not_finite(json.loads(gold)["answer"], answer):
        return Verdict(Outcome.WRONG, "no finite number")
    return None


def not_finite(own: str | None, answer: str) -> bool:
    """Whether an answer speaks of infinity or of no number, where the generator's own has numbers.

    To Python's `float` nan is a number, and some scorers find it near every other: a score of
    `min(1, exp(-distance))` is full.
    """
    if own is None or not re.search("[0-9]", own):
        return False
    found = [_NOT_FINITE.search("".join(text.split()).lower()) for text in (own, answer)]
    return found[0] is None and found[1] is not None


def verify_gold_quickly(gold: str) -> Verdict | None:
    """A gold answer that names no entry is none; the rest needs the generator."""
    try:
        fields = json.loads(gold)
        named = {"dataset", "options", "seed", "size", "index", "answer"} <= set(fields)
    except (ValueError, TypeError):
        named = False
    return None if named else Verdict(Outcome.WRONG, "the gold answer names no generated entry")
