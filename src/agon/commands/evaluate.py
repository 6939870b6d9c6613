"""`agon eval`: every system of a run on dev, or on test by name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, get_args

from rich.console import Console

from agon.commands.train import dev_order
from agon.config import Config, EngineConfig, TaskConfig, TaskName
from agon.display import caution, say
from agon.engines.base import Sampling
from agon.engines.opening import check_engine
from agon.errors import ConfigError, DataError
from agon.evaluation.protocols import Attempt, evaluate, standard_systems
from agon.evaluation.statistics import Summary, summarise
from agon.evaluation.table import as_records, render, table_rows
from agon.preflight import (
    check_context,
    check_own_verifier,
    check_sandbox,
    check_settings,
    read_language,
)
from agon.recipes import build_config, build_task, parse_override
from agon.records import Outcome, Problem
from agon.runs import RunFolder, write_atomically
from agon.tasks import check_golds, gold_notes, load_task
from agon.tasks.splits import Split
from agon.verifiers import PooledJudge
from agon.workshop import Workshop, for_use, load_run_adapters, open_workshop


def evaluate_run(
    run: Path,
    split: str,
    limit: int | None,
    samples: int,
    task: str | None,
    path: str | None,
    overrides: Sequence[str],
    console: Console,
) -> None:
    """Evaluate a run's newest adapters and write `evaluations/<split>.json`.

    Args:
        run: A run folder.
        split: `dev` or `test`.
        limit: At most so many problems, the first of the seeded order; None is all.
        samples: Attempts for each problem.
        task: Another task than the run's; its name marks the result file.
        path: Local data of that task.
        overrides: `task.field=value`, for that task or the run's, and `engine.field=value`, for
            what samples here.
        console: Where to write.

    Raises:
        AgonError: Anything that the user can mend.
    """
    if split not in (Split.DEV, Split.TEST):
        raise ConfigError(f"--split: got {split!r}, expected dev or test")
    if samples < 1 or (limit is not None and limit < 1):
        raise ConfigError("--samples and --problems must be at least 1")
    folder = RunFolder(run)
    trained = folder.read_config()
    of_engine = [text for text in overrides if parse_override(text)[0] == "engine"]
    config = with_engine(for_use(trained), of_engine)
    check_settings(config)
    chosen = task_config(config, task, path, [t for t in overrides if t not in of_engine])
    check_own_verifier(chosen, config.verifier)
    for note in check_engine(config):
        say(console, note)
    isolation = check_sandbox(chosen, config.code)
    if isolation is not None:
        say(console, isolation)
    data = load_task(chosen)
    if not data.problems[Split(split)]:
        raise _no_problems(split, chosen)
    name = result_name(config.task, chosen, split)
    target = folder.evaluations / f"{name}.json"
    readings = 1 + read_count(target)
    language = read_language(config)
    check_context(config, language, data)
    judge = PooledJudge(config.verifier, config.code, lambda text: caution(console, text))
    try:
        opened = open_workshop(config, language, judge, folder.path, partial(say, console))
        with closing(opened) as workshop:
            problems, dropped = check_golds(dev_order(data, config, Split(split)), judge)
            problems = problems[:limit]
            for note in (*data.notes, *gold_notes(dropped)):
                say(console, note)
            if not problems:
                raise _no_problems(split, chosen)
            step = load_run_adapters(folder, workshop.policies, config.objective.updates_per_step)
            results = run_systems(config, workshop, problems, samples, console)
    finally:
        judge.close()
    summaries = summaries_of(results, console)
    rollouts = dict.fromkeys(summaries, training_rollouts(config, step))
    rollouts |= {system: 0 for system in summaries if set(system.split("->")) == {"base"}}
    title = f"{run} after {step} steps, {len(problems)} {name} problems"
    console.print(render(table_rows(summaries, rollouts), title))
    write_results(
        target, readings, title, step, trained, config.engine, results, summaries, rollouts
    )
    if split == Split.TEST and readings > 1:
        caution(
            console,
            f"the test split of this run has been read {readings} times; it must choose nothing",
        )
    say(console, f"written: {target}")


def result_name(trained: TaskConfig, chosen: TaskConfig, split: str) -> str:
    """What marks a result file: the split, and the task where it is not the run's."""
    moved = trained.model_copy(update={"path": chosen.path})  # the same data in another place
    if chosen == moved:
        return split
    return "-".join((chosen.name, *((chosen.dataset,) if chosen.dataset else ()), split))


