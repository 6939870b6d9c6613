"""Judges: they say whether an answer block is right, wrong, or could not be judged.

What this package does not do: find the answer block in a reply; that is `agon.parsing`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from agon.errors import DataError
from agon.records import Outcome, Problem, Verdict
from agon.tasks import countdown
from agon.verifiers import maths
from agon.verifiers.base import NO_ANSWER, Judge
from agon.verifiers.pool import WorkerPool

if TYPE_CHECKING:
    from agon.config import VerifierConfig

__all__ = ["VERIFIERS", "Judge", "PooledJudge", "WorkerPool"]

VERIFIERS: Mapping[str, Callable[[str, str], Verdict]] = {
    "countdown": countdown.verify,
    "math": maths.verify,
}
"""Every verifier by the name that `Problem.verifier` carries: (gold, answer) to a verdict."""

MAX_COUNTDOWN_CHARACTERS = 200
_Function = TypeVar("_Function")
_MATHS_VERIFY = "agon.verifiers.maths.verify"
_MATHS_VERIFY_GOLD = "agon.verifiers.maths.verify_gold"


class PooledJudge:
    """Judges in process what is exact and bounded, and in worker processes what is not."""

    def __init__(self, config: VerifierConfig) -> None:
        self._pool = WorkerPool(config.workers, config.seconds, config.memory_mib)
        # What each verifier says without a worker; None sends the item to one.
        self._quick: Mapping[str, Callable[[str, str], Verdict | None]] = {
            "countdown": _verify_countdown,
            "math": maths.verify_quickly,
        }
        self._quick_gold: Mapping[str, Callable[[str], Verdict | None]] = {
            "countdown": _exact_gold,
            "math": maths.verify_gold_quickly,
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def judge(self, items: Sequence[tuple[Problem, str | None]]) -> list[Verdict]:
        """One verdict for each (problem, answer block); None is a reply without one, and wrong.

        Raises:
            DataError: A problem names a verifier that does not exist.
        """
        known = [
            NO_ANSWER if answer is None else _named(self._quick, problem)(problem.gold, answer)
            for problem, answer in items
        ]
        waiting = [
            (problem.gold, answer or "")
            for (problem, answer), verdict in zip(items, known, strict=True)
            if verdict is None
        ]
        return self._complete(known, _MATHS_VERIFY, waiting)

    def judge_golds(self, problems: Sequence[Problem]) -> list[Verdict]:
        """One verdict for each problem: does its gold answer parse and verify against itself?

        Raises:
            DataError: A problem names a verifier that does not exist.
        """
        known = [_named(self._quick_gold, problem)(problem.gold) for problem in problems]
        waiting = [
            (problem.gold,)
            for problem, verdict in zip(problems, known, strict=True)
            if verdict is None
        ]
        return self._complete(known, _MATHS_VERIFY_GOLD, waiting)

    def close(self) -> None:
        """End the worker processes."""
        self._pool.close()

    def _complete(
        self, known: list[Verdict | None], function: str, waiting: Sequence[tuple[str, ...]]
    ) -> list[Verdict]:
        judged = iter(self._pool.map(function, waiting) if waiting else ())
        return [verdict if verdict is not None else next(judged) for verdict in known]


def _named(verifiers: Mapping[str, _Function], problem: Problem) -> _Function:
    if problem.verifier not in verifiers:
        raise DataError(
            f"problem {problem.id} names the verifier {problem.verifier!r}; expected one of "
            f"{', '.join(verifiers)}"
        )
    return verifiers[problem.verifier]


def _verify_countdown(gold: str, answer: str) -> Verdict:
    if len(answer) > MAX_COUNTDOWN_CHARACTERS:
        return Verdict(Outcome.WRONG, f"more than {MAX_COUNTDOWN_CHARACTERS} characters")
    return countdown.verify(gold, answer)


def _exact_gold(gold: str) -> Verdict:
    return Verdict(Outcome.RIGHT, "exact by construction")
