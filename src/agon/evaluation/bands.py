"""Curves and lengths as figures show them: means with the range of the seeds, and quantiles.

With a handful of seeds a band is the range from the lowest run to the highest, never an interval:
it says what was seen. Dimensions: S seeds, T points in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True, slots=True)
class Band:
    """A curve over training.

    Attributes:
        steps: Points in time that every seed has a figure for.
        mean: Over the seeds.
        low: The lowest seed.
        high: The highest.
        seeds: How many there are.
    """

    steps: tuple[int, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    seeds: int


def band(curves: Sequence[tuple[Sequence[int], Sequence[float | None]]], window: int = 1) -> Band:
    """Bring the seeds of an arm together.

    Args:
        curves: Each seed's steps and values; None where a step has no figure.
        window: Values that are averaged with those before them first.

    Raises:
        ValueError: There is no seed, or no step that every seed has a figure for.
    """
    smoothed = []
    for steps, values in curves:
        there = [(s, v) for s, v in zip(steps, values, strict=True) if v is not None]
        means = running_mean([value for _, value in there], window)
        smoothed.append({step: mean for (step, _), mean in zip(there, means, strict=True)})
    common = sorted(set.intersection(*map(set, smoothed))) if smoothed else []
    if not common:
        raise ValueError("there is no step that every seed has a figure for")
    values_ST = np.array([[by_step[step] for step in common] for by_step in smoothed])
    return Band(
        steps=tuple(common),
        mean=tuple(values_ST.mean(axis=0).tolist()),
        low=tuple(values_ST.min(axis=0).tolist()),
        high=tuple(values_ST.max(axis=0).tolist()),
        seeds=len(values_ST),
    )


def running_mean(values: Sequence[float], window: int) -> list[float]:
    """The mean of each value and those before it, at most `window` in all."""
    return [
        sum(values[max(0, index - window + 1) : index + 1]) / min(index + 1, window)
        for index in range(len(values))
    ]


def ends(values: Sequence[float | None], share: float = 0.1) -> tuple[float, float] | None:
    """Means of the first and of the last part of a curve; None without any value.

    Args:
        values: In order of time; None where there is no figure.
        share: How much of the curve each part is, at least one value.
    """
    there = [value for value in values if value is not None]
    if not there:
        return None
    count = max(1, round(share * len(there)))
    return sum(there[:count]) / count, sum(there[-count:]) / count


def quantiles(values: np.ndarray) -> tuple[float, ...] | None:
    """The `QUANTILES` of some numbers; None without any."""
    return tuple(np.quantile(values, QUANTILES).tolist()) if values.size else None
