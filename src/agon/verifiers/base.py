"""What a verifier is: it judges an answer block against a problem's gold answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from agon.records import Outcome, Problem, Verdict

NO_ANSWER = Verdict(Outcome.WRONG, "no single closed answer block")


class Judge(Protocol):
    """Judges many answers at once."""

    def judge(self, items: Sequence[tuple[Problem, str | None]]) -> list[Verdict]:
        """One verdict for each (problem, answer block); None is a reply without one, and wrong."""
        ...
