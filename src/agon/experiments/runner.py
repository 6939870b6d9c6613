"""Runs the cells of an experiment that have no result file yet, several at once.

Each cell is a process of its own with one thread, so that cells do not fight for cores. A cell's
folder is locked while its process lives: two runners on one folder share the work, and a runner
that was killed leaves cells that the next one continues. Machines that share nothing take a slice
each (`--slice 2/3`), and their result files are merged by copying.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from agon.display import caution, say
from agon.experiments.results import result_path
from agon.experiments.spec import Cell

POLL_SECONDS = 1.0
INTERRUPTED = 130
"""Exit status after Ctrl-C."""

BUSY = 75
"""Exit status of a cell that another process is working on (EX_TEMPFAIL)."""


@dataclass(slots=True)
class Plan:
    """What there is to do and how it goes.

    Attributes:
        waiting: Cells without a result file, in order.
        jobs: Cells that run at once.
        seconds: What the finished cells of this run took.
    """

    waiting: list[Cell]
    jobs: int
    seconds: list[float] = field(default_factory=list)

    def left(self, running: Sequence[float]) -> float | None:
        """Estimated seconds to the end; None before the first cell has finished.

        Args:
            running: How long each running cell has been at work.
        """
        if not self.seconds:
            return None
        mean = sum(self.seconds) / len(self.seconds)
        work = mean * len(self.waiting) + sum(max(mean - spent, 0.0) for spent in running)
        return work / max(1, min(self.jobs, len(self.waiting) + len(running)))


def run_experiment(
    path: Path, todo: Sequence[Cell], results: Path, runs: Path, jobs: int, console: Console
) -> int:
    """Run cells until none is left.

    Args:
        path: The experiment's file, which each cell's process reads.
        todo: The cells of this runner; finished ones are skipped.
        results: Folder of the result files.
        runs: Folder of the run folders and logs.
        jobs: Cells that run at once.
        console: Where to write.

    Returns:
        0 when every cell has its file, 1 when one failed, 130 after Ctrl-C.
    """
    plan = Plan([cell for cell in todo if not result_path(results, cell).is_file()], jobs)
    say(console, f"{len(todo) - len(plan.waiting)} of {len(todo)} cells are done already")
    runs.mkdir(parents=True, exist_ok=True)
    running: dict[subprocess.Popen[bytes], tuple[Cell, float]] = {}
    failed = []
    try:
        while plan.waiting or running:
            while plan.waiting and len(running) < jobs:
                cell = plan.waiting.pop(0)
                if result_path(results, cell).is_file():
                    continue
                say(console, f"begins: {cell.name}")
                running[_start(path, cell, results, runs)] = (cell, time.monotonic())
            for process in [p for p in running if p.poll() is not None]:
                cell, begun = running.pop(process)
                now = time.monotonic()
                if process.returncode == 0:
                    plan.seconds.append(now - begun)
                    say_done(cell, plan, [now - since for _, since in running.values()], console)
                elif process.returncode == BUSY:
                    say(console, f"{cell.name}: another process is working on it")
                else:
                    failed.append(cell)
                    caution(console, f"{cell.name} failed: see {log_path(runs, cell)}")
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        say(console, "\ninterrupted; the same command continues from the last checkpoints")
        return INTERRUPTED
    finally:
        # A terminal's Ctrl-C has reached the cells too; they save a checkpoint before they end.
        for process in running:
            if sys.exc_info()[0] is not None:
                process.terminate()
            process.wait()
    return 1 if failed else 0


def log_path(runs: Path, cell: Cell) -> Path:
    """What a cell's process has printed."""
    return runs / f"{cell.name}.log"


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Hold a run folder; whether it could be taken. The lock ends with the process."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True


def _start(path: Path, cell: Cell, results: Path, runs: Path) -> subprocess.Popen[bytes]:
    command = [
        *(sys.executable, "-m", "agon", "experiment", "cell", str(path), cell.arm, str(cell.seed)),
        *("--results", str(results), "--runs", str(runs)),
    ]
    with log_path(runs, cell).open("a") as log:
        return subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")},
        )


def say_done(cell: Cell, plan: Plan, running: Sequence[float], console: Console) -> None:
    """Say what a cell took, how many are left and for how long."""
    left = plan.left(running)
    words = f"done: {cell.name} in {plan.seconds[-1]:.0f} s"
    count = len(plan.waiting) + len(running)
    if count and left is not None:
        words += f"; {count} cells left, about {duration(left)}"
    say(console, words)


def duration(seconds: float) -> str:
    """Seconds in words."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return "less than a minute"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def default_jobs() -> int:
    """As many cells as there are cores that this process may use."""
    with suppress(AttributeError):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
