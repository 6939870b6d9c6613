"""Judges: they say whether an answer block is right, wrong, or could not be judged.

Each kind of answer is one file here and one line of `verifiers_of`. What this package does not do:
find the answer block in a training reply; that is `agon.parsing`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from agon.errors import DataError
from agon.records import Outcome, Problem, Verdict
from agon.tasks import countdown
from agon.verifiers import code as code_verifier
from agon.verifiers import generated, maths, own, text
from agon.verifiers.base import NO_ANSWER, Judge, Verifier
from agon.verifiers.pool import WorkerPool

if TYPE_CHECKING:
    from agon.config import CodeConfig, VerifierConfig

__all__ = ["Judge", "PooledJudge", "Verifier", "WorkerPool", "verifiers_of"]

MAX_COUNTDOWN_CHARACTERS = 200

Known = dict[int, Verdict]
"""Verdicts by the item's place."""

Waiting = dict[str, dict[int, tuple[str, ...]]]
"""By function and the item's place, the arguments of the checks that need a worker."""


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
        "text": Verifier(quick=text.verify, quick_gold=text.verify_gold),
        "generated": generated.verifier(),
        "code": Verifier(
            quick=_needs_a_worker,
            quick_gold=code_verifier.verify_gold,
            function="agon.verifiers.code.verify",
            arguments=(code_verifier.settings_of(code).to_json(),),
            pool="code",
        ),
    }


class PooledJudge:
    """Judges in process what is exact and bounded, and in worker processes what is not."""

    def __init__(
        self,
        config: VerifierConfig,
        code: CodeConfig | None = None,
        report: Callable[[str], None] | None = None,
    ) -> None:
        """Name the limits; no process starts before it is needed.

        Args:
            config: Limits of the workers that judge answers.
            code: Limits of programs; None takes the defaults.
            report: Called once for each different failure of a verifier, with all that is known
                of it; from whatever thread judges.
        """
        from agon.config import CodeConfig  # here, so that workers do without pydantic

        code = code or CodeConfig()
        self._report, self._reported = report, set[str]()
        self._verifiers = verifiers_of(code)
        self._pools = {
            "verifier": WorkerPool(config.workers, config.seconds, config.memory_mib),
            "code": WorkerPool(
                code.workers,
                code.total_seconds + code_verifier.MARGIN_SECONDS,
                None,  # programs have limits of their own, lower than what a worker needs
                modules=("agon.verifiers.code",),
                settings="code",
            ),
        }
        self._pool_names = {
            function: verifier.pool
            for verifier in self._verifiers.values()
            for function in (verifier.function, verifier.gold_function)
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
        return self._complete(*self._sort_out(items))

    async def judge_async(self, items: Sequence[tuple[Problem, str | None]]) -> list[Verdict]:
        """`judge` for coroutines: the event loop is never blocked, and cancelling ends the checks.

        Raises:
            DataError: A problem names a verifier that does not exist.
        """
        verdicts, waiting = self._sort_out(items)
        calls = [
            self._pool(function).map_async(function, list(places.values()))
            for function, places in waiting.items()
        ]
        for places, judged in zip(waiting.values(), await asyncio.gather(*calls), strict=True):
            verdicts.update(zip(places, judged, strict=True))
        return self._in_order(verdicts)

    def judge_golds(self, problems: Sequence[Problem]) -> list[Verdict]:
        """One verdict for each problem: does its gold answer parse and verify against itself?

        Raises:
            DataError: A problem names a verifier that does not exist.
        """
        verdicts: Known = {}
        waiting: Waiting = defaultdict(dict)
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
        for pool in self._pools.values():
            pool.close()

    def _sort_out(self, items: Sequence[tuple[Problem, str | None]]) -> tuple[Known, Waiting]:
        """The verdicts that are known at once, and what the workers are to be asked."""
        verdicts: Known = {}
        waiting: Waiting = defaultdict(dict)
        for place, (problem, answer) in enumerate(items):
            verifier = self._named(problem)
            known = NO_ANSWER if answer is None else verifier.quick(problem.gold, answer)
            if known is not None:
                verdicts[place] = known
            elif verifier.function is not None and answer is not None:
                arguments = (*verifier.arguments, problem.gold, answer)
                waiting[verifier.function][place] = arguments
        return verdicts, waiting

    def _complete(self, verdicts: Known, waiting: Waiting) -> list[Verdict]:
        """The known verdicts and those of the workers, in the items' order."""
        for function, places in waiting.items():
            judged = self._pool(function).map(function, list(places.values()))
            verdicts.update(zip(places, judged, strict=True))
        return self._in_order(verdicts)

    def _in_order(self, verdicts: Known) -> list[Verdict]:
        """Verdicts by place; failures that were not seen before are reported."""
        for verdict in verdicts.values():
            if verdict.outcome is Outcome.UNSCORED and verdict.reason not in self._reported:
                self._reported.add(verdict.reason)
                if self._report is not None:
                    self._report(f"a verifier failed: {verdict.reason}\n{verdict.detail}".rstrip())
        return [verdicts[place] for place in range(len(verdicts))]

    def _pool(self, function: str) -> WorkerPool:
        """The worker processes that call a function."""
        return self._pools[self._pool_names.get(function, "verifier")]

    def _named(self, problem: Problem) -> Verifier:
        if ":" in problem.verifier:
            return own.verifier_of(problem.verifier)
        if problem.verifier not in self._verifiers:
            raise DataError(
                f"problem {problem.id} names the verifier {problem.verifier!r}; expected one of "
                f"{', '.join(self._verifiers)}, or a function as package.module:function"
            )
        return self._verifiers[problem.verifier]


def _verify_countdown(gold: str, answer: str) -> Verdict:
    if len(answer) > MAX_COUNTDOWN_CHARACTERS:
        return Verdict(Outcome.WRONG, f"more than {MAX_COUNTDOWN_CHARACTERS} characters")
    return countdown.verify(gold, answer)


def _needs_a_worker(gold: str, answer: str) -> None:
    """What a program does is known when it has run."""


def _exact_gold(gold: str) -> Verdict:
    return Verdict(Outcome.RIGHT, "exact by construction")
