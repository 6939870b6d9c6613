"""Judges: they say whether an answer block is right, wrong, or could not be judged.

Each kind of answer is one file here and one line of `verifiers_of`. What this package does not do:
find the answer block in a training reply; that is `agon.parsing`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from agon.errors import DataError
from agon.records import Outcome, Problem, Verdict
from agon.tasks import countdown
from agon.verifiers import maths
from agon.verifiers.base import NO_ANSWER, Judge, Verifier
from agon.verifiers.pool import WorkerPool

if TYPE_CHECKING:
    from agon.config import CodeConfig, VerifierConfig

__all__ = ["Judge", "PooledJudge", "Verifier", "WorkerPool", "verifiers_of"]

MAX_COUNTDOWN_CHARACTERS = 200


def verifiers_of(code: CodeConfig) -> dict[str, Verifier]:
    """Every verifier by the name that `Problem.verifier` carries."""
    return {
        "countdown": Verifier(quick=_verify_countdown, quick_gold=_exact_gold),
        "math": Verifier(
            quick=maths.verify_quickly,
            quick_gold=maths.verify_gold_quickly,
            function="agon.verifiers.maths.verify",
            gold_function="agon.verifiers.maths.verify_gold",
        ),
    }


class PooledJudge:
    """Judges in process what is exact and bounded, and in worker processes what is not."""

    def __init__(self, config: VerifierConfig, code: CodeConfig | None = None) -> None:
        """Name the limits; no process starts before it is needed.

        Args:
            config: Limits of the workers that judge answers.
            code: Limits of programs; None takes the defaults.
        """
        from agon.config import CodeConfig  # here, so that workers do without pydantic

        self._verifiers = verifiers_of(code or CodeConfig())
        self._pool = WorkerPool(config.workers, config.seconds, config.memory_mib)

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
        verdicts: dict[int, Verdict] = {}
        waiting: dict[str, dict[int, tuple[str, ...]]] = defaultdict(dict)
        for place, (problem, answer) in enumerate(items):
            verifier = self._named(problem)
            known = NO_ANSWER if answer is None else verifier.quick(problem.gold, answer)
            if known is not None:
                verdicts[place] = known
            elif verifier.function is not None and answer is not None:
                arguments = (*verifier.arguments, problem.gold, answer)
                waiting[verifier.function][place] = arguments
        return self._complete(verdicts, waiting)

    def judge_golds(self, problems: Sequence[Problem]) -> list[Verdict]:
        """One verdict for each problem: does its gold answer parse and verify against itself?

        Raises:
            DataError: A problem names a verifier that does not exist.
        """
        verdicts: dict[int, Verdict] = {}
        waiting: dict[str, dict[int, tuple[str, ...]]] = defaultdict(dict)
        for place, problem in enumerate(problems):
            verifier = self._named(problem)
            known = verifier.quick_gold(problem.gold)
            if known is not None:
                verdicts[place] = known
            elif verifier.gold_function is not None:
                waiting[verifier.gold_function][place] = (*verifier.arguments, problem.gold)
        return self._complete(verdicts, waiting)

    def close(self) -> None:
        """End the worker processes."""
        self._pool.close()

    def _complete(
        self, verdicts: dict[int, Verdict], waiting: Mapping[str, Mapping[int, tuple[str, ...]]]
    ) -> list[Verdict]:
        """The known verdicts and those of the workers, in the items' order."""
        for function, places in waiting.items():
            judged = self._pool.map(function, list(places.values()))
            verdicts.update(zip(places, judged, strict=True))
        return [verdicts[place] for place in range(len(verdicts))]

    def _named(self, problem: Problem) -> Verifier:
        if problem.verifier not in self._verifiers:
            raise DataError(
                f"problem {problem.id} names the verifier {problem.verifier!r}; expected one of "
                f"{', '.join(self._verifiers)}"
            )
        return self._verifiers[problem.verifier]


def _verify_countdown(gold: str, answer: str) -> Verdict:
    if len(answer) > MAX_COUNTDOWN_CHARACTERS:
        return Verdict(Outcome.WRONG, f"more than {MAX_COUNTDOWN_CHARACTERS} characters")
    return countdown.verify(gold, answer)


def _exact_gold(gold: str) -> Verdict:
    return Verdict(Outcome.RIGHT, "exact by construction")
