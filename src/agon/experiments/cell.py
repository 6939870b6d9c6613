"""One cell: train it, evaluate it, look at its blind spots, write its file.

Everything that a cell has already done is kept when it is killed: training continues from its last
checkpoint, evaluations are made again, and the file appears when all is done.
"""

from __future__ import annotations

import gzip
import json
import random
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from agon.checkpoints import list_checkpoints
from agon.commands.train import describe_environment, train_run
from agon.config import Config
from agon.display import caution, say
from agon.engines.base import BASE, Sampling
from agon.errors import DataError, NothingToLearn
from agon.evaluation.divergence import Reply, mean_token_kl
from agon.evaluation.overlap import overlap
from agon.evaluation.protocols import Attempt, System, controls, evaluate, standard_systems
from agon.experiments.results import (
    SCHEMA,
    SystemResult,
    pack,
    reported_system,
    unpack,
    write_result,
)
from agon.experiments.spec import Cell, Experiment, cell_config
from agon.preflight import check_context, read_language, read_task
from agon.records import Problem
from agon.runs import RunFolder, write_atomically
from agon.tasks import check_golds, gold_notes
from agon.tasks.splits import Split
from agon.verifiers import PooledJudge
from agon.workshop import Workshop, for_use, load_run_adapters, open_workshop

KL_REPLIES = 64
"""Replies of each policy that divergences are measured on."""

SNAPSHOT_SAMPLES = 2
"""Attempts of each system at a snapshot: the fewest that compare a policy with itself."""

DIGITS = 5
"""Significant digits of the training curves in a result file."""


def run_cell(experiment: Experiment, cell: Cell, runs: Path, target: Path, console: Console) -> int:
    """Do a cell from where it stands to its file.

    Args:
        experiment: The matrix.
        cell: Which.
        runs: Folder of the run folders.
        target: The result file.
        console: Where to write.

    Returns:
        The process's exit status: 0, 130 after Ctrl-C, or 75 after SIGTERM.

    Raises:
        AgonError: Anything that the user can mend.
    """
    started = time.monotonic()
    config = with_snapshots(experiment, cell_config(experiment, cell))
    folder = RunFolder(runs / cell.name)
    arm = experiment.arms[cell.arm]
    stopped = None
    if arm.train:
        try:
            resumed = folder.config.is_file()
            status = train_run(config, (), folder, resumed, console)
            if status != 0:
                return status
        except NothingToLearn as error:
            stopped = str(error)
            caution(console, f"{cell.name}: {error}")
    else:
        folder.path.mkdir(parents=True, exist_ok=True)
    data: dict[str, Any] = {
        "schema": SCHEMA,
        "experiment": experiment.name,
        "arm": cell.arm,
        "seed": cell.seed,
        "about": arm.about,
        "reported": arm.reported,
        "trained": arm.train,
        "stopped": stopped,
        "config": json.loads(config.model_dump_json()),
    }
    data |= _evaluations(experiment, config, folder, arm.train, console)
    if arm.train:
        rows = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
        data["curves"] = curves(rows)
        data["rounds"] = kept_rounds(folder, config, experiment.evaluation.rounds)
    data["evaluation_and_rest_seconds"] = round(time.monotonic() - started, 1)
    write_result(target, data)
    say(console, f"written: {target}")
    return 0


