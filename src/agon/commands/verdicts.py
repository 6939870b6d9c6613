"""Verdicts in words and as records: one explained, many counted.

What this module does not do: judge, or read files.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import IO, Any

from agon.commands.claims import Claim
from agon.records import Outcome, Verdict

Reasons = Counter[tuple[Outcome, str]]
"""How many verdicts have an outcome by a rule."""

SHOWN = 200
"""Most characters of a text that are shown to a person."""


def explanation(claim: Claim, verdict: Verdict) -> Iterator[str]:
    """A verdict in lines of a name and a text."""
    yield f"verdict    {verdict.outcome}"
    yield f"rule       {shown(verdict.reason)}"
    yield f"gold       {shown(claim.gold)}"
    yield f"answer     {'none' if claim.answer is None else shown(claim.answer)}"
    yield f"found by   {claim.rule}"
    for number, test in enumerate(verdict.tests, start=1):
        yield f"test {number:<5} {shown(test)}"
    for number, line in enumerate(verdict.detail.splitlines()):
        yield f"{'' if number else 'detail':<10} {shown(line)}"


class Summary:
    """Counts over the verdicts of a file, and those that are not the expected ones."""

    def __init__(self) -> None:
        self.outcomes: Counter[Outcome] = Counter()
        self.reasons: Reasons = Counter()
        self.expected = 0
        self.disagreements: list[dict[str, Any]] = []

    def add(self, claim: Claim, verdict: Verdict) -> None:
        """Count one verdict."""
        self.outcomes[verdict.outcome] += 1
        self.reasons[verdict.outcome, verdict.reason] += 1
        if claim.equal is not None:
            self.expected += 1
            if not agrees(claim, verdict):
                self.disagreements.append(record(claim, verdict))

    @property
    def status(self) -> int:
        """Exit status of the command."""
        return int(bool(self.disagreements or self.outcomes[Outcome.UNSCORED]))

    def record(self) -> dict[str, Any]:
        """For machines."""
        return {
            "rows": self.outcomes.total(),
            "outcomes": {outcome.value: self.outcomes[outcome] for outcome in Outcome},
            "reasons": reason_records(self.reasons),
            "expected": self.expected,
            "agreeing": self.expected - len(self.disagreements),
            "disagreements": self.disagreements,
        }

    def lines(self) -> Iterator[str]:
        """For people."""
        yield f"{self.outcomes.total()} rows: " + ", ".join(
            f"{self.outcomes[outcome]} {outcome}" for outcome in Outcome
        )
        yield from reason_lines(self.reasons)
        if not self.expected:
            return
        agreeing = self.expected - len(self.disagreements)
        kinds = Counter(_disagreement(row) for row in self.disagreements)
        listed = "".join(f", {count} {kind}" for kind, count in sorted(kinds.items()))
        yield f"{agreeing} of {self.expected} verdicts are the expected ones{listed}"
        for row in self.disagreements:
            yield (
                f"  {shown(row['id'])}: {_disagreement(row)} ({row['reason']}): gold "
                f"{shown(row['gold'])}, answer {shown(row['answer'] or 'none')}"
            )


def reason_lines(reasons: Reasons) -> Iterator[str]:
    """Verdicts counted by outcome and rule, the most frequent first."""
    for (outcome, reason), count in _ranked(reasons):
        yield f"  {count:>7}  {outcome:<8}  {shown(reason)}"


def reason_records(reasons: Reasons) -> list[dict[str, Any]]:
    """The same for machines."""
    return [
        {"outcome": outcome.value, "reason": reason, "count": count}
        for (outcome, reason), count in _ranked(reasons)
    ]


def _ranked(reasons: Reasons) -> list[tuple[tuple[Outcome, str], int]]:
    return sorted(reasons.items(), key=lambda item: (-item[1], item[0]))


def record(claim: Claim, verdict: Verdict) -> dict[str, Any]:
    """A verdict for machines."""
    fields: dict[str, Any] = {
        "id": claim.id,
        "outcome": verdict.outcome.value,
        "reason": verdict.reason,
        "gold": claim.gold,
        "answer": claim.answer,
        "detail": verdict.detail,
    }
    if verdict.tests:
        fields["tests"] = list(verdict.tests)
    if claim.equal is not None:
        fields |= {"equal": claim.equal, "agrees": agrees(claim, verdict)}
    return fields


def agrees(claim: Claim, verdict: Verdict) -> bool:
    """Whether a verdict is the expected one; an unscored one never is."""
    return verdict.outcome is (Outcome.RIGHT if claim.equal else Outcome.WRONG)


def _disagreement(row: dict[str, Any]) -> str:
    if row["outcome"] == Outcome.UNSCORED:
        return "unscored"
    return "false accept" if row["outcome"] == Outcome.RIGHT else "false reject"


def shown(text: str, most: int = SHOWN) -> str:
    """A text on one line: cut, and with what does not print, such as terminal codes, escaped."""
    head = "".join(
        character if character.isprintable() else repr(character)[1:-1] for character in text[:most]
    )
    return head if len(text) <= most else f"{head}... ({len(text)} characters)"


def write_line(target: IO[str], fields: dict[str, Any]) -> None:
    """One JSON object on one line, in ASCII: it can be written whatever it holds."""
    target.write(json.dumps(fields) + "\n")
