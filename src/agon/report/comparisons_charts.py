"""Charts of differences: primary contrasts, the square, ablations, controls, the paper's order."""

from __future__ import annotations

from agon.evaluation.comparisons import Difference
from agon.experiments.exchange import CONTROLS
from agon.experiments.factorial import ARMS, COMPETITION, EXCHANGE, Square
from agon.experiments.summary import Comparison
from agon.report.arms import COLOURS, look, protocol
from agon.report.captions import CAPTIONS
from agon.report.charts import Axes, Chart, Draw, Key, Panel, line_style
from agon.report.findings import Findings
from agon.report.forest import Line, forest, gaps
from agon.report.words import count, points, points_interval, spread

SQUARE_LOOKS = {"no competition": ("green", "^", "--"), "competition": ("vermillion", "*", "-")}


def contrasts_chart(found: Findings) -> Chart | None:
    """The primary contrasts."""
    if not found.contrasts:
        return None
    lines = [
        _line(row.spec.name, row.comparison, look(row.spec.left.arm).colour)
        for row in found.contrasts
    ]
    said = "; ".join(_said(line) for line in lines)
    return Chart(
        "primary-contrasts",
        "Primary contrasts",
        CAPTIONS["primary-contrasts"],
        _n(found, [row.comparison for row in found.contrasts]),
        f"Differences with intervals: {said}.",
        (forest("", lines, "difference of pass@1, points"),),
    )


def _line(label: str, comparison: Comparison, colour: str, marker: str = "o") -> Line:
    seeds = gaps(comparison.left_by_seed, comparison.right_by_seed)
    return Line(label, comparison.difference, seeds, colour, marker)


def _said(line: Line) -> str:
    return f"{line.label} {points(line.difference.mean)} {points_interval(line.difference)}"


def _n(found: Findings, comparisons: list[Comparison]) -> str:
    seeds = spread([len(c.seeds) for c in comparisons], "seed")
    return f"{seeds} × {found.problems} test problems × {count(found.samples, 'attempt')}"


def square_chart(found: Findings) -> Chart | None:
    """Competition x exchange, read three times."""
    there = [
        square for square in found.squares if any(cell for row in square.cells for cell in row)
    ]
    if not there:
        return None
    seeds = [len(c.seeds) for s in there for row in s.cells for c in row if c is not None]
    return Chart(
        "competition-exchange",
        "Competition × exchange",
        CAPTIONS["competition-exchange"],
        f"{spread(seeds, 'seed')} a cell × {found.problems} test problems × "
        f"{count(found.samples, 'attempt')}",
        "; ".join(_square_said(square) for square in there) + ".",
        tuple(
            Panel(square.reading, _square_drawer(square), 3.5, 3.0) for square in there
        ),
        tuple(
            Key(name, colour, marker, dash)
            for name, (colour, marker, dash) in SQUARE_LOOKS.items()
        ),
    )  # fmt: skip


def _square_said(square: Square) -> str:
    cells = [
        f"{arm} {'missing' if cell is None else f'{100 * cell.mean:.1f} %'}"
        for arms, row in zip(ARMS, square.cells, strict=True)
        for arm, cell in zip(arms, row, strict=True)
    ]
    return f"{square.reading}: {', '.join(cells)}"


def _square_drawer(square: Square) -> Draw:
    def draw(axes: Axes) -> None:
        for shift, (name, row) in enumerate(zip(COMPETITION, square.cells, strict=True)):
            colour, marker, dash = SQUARE_LOOKS[name]
            shade = COLOURS[colour][0]
            there = [
                (x + 0.08 * shift - 0.04, cell) for x, cell in enumerate(row) if cell is not None
            ]
            places = [x for x, _ in there]
            axes.plot(
                places, [100 * cell.mean for _, cell in there], **line_style(colour, marker, dash)
            )
            for x, cell in there:
                axes.plot([x, x], [100 * cell.low, 100 * cell.high], color=shade, linewidth=1.4)
                axes.plot(
                    [x + 0.05] * len(cell.by_seed), [100 * value for value in cell.by_seed], "o",
                    markersize=3, markerfacecolor="none", markeredgecolor=shade,
                )  # fmt: skip
        axes.set_xticks([0, 1], [f"exchange\n{word}" for word in EXCHANGE])
        axes.set_xlim(-0.3, 1.3)
        axes.set_ylabel("test pass@1, %")

    return draw


def ablations_chart(found: Findings) -> Chart | None:
    """Each arm minus the one that it changes one thing of."""
    if not found.ablations:
        return None
    lines = [
        _line(f"{c.left.arm} − {c.right.arm}", c, look(c.left.arm).colour, look(c.left.arm).marker)
        for c in found.ablations
    ]
    return Chart(
        "ablations",
        "Ablations",
        CAPTIONS["ablations"],
        _n(found, list(found.ablations)),
        f"Differences with intervals: {'; '.join(map(_said, lines))}.",
        (forest("", lines, "difference of pass@1, points"),),
    )


def controls_chart(found: Findings) -> Chart | None:
    """What a challenger loses without its rival's own summary."""
    rows = found.controls
    if not rows:
        return None
    panels = []
    for shown in CONTROLS:
        lines = [
            Line(
                f"{row.arm}", row.difference, gaps(row.own_by_seed, row.control_by_seed),
                look(row.arm).colour, look(row.arm).marker,
            )
            for row in rows
            if row.shown == shown
        ]  # fmt: skip
        if lines:
            panels.append(forest(f"own − {shown}", lines, "difference of pass@1, points"))
    said = "; ".join(f"{r.arm}, own minus {r.shown}: {points(r.difference.mean)}" for r in rows)
    return Chart(
        "controls",
        "Controls: whether the summary matters",
        CAPTIONS["controls"],
        f"{spread([len(row.seeds) for row in rows], 'seed')} × {found.problems} "
        f"test problems × {count(found.samples, 'attempt')}",
        f"{said}.",
        tuple(panels),
    )


def claims_chart(found: Findings) -> Chart | None:
    """The paper's orderings here."""
    there = [(claim, c) for claim, c in found.claims if c is not None]
    if not there:
        return None
    lines = [
        _line(
            f"{c.left.arm} ({protocol(c.left.reported)}) − {c.right.arm} "
            f"({protocol(c.right.reported)})",
            c,
            look(c.left.arm).colour,
            look(c.left.arm).marker,
        )
        for _, c in there
    ]
    return Chart(
        "orderings",
        "The paper's orderings, here",
        CAPTIONS["orderings"],
        _n(found, [c for _, c in there]),
        f"Differences here: {'; '.join(map(_said, lines))}.",
        (forest("", lines, "difference of pass@1 here, points"),),
    )


def interaction_words(difference: Difference | None) -> str:
    """The interaction as text."""
    if difference is None:
        return "needs a common seed of all four arms"
    return f"{points(difference.mean)} {points_interval(difference)}"
