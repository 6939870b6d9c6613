"""The command line. Heavy libraries are imported by the command that needs them, not here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agon.process import prepare

if TYPE_CHECKING:
    from rich.console import Console

prepare()

app = typer.Typer(
    help="Train two reasoning policies against each other over one frozen model.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.FIELD=VALUE", help="Override a setting; repeatable."),
]


@app.command()
def train(
    recipe: Annotated[
        str | None, typer.Argument(help="A TOML recipe, or the name of one that comes with Agon.")
    ] = None,
    overrides: Overrides = None,
    run_dir: Annotated[Path | None, typer.Option(help="Folder of the run to write.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue this run.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the resolved configuration and the plan.")
    ] = False,
) -> None:
    """Train a pair, or any other arm, from a recipe."""
    from agon.commands.train import train as command

    raise typer.Exit(command(recipe, overrides or [], run_dir, resume, dry_run, _console()))


@app.command()
def plan(
    recipe: Annotated[
        str, typer.Argument(help="A TOML recipe, or the name of one that comes with Agon.")
    ],
    overrides: Overrides = None,
    card: Annotated[
        list[str] | None,
        typer.Option(help="A card, such as h100, or cpu; repeatable. All known cards by default."),
    ] = None,
    cards: Annotated[int, typer.Option(help="How many of them share a step's problems.")] = 1,
    prompt_tokens: Annotated[
        int | None, typer.Option(help="Longest plain prompt, where it cannot be read here.")
    ] = None,
    reply_tokens: Annotated[
        int | None, typer.Option(help="Mean length of replies; a third of their limit by default.")
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="torch or vllm; by default the first that can sample it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Figures for machines.")] = False,
) -> None:
    """Say what a recipe takes before it is started: memory, tokens, hours, and what limits it.

    Exit status: 0 where it fits one of the cards, 1 where it fits none.
    """
    from agon.commands.plan import plan as command

    options = (prompt_tokens, reply_tokens, engine, as_json, _console())
    raise typer.Exit(command(recipe, overrides or [], card or [], cards, *options))


@app.command("eval")
def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    split: Annotated[str, typer.Option(help="dev, or test by name.")] = "dev",
    problems: Annotated[int | None, typer.Option(help="At most so many problems.")] = None,
    samples: Annotated[int, typer.Option(help="Attempts for each problem.")] = 1,
    task: Annotated[
        str | None, typer.Option(help="Another task than the run's, such as math500.")
    ] = None,
    path: Annotated[
        str | None, typer.Option(help="Local file or folder of that task's data.")
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Evaluate a run: base, adapters alone, cascades, self-cascades."""
    from agon.commands.evaluate import evaluate_run

    evaluate_run(run, split, problems, samples, task, path, overrides or [], _console())


