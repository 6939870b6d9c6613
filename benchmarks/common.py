"""What the benchmarks of speed and memory share: options, the machine, repeats, tables.

Import this module before torch: it makes the process as the command line makes it (threads that
wait sleep, memory is kept), which torch reads when it starts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from agon import process

process.prepare()

ROOT = Path(__file__).resolve().parents[1]
SMOLLM2 = ROOT / "models" / "smollm2-135m-instruct-dequantised"
BUSY = 0.5
"""A load average over the last minute from which other programs disturb the figures."""

Row = Sequence[str | float | None]


def parser(description: str) -> argparse.ArgumentParser:
    """A parser with the options that all benchmarks have."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument(
        "--model", default="smollm2", help="smollm2 (default), embedded, or a model folder"
    )
    made.add_argument(
        "--threads", type=whole_numbers, default=[1, 2], help="torch threads, such as 1,2"
    )
    made.add_argument("--repeats", type=int, default=3, help="counted repeats of every arm")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--json", type=Path, metavar="FILE", help="write everything measured here")
    made.add_argument("--quick", action="store_true", help="a small trial on the embedded model")
    return made


def parse(
    made: argparse.ArgumentParser, quick: Mapping[str, Any], given: Sequence[str] | None = None
) -> argparse.Namespace:
    """The command line; with `--quick`, other defaults."""
    first, _ = made.parse_known_args(given)
    if first.quick:
        made.set_defaults(**{"model": "embedded", "threads": [1], "repeats": 1} | dict(quick))
    arguments = made.parse_args(given)
    if arguments.repeats < 1:
        made.error(f"--repeats: got {arguments.repeats}, expected 1 or more")
    return arguments


def whole_numbers(text: str) -> list[int]:
    """`1,2` as numbers from 1."""
    parts = text.split(",")
    if not all(part.isdigit() and int(part) >= 1 for part in parts):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected whole numbers from 1, as in 1,2")
    return [int(part) for part in parts]


def names(known: Sequence[str]) -> Callable[[str], list[str]]:
    """A reader of comma-separated names."""

    def read(text: str) -> list[str]:
        parts = text.split(",")
        if not set(parts) <= set(known):
            raise argparse.ArgumentTypeError(f"got {text!r}, expected some of {', '.join(known)}")
        return parts

    return read


def model_path(name: str) -> str:
    """The folder of a model by its name on the command line."""
    from agon.assets import EMBEDDED, model_folder

    if name == EMBEDDED:
        return model_folder(EMBEDDED)
    folder = SMOLLM2 if name == "smollm2" else Path(name)
    if not (folder / "config.json").is_file():
        remedy = "run `make smollm2`" if name == "smollm2" else "give a folder with a config.json"
        sys.exit(f"--model: {folder} is no model folder: {remedy}")
    return str(folder)


def peer_python(peer: str) -> str:
    """The interpreter of a peer's environment from `make bench-peers`; it may be missing."""
    return str(ROOT / f".venv-{peer}" / "bin" / "python")


def machine() -> dict[str, Any]:
    """Processor, cores, load and versions; a warning where other programs are running."""
    load = os.getloadavg()[0]
    if load > BUSY:
        print(
            f"warning: the load average is {load:.2f}: other programs disturb these figures",
            file=sys.stderr,
        )
    packages = ("agon-rl", "torch", "transformers", "peft", "trl", "numpy")
    versions = {}
    for package in packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load_average": load,
        **{name: value for name, value in process.settings().items() if value is not None},
        **versions,
    }


def processor() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def note(text: str) -> None:
    """Say on standard error what is being done: a run may take hours."""
    print(text, file=sys.stderr, flush=True)


def spread(values: Sequence[float], form: str) -> str:
    """The median, and the lowest and highest value in brackets where there are several."""
    middle = format(statistics.median(values), form)
    if len(values) == 1:
        return middle
    return f"{middle} [{format(min(values), form)}, {format(max(values), form)}]"


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Quotients repeat by repeat, so that what slows a whole repeat cancels."""
    return [a / b for a, b in zip(over, under, strict=True)]


def show(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table."""
    print(f"\n{title}\n")
    print(f"| {' | '.join(head)} |")
    print(f"|{' --- |' * len(head)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")


def describe(facts: Mapping[str, Any]) -> None:
    """Print the machine in one line."""
    print(", ".join(f"{key} {value}" for key, value in facts.items()))


def finish(
    name: str, facts: Mapping[str, Any], arguments: argparse.Namespace, measured: Any
) -> None:
    """Write the file of `--json`, if one is wanted."""
    load = os.getloadavg()[0]
    print(f"\nload average {facts['load_average']:.2f} at the start, {load:.2f} at the end")
    if arguments.json is None:
        return
    given = {key: value for key, value in vars(arguments).items() if key != "json"}
    report = {
        "benchmark": name,
        "machine": {**facts, "load_average_at_the_end": load},
        "arguments": given,
        "measured": measured,
    }
    arguments.json.write_text(json.dumps(report, indent=2, default=str) + "\n", encoding="utf-8")
