"""What the sandbox costs: tests per second and overhead of each isolation, beside a plain process.

    python benchmarks/sandbox.py [--repeats 15] [--runs 20]

The program adds two numbers that it reads. It is run by `subprocess.run` with the same interpreter
and flags, unprotected, and in every isolation that this machine offers. All take turns in each
repeat; the first repeat is not counted. A figure is the median over the repeats of the mean time of
a run, in brackets the lowest and highest repeat; the ratio is to the plain process of the same
repeat, and so is the overhead. In a jail the installed packages are hidden, and Python starts
faster where it finds none; `bare` is a plain process that does not look for them either (`-S`, and
the module `site` imported by hand), and the last column is the overhead over it.

What this does not measure: several programs at once, or programs that do something.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack

from agon.sandbox import Kind, Limits, Sandbox, Unavailable
from agon.sandbox.jail import base_interpreter

PROGRAM = b"print(sum(map(int, input().split())))\n"
STDIN, EXPECTED = b"3 4\n", b"7\n"
KINDS: tuple[Kind, ...] = ("bubblewrap", "namespaces", "limits")
LIMITS = Limits(seconds=30.0)

Run = Callable[[], bytes]


def plain(*flags: str, before: str = "") -> Run:
    """A run without any protection."""
    command = [base_interpreter(), *flags, "-s", "-B", "-c", before + PROGRAM.decode()]

    def run() -> bytes:
        return subprocess.run(command, input=STDIN, capture_output=True, check=True).stdout

    return run


def confined(sandbox: Sandbox) -> Run:
    """A run in a sandbox."""
    return lambda: sandbox.run(PROGRAM, STDIN, LIMITS).output


def seconds(run: Run, runs: int) -> float:
    """Mean wall time of one run."""
    begin = time.perf_counter()
    for _ in range(runs):
        assert run() == EXPECTED
    return (time.perf_counter() - begin) / runs


def main() -> None:
    """Measure, print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--runs", type=int, default=20, help="runs of each in one repeat")
    arguments = parser.parse_args()
    systems = {"plain": plain(), "bare": plain("-S", before="import site\n")}
    with ExitStack() as stack:
        for kind in KINDS:
            try:
                systems[kind] = confined(stack.enter_context(Sandbox(kind)))
            except Unavailable as reason:
                print(f"{kind}: not here ({reason})")
        times: dict[str, list[float]] = {name: [] for name in systems}
        for repeat in range(arguments.repeats + 1):
            for name, run in systems.items():
                mean = seconds(run, arguments.runs)
                if repeat:
                    times[name].append(mean)
    version, cores = platform.python_version(), os.cpu_count()
    print(f"Python {version}, {platform.machine()}, {cores} cores, {arguments.repeats} repeats")
    print("| run | ms | tests/s | ratio to plain | over plain, ms | over bare, ms |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, measured in times.items():
        ratio = statistics.median(map(float.__truediv__, measured, times["plain"]))
        over = {
            other: statistics.median(map(float.__sub__, measured, times[other])) * 1e3
            for other in ("plain", "bare")
        }
        middle = statistics.median(measured)
        low, high = min(measured) * 1e3, max(measured) * 1e3
        spread = f"{middle * 1e3:.1f} [{low:.1f}, {high:.1f}]"
        print(
            f"| {name} | {spread} | {1 / middle:.0f} | {ratio:.2f} | {over['plain']:+.1f} | "
            f"{over['bare']:+.1f} |"
        )


if __name__ == "__main__":
    main()
