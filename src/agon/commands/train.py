"""`agon train`: from a recipe or a run folder to a trained pair."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import platform
import random
import signal
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from agon import process
from agon.checkpoints import latest_checkpoint, load_checkpoint
from agon.config import Config, leaves
from agon.display import Display, caution, say
from agon.distributed import ALONE, Processes, check_launcher, join, joined
from agon.engines.opening import check_engine
from agon.errors import ConfigError, DataError, NothingToLearn, Preempted, Unreachable
from agon.interrupts import Interrupts
from agon.preflight import (
    Language,
    check_context,
    check_own_verifier,
    check_sandbox,
    check_settings,
    pass_steps,
    read_language,
    read_task,
    shows_summaries,
    total_steps,
    training_problems,
)
from agon.recipes import change_config, find_recipe, load_recipe, sources_of
from agon.records import Problem
from agon.runs import RunFolder, default_run_name, write_atomically
from agon.tasks import TaskData, check_golds, gold_notes
from agon.tasks.splits import Split
from agon.trainer import Tracker, Trainer
from agon.verifiers import PooledJudge
from agon.workshop import open_workshop, without_start

INTERRUPTED = 130
"""Exit status after Ctrl-C."""

PREEMPTED = 75
"""Exit status after SIGTERM, EX_TEMPFAIL of sysexits.h: the run is saved, try again later."""


def train(
    recipe: str | None,
    overrides: Sequence[str],
    run_dir: Path | None,
    resume: Path | None,
    dry_run: bool,
    console: Console,
) -> int:
    """Train a run, continue one, or say what would happen.

    Returns:
        The process's exit status: 0, 130 after Ctrl-C, or 75 after SIGTERM.

    Raises:
        AgonError: Anything that the user can mend.
    """
    if resume is not None:
        if recipe is not None or run_dir is not None:
            raise ConfigError("--resume RUN continues a run as it was: give no RECIPE or --run-dir")
        folder = RunFolder(resume)
        config = change_config(folder.read_config(), overrides)
        if latest_checkpoint(folder.checkpoints) is not None:
            config = without_start(config)
    elif recipe is None:
        raise ConfigError("RECIPE is missing: give a TOML file, or --resume RUN")
    else:
        config = load_recipe(recipe, overrides)
        folder = RunFolder(run_dir or Path("runs") / default_run_name(find_recipe(recipe).stem))
    if dry_run:
        show_plan(config, overrides, folder, console)
        return 0
    check_launcher()
    return train_run(config, overrides, folder, resume is not None, console)


def train_run(
    config: Config,
    overrides: Sequence[str],
    folder: RunFolder,
    resumed: bool,
    console: Console,
) -> int:
    """Train a configuration in a new folder, or continue the run that stands there.

    Returns:
        The process's exit status: 0, 130 after Ctrl-C, or 75 after SIGTERM.

    Raises:
        AgonError: Anything that the user can mend.
    """
    with Interrupts((signal.SIGTERM,)) as early:
        try:
            with early.droppable():
                processes = join(config)
                return _with_others(processes, config, overrides, folder, resumed, console)
        except Preempted:
            say(console, "ended by SIGTERM outside of the training steps")
            return PREEMPTED


def _with_others(
    processes: Processes,
    config: Config,
    overrides: Sequence[str],
    folder: RunFolder,
    resumed: bool,
    console: Console,
) -> int:
    """Train as one of several processes, or alone, and let the others know how it ended."""
    if processes.size > 1:
        folder = RunFolder(processes.from_first(folder.path, "the run's folder"))
        if processes.rank > 0:
            console = Console(quiet=True)
    error = None
    try:
        return _checked(processes, config, overrides, folder, resumed, console)
    except NothingToLearn:
        raise  # everyone finds that out in the same step
    except BaseException as caught:
        error = caught
        raise
    finally:
        processes.close(error)


def _checked(
    processes: Processes,
    config: Config,
    overrides: Sequence[str],
    folder: RunFolder,
    resumed: bool,
    console: Console,
) -> int:
    check_settings(config)
    check_trackers(config)
    check_own_verifier(config.task, config.verifier)
    isolation = check_sandbox(config.task, config.code)
    if isolation is not None:
        say(console, isolation)
    for note in check_engine(config):
        say(console, note)
    if processes.size > 1 and config.engine.kind != "torch":
        raise ConfigError(
            f'engine.kind = "{config.engine.kind}" samples for a trainer of one process, but there '
            f'are {processes.size}: start one, or set engine.kind = "torch"'
        )
    if not resumed and processes.rank == 0:
        folder.check_new()
    data = read_task(config)
    language = read_language(config)
    check_context(config, language, data, shows_summaries(config))
    return _run(processes, config, overrides, folder, language, data, resumed, console)


def _run(
    processes: Processes,
    config: Config,
    overrides: Sequence[str],
    folder: RunFolder,
    language: Language,
    data: TaskData,
    resumed: bool,
    console: Console,
) -> int:
    alarm = console if processes.rank == 0 else Console(file=sys.stderr)
    judge = PooledJudge(config.verifier, config.code, lambda text: caution(alarm, text))
    try:
        problems, dev, notes = checked_problems(config, data, judge, processes)
        for note in (*data.notes, *notes):
            say(console, note)
        opened = open_workshop(
            config, language, judge, folder.path, partial(say, console), processes
        )
        with contextlib.closing(opened) as workshop:
            environment = describe_environment(str(workshop.device), processes.size)
            if workshop.follower is not None:
                environment |= workshop.follower.describe()
            if processes.rank == 0:
                write_beginning(config, overrides, folder, environment, resumed)
            with open_trackers(config, folder, processes) as trackers:
                trainer = Trainer(
                    config, folder, workshop, problems, dev, environment, trackers, processes
                )
                if resumed:
                    processes.meet("the checkpoint")
                    _restore(trainer, folder, workshop, environment, console)
                return _train(trainer, folder, config, processes, console)
    finally:
        judge.close()


def write_beginning(
    config: Config,
    overrides: Sequence[str],
    folder: RunFolder,
    environment: dict[str, Any],
    resumed: bool,
) -> None:
    """Make a run's folder and write what it begins or goes on with."""
    if not resumed:
        folder.create()
        write_atomically(folder.config, config.model_dump_json(indent=2) + "\n")
        origins = sources_of(config, overrides)
        write_atomically(folder.sources, json.dumps(origins, indent=2) + "\n")
    write_atomically(folder.environment, json.dumps(environment, indent=2) + "\n")


