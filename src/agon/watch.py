"""Watches a run for the states in which nothing can be learned, and for a judge that fails.

The usual cause of "no learning, no error" is a completion limit that is too short: every rollout
is cut, every group gets the same reward, and the gradient is zero. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agon.config import StopConfig
from agon.errors import NothingToLearn
from agon.metrics import Figures
from agon.records import Role

UNSCORED_SHARE = 0.05
"""Unscored rate of a role, or difference between roles, from which on the watch warns."""

ENOUGH_FAILURES = 4
"""Failures of the judge below which no share of them stops a run: one of two may be chance."""


@dataclass(slots=True)
class Watch:
    """Counts hopeless steps in a row.

    Attributes:
        truncated: Steps in a row in which some role was nearly all truncated.
        flat: Steps in a row in which every group of every role was flat in correctness.
        unscored: Steps in a row with a notable unscored rate.
        failures: Failures of the judge in the steps in a row in which they were too many; steps
            without any answer are passed over.
    """

    config: StopConfig
    truncated: int = 0
    flat: int = 0
    unscored: int = 0
    failures: int = 0

    def counters(self) -> dict[str, float]:
        """The counts, for a checkpoint."""
        return {
            "truncated": self.truncated,
            "flat": self.flat,
            "unscored": self.unscored,
            "failures": self.failures,
        }

    def restore(self, counters: Mapping[str, float]) -> None:
        """Continue from a checkpoint's counts."""
        self.truncated = int(counters.get("truncated", 0))
        self.flat = int(counters.get("flat", 0))
        self.unscored = int(counters.get("unscored", 0))
        self.failures = int(counters.get("failures", 0))

    def observe(self, figures: Figures) -> list[str]:
        """Take one step's figures.

        Returns:
            Warnings to show now.

        Raises:
            NothingToLearn: A count has reached `stop.window`, or the judge failed on
                `stop.unscored_share` of a role's answers.
        """
        roles = [role for role in Role if f"{role}.length" in figures]
        cut = max(figures[f"{role}.truncated"] for role in roles)
        level = min(figures[f"{role}.flat_correctness"] for role in roles)
        rates = [figures[f"{role}.unscored"] for role in roles]
        self._stop_where_the_judge_fails(figures, roles)
        lost = max(rates) > UNSCORED_SHARE
        self.truncated = self.truncated + 1 if cut >= self.config.truncated_share else 0
        self.flat = self.flat + 1 if level == 1.0 else 0
        self.unscored = self.unscored + 1 if lost else 0
        warnings = []
        half = max(1, self.config.window // 2)
        if self.unscored in (1, half):
            shares = ", ".join(
                f"{role} {rate:.0%}" for role, rate in zip(roles, rates, strict=True)
            )
            warnings.append(
                f"the judge failed on some replies ({shares}): they are left out of baseline and "
                "gradient; if it depends on the role or on what is written, rewards are biased"
            )
        for count, what in ((self.truncated, _TRUNCATED), (self.flat, _FLAT)):
            if count >= self.config.window:
                raise NothingToLearn(
                    f"{what} in {count} steps in a row (stop.window = {self.config.window}): "
                    "training stopped, and the last state is saved"
                )
            if count == half:
                warnings.append(
                    f"{what} in {count} steps in a row; training stops after {self.config.window}"
                )
        return warnings

    def _stop_where_the_judge_fails(self, figures: Figures, roles: Sequence[Role]) -> None:
        """Replies without an answer are wrong unread, so only answers say how the judge does."""
        failures = {role: figures[f"{role}.failures"] for role in roles}
        answers = {role: figures[f"{role}.answers"] for role in roles}
        if not any(answers.values()):
            return
        share = max(failures[role] / max(answers[role], 1) for role in roles)
        if share < self.config.unscored_share:
            self.failures = 0
            return
        self.failures += int(sum(failures.values()))
        if self.failures >= ENOUGH_FAILURES:
            raise NothingToLearn(
                f"the judge failed on {share:.0%} of a role's answers (stop.unscored_share = "
                f"{self.config.unscored_share:g}): training stopped, and the last state is saved. "
                "Mend the verifier (its first failure is shown above in full), or raise the limit"
            )


_TRUNCATED = (
    "nearly all rollouts of a role hit sampling.max_new_tokens, so nothing can be learned: raise "
    "the limit, or choose a base that ends its replies. This was seen"
)
_FLAT = (
    "every group was all right or all wrong, so there is no gradient from correctness: choose "
    "problems of another difficulty, a larger sampling.group_size or a larger limit. This was seen"
)
