"""What every two-stage system has in common, in training, evaluation, solving and serving.

A stage's randomness hangs on its key, and what passes from the draft to the challenge is the
draft's summary alone. Who samples, one at a time or many at once, is the caller's affair.
"""

from __future__ import annotations

from typing import Protocol

from agon.records import Problem, Role


class Clipper(Protocol):
    """What is needed of the prompter."""

    def clip(self, summary: str) -> str:
        """A summary cut to the length that is passed on."""
        ...


def passed_on(summary: str | None, prompter: Clipper) -> str | None:
    """What the challenger is shown of a draft; None where it has no usable summary."""
    return None if summary is None else prompter.clip(summary)


def sampling_key(seed: int, role: Role, problem: Problem, sample: int) -> str:
    """The key of one stage of one try outside training.

    It does not hang on the system, so that systems are paired: `a`, `a->b` and `a->a` begin with
    the same draft.

    Args:
        seed: Of the evaluation, or of a request.
        role: Draft or challenge.
        problem: Its id counts, which its normalised question gives.
        sample: Number of the try.
    """
    return f"eval/{seed}/{role}/{problem.id}/{sample}"
