"""Charts of what policies do: conversions, blind spots, lengths."""

from __future__ import annotations

from collections.abc import Mapping

from agon.evaluation.bands import Band
from agon.evaluation.comparisons import Difference
from agon.experiments.exchange import ChangeRow
from agon.report.accuracy_charts import draw_band, whole_steps
from agon.report.arms import COLOURS, MAIN, PAIRS, look
from agon.report.captions import CAPTIONS
from agon.report.charts import TEXT, Axes, Chart, Draw, Key, Panel, line_style
from agon.report.findings import SMOOTHED, Findings
from agon.report.forest import Line, forest
from agon.report.words import arrow, count, points, points_interval, spread

CHANGES = {"converted": ("green", "^"), "lost": ("vermillion", "v")}
VERDICTS = {"right": ("green", "o", "--"), "wrong": ("vermillion", "X", "-")}


def changes_chart(found: Findings) -> Chart | None:
    """Conversions and regressions of every cascade and of one-policy arms' self-cascades."""
    pairs = {row.arm for row in found.changes if row.system == "a->b"}
    rows = [row for row in found.changes if row.arm not in pairs or row.system in ("a->b", "b->a")]
    if not rows:
        return None

    def draw(axes: Axes) -> None:
        for place, row in enumerate(rows):
            for shift, share, what in (
                (0.14, row.converted, "converted"),
                (-0.14, row.lost, "lost"),
            ):
                colour, marker = CHANGES[what]
                shade = COLOURS[colour][0]
                y = -place + shift
                axes.plot([100 * share.low, 100 * share.high], [y, y], color=shade, linewidth=1.6)
                axes.plot([100 * share.mean], [y], **line_style(colour, marker, ""))
        axes.set_yticks([-place for place in range(len(rows))], [_direction(row) for row in rows])
        axes.tick_params(axis="y", labelsize=8.5, labelcolor=TEXT)
        axes.set_ylim(-len(rows) + 0.4, 0.6)
        axes.set_xlim(left=0)
        axes.set_xlabel("share of test attempts, %")

    return Chart(
        "conversions-regressions",
        "Conversions and regressions by direction",
        CAPTIONS["conversions-regressions"],
        f"{spread([len(row.seeds) for row in rows], 'seed')} × {found.problems} test problems × "
        f"{count(found.samples, 'attempt')}",
        "; ".join(
            f"{row.arm} {arrow(row.system)}: {100 * row.converted.mean:.1f} % converted, "
            f"{100 * row.lost.mean:.1f} % lost"
            for row in rows
        )
        + ".",
        (Panel("", draw, 4.0, 0.8 + 0.28 * len(rows)),),
        tuple(Key(what, *CHANGES[what], dash="") for what in CHANGES),
    )


def _direction(row: ChangeRow) -> str:
    star = "*" if row.chosen and "base" not in row.system else ""
    return f"{row.arm} {arrow(row.system)}{star}"


def blind_spots_chart(found: Findings) -> Chart | None:
    """Error overlap, divergence and distance of two policies over training."""
    spots = {spot.arm: spot for spot in found.spots if spot.over_training}
    shown = [arm for arm in PAIRS if arm in spots] or list(spots)[:5]
    if not shown:
        return None

    def drawer(metric: str, own: str | None, axis: str) -> Draw:
        def draw(axes: Axes) -> None:
            for arm in shown:
                style = look(arm, found.matrix.arm_names)
                curves = spots[arm].over_training
                if metric in curves:
                    draw_band(axes, curves[metric], style.colour, style.marker, "-", own is None)
                if own and own in curves:
                    steps, mean = curves[own].steps, curves[own].mean
                    axes.plot(
                        steps, mean, **line_style(style.colour, style.marker, ":", hollow=True)
                    )
            axes.set(xlabel="training step", ylabel=axis)
            whole_steps(axes)

        return draw

    problems = [
        shot["overlap"]["a|b"]["pairs"] // 2
        for run in found.matrix.arms[shown[0]].values()
        for shot in run.data["snapshots"]
    ]
    return Chart(
        "blind-spots",
        "Blind spots over training",
        CAPTIONS["blind-spots"],
        f"{spread([len(spots[arm].seeds) for arm in shown], 'seed')} × {min(problems)} dev "
        "problems × 2 attempts a snapshot",
        "; ".join(
            f"{arm}: Jaccard {_ends(spots[arm].over_training, 'jaccard')}, KL "
            f"{_ends(spots[arm].over_training, 'kl')}"
            for arm in shown
        )
        + ".",
        (
            Panel("error overlap: Jaccard", drawer("jaccard", "own_jaccard", "Jaccard index")),
            Panel("error overlap: correlation φ", drawer("phi", "own_phi", "φ")),
            Panel("divergence", drawer("kl", None, "KL(a, b), nats a token")),
            Panel("distance of the weight changes", drawer("distance", None, "Frobenius norm")),
        ),
        tuple(Key(arm, look(arm).colour, look(arm).marker, "-") for arm in shown),
    )


