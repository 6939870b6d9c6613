"""Puts findings, charts, tables and rounds into one page that opens from the disk.

Nothing is fetched: style, script, figures and rounds stand in the page, and its content policy lets
no other style or script run, whatever a model wrote.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from agon.report import accuracy_charts, behaviour_charts, comparisons_charts
from agon.report.arms import COLOURS
from agon.report.charts import Chart, Styles, inline_key, inline_panels
from agon.report.detail_tables import (
    ablations_table,
    blind_spots_table,
    changes_table,
    controls_table,
    equal_tokens_table,
    lengths_table,
    shifts_table,
)
from agon.report.findings import Findings
from agon.report.methods import methods, opening
from agon.report.result_tables import (
    arms_table,
    claims_table,
    contrasts_table,
    main_table,
    square_table,
)
from agon.report.rounds import KINDS, TERMS, Rounds, as_json
from agon.report.tables import Table

if TYPE_CHECKING:
    from jinja2 import Environment


@dataclass(frozen=True, slots=True)
class Section:
    """One section of the page.

    Attributes:
        name: Its anchor.
        title: Its head.
        lead: A sentence or two before its charts and tables.
        charts: Charts with something to show.
        tables: Tables with something to show.
        folded: Whether its tables are folded away at first.
    """

    name: str
    title: str
    lead: str
    charts: tuple[Chart, ...]
    tables: tuple[Table, ...]
    folded: bool = False


ChartMaker = Callable[[Findings], Chart | None]
TableMaker = Callable[[Findings], Table | None]

_SECTIONS: tuple[tuple[str, str, str, Sequence[ChartMaker], Sequence[TableMaker], bool], ...] = (
    (
        "contrasts",
        "Primary contrasts",
        "What was asked before anything ran; all else on this page is descriptive.",
        (comparisons_charts.contrasts_chart,),
        (contrasts_table,),
        False,
    ),
    (
        "main",
        "All arms, beside the paper",
        "Two passes are never compared with one without saying so: read the passes, the tokens of "
        "all stages and the training rollouts with every accuracy.",
        (),
        (main_table,),
        False,
    ),
    (
        "orderings",
        "Which of the paper's orderings hold here",
        "",
        (comparisons_charts.claims_chart,),
        (claims_table,),
        True,
    ),
    (
        "square",
        "Competition × exchange",
        "The paper leaves one cell of this square empty: competition without visible exchange, "
        "each challenge paid against its own unseen draft (hidden-paired).",
        (comparisons_charts.square_chart,),
        (square_table,),
        False,
    ),
    (
        "tokens",
        "Accuracy and tokens",
        "",
        (accuracy_charts.tokens_chart, accuracy_charts.votes_chart),
        (equal_tokens_table,),
        True,
    ),
    (
        "curves",
        "Training",
        "",
        (accuracy_charts.curves_chart,),
        (),
        False,
    ),
    (
        "changes",
        "Conversions and regressions",
        "",
        (behaviour_charts.changes_chart,),
        (changes_table,),
        True,
    ),
    (
        "blind-spots",
        "Blind spots",
        "Two policies help each other only where they err on different problems. Two samples of "
        "one policy err alike too, since some problems are hard: that is what two policies are "
        "held against.",
        (behaviour_charts.blind_spots_chart, behaviour_charts.overlap_chart),
        (blind_spots_table,),
        True,
    ),
    ("ablations", "Ablations", "", (comparisons_charts.ablations_chart,), (ablations_table,), True),
    ("controls", "Controls", "", (comparisons_charts.controls_chart,), (controls_table,), True),
    (
        "lengths",
        "Lengths",
        "",
        (behaviour_charts.lengths_chart, behaviour_charts.length_curves_chart),
        (lengths_table, shifts_table),
        True,
    ),
)


def sections(found: Findings) -> list[Section]:
    """All sections that have something to show, in reading order."""
    made = []
    for name, title, lead, charts, tables, folded in _SECTIONS:
        drawn = tuple(chart for make in charts if (chart := make(found)) is not None)
        listed = tuple(table for make in tables if (table := make(found)) is not None)
        if drawn or listed:
            made.append(Section(name, title, lead, drawn, listed, folded))
    return made


def environment() -> Environment:
    """Jinja with every value escaped and every name required."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("agon.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(found: Findings, made: Sequence[Section], rounds: Rounds) -> str:
    """The whole page."""
    from markupsafe import Markup

    jinja = environment()
    styles = Styles()
    numbers = {
        chart.name: number
        for number, chart in enumerate((c for s in made for c in s.charts), start=1)
    }
    charts = {
        chart.name: {
            "number": numbers[chart.name],
            "panels": [Markup(svg) for svg in inline_panels(chart, styles)],
            "keys": [
                (key.name, Markup(inline_key(key, f"{chart.name}-key{place}", styles)))
                for place, key in enumerate(chart.keys)
            ],
            "wide": len(chart.panels) in (2, 4),
        }
        for section in made
        for chart in section.charts
    }
    style = "\n".join([_variables(), _asset("report.css"), styles.sheet()])
    script = _asset("report.js")
    return jinja.get_template("page.html.j2").render(
        found=found,
        sections=made,
        charts=charts,
        arms=arms_table(found),
        opening=opening(found),
        methods=methods(found),
        rounds=rounds,
        rounds_json=Markup(as_json({"kinds": KINDS, "terms": TERMS, "rows": rounds.rows})),
        style=Markup(style),
        script=Markup(script),
        policy=_policy(style, script),
    )


def _policy(style: str, script: str) -> str:
    """A content policy that runs this style and this script alone and fetches nothing."""
    hashes = [
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in (style, script)
    ]
    return (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _asset(name: str) -> str:
    return (resources.files("agon.report") / "assets" / name).read_text(encoding="utf-8")


def _variables() -> str:
    """The charts' hues as variables, for light and for dark ground."""
    light, dark = (
        ";".join(f"--{name}:{shades[index]}" for name, shades in COLOURS.items())
        for index in (0, 1)
    )
    return f":root{{{light}}}\n@media (prefers-color-scheme:dark){{:root{{{dark}}}}}"


def write_page(text: str, path: Path) -> Path:
    """Write the page."""
    path.write_text(text, encoding="utf-8", errors="backslashreplace")
    return path
