"""`agon demo`: GRPO and Agon side by side on the embedded model, then one table and one plot.

Both runs are ordinary runs of ordinary recipes, each in a process of its own with one thread, so
on two cores they train at the same time. A demo that was interrupted continues where it stopped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table as RichTable

from agon.config import Config, leaves
from agon.display import say
from agon.errors import AgonError, ConfigError
from agon.evaluation.protocols import Attempt
from agon.evaluation.statistics import Summary, summarise
from agon.evaluation.table import render, table_rows
from agon.recipes import load_recipe
from agon.records import Outcome
from agon.runs import RunFolder

ARMS = {"grpo": ("countdown-grpo", 2), "agon": ("countdown-agon", 1)}
"""Run folder's name, recipe and attempts for each dev problem of each side. GRPO's second attempt
gives its pass@2, the bound of two tries without exchange."""

SHOWN: tuple[tuple[str, str, str], ...] = (
    ("grpo", "base", "base"),
    ("grpo", "base->base", "base->base"),
    ("grpo", "a", "GRPO"),
    ("grpo", "a->a", "GRPO->GRPO"),
    ("agon", "a", "Agon a"),
    ("agon", "b", "Agon b"),
    ("agon", "a->b", "Agon a->b"),
    ("agon", "b->a", "Agon b->a"),
)
"""Rows of the table: run, system, label."""

INTERRUPTED = 130

SAID_EVERY = 25
"""Where nobody watches, progress is printed once in so many steps."""

POLL_SECONDS = 1.0
"""Between looks at the runs; each look reads their metrics, on cores that the runs need."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One side of the comparison."""

    name: str
    folder: RunFolder
    config: Config
    samples: int

    @property
    def steps(self) -> int:
        """Steps of the run; the demo's recipes state them."""
        return self.config.training.steps or 0


class DemoFailed(AgonError):
    """One of the demo's processes failed."""


def demo(out: Path, overrides: Sequence[str], console: Console) -> int:
    """Train both sides, evaluate them, print the table, draw the plot.

    Args:
        out: Folder of the two runs, the plot and the logs.
        overrides: `section.field=value`, for both sides.
        console: Where to write.

    Returns:
        The process's exit status.

    Raises:
        AgonError: A setting cannot be used, or a process failed.
    """
    arms = [_arm(name, out, overrides) for name in ARMS]
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be made: {error.strerror}") from error
    started = time.monotonic()
    say(
        console,
        f"Training GRPO (2N rollouts) and Agon (N drafts and N challenges) for {arms[0].steps} "
        f"steps each, in {out}. Stop with Ctrl-C; the same command continues.",
    )
    try:
        _run_all([_train_command(arm, overrides) for arm in arms], arms, out, console)
        say(console, "Evaluating on all dev problems ...")
        _run_all([_eval_command(arm) for arm in arms], (), out, console)
    except KeyboardInterrupt:
        say(console, "\ninterrupted; `agon demo` continues from the last checkpoints")
        return INTERRUPTED
    from agon.evaluation.plots import plot_training

    figure = plot_training(
        {arm.name: read_metrics(arm.folder) for arm in arms},
        arms[0].config.evaluation.problems,
        out / "demo.png",
    )
    show_table(arms, console)
    say(
        console,
        f"took {time.monotonic() - started:.0f} s\nplot: {figure}\n"
        + "\n".join(f"{arm.name} run: {arm.folder.path}" for arm in arms)
        + f"\ntry: agon solve {arms[1].folder.path} 'make 22 from 4,7,6'",
    )
    return 0


def _arm(name: str, out: Path, overrides: Sequence[str]) -> Arm:
    """One side, new or to be continued.

    Raises:
        ConfigError: A run with other settings stands in its folder.
    """
    recipe, samples = ARMS[name]
    config, folder = load_recipe(recipe, overrides), RunFolder(out / name)
    if folder.config.is_file() and leaves(folder.read_config()) != leaves(config):
        raise ConfigError(
            f"--out {out}: {folder.path} holds a run with other settings: choose another folder, "
            "or delete that one"
        )
    return Arm(name, folder, config, samples)


def _train_command(arm: Arm, overrides: Sequence[str]) -> list[str]:
    command = [sys.executable, "-m", "agon", "train"]
    if arm.folder.config.is_file():
        return [*command, "--resume", str(arm.folder.path)]
    options = [part for override in overrides for part in ("--set", override)]
    return [*command, ARMS[arm.name][0], "--run-dir", str(arm.folder.path), *options]


def _eval_command(arm: Arm) -> list[str]:
    path, samples = str(arm.folder.path), str(arm.samples)
    return [sys.executable, "-m", "agon", "eval", path, "--samples", samples]


