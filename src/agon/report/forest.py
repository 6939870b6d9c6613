"""Differences with their intervals, one below the other: every seed is a hollow mark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agon.evaluation.comparisons import Difference
from agon.report.arms import COLOURS
from agon.report.charts import AXIS, GROUND, TEXT, Axes, Panel


@dataclass(frozen=True, slots=True)
class Line:
    """One difference.

    Attributes:
        label: What is compared.
        difference: As a share; drawn in points.
        seeds: Each seed's.
        colour: A key of `COLOURS`.
        marker: matplotlib's.
    """

    label: str
    difference: Difference
    seeds: tuple[float, ...]
    colour: str
    marker: str = "o"


def gaps(left: Sequence[float], right: Sequence[float]) -> tuple[float, ...]:
    """Each seed's difference."""
    return tuple(x - y for x, y in zip(left, right, strict=True))


def forest(title: str, lines: Sequence[Line], axis: str) -> Panel:
    """A panel of differences, whose labels stand above them so that narrow screens have room.

    Args:
        title: Above the panel.
        lines: From top to bottom.
        axis: What the horizontal axis shows.
    """

    def draw(axes: Axes) -> None:
        for place, line in enumerate(lines):
            y, shade = -place, COLOURS[line.colour][0]
            low, mean, high = (
                100 * x for x in (line.difference.low, line.difference.mean, line.difference.high)
            )
            axes.plot([low, high], [y, y], color=shade, linewidth=2.2, solid_capstyle="butt")
            axes.plot(
                [100 * gap for gap in line.seeds], [y - 0.22] * len(line.seeds), "o",
                markersize=3.6, markerfacecolor=GROUND, markeredgecolor=shade, linestyle="none",
            )  # fmt: skip
            axes.plot([mean], [y], line.marker, color=shade, markersize=8)
            axes.text(
                0.0, y + 0.24, line.label, transform=axes.get_yaxis_transform(),
                fontsize=8.5, color=TEXT, va="center",
            )  # fmt: skip
        axes.axvline(0, color=AXIS, linewidth=1)
        axes.set_yticks([])
        axes.set_ylim(-len(lines) + 0.45, 0.55)
        axes.spines["left"].set_visible(False)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(axis)

    return Panel(title, draw, width=4.0, height=0.75 + 0.44 * max(1, len(lines)))
