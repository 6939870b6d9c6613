"""Signs of life: which of a run's processes are there, how far they are, and who is missing.

Each process keeps one line in a store that rank 0 holds: a count that grows, how many meeting
points it has reached and what it is about to do. Whoever's line stands still for too long is lost,
and the run ends with its rank: a process that waits in vain raises, and one that is held fast
inside a collective operation is ended from a thread. This module trains nothing and moves no
tensor.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Protocol

from agon.errors import Preempted, ProcessLost

BEAT_SECONDS = 1.0
"""Time between signs of life while nobody waits; as long as a quarter of the allowed silence at
most."""

FASTEST, SLOWEST = 0.002, 0.05
"""Bounds of the seconds between two looks at the store while somebody waits."""

GRACE_SECONDS = 10.0
"""How long a process may go on after it has learned that another is lost, before it is ended."""

HURRIED_SECONDS = 10.0
"""Allowed silence once this process has been told to end: a launcher that stops the others after
one has died kills them half a minute later."""

FAREWELL_SECONDS = 3.0
"""How long rank 0 keeps the store for the others' last look."""

LOST = 2
"""Exit status of a process that had to be ended; the same as for every error that is named."""


class Doing(StrEnum):
    """What a process is up to."""

    RUNNING = "running"
    INTERRUPTED = "interrupted"
    PREEMPTED = "preempted"
    FAILED = "failed"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class Sign:
    """One process's line in the store.

    Attributes:
        beat: Grows with every sign of life.
        met: Meeting points reached.
        place: Name of the last of them.
        doing: What the process is up to.
        text: The error of one that has failed.
    """

    beat: int = 0
    met: int = 0
    place: str = "start"
    doing: Doing = Doing.RUNNING
    text: str = ""


class Store(Protocol):
    """What is needed of torch's TCPStore."""

    def set(self, key: str, value: str, /) -> None:
        """Write a value."""
        ...

    def multi_get(self, keys: list[str], /) -> list[bytes]:
        """Read values, waiting for those that are not there yet."""
        ...