def with_snapshots(experiment: Experiment, config: Config) -> Config:
    """The configuration with a checkpoint at each snapshot, all of them kept."""
    wanted, steps = experiment.evaluation.snapshots, config.training.steps
    if not wanted or steps is None:
        return config
    every = max(1, steps // wanted)
    checkpoint = config.checkpoint.model_copy(
        update={"every": min(every, config.checkpoint.every), "keep": steps}
    )
    return config.model_copy(update={"checkpoint": checkpoint})


def _evaluations(
    experiment: Experiment, config: Config, folder: RunFolder, trained: bool, console: Console
) -> dict[str, Any]:
    """Snapshots, dev, then test; the last only after everything was chosen."""
    spec, used = experiment.evaluation, for_use(config)
    data = read_task(used)
    language = read_language(used)
    check_context(used, language, data)
    with ExitStack() as stack:
        judge = PooledJudge(used.verifier, used.code, lambda text: caution(console, text))
        stack.callback(judge.close)
        opened = open_workshop(used, language, judge, folder.path, partial(say, console))
        workshop = stack.enter_context(closing(opened))
        found: dict[str, Any] = {"environment": describe_environment(str(workshop.device))}
        problems = {}
        for split, count in ((Split.DEV, spec.dev_problems), (Split.TEST, spec.test_problems)):
            some = list(data.problems[split])
            if len(some) < 2:
                raise DataError(f"the task {used.task.name} has no {split} split to evaluate on")
            # The same problems under every seed, so that seeds and problems are crossed.
            random.Random(f"experiment/{experiment.name}/{split}").shuffle(some)
            kept, dropped = check_golds(some[:count], judge)
            problems[split] = list(kept)
            for note in gold_notes(dropped):
                say(console, note)
        systems = [System((BASE,)), System((BASE, BASE))]
        if trained:
            found["snapshots"] = _snapshots(
                workshop,
                folder,
                config,
                problems[Split.DEV][: spec.snapshot_problems],
                spec.snapshots,
                console,
            )
            step = load_run_adapters(folder, workshop.policies, config.objective.updates_per_step)
            found["steps"] = step
            found["rollouts"] = rollouts(config, step)
            policies = config.game.policies
            systems = [*standard_systems(policies), *controls(policies)]
        found["evaluations"] = {}
        for split in (Split.DEV, Split.TEST):
            if split is Split.TEST:
                found["test_readings"] = count_reading(folder.path / "test-readings")
            results = _run(workshop, config, systems, problems[split], spec.samples, console)
            found["evaluations"][str(split)] = {
                "problems": [problem.id for problem in problems[split]],
                "samples": spec.samples,
                "systems": {name: pack(tries, spec.samples) for name, tries in results.items()},
            }
            if split is Split.DEV:
                found["chosen"] = _chosen(found["evaluations"]["dev"])
        return found


def _chosen(dev: dict[str, Any]) -> dict[str, str]:
    """What dev decides, written down before the test split is read."""
    packed = {name: unpack(tries, dev["samples"]) for name, tries in dev["systems"].items()}
    rates = {name: float(np.nanmean(found.rates_P)) for name, found in packed.items()}
    chosen = {}
    for what in ("alone", "self-cascade", "cascade"):
        try:
            chosen[what] = reported_system(what, list(packed), rates)
        except DataError:
            continue
    return chosen


def _run(
    workshop: Workshop,
    config: Config,
    systems: Sequence[System],
    problems: Sequence[Problem],
    samples: int,
    console: Console | None,
) -> dict[str, list[Attempt]]:
    def progress(name: str, number: int, of: int) -> None:
        if console is not None:
            say(console, f"  {number}/{of} {name}")

    return evaluate(
        systems,
        problems,
        samples,
        config.seeds.evaluation,
        Sampling(config.sampling.max_new_tokens, config.sampling.temperature),
        workshop.table,
        progress,
    )


def _snapshots(
    workshop: Workshop,
    folder: RunFolder,
    config: Config,
    problems: Sequence[Problem],
    wanted: int,
    console: Console,
) -> list[dict[str, Any]]:
    """Blind spots at the start, which the policies stand at, and at each kept checkpoint."""
    checkpoints = list_checkpoints(folder.checkpoints)
    kept = min(wanted, len(checkpoints))
    # Evenly spread, the last among them.
    places = np.linspace(len(checkpoints), 0, kept, endpoint=False).round().astype(int)[::-1] - 1
    found = []
    if kept:
        say(console, "  blind spots before training")
        found.append({"step": 0} | blind_spots(workshop, config, problems))
    for path in (checkpoints[place] for place in places):
        step = int(path.name.removeprefix("step-"))
        say(console, f"  blind spots after {step} steps")
        for name in workshop.policies.names:
            workshop.policies.load(name, path / "adapters" / name, f"checkpoint {path.name}")
        found.append({"step": step} | blind_spots(workshop, config, problems))
    return found


def blind_spots(workshop: Workshop, config: Config, problems: Sequence[Problem]) -> dict[str, Any]:
    """Error overlap, conversions and distances of the policies as they stand.

    Every pair of policies is compared, the base among them, and each trained policy with itself on
    another sample. Divergences are measured on the drafts of both policies of a pair.
    """
    names = [BASE, *workshop.policies.names]
    systems = [System((name,)) for name in names]
    trained = workshop.policies.names
    systems += [System((x, y)) for x in trained for y in trained]
    results = _run(workshop, config, systems, problems, SNAPSHOT_SAMPLES, None)
    right = {
        name: unpack(pack(tries, SNAPSHOT_SAMPLES), SNAPSHOT_SAMPLES)
        for name, tries in results.items()
    }
    pairs = [(x, y) for i, x in enumerate(names) for y in names[i:]]
    return {
        "pass": {name: float(np.nanmean(r.rates_P)) for name, r in right.items()},
        "overlap": {f"{x}|{y}": _overlap(right[x], right[y]) for x, y in pairs},
        "changes": {
            name: changes(r.drafts_PK, r.outcomes_PK)
            for name, r in right.items()
            if r.drafts_PK is not None
        },
        "kl": _divergences(workshop, config, names, problems),
        "weights": workshop.policies.weight_changes(),
    }


def _overlap(first: SystemResult, second: SystemResult) -> dict[str, float | None]:
    """For the file, in which an undefined figure is null."""
    found = overlap(first.outcomes_PK, second.outcomes_PK)
    return {key: None if np.isnan(value) else value for key, value in asdict(found).items()}


def changes(drafts_PK: np.ndarray, outcomes_PK: np.ndarray) -> dict[str, float]:
    """Shares of attempts with a wrong draft answered right, and a right draft answered wrong."""
    scored = ~(np.isnan(drafts_PK) | np.isnan(outcomes_PK))
    before, after = drafts_PK[scored], outcomes_PK[scored]
    return {
        "converted": float(((before == 0) & (after == 1)).mean()),
        "lost": float(((before == 1) & (after == 0)).mean()),
    }


def _divergences(
    workshop: Workshop, config: Config, names: Sequence[str], problems: Sequence[Problem]
) -> dict[str, float]:
    """KL in both directions for each pair of policies, on drafts of both."""
    table = workshop.table
    sampling = Sampling(config.sampling.max_new_tokens, config.sampling.temperature)
    prompts = [table.prompter.plain(problem) for problem in problems[:KL_REPLIES]]
    drafts: dict[str, list[Reply]] = {}
    for name in names:
        keys = [f"kl/{config.seeds.evaluation}/{p.id}" for p in problems[:KL_REPLIES]]
        written = table.engine.generate(prompts, name, sampling, keys)
        drafts[name] = [
            (prompt.token_ids, completion.token_ids)
            for prompt, completion in zip(prompts, written, strict=True)
        ]
    return {
        f"{x}||{y}": mean_token_kl(workshop.policies, x, y, drafts[x] + drafts[y])
        for x in names
        for y in names
        if x != y
    }


def rollouts(config: Config, steps: int) -> int:
    """Rollouts of all roles that training took."""
    stages = 2 if config.game.second_stage else 1
    return steps * config.training.problems_per_step * config.sampling.group_size * stages


def count_reading(path: Path) -> int:
    """Note one more reading of the test split, before it happens; returns how many there were."""
    count = 1 + (int(path.read_text()) if path.is_file() else 0)
    write_atomically(path, f"{count}\n")
    return count


def curves(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Training metrics by column, numbers to a few digits; None where a step has no such figure."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {name: [_short(row.get(name)) for row in rows] for name in names}


def _short(value: Any) -> Any:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def kept_rounds(folder: RunFolder, config: Config, count: int) -> list[dict[str, Any]]:
    """One problem's round of each of so many steps, evenly spread, the last step among them."""
    path = folder.rounds(config.logging)
    if not count or not path.is_file():
        return []
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    steps = sorted({row["step"] for row in rows})
    places = np.linspace(0, len(steps) - 1, min(count, len(steps))).round().astype(int)
    chosen = {steps[place] for place in places}
    first: dict[int, str] = {}
    for row in rows:
        first.setdefault(row["step"], row["problem"])
    return [row for row in rows if row["step"] in chosen and row["problem"] == first[row["step"]]]
