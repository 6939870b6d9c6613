"""The page's further tables: votes, conversions, controls, blind spots, lengths, ablations."""

from __future__ import annotations

import math

from agon.experiments.blindspots import BlindSpots
from agon.report.arms import protocol
from agon.report.findings import Findings
from agon.report.result_tables import attempts
from agon.report.tables import Column, Row, Table
from agon.report.words import (
    MINUS,
    arrow,
    by_seed,
    interval,
    maybe_percent,
    percent,
    points,
    points_by_seed,
    points_interval,
    spread,
)


def equal_tokens_table(found: Findings) -> Table | None:
    """Two passes against votes of one pass at equal tokens."""
    if not found.equal:
        return None
    columns = (
        Column("two passes", False),
        Column("tokens"),
        Column("pass@1, %"),
        Column("votes of one adapter", False),
        Column("tries"),
        Column("tokens"),
        Column("majority, %"),
        Column("best of them (bound), %"),
        Column("two passes − majority, points"),
        Column("95 % interval"),
        Column("seeds"),
    )
    rows = []
    for pair in found.equal:
        vote = pair.vote
        rows.append(
            Row(
                (
                    f"{pair.two.arm} ({protocol(pair.two.reported)})",
                    f"{pair.budget:.0f}",
                    percent(pair.two_pass),
                    pair.one.arm,
                    f"{vote.k}{' (all there are)' if pair.more else ''}",
                    f"{vote.generated:.0f}",
                    percent(vote.majority),
                    "" if math.isnan(vote.best) else percent(vote.best),
                    points(pair.difference.mean),
                    points_interval(pair.difference),
                    str(len(pair.seeds)),
                )
            )
        )
    return Table(
        "equal-tokens",
        "Each two-pass system beside the vote of one adapter (its own, GRPO's, GRPO-2N's; of two "
        "the better on dev) whose generated tokens come nearest to its own. The commonest answer "
        "wins, the earliest of a tie, and a try without an answer has no vote: two tries gain only "
        "where one has none. The best of the tries needs a perfect judge.",
        attempts(found, [len(pair.seeds) for pair in found.equal]),
        columns,
        tuple(rows),
    )


def changes_table(found: Findings) -> Table | None:
    """Conversions and regressions of every two-pass system."""
    if not found.changes:
        return None
    columns = (
        Column("arm", False),
        Column("direction", False),
        Column("reported under seeds", False),
        Column("converted, %"),
        Column("95 % interval"),
        Column("lost, %"),
        Column("95 % interval"),
        Column("net, points"),
        Column("converted of the wrong, %"),
        Column("lost of the right, %"),
        Column("seeds"),
    )
    rows = [
        Row(
            (
                row.arm,
                arrow(row.system),
                ", ".join(map(str, row.chosen)),
                percent(row.converted.mean),
                interval(row.converted.low, row.converted.high),
                percent(row.lost.mean),
                interval(row.lost.low, row.lost.high),
                points(row.converted.mean - row.lost.mean),
                maybe_percent(row.converted_of_wrong),
                maybe_percent(row.lost_of_right),
                str(len(row.seeds)),
            ),
            "strong" if row.chosen else "",
        )
        for row in found.changes
    ]
    return Table(
        "changes",
        "Of all attempts: wrong drafts answered right, right drafts answered wrong, and their "
        "difference; then each as a share of the drafts that it can happen to.",
        attempts(found, [len(row.seeds) for row in found.changes]),
        columns,
        tuple(rows),
    )


def controls_table(found: Findings) -> Table | None:
    """Own summaries against controls."""
    if not found.controls:
        return None
    columns = (
        Column("arm", False),
        Column("shown instead", False),
        Column("own summary, each seed, %"),
        Column("control, each seed, %"),
        Column("own − control, points"),
        Column("95 % interval"),
        Column("seeds"),
    )
    rows = [
        Row(
            (
                row.arm,
                {"shuffled": "another problem's summary", "filler": "filler"}[row.shown],
                by_seed(row.own_by_seed),
                by_seed(row.control_by_seed),
                points(row.difference.mean),
                points_interval(row.difference),
                str(len(row.seeds)),
            )
        )
        for row in found.controls
    ]
    return Table(
        "controls",
        "The same policies with their rival's own summary and with a control in its place.",
        attempts(found, [len(row.seeds) for row in found.controls]),
        columns,
        tuple(rows),
    )


def ablations_table(found: Findings) -> Table | None:
    """Arms against what they change one thing of."""
    if not found.ablations:
        return None
    columns = (
        Column("arm", False),
        Column("what changes", False),
        Column("compared with", False),
        Column("difference, points"),
        Column("95 % interval"),
        Column("each seed"),
        Column("seeds"),
    )
    rows = [
        Row(
            (
                f"{c.left.arm} ({protocol(c.left.reported)})",
                found.matrix.about(c.left.arm),
                f"{c.right.arm} ({protocol(c.right.reported)})",
                points(c.difference.mean),
                points_interval(c.difference),
                points_by_seed(c.left_by_seed, c.right_by_seed),
                str(len(c.seeds)),
            )
        )
        for c in found.ablations
    ]
    return Table(
        "ablations",
        "Headline systems, test pass@1. Descriptive: nothing is corrected for so many looks.",
        attempts(found, [len(c.seeds) for c in found.ablations]),
        columns,
        tuple(rows),
    )


