"""What `agon serve --early-exit` costs in accuracy and saves in tokens, from a run's evaluation.

    agon eval RUN --samples 4
    python benchmarks/early_exit.py RUN [--split dev]

The rule: the drafter and the challenger both draft; where both answer the same text, that is the
answer; elsewhere the cascade goes on as ever. Its drafts and challenges have the keys that `agon
eval` gives to `a`, `b` and `a->b`, so every outcome under the rule stands in that evaluation's
records already, attempt by attempt, and nothing is sampled. The difference from the cascade is
paired: bootstrap over problems, and McNemar's exact test where there is one sample a problem.

The rule cannot convert a problem on which both drafts err alike. It chooses nothing on test: read
dev to decide whether to use it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agon.evaluation.comparisons import Difference, paired_difference
from agon.evaluation.overlap import votes

VALUES = {"right": 1.0, "wrong": 0.0, "unscored": np.nan}


@dataclass(frozen=True)
class Outcome:
    """One direction under the rule.

    Attributes:
        cascade: Mean pass@1 of the cascade.
        rule: Mean pass@1 under the rule.
        difference: Rule minus cascade, over problems.
        skipped: Share of attempts without a challenge.
        skipped_right: Share of those that are right; nan without any.
        tokens: Mean generated tokens of cascade, and of the rule with all of its stages.
        waited: Mean generated tokens that one waits for: the longer draft, and the challenge.
    """

    cascade: float
    rule: float
    difference: Difference
    skipped: float
    skipped_right: float
    tokens: tuple[float, float]
    waited: tuple[float, float]


def under_the_rule(attempts: Mapping[str, Sequence[Mapping[str, Any]]], order: str) -> Outcome:
    """Apply the rule to an evaluation's attempts.

    Args:
        attempts: Of each system, by problem and then sample.
        order: `a->b` or `b->a`.
    """
    drafter, challenger = order.split("->")
    rule, plain, skipped = [], [], []
    costs = []
    for first, other, pair in zip(
        attempts[drafter], attempts[challenger], attempts[order], strict=True
    ):
        assert first["problem"] == other["problem"] == pair["problem"]
        one, two = votes([first["answer"], other["answer"]])
        agree = one is not None and one == two
        skipped.append(agree)
        plain.append(VALUES[pair["outcome"]])
        rule.append(VALUES[(first if agree else pair)["outcome"]])
        draft, challenge = pair["generated"]
        second = other["generated"][0]
        more = 0 if agree else challenge
        costs.append((draft + challenge, draft + second + more, max(draft, second) + more))
    problems = len({attempt["problem"] for attempt in attempts[order]})
    rule_P, plain_P = (
        np.nanmean(np.array(values).reshape(problems, -1), axis=1) for values in (rule, plain)
    )
    both, by_rule, waited = np.array(costs, dtype=float).mean(axis=0)
    chosen = np.array(skipped)
    return Outcome(
        cascade=float(np.nanmean(plain_P)),
        rule=float(np.nanmean(rule_P)),
        difference=paired_difference(rule_P, plain_P),
        skipped=float(chosen.mean()),
        skipped_right=float(np.nanmean(np.array(rule)[chosen])) if chosen.any() else float("nan"),
        tokens=(float(both), float(by_rule)),
        waited=(float(both), float(waited)),
    )


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description="What --early-exit costs and saves.")
    parser.add_argument("run", type=Path)
    parser.add_argument("--split", default="dev", help="name of the evaluation's file")
    arguments = parser.parse_args()
    file = arguments.run / "evaluations" / f"{arguments.split}.json"
    if not file.is_file():
        sys.exit(f"{file} is not there: `agon eval {arguments.run}` writes it")
    attempts = json.loads(file.read_text())["attempts"]
    print("| direction | cascade | rule | difference [95 %] | p | skipped | right of skipped | ")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for order in ("a->b", "b->a"):
        found = under_the_rule(attempts, order)
        gap = found.difference
        p = "" if gap.p is None else f"{gap.p:.3f}"
        print(
            f"| {order} | {found.cascade:.1%} | {found.rule:.1%} | {100 * gap.mean:+.1f} "
            f"[{100 * gap.low:+.1f}, {100 * gap.high:+.1f}] | {p} | {found.skipped:.1%} | "
            f"{found.skipped_right:.1%} |"
        )
        print(
            f"  {order}: generated tokens {found.tokens[0]:.1f} -> {found.tokens[1]:.1f}, "
            f"one after the other {found.waited[0]:.1f} -> {found.waited[1]:.1f}"
        )


if __name__ == "__main__":
    main()
