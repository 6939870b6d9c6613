"""The page's tables: text by row and column, for HTML and Markdown alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agon.errors import AgonError

Kind = Literal["", "strong", "sub", "missing"]
"""How a row is set: as it is, emphasised, below the row before it, or without results."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column.

    Attributes:
        title: Its head.
        numeric: Whether its text is set to the right.
        group: Head above several columns; neighbours of one group share it.
    """

    title: str
    numeric: bool = True
    group: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A row; its first cell heads it."""

    cells: tuple[str, ...]
    kind: Kind = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes:
        name: For anchors and files.
        caption: How to read it.
        n: What its figures are means of.
        columns: From left to right.
        rows: From top to bottom.
    """

    name: str
    caption: str
    n: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    def __post_init__(self) -> None:
        """See that every row has a cell for each column."""
        for row in self.rows:
            if len(row.cells) != len(self.columns):
                raise AgonError(
                    f"table {self.name}: a row has {len(row.cells)} cells, "
                    f"expected {len(self.columns)}"
                )

    @property
    def groups(self) -> list[tuple[str, int]]:
        """Heads above the columns' heads, with how many columns each spans."""
        found: list[tuple[str, int]] = []
        for column in self.columns:
            if found and found[-1][0] == column.group:
                found[-1] = (column.group, found[-1][1] + 1)
            else:
                found.append((column.group, 1))
        return found if any(name for name, _ in found) else []


def markdown(table: Table) -> str:
    """The table for a Markdown document."""
    heads = [f"{c.group}: {c.title}" if c.group else c.title for c in table.columns]
    rules = ["---:" if column.numeric else "---" for column in table.columns]
    lines = [_markdown_line(heads), _markdown_line(rules)]
    lines += [_markdown_line(row.cells) for row in table.rows]
    return "\n".join([*lines, "", f"{table.caption} n: {table.n}."])


def _markdown_line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
