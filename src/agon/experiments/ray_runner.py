"""Runs the cells of an experiment as Ray tasks, on whatever machines a Ray cluster has.

Each cell is one task in a worker process of its own, with the cores and GPUs that it is given. What
a cell needs travels by value, the experiment and its recipe, and its result file comes back by
value, so machines need Agon and the recipe's model and data but no shared file system. Where the
run folders lie on one, a cell that is begun again continues from its last checkpoint; else it does
so on the same machine and begins anew on another.

A worker that is lost (killed, out of memory, its machine gone) has its cell begun again, so many
times. An error of the cell's own is not: it would come again.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from agon.display import caution, say
from agon.errors import AgonError, ConfigError
from agon.experiments.results import result_path
from agon.experiments.runner import BUSY, INTERRUPTED, Plan, log_path, say_done
from agon.experiments.spec import Cell, Experiment
from agon.recipes import find_recipe
from agon.runs import write_atomically

LOCAL = "local"
"""Address that starts Ray on this machine, for this command alone."""

POLL_SECONDS = 1.0
_LOG_BYTES = 2**16


@dataclass(frozen=True, slots=True)
class Resources:
    """What each cell takes.

    Attributes:
        cpus: Cores; also its threads.
        gpus: GPUs; a fraction shares one.
        retries: How often a lost worker's cell is begun again.
    """

    cpus: int = 1
    gpus: float = 0.0
    retries: int = 3


@dataclass(frozen=True, slots=True)
class Order:
    """A cell as it travels to a worker.

    Attributes:
        experiment: The experiment as JSON.
        recipe: Its recipe's text.
        cell: Which.
        runs: Folder of the run folders, on the worker's machine.
        folder: Where the driver was called; relative paths in recipes are meant from there.
    """

    experiment: str
    recipe: str
    cell: Cell
    runs: str
    folder: str


@dataclass(frozen=True, slots=True)
class Done:
    """What a worker sends back.

    Attributes:
        status: Exit status, as of `agon experiment cell`.
        result: The result file's text, where there is one.
        log: The end of what the cell has printed.
        seconds: What this attempt took.
    """

    status: int
    result: str | None
    log: str
    seconds: float


class Board:
    """What workers have begun; an actor, so that the driver sees them while they work."""

    def __init__(self) -> None:
        """Start empty."""
        self._news: list[tuple[str, str, int]] = []

    def begins(self, cell: str, host: str, process: int) -> None:
        """A worker has begun a cell."""
        self._news.append((cell, host, process))

    def take(self) -> list[tuple[str, str, int]]:
        """What has begun since the last call: (cell, host, process)."""
        news, self._news = self._news, []
        return news


def work(order: Order, board: Any) -> Done:
    """Do one cell in this process; runs on a worker."""
    from agon.process import prepare

    prepare()  # before torch is imported
    started = time.monotonic()
    board.begins.remote(order.cell.name, socket.gethostname(), os.getpid())
    if Path(order.folder).is_dir():
        os.chdir(order.folder)
    runs = Path(order.runs)
    runs.mkdir(parents=True, exist_ok=True)
    log = log_path(runs, order.cell)
    with log.open("a", encoding="utf-8") as lines:
        console = Console(file=lines, width=100)
        try:
            status, result = _work(order, runs, console)
        except AgonError as error:
            caution(console, str(error))
            status, result = 1, None
    with log.open("rb") as printed:
        printed.seek(max(0, log.stat().st_size - _LOG_BYTES))
        tail = printed.read().decode(errors="replace")
    return Done(status, result, tail, time.monotonic() - started)


def _work(order: Order, runs: Path, console: Console) -> tuple[int, str | None]:
    from agon.experiments.cell import run_cell
    from agon.experiments.runner import locked

    recipe = runs / f"{order.cell.name}.recipe.toml"
    target = runs / f"{order.cell.name}.result.json"
    write_atomically(recipe, order.recipe)
    experiment = Experiment.model_validate_json(order.experiment)
    experiment = experiment.model_copy(update={"recipe": str(recipe)})
    with locked(runs / order.cell.name) as ours:
        if not ours:
            return BUSY, None
        status = 0
        if not target.is_file():
            status = run_cell(experiment, order.cell, runs, target, console)
    return status, target.read_text(encoding="utf-8") if target.is_file() else None


def run_on_ray(
    experiment: Experiment,
    todo: Sequence[Cell],
    results: Path,
    runs: Path,
    address: str,
    resources: Resources,
    console: Console,
) -> int:
    """Run cells on a Ray cluster until none is left.

    Args:
        experiment: The matrix.
        todo: Its cells; finished ones are skipped.
        results: Folder of the result files, on this machine.
        runs: Folder of the run folders, on each worker's machine.
        address: `local`, `auto` for the cluster that this machine belongs to, or HOST:PORT.
        resources: What each cell takes.
        console: Where to write.

    Returns:
        0 when every cell has its file, 1 when one failed, 130 after Ctrl-C.

    Raises:
        ConfigError: Ray is not installed, or there is no cluster at the address, or none of its
            machines has what a cell takes.
    """
    waiting = [cell for cell in todo if not result_path(results, cell).is_file()]
    say(console, f"{len(todo) - len(waiting)} of {len(todo)} cells are done already")
    if not waiting:
        return 0
    ray = connect(address, resources)
    try:
        _check_machines(ray, resources)
        return _Driver(ray, experiment, results, runs, resources, console).run(waiting)
    finally:
        ray.shutdown()


def connect(address: str, resources: Resources) -> Any:
    """Ray, joined to a cluster.

    Raises:
        ConfigError: It is not installed, or there is no cluster.
    """
    try:
        import ray
    except ImportError as error:
        raise ConfigError("--ray: Ray is not installed: pip install 'agon-rl[ray]'") from error
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    # Workers take this process's packages as they are.
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    variables = {"PYTHONPATH": os.pathsep.join(paths)} if paths else {}
    options["runtime_env"] = {"env_vars": variables}
    try:
        if address == LOCAL:
            ray.init(include_dashboard=False, **options)
        else:
            ray.init(address=address, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        first = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"--ray {address}: there is no cluster to join ({first}). Start one with `ray start "
            "--head`, or give local, auto or HOST:PORT"
        ) from error
    return ray


def _check_machines(ray: Any, resources: Resources) -> None:
    """Refuse what Ray would wait for in vain."""
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    able = any(
        node.get("CPU", 0) >= resources.cpus and node.get("GPU", 0) >= resources.gpus
        for node in machines
    )
    if not able:
        most = [(node.get("CPU", 0), node.get("GPU", 0)) for node in machines]
        raise ConfigError(
            f"--cpus {resources.cpus}, --gpus {resources.gpus:g}: no machine of the cluster has "
            f"them; they have (cores, GPUs): {most}"
        )


class _Driver:
    """Submits cells and takes in what they send back."""

    def __init__(
        self,
        ray: Any,
        experiment: Experiment,
        results: Path,
        runs: Path,
        resources: Resources,
        console: Console,
    ) -> None:
        self.ray, self.experiment, self.console = ray, experiment, console
        self.results, self.runs, self.resources = results, runs, resources
        self.attempts: dict[str, int] = {}
        self.began: dict[str, float] = {}

    def run(self, waiting: list[Cell]) -> int:
        """Submit all cells at once: the cluster decides which run when."""
        self.results.mkdir(parents=True, exist_ok=True)
        self.runs.mkdir(parents=True, exist_ok=True)
        plan = Plan(waiting, 1)
        board = self.ray.remote(num_cpus=0)(Board).remote()
        # A process for each cell: it sets up its own threads and gives a GPU's memory back.
        task = self.ray.remote(
            num_cpus=self.resources.cpus,
            num_gpus=self.resources.gpus,
            max_retries=self.resources.retries,
            retry_exceptions=False,
            max_calls=1,
        )(work)
        running = {task.remote(self._order(cell), board): cell for cell in waiting}
        failed = []
        try:
            while running:
                ready, _ = self.ray.wait(list(running), timeout=POLL_SECONDS)
                self._show(board, plan)
                for reference in ready:
                    cell = running.pop(reference)
                    plan.waiting = [c for c in plan.waiting if c != cell]
                    if not self._take(reference, cell, plan, running):
                        failed.append(cell)
        except KeyboardInterrupt:
            for reference in running:
                self.ray.cancel(reference)
            say(self.console, "\ninterrupted; the same command continues")
            return INTERRUPTED
        return 1 if failed else 0

    def _order(self, cell: Cell) -> Order:
        return Order(
            experiment=self.experiment.model_dump_json(),
            recipe=find_recipe(self.experiment.recipe).read_text(encoding="utf-8"),
            cell=cell,
            runs=str(self.runs.absolute()),
            folder=str(Path.cwd()),
        )

    def _show(self, board: Any, plan: Plan) -> None:
        """Say which cells have begun, and which of them again."""
        for name, host, process in self.ray.get(board.take.remote()):
            self.attempts[name] = self.attempts.get(name, 0) + 1
            self.began[name] = time.monotonic()
            plan.waiting = [cell for cell in plan.waiting if cell.name != name]
            plan.jobs = max(plan.jobs, len(self.began))
            where = f"{name} on {host}, process {process}"
            again = f" (attempt {self.attempts[name]}: its worker was lost)"
            first = self.attempts[name] == 1
            say(self.console, f"begins: {where}" if first else f"begins again: {where}{again}")

    def _take(self, reference: Any, cell: Cell, plan: Plan, running: dict[Any, Cell]) -> bool:
        """Write a cell's result file; whether there is one."""
        self.began.pop(cell.name, None)
        try:
            done: Done = self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            first = str(error).strip().splitlines()[0]
            caution(self.console, f"{cell.name} failed: {type(error).__name__}: {first}")
            return False
        log = log_path(self.runs, cell)
        if not log.is_file():  # the worker's folders are not ours
            write_atomically(log, done.log)
        if done.result is not None:
            write_atomically(result_path(self.results, cell), done.result)
            plan.seconds.append(done.seconds)
            now = time.monotonic()
            say_done(cell, plan, [now - since for since in self.began.values()], self.console)
            return True
        if done.status == BUSY:
            say(self.console, f"{cell.name}: another process is working on it")
            return True
        caution(self.console, f"{cell.name} failed: see {log}")
        return False