class Heartbeat:
    """This process's signs of life, and what it knows of the others."""

    def __init__(self, store: Store, rank: int, size: int, silence: float, patience: float) -> None:
        """Begin to give signs of life.

        Args:
            store: Held by rank 0.
            rank: This process's.
            size: Number of processes.
            silence: Seconds without a sign of life after which a process is lost.
            patience: Seconds that a living process may keep the others waiting.
        """
        self._store, self._rank, self._size = store, rank, size
        self._silence, self._patience = silence, patience
        self._mine = Sign()
        self._signs = [Sign()] * size
        self._answered = time.monotonic()
        self._seen = [self._answered] * size
        self._lost: str | None = None
        self._broken: str | None = None
        self._waiting = False
        self._news = threading.Condition()
        self._wake, self._closed = threading.Event(), threading.Event()
        self.waited = 0.0
        self._threads = [
            threading.Thread(target=task, name=f"agon-{name}", daemon=True)
            for name, task in (("beat", self._beat), ("watch", self._watch))
        ]
        for thread in self._threads:
            thread.start()

    def meet(self, place: str) -> None:
        """Wait until every process has reached this point.

        Args:
            place: What comes next, for the messages.

        Raises:
            ProcessLost: One is lost, has left, or does not come; names its rank.
            KeyboardInterrupt: Another was interrupted and will not come.
            Preempted: Another was preempted and will not come.
        """
        started = time.monotonic()
        with self._news:
            self._mine = replace(self._mine, met=self._mine.met + 1, place=place)
            self._waiting = True
            self._wake.set()
            try:
                while behind := self._behind():
                    self._give_up(behind, place, started)
                    self._news.wait(0.2)
            finally:
                self._waiting = False
                self.waited += time.monotonic() - started

    def _behind(self) -> list[int]:
        """Who has not come yet; call it with the lock held."""
        others = [rank for rank in range(self._size) if rank != self._rank]
        return [rank for rank in others if self._signs[rank].met < self._mine.met]

    def _give_up(self, behind: Sequence[int], place: str, started: float) -> None:
        """Raise where waiting is of no use."""
        doings = {self._signs[rank].doing for rank in behind}
        if Doing.PREEMPTED in doings:
            raise Preempted
        if Doing.INTERRUPTED in doings:
            raise KeyboardInterrupt
        if self._lost is not None:
            raise ProcessLost(self._lost)
        left = [rank for rank in behind if self._signs[rank].doing is Doing.LEFT]
        if left:
            raise ProcessLost(f"{ranks(left)} left the run before {place}")
        if time.monotonic() - started > self._patience:
            last = self._signs[behind[0]].place
            raise ProcessLost(
                f"{ranks(behind)} did not come to {place} within {self._patience:g} s "
                f"(training.wait_timeout), though alive; last seen at {last}"
            )

    def tell(self, doing: Doing, text: str = "") -> None:
        """Let the others know what this process is up to."""
        with self._news:
            self._mine = replace(self._mine, doing=doing, text=text)
            self._wake.set()

    def hurry(self) -> None:
        """Allow the others less silence, since this process will be killed soon.

        A signal handler may call it: it takes no lock.
        """
        self._silence = min(self._silence, HURRIED_SECONDS)

    def explain(self, error: Exception) -> ProcessLost:
        """Who is behind the failure of an operation that all take part in."""
        with self._news:
            self._news.wait_for(lambda: self._lost is not None, timeout=self._silence + 2)
            if self._lost is not None:
                return ProcessLost(self._lost)
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return ProcessLost(f"an operation of all ranks failed, though all are alive: {first}")

    def silent(self) -> list[int]:
        """Wait until every other process has been told to end, or is seen to be missing.

        Returns:
            The ranks that are missing.
        """
        self.hurry()
        with self._news:
            self._news.wait_for(
                lambda: not self._running() or self._lost is not None, timeout=HURRIED_SECONDS + 2
            )
            now = time.monotonic()
            return [rank for rank in self._running() if now - self._seen[rank] > self._silence]

    def _running(self) -> list[int]:
        """Who else is still at work; call it with the lock held."""
        others = [rank for rank in range(self._size) if rank != self._rank]
        return [rank for rank in others if self._signs[rank].doing is Doing.RUNNING]

    def close(self) -> None:
        """Say goodbye and stop; rank 0, which holds the store, once the others could read it."""
        with self._news:
            if self._mine.doing is Doing.RUNNING:
                self._mine = replace(self._mine, doing=Doing.LEFT)
            if self._rank == 0:
                self._wake.set()
                self._news.wait_for(lambda: not self._running(), timeout=FAREWELL_SECONDS)
        self._closed.set()
        self._wake.set()
        self._threads[0].join(timeout=2)

    def _beat(self) -> None:
        """Write this process's line and read the others', until the end."""
        keys = [f"agon/{rank}" for rank in range(self._size)]
        interval = FASTEST
        try:
            while True:
                last = self._closed.is_set()
                with self._news:
                    mine = self._mine = replace(self._mine, beat=self._mine.beat + 1)
                self._store.set(keys[self._rank], json.dumps(asdict(mine)))
                if last:
                    return
                self._take([_read(value) for value in self._store.multi_get(keys)])
                rest = min(BEAT_SECONDS, self._silence / 4)
                interval = min(interval * 1.2, SLOWEST) if self._waiting else FASTEST
                self._wake.wait(interval if self._waiting else rest)
                self._wake.clear()
        except Exception as error:
            # The store's host is gone, or this process is leaving.
            with self._news:
                self._broken = (str(error).strip().splitlines() or [type(error).__name__])[0]
                self._news.notify_all()

    def _take(self, signs: list[Sign]) -> None:
        with self._news:
            now = self._answered = time.monotonic()
            for rank, sign in enumerate(signs):
                if sign != self._signs[rank]:
                    self._seen[rank] = now
            self._signs = signs
            self._news.notify_all()

    def _watch(self) -> None:
        """Find out who is lost, say so, and end this process if it cannot end by itself."""
        interval = min(0.5, self._silence / 4)
        last = time.monotonic()
        while not self._closed.wait(interval):
            now = time.monotonic()
            with self._news:
                if now - last > 10 * interval:
                    # This process itself was stopped: nobody else is to blame for the silence.
                    self._answered = now
                    self._seen = [now] * self._size
                last = now
                self._lost = lost = self._find_lost(now)
                self._news.notify_all()
            if lost is not None:
                print(f"agon: rank {self._rank}: {lost}", file=sys.stderr, flush=True)  # noqa: T201
                # One that is ending already may be writing its checkpoint.
                if not self._closed.wait(GRACE_SECONDS) and self._mine.doing is Doing.RUNNING:
                    os._exit(LOST)
                return

    def _find_lost(self, now: float) -> str | None:
        """A sentence on who is lost; call it with the lock held."""
        for rank, sign in enumerate(self._signs):
            if rank != self._rank and sign.doing is Doing.FAILED:
                return f"rank {rank} failed: {sign.text}"
        expected = self._signs[0].doing is Doing.RUNNING
        if self._rank != 0 and expected and self._mine.doing is Doing.RUNNING:
            if self._broken is not None:
                return f"rank 0 is gone: its store cannot be reached ({self._broken})"
            if now - self._answered > self._silence:
                return f"rank 0 gave {self._no_sign()} and its store does not answer"
        late = [
            rank
            for rank, sign in enumerate(self._signs)
            if rank != self._rank
            and sign.doing is Doing.RUNNING
            and self._broken is None
            and now - self._answered <= self._silence
            and now - self._seen[rank] > self._silence
        ]
        if not late:
            return None
        place = self._signs[late[0]].place
        return f"{ranks(late)} gave {self._no_sign()}; last seen at {place}"

    def _no_sign(self) -> str:
        return f"no sign of life for {self._silence:g} s (training.process_timeout)"


def ranks(numbers: Sequence[int]) -> str:
    """`rank 1`, or `ranks 1, 2`."""
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _read(value: bytes) -> Sign:
    fields = json.loads(value)
    return Sign(**fields | {"doing": Doing(fields["doing"])})
