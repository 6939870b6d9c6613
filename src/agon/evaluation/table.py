"""One table for all systems, with what each of them costs beside what it reaches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from rich.markup import escape
from rich.table import Table as RichTable

from agon.evaluation.statistics import Summary

COLUMNS = (
    "system",
    "passes",
    "pass@1 [95 %]",
    "tokens\nwritten",
    "last\nstage",
    "tokens\nread",
    "training\nrollouts",
    "con-\nverted",
    "lost",
)
EXPLAINED = (
    "Tokens are means of all stages; `last stage` is the final stage's share of what was written. "
    "Converted and lost: a wrong draft answered right, a right draft answered wrong."
)


def table_rows(
    summaries: Mapping[str, Summary],
    rollouts: Mapping[str, int],
    labels: Mapping[str, str] | None = None,
) -> list[list[str]]:
    """The table's cells as text.

    Args:
        summaries: Figures by system name, in the order to show them.
        rollouts: Training rollouts behind each system; 0 for the untrained base.
        labels: What to call a system, where not by its name.
    """
    rows = []
    for name, summary in summaries.items():
        label = (labels or {}).get(name, name)
        interval = f"[{100 * summary.low:.1f}, {100 * summary.high:.1f}]"
        trained = f"{rollouts.get(name, 0):,}"
        rows.append(
            [
                label,
                str(summary.passes),
                f"{100 * summary.pass_1:.1f} {interval}",
                f"{summary.generated:.0f}",
                f"{summary.last_length:.0f}",
                f"{summary.prompt:.0f}",
                trained,
                "" if summary.conversions is None else f"{100 * summary.conversions:.1f}",
                "" if summary.regressions is None else f"{100 * summary.regressions:.1f}",
            ]
        )
        if summary.k > 1:
            rows.append(_bound(summary, trained))
    return rows


def _bound(summary: Summary, trained: str) -> list[str]:
    """The row of pass@k: what k tries would reach if a judge could pick among them."""
    k = summary.k
    written, read = f"{k * summary.generated:.0f}", f"{k * summary.prompt:.0f}"
    value = f"{100 * summary.pass_k:.1f}"
    return [f"  pass@{k}", str(k * summary.passes), value, written, "", read, trained, "", ""]


def render(rows: list[list[str]], title: str) -> RichTable:
    """The table for a terminal of 80 columns or more."""
    table = RichTable(
        title=escape(title),
        title_justify="left",
        caption=EXPLAINED,
        caption_justify="left",
        box=None,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        header_style="bold",
    )
    for column in COLUMNS:
        table.add_column(
            column,
            justify="left" if column == "system" else "right",
            no_wrap=True,
            vertical="bottom",
        )
    for row in rows:
        table.add_row(*row)
    return table


def as_records(summaries: Mapping[str, Summary], rollouts: Mapping[str, int]) -> dict[str, object]:
    """The same figures for a JSON file."""
    return {
        name: {**asdict(summary), "training_rollouts": rollouts.get(name, 0)}
        for name, summary in summaries.items()
    }
