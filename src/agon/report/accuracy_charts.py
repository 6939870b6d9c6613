"""Charts of accuracy: against tokens, by votes, over training."""

from __future__ import annotations

from agon.evaluation.bands import Band
from agon.experiments.summary import ArmRow
from agon.report.arms import ABLATIONS, COLOURS, MAIN, look, protocol
from agon.report.captions import CAPTIONS
from agon.report.charts import Axes, Chart, Draw, Key, Panel, line_style
from agon.report.findings import Findings
from agon.report.words import count, spread

_COMPARED = "agon"
"""Drawn beside ablations and controls."""


def tokens_chart(found: Findings) -> Chart:
    """Accuracy against what an answer costs."""
    rows = found.headlines

    def draw(axes: Axes) -> None:
        for row in rows:
            style = look(row.arm, found.matrix.arm_names)
            shade = COLOURS[style.colour][0]
            y = 100 * row.mean
            axes.plot([row.last, row.generated], [y, y], ":", color=shade, linewidth=1)
            axes.plot([row.generated] * 2, [100 * row.low, 100 * row.high], color=shade, lw=1.2)
            axes.plot([row.generated], [y], **line_style(style.colour, style.marker, ""))
            if row.passes > 1:
                axes.plot([row.last], [y], **line_style(style.colour, style.marker, "", True))
        axes.set_xlim(left=0)
        axes.set(xlabel="mean generated tokens of an answer", ylabel="test pass@1, %")

    return Chart(
        "accuracy-tokens",
        "Accuracy against tokens",
        CAPTIONS["accuracy-tokens"],
        _n(found, rows),
        "; ".join(f"{row.arm} {100 * row.mean:.1f} % at {row.generated:.0f} tokens" for row in rows)
        + ".",
        (Panel("", draw, 4.4, 3.7),),
        tuple(_key(row.arm, found, "") for row in rows),
    )


def _key(arm: str, found: Findings, dash: str | None = None, name: str = "") -> Key:
    style = look(arm, found.matrix.arm_names)
    return Key(name or arm, style.colour, style.marker, style.dash if dash is None else dash)


def _n(found: Findings, rows: tuple[ArmRow, ...]) -> str:
    return (
        f"{spread([len(row.seeds) for row in rows], 'seed')} an arm × {found.problems} test "
        f"problems × {count(found.samples, 'attempt')}"
    )


def votes_chart(found: Findings) -> Chart | None:
    """Majorities of one to K tries against their tokens."""
    there = [key for key, points in found.votes.items() if len(points) > 1]
    if not there:
        return None

    def drawer(best: bool) -> Draw:
        def draw(axes: Axes) -> None:
            for arm, word in there:
                points = found.votes[arm, word]
                style = look(arm)
                axes.plot(
                    [point.generated for point in points],
                    [100 * (point.best if best else point.majority) for point in points],
                    **line_style(style.colour, style.marker, style.dash),
                )
            axes.set_xlim(left=0)
            axes.set(xlabel="generated tokens of all tries, all stages", ylabel="right, %")

        return draw

    last = {key: found.votes[key][-1] for key in there}
    return Chart(
        "votes-tokens",
        "Votes at equal tokens",
        CAPTIONS["votes-tokens"],
        _n(found, tuple(row for row in found.headlines if row.arm in {arm for arm, _ in there})),
        "; ".join(
            f"{arm}, {protocol(word)}: majority of {p.k} {100 * p.majority:.1f} %, best of {p.k} "
            f"{100 * p.best:.1f} % at {p.generated:.0f} tokens"
            for (arm, word), p in last.items()
        )
        + ".",
        (Panel("majority", drawer(False)), Panel("best of k (bound)", drawer(True))),
        tuple(_key(arm, found, name=f"{arm}, {protocol(word)}") for arm, word in there),
    )


def curves_chart(found: Findings) -> Chart | None:
    """Dev accuracy over training."""
    if not found.curves:
        return None
    groups = [
        ("main arms", [arm for arm in MAIN if arm in found.curves]),
        ("ablations of Agon", [arm for arm in ABLATIONS if arm in found.curves]),
        (
            "hidden exchange and controls",
            [arm for arm in found.curves if arm not in (*MAIN, *ABLATIONS)],
        ),
    ]
    for _, arms in groups[1:]:
        if arms and _COMPARED in found.curves:
            arms.insert(0, _COMPARED)

    def drawer(arms: list[str]) -> Draw:
        def draw(axes: Axes) -> None:
            for arm in arms:
                style = look(arm, found.matrix.arm_names)
                draw_band(
                    axes, found.curves[arm], style.colour, style.marker, style.dash, scale=100
                )
            axes.set(xlabel="training step", ylabel="dev pass@1, %")
            whole_steps(axes)

        return draw

    shown = list(dict.fromkeys(arm for _, arms in groups for arm in arms))
    config = found.matrix.results[-1].data["config"]["evaluation"]
    return Chart(
        "training-curves",
        "Training curves",
        CAPTIONS["training-curves"],
        f"{spread([found.curves[arm].seeds for arm in shown], 'seed')} an arm × "
        f"{config['problems']} dev problems × "
        "1 attempt",
        "; ".join(
            f"{arm} from {100 * found.curves[arm].mean[0]:.0f} % to "
            f"{100 * found.curves[arm].mean[-1]:.0f} %"
            for arm in shown
        )
        + ".",
        tuple(Panel(title, drawer(arms), 4.4, 3.4) for title, arms in groups if arms),
        tuple(_key(arm, found) for arm in shown),
    )


def whole_steps(axes: Axes) -> None:
    """Ticks at whole steps, few enough for a narrow panel."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def draw_band(
    axes: Axes,
    curve: Band,
    colour: str,
    marker: str,
    dash: str,
    shaded: bool = True,
    scale: float = 1,
) -> None:
    """A line, with the range of its seeds where it is shaded."""
    many = len(curve.steps) > 20
    style = line_style(colour, "" if many else marker, dash)
    axes.plot(curve.steps, [scale * value for value in curve.mean], **style)
    if shaded and curve.seeds > 1:
        low, high = ([scale * value for value in ends] for ends in (curve.low, curve.high))
        axes.fill_between(curve.steps, low, high, color=COLOURS[colour][0], alpha=0.14, linewidth=0)
