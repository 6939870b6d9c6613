"""The tables of the page, made of findings."""

from __future__ import annotations

from agon.experiments.factorial import ARMS, COMPETITION, EXCHANGE
from agon.experiments.summary import ArmRow, Comparison, ContrastRow
from agon.report import published
from agon.report.arms import protocol
from agon.report.findings import Findings
from agon.report.tables import Column, Row, Table
from agon.report.words import (
    arrow,
    by_seed,
    count,
    direction,
    interval,
    maybe_percent,
    p_value,
    percent,
    points,
    points_by_seed,
    points_interval,
    spread,
)


def attempts(found: Findings, seeds: list[int]) -> str:
    """The n of figures on the test split."""
    if not any(seeds):
        return "no common seed yet"
    return (
        f"{spread(seeds, 'seed')} × {found.problems} test problems × "
        f"{count(found.samples, 'attempt')}"
    )


def contrasts_table(found: Findings) -> Table | None:
    """The primary contrasts, the ones without results too."""
    if not found.contrasts and not found.waiting:
        return None
    columns = (
        Column("contrast", False),
        Column("left − right", False),
        Column("difference, points"),
        Column("95 % interval"),
        Column("p"),
        Column("p, Holm"),
        Column("seeds"),
        Column("each seed"),
        Column("reading", False),
    )
    rows = [_contrast(row) for row in found.contrasts]
    for spec in found.waiting:
        sides = f"{spec.left.arm} − {spec.right.arm}"
        rows.append(Row((spec.name, sides, *("",) * 5, "", "no common seed yet"), "missing"))
    named = len(found.contrasts) + len(found.waiting)
    return Table(
        "contrasts",
        "Test pass@1 of the left system minus the right, named before anything ran. The interval "
        "is the wider of the crossed bootstrap's and Student's over the seeds; p is Student's "
        f"paired test over the seeds, and Holm's correction counts all {named} contrasts, the "
        "missing ones too. Read the interval first: p above 0.05 is not evidence of no difference.",
        attempts(found, [len(row.seeds) for row in found.contrasts] or [0]),
        columns,
        tuple(rows),
    )


def _contrast(row: ContrastRow) -> Row:
    gap, sides = row.difference, (row.spec.left, row.spec.right)
    named = " − ".join(f"{side.arm} ({protocol(side.reported)})" for side in sides)
    held = row.p_holm is not None and row.p_holm < 0.05
    reading = {
        "ahead": "left ahead" if held else "left ahead, not after Holm",
        "behind": "left behind" if held else "left behind, not after Holm",
        "undecided": "undecided",
    }[direction(gap)]
    return Row(
        (
            row.spec.name,
            named,
            points(gap.mean),
            points_interval(gap),
            p_value(gap.p),
            p_value(row.p_holm),
            str(len(row.seeds)),
            points_by_seed(row.comparison.left_by_seed, row.comparison.right_by_seed),
            reading if gap.p is not None else "one seed: no test",
        )
    )


OURS = "measured here: accuracy"
COSTS = "measured here: an answer, and training"
THEIRS = f"published, not ours: {published.SOURCE}"


def main_table(found: Findings) -> Table:
    """Every arm under every protocol, beside the paper's figures."""
    columns = (
        Column("arm", False),
        Column("system", False, OURS),
        Column("passes", True, OURS),
        Column("pass@1, %", True, OURS),
        Column("95 % interval", True, OURS),
        Column("each seed", True, OURS),
        Column("pass@1, %", True, THEIRS),
        Column("last stage, tokens", True, THEIRS),
        Column("tokens generated, all stages", True, COSTS),
        Column("last stage", True, COSTS),
        Column("prompt tokens", True, COSTS),
        Column("training rollouts", True, COSTS),
        Column("converted, %", True, COSTS),
        Column("lost, %", True, COSTS),
    )
    heads = {id(row) for row in found.headlines}
    rows = [_arm(row, id(row) in heads) for row in found.rows]
    for arm in found.matrix.arm_names:
        if arm not in found.matrix.arms:
            rows.append(Row((arm, "no cell is in", *("",) * 12), "missing"))
    return Table(
        "main",
        "Test split. Each arm's headline system, and below it what else its policies can do. The "
        "adapter and the direction are chosen on dev. Tokens are means an answer; converted and "
        "lost: wrong drafts answered right, right drafts answered wrong, of all attempts. The two "
        f"tinted columns are the paper's ({published.UNCERTAINTY}): another model, another "
        "task; only the order of systems can be compared.",
        attempts(found, [len(row.seeds) for row in found.rows]),
        columns,
        tuple(rows),
    )