def _train(
    trainer: Trainer, folder: RunFolder, config: Config, processes: Processes, console: Console
) -> int:
    title = f"{folder.path}"
    with Display(console, trainer.steps, title) as display:
        try:
            trainer.run(display)
        except KeyboardInterrupt as stop:
            preempted = isinstance(stop, Preempted)
            display.note(
                f"{'ended by SIGTERM' if preempted else 'interrupted'} after {trainer.step} steps; "
                f"continue with `agon train --resume {folder.path}`"
            )
            if missing := processes.missing():
                display.warn(missing)
            return PREEMPTED if preempted else INTERRUPTED
    say(console, f"done: {trainer.steps} steps in {folder.path}")
    say(console, f"next: agon eval {folder.path}")
    return 0


def _restore(
    trainer: Trainer,
    folder: RunFolder,
    workshop: Any,
    environment: dict[str, Any],
    console: Console,
) -> None:
    checkpoint = latest_checkpoint(folder.checkpoints)
    if checkpoint is None:
        say(console, "no checkpoint yet: the run begins anew")
        return
    state = load_checkpoint(checkpoint, workshop.policies, trainer.updater.optimizers)
    for key, now in environment.items():
        before = state.environment.get(key)
        if before != now:
            caution(
                console,
                f"{key} was {before} and is {now}: the resumed run may differ from an "
                "uninterrupted one in rounding",
            )
    trainer.restore(state)
    say(console, f"continuing {folder.path} after {state.step} steps")


def checked_problems(
    config: Config, data: TaskData, judge: PooledJudge, processes: Processes = ALONE
) -> tuple[list[Problem], list[Problem], list[str]]:
    """Training and dev problems whose gold answers verify against themselves.

    Each of several processes checks its own part.

    Returns:
        Both, and sentences on what was dropped.
    """
    parts = [
        (
            check_golds(processes.share(training_problems(data, config)), judge),
            check_golds(processes.share(dev_order(data, config, Split.DEV)), judge),
        )
    ]
    parts = joined(processes.gather(parts, "the gold answers"))
    train_problems = joined(kept for (kept, _), _ in parts)
    dev = joined(kept for _, (kept, _) in parts)
    dropped_train = joined(dropped for (_, dropped), _ in parts)
    dropped_dev = joined(dropped for _, (_, dropped) in parts)
    notes = gold_notes((*dropped_train, *dropped_dev))
    size = config.training.problems_per_step
    if len(train_problems) < size:
        raise ConfigError(
            f"training.problems_per_step = {size}, but only {len(train_problems)} training "
            "problems have a gold answer that can be judged. "
            + " ".join((*notes, "Look at the data set's answers, and at its verifier"))
        )
    if config.evaluation.every and not dev:
        raise DataError(
            f"task {config.task.name} has no dev problem with a gold answer that can be judged. "
            + " ".join((*notes, "Set evaluation.every = 0, or look at the data set's answers"))
        )
    return train_problems, dev, list(notes)


