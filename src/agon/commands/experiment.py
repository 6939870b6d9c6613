"""`agon experiment run|cell|show`: a matrix of arms and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from agon.display import say
from agon.errors import ConfigError, DataError
from agon.experiments.ray_runner import Resources, run_on_ray
from agon.experiments.results import result_path
from agon.experiments.spec import (
    Cell,
    Experiment,
    cells,
    choose_arms,
    load_experiment,
    parse_slice,
)


def run(
    path: Path,
    results: Path | None,
    runs: Path | None,
    jobs: int | None,
    part: str,
    arms: Sequence[str],
    seeds: Sequence[int],
    dry_run: bool,
    console: Console,
    ray: str | None = None,
    resources: Resources | None = None,
) -> int:
    """Run the cells that have no result file yet, or show them.

    With `ray`, an address, cells are tasks of a Ray cluster, each with `resources`; else they are
    processes on this machine.

    Returns:
        The process's exit status.

    Raises:
        AgonError: Anything that the user can mend.
    """
    from agon.experiments.runner import default_jobs, run_experiment

    experiment = load_experiment(path)
    if jobs is not None and jobs < 1:
        raise ConfigError("--jobs must be at least 1")
    for seed in seeds:
        if seed not in experiment.seeds:
            known = ", ".join(map(str, experiment.seeds))
            raise ConfigError(f"--seed: got {seed}, expected one of {known}")
    chosen = choose_arms(experiment, arms)
    todo = [cell for cell in cells(chosen, parse_slice(part)) if not seeds or cell.seed in seeds]
    folders = (results or results_folder(path, experiment), runs or runs_folder(experiment))
    if dry_run:
        show(experiment, todo, folders[0], console)
        return 0
    if ray is not None:
        if jobs is not None:
            raise ConfigError("--jobs: with --ray the cluster decides; set --cpus and --gpus")
        return run_on_ray(chosen, todo, *folders, ray, resources or Resources(), console)
    return run_experiment(path, todo, *folders, jobs or default_jobs(), console)


def run_one(
    path: Path, arm: str, seed: int, results: Path | None, runs: Path | None, console: Console
) -> int:
    """Do one cell in this process.

    Returns:
        The process's exit status; 75 where another process works on it.

    Raises:
        AgonError: Anything that the user can mend.
    """
    from agon.experiments.cell import run_cell
    from agon.experiments.runner import BUSY, locked

    experiment = load_experiment(path)
    if arm not in experiment.arms:
        raise ConfigError(f"ARM: got {arm!r}, expected one of {', '.join(experiment.arms)}")
    cell = Cell(arm, seed)
    target = result_path(results or results_folder(path, experiment), cell)
    if target.is_file():
        say(console, f"{target} is there already")
        return 0
    folder = runs or runs_folder(experiment)
    with locked(folder / cell.name) as ours:
        if not ours:
            say(console, f"{folder / cell.name}: another process is working on it")
            return BUSY
        return run_cell(experiment, cell, folder, target, console)


def table(path: Path, results: Path | None, console: Console) -> None:
    """Print every arm's figures and the primary contrasts from the result files.

    Raises:
        AgonError: The files cannot be used.
    """
    from agon.experiments.results import read_results
    from agon.experiments.summary import arm_row, by_arm, contrast_rows

    experiment = load_experiment(path)
    folder = results or results_folder(path, experiment)
    found = by_arm(read_results(folder))
    if not found:
        raise DataError(f"{folder} has no result file yet: run `agon experiment run {path}`")
    shown = Table(title=f"{experiment.name}: test split", title_justify="left")
    for column in ("arm", "system", "passes", "pass@1 [95 %]", "seeds"):
        shown.add_column(column)
    for column in ("written", "last", "read", "rollouts", "converted", "lost"):
        shown.add_column(column, justify="right")
    for name in experiment.arms:
        if name not in found:
            continue
        row = arm_row(name, found[name])
        interval = f"{100 * row.mean:.1f} [{100 * row.low:.1f}, {100 * row.high:.1f}]"
        shown.add_row(
            *(name, row.reported, str(row.passes), interval),
            " ".join(f"{100 * value:.1f}" for value in row.by_seed),
            *(f"{row.generated:.0f}", f"{row.last:.0f}", f"{row.read:.0f}", f"{row.rollouts:,}"),
            *("" if x is None else f"{100 * x:.1f}" for x in (row.converted, row.lost)),
        )
        if row.stopped:
            seeds = ", ".join(map(str, row.stopped))
            say(console, f"{name}: training ended early under seed {seeds}")
    console.print(shown)
    for contrast in contrast_rows(experiment, found):
        gap = contrast.difference
        p = "no test, one seed" if contrast.p_holm is None else f"p = {contrast.p_holm:.3f} (Holm)"
        say(
            console,
            f"{contrast.spec.name}: {100 * gap.mean:+.1f} points "
            f"[{100 * gap.low:+.1f}, {100 * gap.high:+.1f}], {p}, {len(contrast.seeds)} seeds",
        )
    done = sum(len(runs) for runs in found.values())
    total = len(cells(experiment))
    if done < total:
        say(console, f"{done} of {total} cells are there: the matrix is not complete")


def results_folder(path: Path, experiment: Experiment) -> Path:
    """Where result files lie unless told otherwise: beside the experiment's file."""
    return path.parent / "results" / experiment.name


def runs_folder(experiment: Experiment) -> Path:
    """Where run folders lie unless told otherwise."""
    return Path("runs") / "experiments" / experiment.name


def show(experiment: Experiment, todo: Sequence[Cell], results: Path, console: Console) -> None:
    """Print the arms and which cells are done."""
    table = Table(title=f"{experiment.name}: arms and seeds", title_justify="left")
    table.add_column("arm")
    table.add_column("what it is", overflow="fold")
    table.add_column("reported")
    for seed in experiment.seeds:
        table.add_column(str(seed), justify="center")
    wanted = set(todo)
    for name, arm in experiment.arms.items():
        states = []
        for seed in experiment.seeds:
            cell = Cell(name, seed)
            done = result_path(results, cell).is_file()
            states.append("done" if done else "to do" if cell in wanted else "")
        table.add_row(name, arm.about, arm.reported, *states)
    console.print(table)
    for contrast in experiment.primary:
        left, right = contrast.left, contrast.right
        say(
            console,
            f"primary: {contrast.name} ({left.arm} {left.reported} - {right.arm} {right.reported})",
        )
