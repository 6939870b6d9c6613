"""The training rounds that people read, as small records for the page's browser.

What fits is kept by a stated rule, the same for every cell, so that no arm shows more than another.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agon.experiments.matrix import Matrix
from agon.experiments.results import Result

MAX_BYTES = 5_000_000
"""Of all rounds in the page; with its figures the page stays under 10 MB."""

MAX_CHARACTERS = 4_000
"""Of one reply's text where everything else was not enough."""

FEWEST_CHARACTERS = 20
"""Texts are not cut shorter, whatever the page's size."""

KINDS = {
    "conversion": "conversion: rival wrong, challenge right",
    "regression": "regression: rival right, challenge wrong",
    "both-right": "both right",
    "both-wrong": "both wrong",
    "one-right": "one pass, right",
    "one-wrong": "one pass, wrong",
    "unscored": "unscored",
}
"""What a round can be, and what the browser calls it."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """What the page holds.

    Attributes:
        rows: One for each draft with its challenge, by arm, seed, step and sample.
        total: How many the result files have.
        rule: What was left out, as a sentence; says so too where nothing was.
    """

    rows: tuple[Mapping[str, Any], ...]
    total: int
    rule: str


def read_rounds(matrix: Matrix, limit: int = MAX_BYTES) -> Rounds:
    """Choose the rounds that fit.

    First fewer rollouts of each step are kept, then fewer steps, then texts are cut.

    Args:
        matrix: The result files.
        limit: Bytes of all rows as JSON.
    """
    cells = [(result, _steps(result)) for result in matrix.results]
    total = sum(len(rows) for _, steps in cells for rows in steps.values())
    if not total:
        return Rounds((), 0, "The result files hold no rounds.")
    most = max(len(rows) for _, steps in cells for rows in steps.values())
    longest = max(len(steps) for _, steps in cells)
    everything = _chosen(cells, most, longest, None)
    if _size(everything) <= limit:
        return Rounds(tuple(everything), total, f"All {total:,} rounds of the result files.")
    samples, steps = most, longest
    while samples > 1 and _size(_chosen(cells, samples, steps, None)) > limit:
        samples //= 2
    while steps > 1 and _size(_chosen(cells, samples, steps, None)) > limit:
        steps -= 1
    characters = None
    kept = _chosen(cells, samples, steps, None)
    if _size(kept) > limit:
        characters = MAX_CHARACTERS
        kept = _chosen(cells, samples, steps, characters)
        while _size(kept) > limit and characters > FEWEST_CHARACTERS:
            characters //= 2
            kept = _chosen(cells, samples, steps, characters)
    cut = "" if characters is None else f", texts cut at {characters:,} characters"
    rule = (
        f"{len(kept):,} of the {total:,} rounds of the result files, to keep this page under "
        f"10 MB: of every cell the first {samples} of up to {most} rollouts at {steps} of up to "
        f"{longest} steps, evenly spread with the last among them{cut}. The result files hold the "
        "rest."
    )
    return Rounds(tuple(kept), total, rule)


def _steps(result: Result) -> dict[int, list[Mapping[str, Any]]]:
    """A cell's rounds by step."""
    found: dict[int, list[Mapping[str, Any]]] = {}
    for row in result.data.get("rounds") or []:
        found.setdefault(row["step"], []).append(row)
    return dict(sorted(found.items()))


def _chosen(
    cells: Sequence[tuple[Result, Mapping[int, list[Mapping[str, Any]]]]],
    samples: int,
    steps: int,
    characters: int | None,
) -> list[Mapping[str, Any]]:
    rows = []
    for result, by_step in cells:
        numbers = list(by_step)
        if not numbers:
            continue
        count = min(steps, len(numbers))
        places = np.linspace(len(numbers), 0, count, endpoint=False).round().astype(int)[::-1] - 1
        for place in places:
            group = by_step[numbers[place]]
            rivals = {row["sample"]: row["draft"] for row in group}
            rows += [_row(result, row, rivals, characters) for row in group[:samples]]
    return rows


def _size(rows: Sequence[Mapping[str, Any]]) -> int:
    return len(as_json(rows).encode())


def _row(
    result: Result,
    row: Mapping[str, Any],
    rivals: Mapping[int, Mapping[str, Any]],
    characters: int | None,
) -> Mapping[str, Any]:
    """One round under the browser's short names (assets/report.js reads them)."""
    challenge = row.get("challenge")
    rival = rivals.get(challenge["rival_sample"], row["draft"]) if challenge else None
    found: dict[str, Any] = {
        "a": result.cell.arm,
        "s": result.cell.seed,
        "t": row["step"],
        "n": row["sample"],
        "q": row["question"],
        "g": row["gold"],
        "k": kind(row["draft"], challenge, rival),
        "d": _rollout(row["draft"], characters),
    }
    if challenge:
        found["c"] = _rollout(challenge, characters)
        found["w"] = _cut(challenge["shown"], characters)
        found["x"] = result.data["config"]["game"]["exchange"]
        if challenge["rival_sample"] != row["sample"]:
            found["r"] = challenge["rival_sample"]
    return found


def kind(
    draft: Mapping[str, Any], challenge: Mapping[str, Any] | None, rival: Mapping[str, Any] | None
) -> str:
    """A key of `KINDS`: the challenge against the draft that its credit is computed against."""
    if challenge is None or rival is None:
        outcome = draft["outcome"]
        return "unscored" if outcome == "unscored" else f"one-{outcome}"
    outcomes = (rival["outcome"], challenge["outcome"])
    if "unscored" in outcomes:
        return "unscored"
    return {
        ("wrong", "right"): "conversion",
        ("right", "wrong"): "regression",
        ("right", "right"): "both-right",
        ("wrong", "wrong"): "both-wrong",
    }[outcomes]


def _rollout(rollout: Mapping[str, Any], characters: int | None) -> list[Any]:
    """A rollout as a list, which the script reads by place."""
    reward = rollout["reward"]
    terms = None if reward is None else [round(reward[term], 4) for term in TERMS]
    return [
        rollout["policy"],
        rollout["version"],
        rollout["outcome"],
        rollout["reason"],
        _cut(rollout["text"], characters),
        rollout["tokens"],
        rollout["prompt_tokens"],
        int(rollout["truncated"]),
        terms,
        round(rollout["advantage"], 3),
        _cut(rollout["summary"], characters),
    ]


TERMS = ("correctness", "rivalry", "tiebreak", "format", "length")
"""The reward's terms in the order of a record."""


def _cut(text: str | None, characters: int | None) -> str | None:
    if text is None or characters is None or len(text) <= characters:
        return text
    return f"{text[:characters]}… [{len(text) - characters:,} characters cut]"


def as_json(value: Any) -> str:
    """JSON that can stand inside a script element: nothing in it ends the element or opens one."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    # Lone surrogates cannot be encoded; JSON can still say them.
    return text.encode("utf-8", "backslashreplace").decode()