@app.command()
def solve(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    problem: Annotated[str, typer.Argument(help="The problem's text.")],
    order: Annotated[
        str | None, typer.Option(help="Who drafts and who answers, such as 'b->a'.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
) -> None:
    """Solve one problem with the trained cascade, streaming draft, summary and challenge."""
    from agon.commands.solve import solve as command

    command(run, problem, order, seed, temperature, _console())


@app.command()
def verify(
    file: Annotated[
        str | None,
        typer.Argument(help="JSON Lines with gold and pred, or - for standard input."),
    ] = None,
    gold: Annotated[str | None, typer.Option(help="A gold answer.")] = None,
    pred: Annotated[str | None, typer.Option(help="The answer to judge against it.")] = None,
    kind: Annotated[
        str,
        typer.Option(help="What pred is: answer, reply (in training's form) or completion."),
    ] = "answer",
    verifier: Annotated[
        str, typer.Option(help="Who judges: math, text, ..., or package.module:function.")
    ] = "math",
    thinking_open: Annotated[
        bool, typer.Option("--thinking-open", help="Replies begin inside their thinking.")
    ] = False,
    seconds: Annotated[float | None, typer.Option(help="Longest time of one check.")] = None,
    memory_mib: Annotated[int | None, typer.Option(help="Memory of a worker, MiB.")] = None,
    workers: Annotated[int | None, typer.Option(help="Worker processes.")] = None,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Write a file's verdicts here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Output for machines.")] = False,
) -> None:
    """Explain a verdict, or judge a file of answers.

    Exit status: 0 right, 1 wrong, 2 unscored or unusable. For a file: 0, or 1 where a verdict
    is not the expected one (a row's `equal`) or could not be reached.
    """
    from agon.commands.verify import verify as command

    limits = {"seconds": seconds, "memory_mib": memory_mib, "workers": workers}
    changes = [f"verifier.{name}={value}" for name, value in limits.items() if value is not None]
    changes += overrides or []
    options = (kind, verifier, thinking_open, changes, out, as_json, _console())
    raise typer.Exit(command(file, gold, pred, *options))


@app.command()
def audit(
    task: Annotated[
        str, typer.Argument(help="A task, such as gsm8k, or a JSON Lines file of your own.")
    ],
    path: Annotated[
        str | None, typer.Option(help="Local file or folder of the task's data.")
    ] = None,
    answer_field: Annotated[
        str | None, typer.Option(help="Column of the answer in a file of your own.")
    ] = None,
    question_field: Annotated[
        str | None, typer.Option(help="Column of the question in a file of your own.")
    ] = None,
    verifier: Annotated[
        str | None, typer.Option(help="Who judges the answers of a file of your own.")
    ] = None,
    overrides: Overrides = None,
    show: Annotated[int, typer.Option(help="Most unusable answers that are shown.")] = 20,
    out: Annotated[Path | None, typer.Option(help="Write all unusable answers here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Counts for machines.")] = False,
) -> None:
    """Judge every gold answer of a data set against itself, before training.

    Exit status: 0 where all verify, 1 where one does not, 2 where the data cannot be used.
    """
    from agon.commands.audit import audit as command

    fields = {"answer_field": answer_field, "question_field": question_field}
    changes = {"path": path, "verifier": verifier} | fields
    raise typer.Exit(command(task, changes, overrides or [], out, show, as_json, _console()))


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder of the demo's runs.")] = Path("runs/demo"),
    overrides: Overrides = None,
) -> None:
    """Train GRPO and Agon side by side on the embedded model and compare them (five minutes)."""
    from agon.commands.demo import demo as command

    raise typer.Exit(command(out, overrides or [], _console()))


experiment = typer.Typer(help="Arms x seeds: run a whole comparison.", no_args_is_help=True)
app.add_typer(experiment, name="experiment")

SpecFile = Annotated[Path, typer.Argument(help="An experiment's TOML file.")]
ResultsFolder = Annotated[
    Path | None, typer.Option(help="Result files; by default beside the experiment's file.")
]
RunsFolder = Annotated[Path | None, typer.Option(help="Run folders and logs.")]


@experiment.command("run")
def experiment_run(
    file: SpecFile,
    results: ResultsFolder = None,
    runs: RunsFolder = None,
    jobs: Annotated[
        int | None, typer.Option(help="Cells that run at once; as many as cores.")
    ] = None,
    part: Annotated[
        str, typer.Option("--slice", metavar="I/N", help="This machine's share of the cells.")
    ] = "1/1",
    arm: Annotated[list[str] | None, typer.Option(help="Only this arm; repeatable.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Only this seed; repeatable.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what there is to do.")] = False,
) -> None:
    """Run every cell that has no result file yet; the same command continues."""
    from agon.commands.experiment import run as command

    options = (results, runs, jobs, part, arm or [], seed or [], dry_run, _console())
    raise typer.Exit(command(file, *options))


@experiment.command("table")
def experiment_table(file: SpecFile, results: ResultsFolder = None) -> None:
    """Print every arm's figures and the primary contrasts, from result files alone."""
    from agon.commands.experiment import table

    table(file, results, _console())


@experiment.command("cell")
def experiment_cell(
    file: SpecFile,
    arm: Annotated[str, typer.Argument(help="The arm.")],
    seed: Annotated[int, typer.Argument(help="The seed.")],
    results: ResultsFolder = None,
    runs: RunsFolder = None,
) -> None:
    """Do one cell in this process: train, evaluate, write its result file."""
    from agon.commands.experiment import run_one

    raise typer.Exit(run_one(file, arm, seed, results, runs, _console()))


def _console() -> Console:
    from rich.console import Console

    return Console()


def main() -> None:
    """Entry point: errors that a user can mend are printed as one sentence, status 2."""
    from agon.errors import AgonError, NothingToLearn

    try:
        app(standalone_mode=True)
    except NothingToLearn as error:
        print(f"agon: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(1)
    except AgonError as error:
        print(f"agon: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    except Exception as error:
        # torch is not imported here just to name its class.
        if type(error).__name__ != "OutOfMemoryError":
            raise
        print(  # noqa: T201
            "agon: the GPU's memory is full: lower sampling.slots, training.microbatch_tokens or "
            f"sampling.max_new_tokens, or set training.gradient_checkpointing ({error})",
            file=sys.stderr,
        )
        sys.exit(2)
