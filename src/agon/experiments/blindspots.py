"""Blind spots of an arm's two policies: over training on dev, and at its end on test.

Snapshots and test compare attempts of unlike numbers alone, which share no random numbers, so that
two policies can be told from two samples of one. The test's overlap has an interval besides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agon.evaluation.bands import Band, band
from agon.evaluation.overlap import Shared, shared_errors
from agon.experiments.results import Result

METRICS = ("jaccard", "own_jaccard", "phi", "own_phi", "kl", "kl_base", "distance", "cosine")
"""Of two policies: error overlap and its like within one, divergence, and weight distance."""


@dataclass(frozen=True, slots=True)
class BlindSpots:
    """An arm with two policies.

    Attributes:
        arm: Its name.
        seeds: Whose runs there are.
        over_training: For each of `METRICS` its curve; a metric without figures is absent.
        at_end: Error overlap on test; None where a policy never errs or has one attempt.
        problems: Test problems behind `at_end`.
    """

    arm: str
    seeds: tuple[int, ...]
    over_training: Mapping[str, Band]
    at_end: Shared | None
    problems: int


def blind_spots(arm: str, runs: Mapping[int, Result]) -> BlindSpots | None:
    """Gather an arm's; None where it has one policy."""
    some = next(iter(runs.values()))
    if not {"a", "b"} <= set(some.systems("test")):
        return None
    curves = {}
    for metric in METRICS:
        try:
            curves[metric] = band([_curve(run, metric) for run in runs.values()])
        except ValueError:
            continue
    pairs = [
        (run.system("test", "a").outcomes_PK, run.system("test", "b").outcomes_PK)
        for run in runs.values()
    ]
    try:
        at_end = shared_errors(pairs)
    except ValueError:
        at_end = None
    return BlindSpots(arm, tuple(runs), curves, at_end, len(pairs[0][0]))


def _curve(run: Result, metric: str) -> tuple[Sequence[int], Sequence[float | None]]:
    shots = run.data.get("snapshots") or []
    return [shot["step"] for shot in shots], [_figure(shot, metric) for shot in shots]


def _figure(shot: Mapping[str, Any], metric: str) -> float | None:
    """One figure of a snapshot; None where it is undefined."""
    overlaps, kl, weights = shot["overlap"], shot["kl"], shot["weights"]
    if metric in ("jaccard", "phi"):
        values = [overlaps["a|b"][metric]]
    elif metric in ("own_jaccard", "own_phi"):
        values = [overlaps[pair][metric.removeprefix("own_")] for pair in ("a|a", "b|b")]
    elif metric == "kl":
        values = [kl["a||b"], kl["b||a"]]
    elif metric == "kl_base":
        values = [kl["a||base"], kl["b||base"]]
    else:
        values = [weights.get(metric)]
    return None if any(value is None for value in values) else sum(values) / len(values)
