"""What a figure is, and how it becomes files on the disk and markup in the page.

A chart is drawn once for each place: as one PNG and one SVG with all panels on white ground, and
panel by panel for the page, where panels wrap and take their colours from the page's style sheet.
matplotlib's inline styles become classes there, since the page allows no inline style.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from agon.report.arms import COLOURS

TEXT, AXIS, GRID, GROUND = "#222222", "#767676", "#e3e3e3", "#ffffff"
_PLAIN = {TEXT: "text", AXIS: "axis", GRID: "grid", GROUND: "ground"}
VARIABLES = {hexes[0]: name for name, hexes in COLOURS.items()} | _PLAIN
"""Colours that charts are drawn with, and the page's variable of each."""

SVG = "http://www.w3.org/2000/svg"
_XLINK = "{http://www.w3.org/1999/xlink}href"
_STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
    "axes.edgecolor": AXIS,
    "axes.labelcolor": TEXT,
    "axes.titlecolor": TEXT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "text.color": TEXT,
    "xtick.color": AXIS,
    "ytick.color": AXIS,
    "xtick.labelcolor": TEXT,
    "ytick.labelcolor": TEXT,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 6,
    "figure.constrained_layout.h_pad": 0.09,
    "figure.constrained_layout.w_pad": 0.09,
    "svg.hashsalt": "agon",
}

Axes = Any
"""matplotlib's; its types are not checked here."""

Draw = Callable[[Axes], None]
"""Draws one panel."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes.

    Attributes:
        title: Above it.
        draw: Draws it.
        width: Inches.
        height: Inches.
    """

    title: str
    draw: Draw
    width: float = 4.2
    height: float = 3.1


@dataclass(frozen=True, slots=True)
class Key:
    """An entry of a legend: a name with the colour (of `COLOURS`), marker and dash it has."""

    name: str
    colour: str
    marker: str = ""
    dash: str = "-"
    hollow: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure.

    Attributes:
        name: Of its files.
        title: A few words.
        caption: How to read it, in sentences.
        n: What its figures are means of.
        alt: What it shows, for people who do not see it.
        panels: From left to right.
        keys: The legend.
    """

    name: str
    title: str
    caption: str
    n: str
    alt: str
    panels: tuple[Panel, ...]
    keys: tuple[Key, ...] = ()


def write_files(chart: Chart, folder: Path) -> list[Path]:
    """Write `<name>.png` and `<name>.svg`, all panels on white ground."""
    import matplotlib

    with matplotlib.rc_context(_STYLE | {"svg.fonttype": "path"}):
        figure = _figure(_size(chart))
        columns = _columns(chart)
        for index, panel in enumerate(chart.panels):
            axes = figure.add_subplot(-(-len(chart.panels) // columns), columns, index + 1)
            panel.draw(axes)
            axes.set_title(panel.title, loc="left")
        if chart.keys:
            handles = [_handle(key) for key in chart.keys]
            columns = min(len(handles), 3 if len(chart.panels) == 1 else 5)
            figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=8)
        paths = [folder / f"{chart.name}.png", folder / f"{chart.name}.svg"]
        figure.savefig(paths[0], dpi=160, facecolor=GROUND)
        figure.savefig(paths[1], facecolor=GROUND, metadata={"Date": None})
    return paths


def _columns(chart: Chart) -> int:
    """Panels beside each other on the disk: three where that leaves no hole."""
    return 3 if len(chart.panels) % 3 == 0 else min(2, len(chart.panels))


def _size(chart: Chart) -> tuple[float, float]:
    widest = max(panel.width for panel in chart.panels)
    tallest = max(panel.height for panel in chart.panels)
    columns = _columns(chart)
    rows = -(-len(chart.panels) // columns)
    legend = 0.22 * -(-len(chart.keys) // (3 if columns == 1 else 5))
    return widest * columns, tallest * rows + legend


def _figure(size: tuple[float, float]) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained", facecolor="none")
    FigureCanvasAgg(figure)
    return figure


def _handle(key: Key) -> Any:
    from matplotlib.lines import Line2D

    return Line2D(
        [], [], label=key.name, **line_style(key.colour, key.marker, key.dash, key.hollow)
    )


def line_style(
    colour: str, marker: str = "", dash: str = "-", hollow: bool = False
) -> dict[str, Any]:
    """Arguments of a line for matplotlib."""
    shade = COLOURS[colour][0]
    return {
        "color": shade,
        "marker": marker or "None",
        "linestyle": dash or "none",
        "markerfacecolor": GROUND if hollow else shade,
        "markeredgecolor": shade,
        "markersize": 9 if marker == "*" else 6,
    }


def inline_panels(chart: Chart, styles: Styles) -> list[str]:
    """Each panel as markup for the page, hidden from screen readers: the figure has its text."""
    import matplotlib

    found = []
    with matplotlib.rc_context(_STYLE | {"svg.fonttype": "none"}):
        for index, panel in enumerate(chart.panels):
            figure = _figure((panel.width, panel.height))
            axes = figure.add_subplot()
            panel.draw(axes)
            if panel.title:
                axes.set_title(panel.title, loc="left")
            found.append(_inline(figure, f"{chart.name}-{index}", styles))
    return found


def inline_key(key: Key, name: str, styles: Styles) -> str:
    """A legend entry's symbol as markup, whose parts' names begin with `name`."""
    symbol = _symbol(key.colour, key.marker, key.dash, key.hollow, styles)
    return symbol.replace(f"{_NAMED}-", f"{name}-")


_NAMED = "agon-key"
"""Stands in a symbol for the name that it gets."""


@lru_cache(maxsize=256)
def _symbol(colour: str, marker: str, dash: str, hollow: bool, styles: Styles) -> str:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(0.44, 0.2), facecolor="none")
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.axis("off")
        axes.set(xlim=(0, 1), ylim=(0, 1))
        style = line_style(colour, "", dash, hollow)
        if dash:
            axes.plot([0.02, 0.98], [0.5, 0.5], **style)
        axes.plot([0.5], [0.5], **line_style(colour, marker, "", hollow))
        return _inline(figure, _NAMED, styles)


class Styles:
    """The classes that stand for matplotlib's inline styles."""

    def __init__(self) -> None:
        """Begin without any."""
        self._classes: dict[str, str] = {}

    def name(self, declarations: str) -> str:
        """The class of some declarations."""
        return self._classes.setdefault(declarations, f"m{len(self._classes)}")

    def sheet(self) -> str:
        """The rules of all classes."""
        return "\n".join(f".{name}{{{text}}}" for text, name in self._classes.items())


