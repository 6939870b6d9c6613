"""How time and memory grow: sampling and update against four sizes, each doubled four times.

    python benchmarks/growth.py [--threads 1] [--out growth.png] [--json FILE]

One size at a time grows from the smallest to sixteen times it, the others staying at the middle:

    group       rollouts of a problem
    length      completion tokens of every rollout
    parameters  of the layers of a random Llama, wider and deeper in turn; the vocabulary stays
    problems    different prompts of a step

The table has, for each point, seconds and memory of sampling and of one optimizer step, and the
log-log slope from the point before: 1 is growth in proportion, 0 none. Memory is the rise of the
process's resident peak over what was resident before: the model and both adapters are not in it.
Every point is a process of its own; the points take turns as often as there are repeats.

What this does not measure: verification, checkpoints, or how figures compare with anyone else's.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import common  # before torch
from peers.protocol import HERE
from workloads import Point

AXES = ("group", "length", "parameters", "problems")
PARTS = ("sampling", "update")
SHAPES = ((128, 2), (128, 4), (256, 2), (256, 4), (512, 2), (512, 4))
"""Width and depth, each with about twice the weights of the one before."""

RUNS = 2
"""How often a point's process does its work; the first time it may be slower."""


def read_arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = common.parser("Growth of time and memory with four sizes.")
    parser.set_defaults(threads=[1])
    parser.add_argument("--doublings", type=int, default=4)
    parser.add_argument("--group", type=int, default=2, help="smallest group")
    parser.add_argument("--length", type=int, default=32, help="shortest completions")
    parser.add_argument("--problems", type=int, default=2, help="fewest problems")
    parser.add_argument("--prompt", type=int, default=48, help="prompt tokens")
    parser.add_argument("--slots", type=int, default=512)
    parser.add_argument("--microbatch-tokens", type=int, default=4096)
    parser.add_argument("--out", type=Path, metavar="FILE.png", help="draw the figure")
    quick = {"doublings": 1, "length": 8, "prompt": 12, "repeats": 1}
    arguments = common.parse(parser, quick, given)
    if not 1 <= arguments.doublings < len(SHAPES):
        parser.error(f"--doublings: from 1 to {len(SHAPES) - 1}")
    return arguments


def axes(arguments: argparse.Namespace) -> dict[str, list[Point]]:
    """The points of every axis, smallest first; the middle point is on all of them."""
    doublings = arguments.doublings
    middle = doublings // 2
    width, layers = SHAPES[middle]
    centre = Point(
        problems=arguments.problems * 2**middle,
        group=arguments.group * 2**middle,
        prompt=arguments.prompt,
        length=arguments.length * 2**middle,
        width=width,
        layers=layers,
        slots=arguments.slots,
        microbatch_tokens=arguments.microbatch_tokens,
    )
    factors = [2**k for k in range(doublings + 1)]
    return {
        "group": [replace(centre, group=arguments.group * factor) for factor in factors],
        "length": [replace(centre, length=arguments.length * factor) for factor in factors],
        "parameters": [
            replace(centre, width=wide, layers=deep) for wide, deep in SHAPES[: doublings + 1]
        ],
        "problems": [replace(centre, problems=arguments.problems * factor) for factor in factors],
    }


def run_point(connection: Any, point: Point, threads: int, seed: int) -> None:
    """The body of a point's process, which has everything imported already."""
    from arms.growth_point import answer

    answer(connection, point, threads, RUNS, seed)


def measure_all(
    points: Sequence[Point], threads: int, repeats: int, seed: int
) -> dict[Point, list[dict[str, Any]]]:
    """Every point in a process of its own, in turns."""
    # The server's own interpreter has to find the modules that it is to import.
    os.environ["PYTHONPATH"] = str(HERE)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["arms.growth_point"])
    measured: dict[Point, list[dict[str, Any]]] = {point: [] for point in points}
    for repeat in range(repeats):
        for number, point in enumerate(points, start=1):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=run_point, args=(sender, point, threads, seed))
            process.start()
            sender.close()
            try:
                figures = receiver.recv()
            except EOFError:
                figures = f"the process ended with {process.exitcode}"
            process.join()
            if isinstance(figures, str):
                raise SystemExit(f"{point}: {figures}")
            measured[point].append(figures)
            common.note(f"  repeat {repeat + 1} of {repeats}, point {number} of {len(points)}")
    return measured


def size_of(axis: str, point: Point, runs: Sequence[Mapping[str, Any]]) -> float:
    """A point's place on an axis."""
    return float(runs[0]["parameters"] if axis == "parameters" else getattr(point, axis))


def summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Median seconds, and median rise of the peak in MiB, of both parts."""
    figures = {}
    for part in PARTS:
        taken = [run[part] for run in runs]
        figures[f"{part} s"] = statistics.median(s for run in taken for s in run["seconds"])
        figures[f"{part} MiB"] = statistics.median(
            run["peak_mib"] - run["before_mib"] for run in taken
        )
    return figures


def slopes(sizes: Sequence[float], values: Sequence[float]) -> list[float | None]:
    """Log-log slopes from each point before; none at the first, or where a value is not above 0."""
    found: list[float | None] = [None]
    for (x, y), (next_x, next_y) in pairwise(zip(sizes, values, strict=True)):
        rises = y > 0 and next_y > 0
        found.append(math.log(next_y / y) / math.log(next_x / x) if rises else None)
    return found


def curves(
    drawn: Mapping[str, Sequence[Point]], measured: Mapping[Point, Sequence[Mapping[str, Any]]]
) -> dict[str, dict[str, list[float]]]:
    """By axis: the sizes, and each figure at them."""
    found = {}
    for axis, points in drawn.items():
        figures = [summary(measured[point]) for point in points]
        found[axis] = {
            "size": [size_of(axis, point, measured[point]) for point in points],
            **{name: [values[name] for values in figures] for name in figures[0]},
        }
    return found


def print_axis(axis: str, curve: Mapping[str, Sequence[float]], threads: int) -> None:
    """One axis as a table."""
    columns = [name for name in curve if name != "size"]
    steps = {name: slopes(curve["size"], curve[name]) for name in columns}

    def cell(name: str, place: int) -> str:
        slope = steps[name][place]
        value = f"{curve[name][place]:.3g}"
        return value if slope is None else f"{value} (slope {slope:.2f})"

    rows = [
        [f"{size:,.0f}", *(cell(name, place) for name in columns)]
        for place, size in enumerate(curve["size"])
    ]
    common.show(f"{axis}, {threads} threads", [axis, *columns], rows)


def draw(found: Mapping[str, Mapping[str, Sequence[float]]], title: str, path: Path) -> None:
    """One column for each axis, time above memory, both logarithmic."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    labels = {
        "group": "group size (rollouts a problem)",
        "length": "completion length (tokens)",
        "parameters": "weights of the layers",
        "problems": "problems a step",
    }
    colours = {"sampling": "#0072b2", "update": "#d55e00"}
    figure, places = plt.subplots(2, 4, figsize=(15, 7), sharey="row", layout="constrained")
    for column, (axis, curve) in enumerate(found.items()):
        for row, unit in enumerate(("s", "MiB")):
            place = places[row][column]
            for part in PARTS:
                values = curve[f"{part} {unit}"]
                place.plot(curve["size"], values, "o-", color=colours[part], label=part)
            _proportional(place, curve["size"], [curve[f"{part} {unit}"] for part in PARTS])
            place.set_xscale("log", base=2)
            place.set_yscale("log")
            place.set_xticks(curve["size"], [_short(size) for size in curve["size"]])
            place.minorticks_off()
            place.grid(alpha=0.3)
            place.set_xlabel(labels[axis] if row else "")
    places[0][0].set_ylabel("seconds")
    places[1][0].set_ylabel("memory above the model's, MiB")
    places[0][0].legend(frameon=False)
    figure.suptitle(title)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _proportional(place: Any, sizes: Sequence[float], curves_: Sequence[Sequence[float]]) -> None:
    """A dashed line through the middle of the uppermost curve: growth in proportion."""
    top = max(curves_, key=lambda values: values[len(values) // 2])
    middle = len(sizes) // 2
    values = [top[middle] * size / sizes[middle] for size in sizes]
    place.plot(sizes, values, "--", color="0.6", label="in proportion", zorder=0)


def _short(size: float) -> str:
    if size >= 1e6:
        return f"{size / 1e6:.1f}M"
    return f"{size / 1e3:.0f}k" if size >= 1e4 else f"{size:.0f}"


def main() -> None:
    """Measure, print, draw."""
    arguments = read_arguments()
    facts = common.machine()
    common.describe(facts)
    drawn = axes(arguments)
    points = list(dict.fromkeys(point for points in drawn.values() for point in points))
    report = []
    for threads in arguments.threads:
        measured = measure_all(points, threads, arguments.repeats, arguments.seed)
        found = curves(drawn, measured)
        for axis, curve in found.items():
            print_axis(axis, curve, threads)
        report.append(
            {
                "threads": threads,
                "curves": found,
                "points": [{**asdict(p), "runs": runs} for p, runs in measured.items()],
            }
        )
        if arguments.out is not None and threads == arguments.threads[0]:
            title = f"Growth of one step's time and memory; {threads} threads, {facts['processor']}"
            draw(found, title, arguments.out)
    common.finish("growth", facts, arguments, report)


if __name__ == "__main__":
    main()
