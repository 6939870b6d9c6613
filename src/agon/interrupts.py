"""Ctrl-C and SIGTERM, let through only where a step can be dropped.

Ctrl-C raises KeyboardInterrupt, SIGTERM (a scheduler that takes its machine back) Preempted.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from agon.errors import Preempted

REPEATED_SECONDS = 2.0
"""Several processes get a terminal's Ctrl-C twice, from the terminal and from their launcher: a
second one within this time does not count there."""


class Interrupts:
    """Holds signals back until `droppable` or `check`."""

    def __init__(
        self,
        signals: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM),
        asked: Callable[[], None] = lambda: None,
        several: bool = False,
    ) -> None:
        """Nothing is caught before `__enter__`.

        Args:
            signals: What to hold back.
            asked: Called in the handler, at the first signal.
            several: Whether this is one of several processes under a launcher.
        """
        self._signals, self._tell, self._several = signals, asked, several
        self._asked: type[KeyboardInterrupt] | None = None
        self._since = 0.0
        self._open = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        """Take the signals over (main thread only)."""
        try:
            for number in self._signals:
                self._previous[number] = signal.signal(number, self._handle)
        except ValueError:
            self._previous = {}
        return self

    def __exit__(self, *_: object) -> None:
        """Give them back."""
        for number, previous in self._previous.items():
            signal.signal(number, previous)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        kind = Preempted if number == signal.SIGTERM else KeyboardInterrupt
        first = self._asked is None
        if first:
            self._since = time.monotonic()
            self._asked = kind
            self._tell()
        if self._open:
            self._open = False
            raise kind
        early = self._several and time.monotonic() - self._since < REPEATED_SECONDS
        if not first and number == signal.SIGINT and not early:
            # A second Ctrl-C ends the program at once. It is no KeyboardInterrupt, since that saves
            # and the step is half made; the last checkpoint is whole in any case.
            raise SystemExit(128 + signal.SIGINT)

    @contextmanager
    def droppable(self) -> Iterator[None]:
        """Work inside may be interrupted at any moment."""
        self.check()
        self._open = True
        try:
            yield
        finally:
            self._open = False

    def check(self) -> None:
        """Raise the interrupt that came while it had to wait."""
        if self._asked is not None:
            raise self._asked