def summaries_of(results: Mapping[str, Sequence[Attempt]], console: Console) -> dict[str, Summary]:
    """Figures of each system; one without any verdict is named and left out.

    Raises:
        DataError: No system has a verdict.
    """
    scored = {
        name: attempts
        for name, attempts in results.items()
        if any(attempt.outcome is not Outcome.UNSCORED for attempt in attempts)
    }
    for name in (name for name in results if name not in scored):
        caution(console, f"{name}: the verifier failed on every answer, so there is no figure")
    if not scored:
        raise DataError(
            "the verifier failed on every answer of every system, so there is nothing to "
            "evaluate: mend it (its first failure is shown above in full)"
        )
    return {name: summarise(attempts) for name, attempts in scored.items()}


def _no_problems(split: str, task: TaskConfig) -> DataError:
    return DataError(
        f"--split {split}: the task {task.name} has no such problems; "
        "math500, for example, has only test"
    )


def with_engine(config: Config, overrides: Sequence[str]) -> Config:
    """The run's configuration with `engine.field=value` applied.

    Another `engine.kind` begins with that kind's defaults.

    Raises:
        ConfigError: An unknown setting, or a wrong value.
    """
    values = json.loads(config.model_dump_json())
    if any(parse_override(text)[1] == "kind" for text in overrides):
        values["engine"] = {}
    return build_config(values, overrides, "the run's configuration")


def task_config(
    config: Config, task: str | None, path: str | None, overrides: Sequence[str]
) -> TaskConfig:
    """The run's task, or another one with the run's split sizes; with the overrides applied.

    Raises:
        ConfigError: An unknown task or setting, or a wrong value.
    """
    values: dict[str, Any] = json.loads(config.task.model_dump_json())
    if task is not None and task not in get_args(TaskName):
        known = ", ".join(get_args(TaskName))
        raise ConfigError(f"--task: got {task!r}, expected one of {known}")
    if task not in (None, config.task.name):
        sizes = ("dev_problems", "test_problems")
        values = {"name": task} | {size: values[size] for size in sizes}
    if path is not None:
        values["path"] = path
    for override in overrides:
        section, field, value = parse_override(override)
        if section != "task":
            raise ConfigError(
                f"--set: got {override!r}, but an evaluation changes only task.… and engine.…"
            )
        values[field] = value
    return build_task(values)


def run_systems(
    config: Config,
    workshop: Workshop,
    problems: Sequence[Problem],
    samples: int,
    console: Console,
) -> dict[str, list[Attempt]]:
    """Run the standard systems, naming each stage as it begins."""
    return evaluate(
        standard_systems(config.game.policies),
        problems,
        samples,
        config.seeds.evaluation,
        Sampling(config.sampling.max_new_tokens, config.sampling.temperature),
        workshop.table,
        lambda name, number, of: say(console, f"  {number}/{of} {name}"),
    )


def training_rollouts(config: Config, steps: int) -> int:
    """Rollouts of all roles that a run's training took."""
    stages = 2 if config.game.second_stage else 1
    return steps * config.training.problems_per_step * config.sampling.group_size * stages


def read_count(target: Path) -> int:
    """How often an evaluation has been written before.

    Raises:
        ConfigError: What stands there is no evaluation.
    """
    if not target.is_file():
        return 0
    try:
        return int(json.loads(target.read_text())["readings"])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{target} is not an evaluation ({error}): move it away, and note how often the "
            "split has been read"
        ) from error


def write_results(
    target: Path,
    readings: int,
    title: str,
    step: int,
    config: Config,
    engine: EngineConfig,
    results: Mapping[str, Sequence[Attempt]],
    summaries: Mapping[str, Summary],
    rollouts: Mapping[str, int],
) -> None:
    """Write one evaluation with its per-problem records and the count of its readings."""
    target.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "title": title,
        "step": step,
        "readings": readings,
        "config": json.loads(config.model_dump_json()),
        "engine": json.loads(engine.model_dump_json()),
        "systems": as_records(summaries, rollouts),
        "attempts": {name: [asdict(a) for a in attempts] for name, attempts in results.items()},
    }
    write_atomically(target, json.dumps(record, indent=1) + "\n")