def dev_order(data: TaskData, config: Config, split: Split) -> list[Problem]:
    """A split's problems in the seeded order of evaluations."""
    problems = list(data.problems[split])
    random.Random(f"evaluation/{config.seeds.evaluation}").shuffle(problems)
    return problems


def describe_environment(device: str, processes: int = 1) -> dict[str, Any]:
    """Versions, device and threads of this process, and the number of processes."""
    import torch

    packages = ("agon-rl", "torch", "transformers", "peft", "accelerate", "numpy", "math-verify")
    versions = {}
    for package in packages:
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "device": device,
        "processes": processes,
        "threads": torch.get_num_threads(),
        **process.settings(),
        **versions,
    }


def check_trackers(config: Config) -> None:
    """Refuse trackers that are not there before a run's folder is made.

    Raises:
        ConfigError: A tracker's package is not installed.
    """
    for name in config.logging.trackers:
        if importlib.util.find_spec(name) is None:
            raise ConfigError(
                f"logging.trackers: {name} is not installed: pip install 'agon-rl[{name}]'"
            )


@contextlib.contextmanager
def open_trackers(
    config: Config, folder: RunFolder, processes: Processes = ALONE
) -> Iterator[list[Tracker]]:
    """The trackers of `logging.trackers`, through Accelerate; `check_trackers` has looked."""
    names = config.logging.trackers
    if not names or processes.rank > 0:
        yield []
        return
    from accelerate import Accelerator

    accelerator = Accelerator(
        cpu=config.training.device == "cpu", log_with=list(names), project_dir=str(folder.path)
    )
    settings = {
        name: value if isinstance(value, int | float | str | bool) else str(value)
        for name, value in leaves(config)
    }
    accelerator.init_trackers(config.logging.project, config=settings)
    try:
        yield [lambda figures, step: accelerator.log(figures, step=step)]
    finally:
        accelerator.end_training()


def show_plan(
    config: Config, overrides: Sequence[str], folder: RunFolder, console: Console
) -> None:
    """Print the resolved configuration and what a run would do; load no model.

    What cannot be reached from this machine, hub models and data, is said and left open.
    """
    origins = sources_of(config, overrides)
    table = RichTable(title="resolved configuration", title_justify="left")
    for column in ("setting", "value", "source"):
        table.add_column(column, overflow="fold")
    for name, value in leaves(config):
        table.add_row(name, escape(json.dumps(value)), escape(origins[name]))
    console.print(table)
    check_settings(config)
    check_trackers(config)
    check_own_verifier(config.task, config.verifier)
    isolation = check_sandbox(config.task, config.code)
    if isolation is not None:
        say(console, isolation)
    try:
        for note in check_engine(config):
            say(console, note)
    except Unreachable as error:
        say(console, f"engine: not checked. {error}")
    try:
        data = read_task(config)
    except Unreachable as error:
        say(console, f"problems: not known here. {error}")
        data = None
    if data is not None:
        _show_problems(config, data, console)
    try:
        language = read_language(config)
    except Unreachable as error:
        say(console, f"context: not checked. {error}")
    else:
        if data is not None:
            shows = shows_summaries(config)
            plain, challenge = check_context(config, language, data, shows)
            console.print(
                f"context: {language.context} tokens; longest plain prompt {plain}, challenge "
                f"prompt at most {challenge}, completion {config.sampling.max_new_tokens}",
                highlight=False,
            )
    _show_files(config, folder, console)


def _show_problems(config: Config, data: TaskData, console: Console) -> None:
    count = len(training_problems(data, config))
    for note in data.notes:
        say(console, note)
    stages = 2 if config.game.second_stage else 1
    steps = total_steps(count, config)
    rollouts = config.training.problems_per_step * config.sampling.group_size * stages
    console.print(
        f"problems: {count} train, {len(data.problems[Split.DEV])} dev, "
        f"{len(data.problems[Split.TEST])} test\n"
        f"steps: one pass is {pass_steps(count, config)}, this run {steps}\n"
        f"rollouts: {rollouts} a step, {rollouts * steps} in all",
        highlight=False,
    )


def _show_files(config: Config, folder: RunFolder, console: Console) -> None:
    files = [folder.config, folder.sources, folder.environment, folder.metrics]
    if config.logging.rounds != "none":
        files.append(folder.rounds(config.logging))
    files.append(folder.checkpoints / "step-*")
    say(console, "would write: " + ", ".join(str(path) for path in files))
