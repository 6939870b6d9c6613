"""The command line. Heavy libraries are imported by the command that needs them, not here."""

from __future__ import annotations

import os
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


@app.callback()
def only_train_in_several(context: typer.Context) -> None:
    """Refuse commands that several processes would do several times."""
    from agon.distributed import launched
    from agon.errors import ConfigError

    if launched() > 1 and context.invoked_subcommand != "train":
        raise ConfigError(
            f"agon {context.invoked_subcommand} runs in one process, but WORLD_SIZE = "
            f"{launched()}: only `agon train` is for `accelerate launch` and torchrun"
        )


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
def serve(
    run: Annotated[Path | None, typer.Argument(help="A run folder.")] = None,
    base: Annotated[
        str | None, typer.Option(help="Base model of adapters that are given as folders.")
    ] = None,
    adapter_a: Annotated[Path | None, typer.Option(help="PEFT folder instead of a run.")] = None,
    adapter_b: Annotated[Path | None, typer.Option(help="PEFT folder instead of a run.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 8000,
    api_key: Annotated[
        str | None, typer.Option(help="Key that clients must give; also AGON_API_KEY.")
    ] = None,
    allow_anyone: Annotated[
        bool, typer.Option("--allow-anyone", help="Serve other machines without a key.")
    ] = False,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A name that the server may be called by; repeatable.")
    ] = None,
    upstream: Annotated[
        str | None, typer.Option(help="Another OpenAI-compatible server that writes the stages.")
    ] = None,
    upstream_a: Annotated[str | None, typer.Option(help="Its model name of a.")] = None,
    upstream_b: Annotated[str | None, typer.Option(help="Its model name of b.")] = None,
    upstream_base: Annotated[str | None, typer.Option(help="Its model name of the base.")] = None,
    upstream_key: Annotated[
        str | None, typer.Option(envvar="AGON_UPSTREAM_KEY", help="Its API key.")
    ] = None,
    cut_drafts: Annotated[
        bool, typer.Option("--cut-drafts", help="End a cascade's draft at its summary.")
    ] = False,
    early_exit: Annotated[
        bool,
        typer.Option("--early-exit", help="Skip the challenge where both policies' drafts agree."),
    ] = False,
    max_tokens: Annotated[
        int | None, typer.Option(help="Default completion limit of a stage; else the run's.")
    ] = None,
    slots: Annotated[
        int | None, typer.Option(help="Rows that decode at once; else the run's.")
    ] = None,
    max_requests: Annotated[
        int, typer.Option(help="Completions in work or waiting; more get 429.")
    ] = 256,
    rate: Annotated[
        float | None, typer.Option(help="Requests of one client in a minute; more get 429.")
    ] = None,
    body_kib: Annotated[int, typer.Option(help="Largest request body, KiB.")] = 1024,
    timeout: Annotated[float, typer.Option(help="Longest time of one request, seconds.")] = 600.0,
    drain: Annotated[int, typer.Option(help="Seconds for streams to finish at the end.")] = 120,
    prefix_tokens: Annotated[
        int, typer.Option(help="Prompt tokens kept for each policy, for prompts that begin alike.")
    ] = 16_384,
) -> None:
    """Serve a run's pair through an OpenAI-compatible API, with a page at /."""
    from agon.commands.serve import ServeOptions
    from agon.commands.serve import serve as command

    options = ServeOptions(
        run=run,
        base=base,
        adapter_a=adapter_a,
        adapter_b=adapter_b,
        host=host,
        port=port,
        api_key=api_key,
        allow_anyone=allow_anyone,
        allow_hosts=tuple(allow_host or ()),
        upstream=upstream,
        upstream_names=(upstream_a, upstream_b, upstream_base),
        upstream_key=upstream_key,
        cut_drafts=cut_drafts,
        early_exit=early_exit,
        max_tokens=max_tokens,
        slots=slots,
        max_requests=max_requests,
        rate=rate,
        body_kib=body_kib,
        timeout=timeout,
        drain=drain,
        prefix_tokens=prefix_tokens,
    )
    raise typer.Exit(command(options, _console()))


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    out: Annotated[Path, typer.Option(help="Folder to write; it must not exist.")],
    merge: Annotated[
        bool, typer.Option("--merge", help="Also one merged checkpoint for each adapter.")
    ] = False,
) -> None:
    """Write a run's adapters as others load them: PEFT folders, cards, a launch line."""
    from agon.commands.export import export as command

    command(run, out, merge, _console())


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
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Cells as Ray tasks: local, auto (this cluster), HOST:PORT."
        ),
    ] = None,
    cpus: Annotated[int, typer.Option(min=1, help="Cores of a cell (with --ray).")] = 1,
    gpus: Annotated[float, typer.Option(min=0, help="GPUs of a cell (with --ray).")] = 0.0,
    retries: Annotated[
        int, typer.Option(min=0, help="How often a lost worker's cell begins again (with --ray).")
    ] = 3,
) -> None:
    """Run every cell that has no result file yet; the same command continues."""
    from agon.commands.experiment import run as command
    from agon.experiments.ray_runner import Resources

    options = (results, runs, jobs, part, arm or [], seed or [], dry_run, _console(), ray)
    raise typer.Exit(command(file, *options, Resources(cpus, gpus, retries)))


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


@app.command()
def report(
    results: Annotated[list[Path], typer.Argument(help="Folders of result files.")],
    experiment: Annotated[
        Path | None,
        typer.Option(help="The experiment's file; by default the one beside the results."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder to write into.")] = Path("report"),
) -> None:
    """Make one page, figures and tables from result files."""
    from agon.commands.report import report as command

    command(results, experiment, out, _console())


def _console() -> Console:
    from rich.console import Console

    return Console()


def main() -> None:
    """Entry point: errors that a user can mend are printed as one sentence, status 2."""
    from agon.distributed import is_first
    from agon.errors import AgonError, NothingToLearn

    try:
        app(standalone_mode=True)
    except NothingToLearn as error:
        if is_first():
            print(f"agon: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(1)
    except AgonError as error:
        rank = "" if is_first() else f"rank {os.environ['RANK']}: "
        print(f"agon: {rank}{error}", file=sys.stderr)  # noqa: T201
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