def _inline(figure: Any, name: str, styles: Styles) -> str:
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    text = io.StringIO()
    FigureCanvasSVG(figure).print_svg(text, metadata={"Date": None})
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    root = ElementTree.fromstring(text.getvalue())
    _remove(root, (f"{{{SVG}}}metadata", f"{{{SVG}}}style"))
    used = set(re.findall(r'(?:url\(|href=")#([^")]+)', text.getvalue()))
    for element in root.iter():
        if element.attrib.get("id") not in used:
            element.attrib.pop("id", None)
        _adapt(element, name, styles)
    for attribute in ("width", "height", "version"):
        root.attrib.pop(attribute, None)
    root.set("aria-hidden", "true")
    root.set("focusable", "false")
    return ElementTree.tostring(root, encoding="unicode")


def _remove(root: ElementTree.Element, tags: Sequence[str]) -> None:
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in tags:
                parent.remove(child)


def _adapt(element: ElementTree.Element, name: str, styles: Styles) -> None:
    """Names of its own for each figure's parts, classes for styles, short numbers."""
    if "id" in element.attrib:
        element.set("id", f"{name}-{element.attrib['id']}")
    if element.attrib.get(_XLINK, "").startswith("#"):
        element.set(_XLINK, f"#{name}-{element.attrib[_XLINK][1:]}")
    if "clip-path" in element.attrib:
        element.set("clip-path", element.attrib["clip-path"].replace("url(#", f"url(#{name}-"))
    style = element.attrib.pop("style", None)
    for attribute in ("d", "transform", "x", "y", "width", "height"):
        if attribute in element.attrib:
            value = " ".join(element.attrib[attribute].split())
            element.set(attribute, re.sub(r"-?\d+\.\d{3,}", _shorter, value))
    if style is not None:
        declarations = _declarations(style)
        if declarations:
            element.set("class", styles.name(declarations))


def _shorter(number: re.Match[str]) -> str:
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")


def _declarations(style: str) -> str:
    """The declarations of matplotlib with the page's variables and the page's font."""
    kept = []
    for part in style.split(";"):
        key, colon, value = (text.strip() for text in part.partition(":"))
        if not colon or key in ("font-family", "white-space"):
            continue
        if key == "font":
            size = re.search(r"([\d.]+)px", value)
            key, value = "font-size", f"{size[1]}px" if size else "9px"
        for shade, variable in VARIABLES.items():
            value = value.replace(shade, f"var(--{variable})")
        kept.append(f"{key}:{value}")
    return ";".join(kept)
