"""`agon report`: one page and its figures from result files."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from rich.console import Console

from agon.display import caution, say
from agon.errors import ConfigError
from agon.experiments.matrix import Matrix, read_matrix
from agon.experiments.spec import Experiment, load_experiment

PAGE = "index.html"
TABLES = "tables.md"


def report(
    folders: Sequence[Path], experiment_file: Path | None, out: Path, console: Console
) -> None:
    """Read the result files, write the page, the figures and the tables.

    Raises:
        AgonError: A library is missing, or the files cannot be used.
    """
    _check_libraries()
    file = experiment_file or experiment_beside(folders)
    experiment: Experiment | None = load_experiment(file) if file is not None else None
    matrix = read_matrix(folders, experiment)
    if file is not None and experiment_file is None:
        say(console, f"the experiment's file is {file}")
    _say_what_is_there(matrix, console)
    _write(matrix, out, console)


def experiment_beside(folders: Sequence[Path]) -> Path | None:
    """The experiment's file where `agon experiment run` looks for results beside it."""
    for folder in folders:
        path = folder.absolute()
        file = path.parent.parent / f"{path.name}.toml"
        if path.parent.name == "results" and file.is_file():
            return file
    return None


def _check_libraries() -> None:
    for name in ("jinja2", "statsmodels", "matplotlib"):
        try:
            import_module(name)
        except ImportError as error:
            raise ConfigError(
                f"agon report needs {name}, which is not installed: pip install 'agon-rl[report]'"
            ) from error


def _say_what_is_there(matrix: Matrix, console: Console) -> None:
    say(console, f"{matrix.done} of {len(matrix.wanted)} cells are in")
    if matrix.experiment is None:
        caution(
            console,
            "no experiment file: nothing is tested and missing cells are guessed; "
            "name it with --experiment",
        )
    elif matrix.missing:
        some = ", ".join(cell.name for cell in matrix.missing[:6])
        more = f" and {len(matrix.missing) - 6} more" if len(matrix.missing) > 6 else ""
        caution(console, f"figures are preliminary, these cells are missing: {some}{more}")
    for path in matrix.left_out:
        caution(console, f"{path} is left out: the experiment does not name its cell")


def _write(matrix: Matrix, out: Path, console: Console) -> None:
    from agon.report.charts import write_files
    from agon.report.findings import find
    from agon.report.page import render, sections, write_page
    from agon.report.result_tables import arms_table
    from agon.report.rounds import read_rounds
    from agon.report.tables import markdown

    try:
        (out / "figures").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be made: {error.strerror}") from error
    found = find(matrix)
    made = sections(found)
    page = write_page(render(found, made, read_rounds(matrix)), out / PAGE)
    say(console, f"written: {page} ({page.stat().st_size / 1e6:.1f} MB; opens without a server)")
    charts = [chart for section in made for chart in section.charts]
    for chart in charts:
        write_files(chart, out / "figures")
    say(console, f"written: {out / 'figures'}, {len(charts)} figures as PNG and SVG")
    tables = [arms_table(found), *(table for section in made for table in section.tables)]
    (out / TABLES).write_text("\n\n".join(map(markdown, tables)) + "\n", encoding="utf-8")
    say(console, f"written: {out / TABLES}, {len(tables)} tables")