def _run_all(
    commands: Sequence[Sequence[str]], arms: Sequence[Arm], out: Path, console: Console
) -> None:
    """Run processes side by side, as many as there are cores, and show the arms' progress.

    Raises:
        DemoFailed: One of them failed; the others are stopped.
    """
    waiting = list(enumerate(commands))
    running: dict[subprocess.Popen[bytes], Path] = {}
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        with Progress(arms, console) as progress:
            while waiting or running:
                while waiting and len(running) < max(1, os.cpu_count() or 1):
                    number, command = waiting.pop(0)
                    log = out / f"{command[3]}-{number}.log"
                    with log.open("w") as file:
                        process = subprocess.Popen(
                            command, stdout=file, stderr=subprocess.STDOUT, env=environment
                        )
                    running[process] = log
                for process, log in list(running.items()):
                    if process.poll() is None:
                        continue
                    del running[process]
                    if process.returncode != 0:
                        last = log.read_text().strip().splitlines()[-1:]
                        raise DemoFailed(f"a process of the demo failed: {last}; all of it: {log}")
                progress.show()
                time.sleep(POLL_SECONDS)
    finally:
        # The terminal's Ctrl-C reaches the children too; they save a checkpoint before they end.
        for process in running:
            if sys.exc_info()[0] is not KeyboardInterrupt:
                process.terminate()
            process.wait()


class Progress:
    """The figures of both runs as they train."""

    def __init__(self, arms: Sequence[Arm], console: Console):
        """Nothing is shown without arms."""
        self._arms, self._console = arms, console
        self._live = Live(console=console) if arms and console.is_terminal else None
        self._said: dict[str, int] = {}

    def __enter__(self) -> Progress:
        """Start the live table where a person watches."""
        if self._live is not None:
            self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        """Leave the last table standing."""
        if self._live is not None:
            self.show()
            self._live.__exit__(*error)

    def show(self) -> None:
        """Read the runs' metrics and show them."""
        rows = {arm.name: read_metrics(arm.folder) for arm in self._arms}
        if self._live is not None:
            self._live.update(_progress_table(self._arms, rows))
            return
        for arm in self._arms:
            done = len(rows[arm.name])
            if done // SAID_EVERY > self._said.get(arm.name, 0):
                self._said[arm.name] = done // SAID_EVERY
                last = rows[arm.name][-1]
                figures = _figures(last, rows[arm.name]).items()
                listed = " ".join(f"{key} {value}" for key, value in figures if value)
                say(self._console, f"{arm.name} step {min(done, arm.steps)}/{arm.steps} {listed}")


def _figures(last: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    recent = rows[-10:]

    def average(key: str, form: str) -> str:
        values = [row[key] for row in recent if key in row]
        return form.format(sum(values) / len(values)) if values else ""

    with_dev = (row for row in reversed(rows) if any(k.startswith("dev.") for k in row))
    dev: Mapping[str, Any] = next(with_dev, {})
    return {
        "draft pass": average("draft.pass", "{:.1%}"),
        "challenge pass": average("challenge.pass", "{:.1%}"),
        "length": average("draft.length", "{:.0f}"),
        "flat": average("draft.flat_correctness", "{:.0%}"),
        "dev": " ".join(
            f"{key.split('.')[1]} {value:.0%}"
            for key, value in dev.items()
            if key.startswith("dev.") and key.endswith(".pass")
        ),
    }


def _progress_table(
    arms: Sequence[Arm], rows: Mapping[str, Sequence[Mapping[str, Any]]]
) -> RichTable:
    table = RichTable(title="means of the last 10 steps; dev pass@1", title_justify="left")
    table.add_column("run")
    table.add_column("step", justify="right")
    figures = {arm.name: _figures(r[-1], r) for arm in arms if (r := rows[arm.name])}
    for column in next(iter(figures.values()), {}):
        table.add_column(column)
    for arm in arms:
        step = f"{min(len(rows[arm.name]), arm.steps)}/{arm.steps}"
        table.add_row(arm.name, step, *figures.get(arm.name, {}).values())
    return table


def read_metrics(folder: RunFolder) -> list[dict[str, Any]]:
    """The complete lines of a run's metrics; none before it has begun."""
    if not folder.metrics.is_file():
        return []
    text = folder.metrics.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def show_table(arms: Sequence[Arm], console: Console) -> None:
    """The comparison of all systems on dev."""
    records = {
        arm.name: json.loads((arm.folder.evaluations / "dev.json").read_text()) for arm in arms
    }
    summaries: dict[str, Summary] = {}
    rollouts = {}
    for run, system, label in SHOWN:
        attempts = [_attempt(item) for item in records[run]["attempts"][system]]
        # The same protocol for every row: one sample for each problem. GRPO's second sample
        # only enters its pass@2.
        summaries[label] = summarise([a for a in attempts if a.sample == 0])
        rollouts[label] = records[run]["systems"][system]["training_rollouts"]
        if label == "GRPO":
            both = summarise(attempts)
            summaries[label] = replace(summaries[label], pass_k=both.pass_k, k=both.k)
    count = next(iter(summaries.values())).problems
    console.print()
    console.print(render(table_rows(summaries, rollouts), f"{count} dev problems, one sample each"))


def _attempt(item: Mapping[str, Any]) -> Attempt:
    draft = item["draft_outcome"]
    return Attempt(
        problem=item["problem"],
        sample=item["sample"],
        outcome=Outcome(item["outcome"]),
        draft_outcome=None if draft is None else Outcome(draft),
        answer=item["answer"],
        generated=tuple(item["generated"]),
        prompt=tuple(item["prompt"]),
        truncated=item["truncated"],
    )