def _arm(row: ArmRow, headline: bool) -> Row:
    theirs = published.published(row.arm, row.reported)
    early = f" (ended early: seed {', '.join(map(str, row.stopped))})" if row.stopped else ""
    systems = "/".join(dict.fromkeys(map(arrow, row.systems)))
    return Row(
        (
            row.arm + early if headline else "",
            f"{systems} ({protocol(row.reported)})",
            str(row.passes),
            percent(row.mean),
            interval(row.low, row.high),
            by_seed(row.by_seed),
            theirs.pass_1 if theirs else "",
            theirs.last if theirs else "",
            f"{row.generated:.0f}",
            f"{row.last:.0f}",
            f"{row.read:.0f}",
            f"{row.rollouts:,}",
            maybe_percent(row.converted),
            maybe_percent(row.lost),
        ),
        "strong" if headline else "sub",
    )


def arms_table(found: Findings) -> Table:
    """What each arm is, and which of its cells are in."""
    seeds = found.matrix.seeds
    columns = (
        Column("arm", False),
        Column("what it is", False),
        *(Column(f"seed {seed}", False) for seed in seeds),
    )
    rows = []
    for arm in found.matrix.arm_names:
        runs = found.matrix.arms.get(arm, {})
        wanted = {cell.seed for cell in found.matrix.wanted if cell.arm == arm}
        states = ["in" if seed in runs else "missing" if seed in wanted else "" for seed in seeds]
        rows.append(Row((arm, _about(found, arm), *states), "" if runs else "missing"))
    return Table(
        "arms",
        "The arms and which cells are in.",
        f"{found.matrix.done} of {count(len(found.matrix.wanted), 'cell')}",
        columns,
        tuple(rows),
    )  # fmt: skip


def _about(found: Findings, arm: str) -> str:
    return found.matrix.about(arm)


def square_table(found: Findings) -> Table:
    """Competition x exchange, read three times, with the sides of the square."""
    columns = (
        Column("reading", False),
        Column("", False),
        *(Column(f"exchange {word}, %") for word in EXCHANGE),
        Column("what exchange adds, points"),
    )
    rows = []
    for square in found.squares:
        for index, (name, cells) in enumerate(zip(COMPETITION, square.cells, strict=True)):
            texts = [
                f"{arm}: no result yet"
                if cell is None
                else f"{arm}: {percent(cell.mean)} {interval(cell.low, cell.high)}"
                for arm, cell in zip(ARMS[index], cells, strict=True)
            ]
            effect = square.effects[index].comparison
            rows.append(Row(("" if index else square.reading, name, *texts, _difference(effect))))
        hidden, visible = (_difference(effect.comparison) for effect in square.effects[2:])
        both = square.interaction
        rows.append(
            Row(
                (
                    "",
                    "what competition adds, points",
                    hidden,
                    visible,
                    "interaction: no common seed of all four yet"
                    if both is None
                    else f"interaction: {points(both.mean)} {points_interval(both)}",
                ),
                "sub",
            )
        )
    seeds = [len(cell.seeds) for s in found.squares for r in s.cells for cell in r if cell]
    return Table(
        "square",
        "Test pass@1 with 95 % intervals; differences over the seeds that both arms have. The "
        "interaction is how much more the exchange adds with competition than without. GRPO has "
        "one adapter, so its two passes are a self-cascade; hidden-paired's adapters were never "
        "trained on a summary.",
        attempts(found, seeds or [0]),
        columns,
        tuple(rows),
    )  # fmt: skip


def _difference(comparison: Comparison | None) -> str:
    if comparison is None:
        return "no common seed yet"
    return f"{points(comparison.difference.mean)} {points_interval(comparison.difference)}"


def claims_table(found: Findings) -> Table:
    """The paper's orderings and whether they hold here."""
    columns = (
        Column("published as ahead", False),
        Column("of", False),
        Column("published, points"),
        Column("here, points"),
        Column("95 % interval"),
        Column("seeds"),
        Column("here", False),
    )
    rows = []
    for claim, comparison in found.claims:
        names = [f"{arm} ({protocol(word)})" for arm, word in (claim.higher, claim.lower)]
        if comparison is None:
            rows.append(Row((*names, claim.points, "", "", "", "no common seed yet"), "missing"))
            continue
        gap = comparison.difference
        verdict = {
            "ahead": "the same order", "behind": "the opposite order", "undecided": "undecided",
        }[direction(gap)]  # fmt: skip
        if gap.p is None:
            verdict = f"{verdict} (one seed)"
        seeds = str(len(comparison.seeds))
        rows.append(
            Row((*names, claim.points, points(gap.mean), points_interval(gap), seeds, verdict))
        )
    seen = [len(c.seeds) for _, c in found.claims if c is not None]
    return Table(
        "orderings",
        "Pairs of systems of which the paper publishes both. `The same order` and `the opposite "
        "order` are said where the 95 % interval here leaves zero out; nothing is corrected for "
        f"looking at {len(found.claims)} pairs. The sizes are of different models and tasks.",
        attempts(found, seen or [0]),
        columns,
        tuple(rows),
    )