def _ends(curves: Mapping[str, Band], metric: str) -> str:
    if metric not in curves:
        return "not measured"
    return f"{curves[metric].mean[0]:.2g} to {curves[metric].mean[-1]:.2g}"


def overlap_chart(found: Findings) -> Chart | None:
    """At the end, on test: how much more the two policies' errors coincide than one's own."""
    spots = [spot for spot in found.spots if spot.at_end is not None]
    lines = []
    for spot in spots:
        assert spot.at_end is not None
        end = spot.at_end
        style = look(spot.arm, found.matrix.arm_names)
        gap = Difference(end.gap, end.low, end.high, None)
        lines.append(Line(spot.arm, gap, (), style.colour, style.marker))
    if not lines:
        return None
    return Chart(
        "error-overlap",
        "Error overlap at the end, on test",
        CAPTIONS["error-overlap"],
        f"{spread([len(spot.seeds) for spot in spots], 'seed')} × {found.problems} test problems × "
        f"{count(found.samples, 'attempt')}",
        "; ".join(
            f"{x.label} {points(x.difference.mean)} {points_interval(x.difference)}" for x in lines
        )
        + ".",
        (forest("", lines, "Jaccard across − within, × 100"),),
    )


def lengths_chart(found: Findings) -> Chart:
    """Lengths of right and wrong replies on test."""
    rows = found.lengths

    def draw(axes: Axes) -> None:
        for place, row in enumerate(rows):
            for shift, (verdict, (colour, marker, _)) in zip(
                (0.15, -0.15), VERDICTS.items(), strict=True
            ):
                values = row.right if verdict == "right" else row.wrong
                if values is None:
                    continue
                y, shade = -place + shift, COLOURS[colour][0]
                axes.plot([values[0], values[4]], [y, y], color=shade, linewidth=1)
                axes.plot([values[1], values[3]], [y, y], color=shade, lw=4.5, alpha=0.5)
                axes.plot([values[2]], [y], **line_style(colour, marker, ""))
        axes.set_yticks([-place for place in range(len(rows))], [row.arm for row in rows])
        axes.tick_params(axis="y", labelsize=8.5, labelcolor=TEXT)
        axes.set_ylim(-len(rows) + 0.4, 0.6)
        axes.set_xlim(left=0)
        axes.set_xlabel("tokens of the last stage")

    return Chart(
        "lengths",
        "Lengths of right and wrong answers",
        CAPTIONS["lengths"],
        f"{spread([row.seeds for row in rows], 'seed')} × {found.problems} test problems × "
        f"{count(found.samples, 'attempt')}",
        "; ".join(
            f"{row.arm}: median {row.right[2]:.0f} right, {row.wrong[2]:.0f} wrong"
            for row in rows
            if row.right is not None and row.wrong is not None
        )
        + ".",
        (Panel("", draw, 4.0, 0.8 + 0.3 * len(rows)),),
        tuple(
            Key(verdict, colour, marker, "") for verdict, (colour, marker, _) in VERDICTS.items()
        ),
    )


def length_curves_chart(found: Findings) -> Chart | None:
    """Lengths of right and wrong drafts over training, an arm a panel."""
    curves = found.length_curves
    arms = [arm for arm in (*MAIN, "length-penalty") if (arm, "draft", "wrong") in curves]
    if not arms:
        return None

    def drawer(arm: str) -> Draw:
        def draw(axes: Axes) -> None:
            for verdict, (colour, _, dash) in VERDICTS.items():
                curve = curves.get((arm, "draft", verdict))
                if curve is not None:
                    draw_band(axes, curve, colour, "", dash)
            axes.set_ylim(bottom=0)
            axes.set(xlabel="training step", ylabel="tokens of a draft")
            whole_steps(axes)

        return draw

    return Chart(
        "length-curves",
        "Lengths over training",
        f"Mean tokens of right and wrong drafts in training, mean of the last {SMOOTHED} steps; "
        "shaded from the lowest seed to the highest. The length pathology would be a line of wrong "
        "replies that climbs away from that of right ones.",
        f"{spread([curves[arm, 'draft', 'wrong'].seeds for arm in arms], 'seed')} an arm; every "
        "rollout of each step",
        "; ".join(
            f"{arm}: wrong {_ends({'x': curves[arm, 'draft', 'wrong']}, 'x')}" for arm in arms
        )
        + " tokens.",
        tuple(Panel(arm, drawer(arm), 3.4, 2.5) for arm in arms),
        tuple(Key(verdict, colour, "", dash) for verdict, (colour, _, dash) in VERDICTS.items()),
    )
