"""What a verifier is: it judges an answer block against a problem's gold answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from agon.records import Outcome, Problem, Verdict

NO_ANSWER = Verdict(Outcome.WRONG, "no single closed answer block")


class Contested(Exception):
    """Raised in a worker instead of a verdict that a limit decided and a busy machine may explain.

    The pool then has the item checked again, alone in a fresh worker, and takes that verdict.

    Attributes:
        verdict: What holds if the second attempt raises again.
    """

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.reason)
        self.verdict = verdict


@dataclass(frozen=True, slots=True)
class Prepared:
    """A worker's function with work to do before its check begins, such as a slow import.

    Attributes:
        prepare: Called with the first argument; costs none of the check's time, and what it raises
            is not the item's doing.
        function: Called with all arguments, within the limits.
    """

    prepare: Callable[[str], object]
    function: Callable[..., Verdict]


class Judge(Protocol):
    """Judges many answers at once."""

    def judge(self, items: Sequence[tuple[Problem, str | None]]) -> list[Verdict]:
        """One verdict for each (problem, answer block); None is a reply without one, and wrong."""
        ...


@dataclass(frozen=True, slots=True)
class Verifier:
    """How one kind of answer is judged.

    Attributes:
        quick: (gold, answer) to the verdict where it can be reached at once and in any process,
            None where a worker is needed.
        quick_gold: The same for a gold answer alone: can answers be judged against it?
        function: Dotted name of the function that a worker calls with `arguments`, the gold
            answer and the answer block. None where `quick` always knows.
        gold_function: The same with `arguments` and the gold answer alone.
        arguments: Texts that come first in both calls, such as settings.
        pool: Whose limits hold, and so which worker processes: `[verifier]` or `[code]`.
    """

    quick: Callable[[str, str], Verdict | None]
    quick_gold: Callable[[str], Verdict | None]
    function: str | None = None
    gold_function: str | None = None
    arguments: tuple[str, ...] = ()
    pool: Literal["verifier", "code"] = "verifier"
