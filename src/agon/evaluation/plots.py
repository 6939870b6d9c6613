"""Plots of training runs, drawn with matplotlib into PNG files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from agon.evaluation.bands import running_mean

WINDOW = 10
"""Steps that a training curve is averaged over."""

COLOURS = (
    ("#0072B2", "#56B4E9", "#004A73", "#9AD1F5"),
    ("#D55E00", "#E69F00", "#009E73", "#CC79A7"),
)
"""Shades of each run, from Okabe and Ito's palette: told apart with colour-blind eyes."""


def plot_training(
    runs: Mapping[str, Sequence[Mapping[str, Any]]], problems: int, target: Path
) -> Path:
    """Draw dev accuracy and training lengths over steps.

    Args:
        runs: The lines of each run's metrics.jsonl, by the run's name.
        problems: Dev problems behind each point.
        target: The PNG file to write.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    accuracy, length = figure.subplots(1, 2)
    for name, rows, colours in _coloured(runs):
        for system in _systems(rows):
            points = [(r["step"], r[f"dev.{system}.pass"]) for r in rows if _has(r, system)]
            two = "->" in system
            accuracy.plot(
                [step for step, _ in points],
                [100 * value for _, value in points],
                "--" if two else "-",
                marker="o" if two else "s",
                markersize=4,
                color=next(colours),
                label=f"{name}: {system}",
            )
    for name, rows, colours in _coloured(runs):
        for role in ("draft", "challenge"):
            values = [(r["step"], r[f"{role}.length"]) for r in rows if f"{role}.length" in r]
            if values:
                length.plot(
                    [step for step, _ in values],
                    running_mean([value for _, value in values], WINDOW),
                    color=next(colours),
                    label=f"{name}: {role}s",
                )
    accuracy.set(
        xlabel="step", ylabel="pass@1, %", title=f"{problems} dev problems (dashed: two passes)"
    )
    length.set(xlabel="step", ylabel="tokens", title=f"Mean length in training, {WINDOW}-step mean")
    for axes in (accuracy, length):
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(target, dpi=130)
    return target


def _coloured(
    runs: Mapping[str, Sequence[Mapping[str, Any]]],
) -> Iterator[tuple[str, Sequence[Mapping[str, Any]], Iterator[str]]]:
    """Each run with a supply of its colours."""
    for number, (name, rows) in enumerate(runs.items()):
        yield name, rows, cycle(COLOURS[number % len(COLOURS)])


def _systems(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    names = {key: None for row in rows for key in row if key.startswith("dev.")}
    return [key.split(".")[1] for key in names if key.endswith(".pass")]


def _has(row: Mapping[str, Any], system: str) -> bool:
    return f"dev.{system}.pass" in row
