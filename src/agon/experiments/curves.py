"""Curves over training: dev accuracy of an arm's system, and what was logged in every step."""

from __future__ import annotations

from collections.abc import Mapping

from agon.evaluation.bands import Band, band
from agon.experiments.results import Result
from agon.experiments.spec import Reported


def dev_curve(runs: Mapping[int, Result], word: Reported | None = None) -> Band | None:
    """Dev pass@1 over training of the system that dev chose at the end of each run.

    Args:
        runs: An arm's by seed.
        word: Which system; None is the arm's own.

    Returns:
        None where nothing was trained or dev was not evaluated.
    """
    curves = []
    for run in runs.values():
        name = run.reported(word or run.data["reported"])
        found = logged(run, f"dev.{name}.pass")
        if found is None:
            return None
        curves.append(found)
    return _band(curves)


def training_curve(runs: Mapping[int, Result], key: str, window: int = 1) -> Band | None:
    """A figure of metrics.jsonl over training; None where a run has none.

    Args:
        runs: An arm's by seed.
        key: Such as `draft.length_wrong`.
        window: Values that are averaged with those before them.
    """
    curves = [logged(run, key) for run in runs.values()]
    return _band([curve for curve in curves if curve is not None], window)


def logged(run: Result, key: str) -> tuple[list[int], list[float | None]] | None:
    """A run's steps and one logged figure at each."""
    table = run.data.get("curves") or {}
    return (table["step"], table[key]) if key in table and "step" in table else None


def _band(curves: list[tuple[list[int], list[float | None]]], window: int = 1) -> Band | None:
    try:
        return band(curves, window)
    except ValueError:
        return None