def blind_spots_table(found: Findings) -> Table | None:
    """At the end of training: overlap, divergence and distance of two policies."""
    if not found.spots:
        return None
    test, dev = "test, at the end", "dev, last snapshot"
    columns = (
        Column("arm", False),
        Column("Jaccard, a and b", True, test),
        Column("one adapter, two samples", True, test),
        Column("gap × 100", True, test),
        Column("95 % interval", True, test),
        Column("φ, a and b", True, dev),
        Column("φ, one adapter", True, dev),
        Column("KL(a, b), nats a token", True, dev),
        Column("KL from the base", True, dev),
        Column("distance", True, dev),
        Column("cosine", True, dev),
        Column("seeds"),
    )
    return Table(
        "blind-spots",
        "Error overlap of a and b beside that of two samples of one adapter (mean of both). No "
        "two attempts that were drawn with the same random numbers are compared. Distance and "
        "cosine are of the weight changes.",
        attempts(found, [len(spot.seeds) for spot in found.spots]),
        columns,
        tuple(Row(_spot(spot)) for spot in found.spots),
    )


def _spot(spot: BlindSpots) -> tuple[str, ...]:
    end = spot.at_end
    if end is None:
        test: tuple[str, ...] = ("", "", "", "")
    else:
        gap = f"[{points(end.low)}, {points(end.high)}]"
        test = (f"{end.across:.3f}", f"{end.within:.3f}", points(end.gap), gap)
    last = {metric: curve.mean[-1] for metric, curve in spot.over_training.items()}
    dev = ("phi", "own_phi", "kl", "kl_base", "distance", "cosine")
    numbers = [
        f"{last[metric]:.3f}".replace("-", MINUS) if metric in last else "" for metric in dev
    ]
    return (spot.arm, *test, *numbers, str(len(spot.seeds)))


def lengths_table(found: Findings) -> Table:
    """Lengths on test by verdict."""
    columns = (
        Column("arm", False),
        Column("system", False),
        Column("right: median [10 %, 90 %]"),
        Column("right answers"),
        Column("wrong: median [10 %, 90 %]"),
        Column("wrong answers"),
        Column("hit the limit, %"),
        Column("seeds"),
    )
    rows = [
        Row(
            (
                row.arm,
                protocol(row.reported),
                _middle(row.right),
                f"{row.right_count:,}",
                _middle(row.wrong),
                f"{row.wrong_count:,}",
                percent(row.truncated),
                str(row.seeds),
            )
        )
        for row in found.lengths
    ]
    return Table(
        "lengths",
        "Generated tokens of the last stage on test, all seeds together.",
        attempts(found, [row.seeds for row in found.lengths]),
        columns,
        tuple(rows),
    )


def _middle(values: tuple[float, ...] | None) -> str:
    return "" if values is None else f"{values[2]:.0f} [{values[0]:.0f}, {values[4]:.0f}]"


def shifts_table(found: Findings) -> Table | None:
    """Lengths at both ends of training."""
    if not found.shifts:
        return None
    columns = (
        Column("arm", False),
        Column("role", False),
        Column("right, first tenth"),
        Column("last tenth"),
        Column("wrong, first tenth"),
        Column("last tenth"),
        Column("wrong grew more than right by, tokens, each seed"),
        Column("seeds"),
        Column("the pathology?", False),
    )
    rows = []
    for shift in found.shifts:
        climbs = shift.wrong[1] > shift.wrong[0]
        every = climbs and all(grew > 0 for grew in shift.grew)
        none = all(grew <= 0 for grew in shift.grew)
        seen = "seen in every seed" if every else "not seen" if none or not climbs else "mixed"
        rows.append(
            Row(
                (
                    shift.arm,
                    shift.role,
                    f"{shift.right[0]:.0f}",
                    f"{shift.right[1]:.0f}",
                    f"{shift.wrong[0]:.0f}",
                    f"{shift.wrong[1]:.0f}",
                    "  ".join(f"{grew:+.0f}".replace("-", MINUS) for grew in shift.grew),
                    str(len(shift.seeds)),
                    seen,
                )
            )
        )
    return Table(
        "length-shift",
        "Mean tokens of right and wrong replies in training. The pathology would be wrong replies "
        "that grow, and grow more than right ones. As an arm learns, the problems that are left "
        "wrong are the hard ones, whose replies are longer: growth alone is no proof of padding.",
        f"{spread([len(shift.seeds) for shift in found.shifts], 'seed')}; every rollout of the "
        "first and last tenth of the steps",
        columns,
        tuple(rows),
    )
