"""What a person sees while training: a live table in a terminal, one line a step elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table as RichTable

PLAIN_EVERY = 10
"""Where nobody watches, one line in so many steps is printed."""

ROWS = (
    ("pass", "pass rate", "{:.1%}"),
    ("format", "format score", "{:.2f}"),
    ("reward", "mean reward", "{:.2f}"),
    ("length", "mean length, tokens", "{:.1f}"),
    ("truncated", "truncated", "{:.1%}"),
    ("flat_reward", "flat groups (reward)", "{:.1%}"),
    ("flat_correctness", "flat groups (correctness)", "{:.1%}"),
    ("entropy", "entropy, nats a token", "{:.3f}"),
    ("conversions", "conversions", "{:.1%}"),
    ("regressions", "regressions", "{:.1%}"),
)


def say(console: Console, text: str) -> None:
    """Write a sentence as it stands: no markup, and no line breaks in paths and commands."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def caution(console: Console, text: str) -> None:
    """A warning, with its text as it stands."""
    console.print(f"[yellow]warning:[/] {escape(text)}", highlight=False, soft_wrap=True)


class Display:
    """Shows steps, evaluations and warnings."""

    def __init__(self, console: Console, steps: int, title: str):
        """Prepare; nothing is shown before `__enter__`.

        Args:
            console: Where to write.
            steps: Steps of the whole run.
            title: What is being trained.
        """
        self._console, self._steps, self._title = console, steps, title
        self._live: Live | None = None
        self._started = time.monotonic()
        self._first: int | None = None
        self._dev = ""

    def __enter__(self) -> Display:
        """Start the live table where a person watches."""
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=4, transient=False)
            self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the last table standing."""
        if self._live is not None:
            self._live.__exit__(kind, error, trace)
            self._live = None

    def note(self, text: str) -> None:
        """A sentence above the table."""
        say(self._console, text)

    def warn(self, text: str) -> None:
        """A warning above the table."""
        caution(self._console, text)

    def evaluation(self, step: int, figures: Mapping[str, float]) -> None:
        """Figures of a dev evaluation before a step."""
        passes = {
            key.removeprefix("dev.").removesuffix(".pass"): value
            for key, value in figures.items()
            if key.endswith(".pass")
        }
        listed = "  ".join(f"{name} {value:.1%}" for name, value in passes.items())
        self._dev = f"dev pass@1 after {step} steps: {listed}"
        if self._live is None:
            self.note(self._dev)

    def step(self, step: int, row: Mapping[str, Any]) -> None:
        """Figures of a finished step."""
        if self._first is None:
            self._first = step
        done = step + 1
        elapsed = time.monotonic() - self._started
        left = elapsed / (done - self._first) * (self._steps - done)
        head = f"step {done}/{self._steps}  {elapsed:.0f} s, about {left:.0f} s left"
        if self._live is not None:
            self._live.update(self._table(head, row))
        elif done % PLAIN_EVERY == 0 or done == self._steps or step == self._first:
            self.note(f"{head}  {self._line(row)}")

    def _line(self, row: Mapping[str, Any]) -> str:
        parts = [
            f"{role} {row['policies.' + role]}: pass {row[role + '.pass']:.1%} "
            f"length {row[role + '.length']:.0f}"
            for role in ("draft", "challenge")
            if f"{role}.pass" in row
        ]
        return "  ".join(parts)

    def _table(self, head: str, row: Mapping[str, Any]) -> RichTable:
        table = RichTable(
            title=f"{escape(self._title)}   {head}",
            caption=self._dev,
            title_justify="left",
            caption_justify="left",
        )
        roles = [role for role in ("draft", "challenge") if f"{role}.length" in row]
        table.add_column("")
        for role in roles:
            table.add_column(f"{role} by {row['policies.' + role]}", justify="right")
        for key, label, form in ROWS:
            values = [row.get(f"{role}.{key}") for role in roles]
            if any(value is not None for value in values):
                cells = ["" if value is None else form.format(value) for value in values]
                table.add_row(label, *cells)
        return table
