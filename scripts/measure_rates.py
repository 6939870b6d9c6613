r"""Measure what an untrained base does on a task: is there anything for training to learn from?

    python scripts/measure_rates.py models/smollm2-135m-instruct-dequantised \
        --task gsm8k --problems 200 --group 8 --max-new-tokens 160 --out rates.json

The base drafts for training problems exactly as in a step of training: the same order of
problems, prompts, engine, parser, judge and reward. Rates stand beside the shares of groups that
carry no signal. FILE.json is rewritten after every chunk of problems, and FILE.jsonl gets one
line for each rollout, its text included; a second call with the same settings continues there.

Nothing is trained, and nothing here is evidence about training.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# A worker beside a sampling thread that spins makes both several times slower; torch reads this
# when it starts.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from rich.console import Console
from rich.table import Table as RichTable

from agon.config import Config
from agon.engines.base import BASE, Sampling
from agon.errors import AgonError, DataError
from agon.metrics import mean
from agon.preflight import (
    check_context,
    check_settings,
    read_language,
    read_task,
    training_problems,
)
from agon.recipes import build_config
from agon.records import Outcome, Problem
from agon.rewards import draft_reward
from agon.runs import write_atomically
from agon.tasks import check_golds, gold_notes
from agon.workshop import Workshop, open_workshop

Row = dict[str, Any]
"""One rollout as it stands in FILE.jsonl."""


@dataclass(frozen=True, slots=True)
class Measured:
    """All rollouts so far and what they took.

    Attributes:
        rows: Rollouts, those of one problem side by side.
        seconds: Sampling time alone, without the judge.
    """

    rows: list[Row]
    seconds: float


def figures(measured: Measured, group: int) -> dict[str, float | None]:
    """Rates in 0..1 over rollouts, shares of flat groups, mean lengths in tokens.

    A group is flat when fewer than two of its rollouts are scored or all of them are equal.
    """
    rows = measured.rows
    scored = [row for row in rows if row["outcome"] != Outcome.UNSCORED]
    groups = [rows[start : start + group] for start in range(0, len(rows), group)]
    tokens = sum(row["length"] for row in rows)
    return {
        "problems": len(groups),
        "rollouts": len(rows),
        "pass": mean(row["outcome"] == Outcome.RIGHT for row in scored),
        "pass_any_of_group": mean(
            any(row["outcome"] == Outcome.RIGHT for row in rows_N) for rows_N in groups
        ),
        "thinking_closed": mean(row["thinking_closed"] for row in rows),
        "summary": mean(row["summary"] is not None for row in rows),
        "answer": mean(row["answer"] is not None for row in rows),
        "whole_form": mean(row["thinking_closed"] and row["format"] == 1 for row in rows),
        "format_score": mean(row["format"] for row in rows),
        "truncated": mean(row["truncated"] for row in rows),
        "unscored": mean(row["outcome"] == Outcome.UNSCORED for row in rows),
        "length": mean(row["length"] for row in rows),
        "length_right": mean(r["length"] for r in scored if r["outcome"] == Outcome.RIGHT),
        "length_wrong": mean(r["length"] for r in scored if r["outcome"] == Outcome.WRONG),
        "reward": mean(row["reward"] for row in rows if row["reward"] is not None),
        "flat_correctness": mean(
            _flat([r["outcome"] for r in rows_N if r["outcome"] != Outcome.UNSCORED])
            for rows_N in groups
        ),
        "flat_reward": mean(
            _flat([r["reward"] for r in rows_N if r["reward"] is not None]) for rows_N in groups
        ),
        "tokens_per_second": tokens / measured.seconds if measured.seconds else None,
        "sampling_seconds": measured.seconds,
    }


def _flat(values: Sequence[Any]) -> bool:
    return len(values) < 2 or len(set(values)) < 2


def sample_chunk(
    problems: Sequence[Problem], config: Config, seed: int, workshop: Workshop
) -> tuple[list[Row], float]:
    """N drafts of the base for each problem, judged, and the seconds that sampling took."""
    table, size = workshop.table, config.sampling.group_size
    limit = config.sampling.max_new_tokens
    sources = [problem for problem in problems for _ in range(size)]
    plain = [table.prompter.plain(problem) for problem in problems]
    prompts = [prompt for prompt in plain for _ in range(size)]
    keys = [f"measure/{seed}/{problem.id}/{index % size}" for index, problem in enumerate(sources)]
    started = time.perf_counter()
    completions = table.engine.generate(
        prompts, BASE, Sampling(limit, config.sampling.temperature), keys
    )
    seconds = time.perf_counter() - started
    replies = [table.prompter.read(p, c) for p, c in zip(prompts, completions, strict=True)]
    verdicts = table.judge.judge([(p, r.answer) for p, r in zip(sources, replies, strict=True)])
    rows = []
    for index, (problem, reply, verdict) in enumerate(zip(sources, replies, verdicts, strict=True)):
        reward = draft_reward(reply, verdict, config.reward, limit)
        rows.append(
            {
                "problem": problem.id,
                "sample": index % size,
                "gold": problem.gold,
                "outcome": str(verdict.outcome),
                "reason": verdict.reason,
                "thinking_closed": reply.thinking is not None,
                "summary": reply.summary,
                "answer": reply.answer,
                "format": reply.format_score,
                "length": reply.length,
                "truncated": reply.completion.truncated,
                "reward": None if reward is None else reward.total,
                "text": reply.text,
            }
        )
    return rows, seconds


def read_rows(file: Path, settings: Row) -> Measured:
    """What an earlier call left: whole chunks with the same settings.

    Raises:
        DataError: The file was measured with other settings, or is not such a file.
    """
    if not file.is_file():
        return Measured([], 0.0)
    rows: list[Row] = []
    seconds, waiting = 0.0, list[Row]()
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            entry = json.loads(line)
        except ValueError:
            break  # the line that a kill cut short
        if number == 1 and entry != {"settings": settings}:
            raise DataError(
                f"--out: {file} was measured with other settings ({json.dumps(entry)[:300]}), now "
                f"they are {json.dumps(settings)}: give another --out, or remove both of its files"
            )
        if "chunk_seconds" in entry:
            seconds += entry["chunk_seconds"]
            rows += waiting
            waiting = []
        elif number > 1:
            waiting.append(entry)
    return Measured(rows, seconds)


def write_rows(file: Path, settings: Row, measured: Measured) -> None:
    """Write settings and whole chunks anew, without what a kill cut short."""
    entries = [{"settings": settings}, *measured.rows, {"chunk_seconds": measured.seconds}]
    write_atomically(file, "".join(json.dumps(entry) + "\n" for entry in entries))


def measure(
    config: Config, settings: Row, problems: int, chunk: int, out: Path | None, console: Console
) -> tuple[Measured, float]:
    """Sample chunk after chunk, and write after each.

    Returns:
        All rollouts, and the peak memory of this process and the device in MiB.
    """
    check_settings(config)
    rows_file = out.with_suffix(".jsonl") if out else None
    measured = read_rows(rows_file, settings) if rows_file else Measured([], 0.0)
    data = read_task(config)
    language = read_language(config)
    check_context(config, language, data, shows=False)
    workshop = open_workshop(config, language)
    try:
        kept, dropped = check_golds(training_problems(data, config), workshop.judge)
        for note in (*data.notes, *gold_notes(dropped)):
            console.print(note, highlight=False)
        chosen = kept[:problems]
        done = len(measured.rows) // config.sampling.group_size
        if rows_file:
            write_rows(rows_file, settings, measured)
        for start in range(done, len(chosen), chunk):
            part = chosen[start : start + chunk]
            rows, seconds = sample_chunk(part, config, settings["seed"], workshop)
            measured = Measured(measured.rows + rows, measured.seconds + seconds)
            if out and rows_file:
                with rows_file.open("a", encoding="utf-8") as sink:
                    for entry in (*rows, {"chunk_seconds": seconds}):
                        sink.write(json.dumps(entry) + "\n")
                write_report(out, settings, measured, peak_memory(workshop))
            now = figures(measured, config.sampling.group_size)
            console.print(
                f"{now['problems']} of {len(chosen)} problems: pass {now['pass']:.3f}, format "
                f"{now['format_score']:.3f}, {now['tokens_per_second']:.0f} tokens/s",
                highlight=False,
            )
        return measured, peak_memory(workshop)
    finally:
        workshop.close()


def peak_memory(workshop: Workshop) -> float:
    """Peak MiB: of the GPU where there is one, else of this process without its workers."""
    if workshop.device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(workshop.device) / 2**20
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def write_report(out: Path, settings: Row, measured: Measured, memory: float) -> Row:
    """Write FILE.json.

    Returns:
        Its content.
    """
    report = {
        "settings": settings,
        "figures": {**figures(measured, settings["group"]), "peak_memory_mib": memory},
    }
    write_atomically(out, json.dumps(report, indent=2) + "\n")
    return report


def show(report: Row, rows: Sequence[Row], samples: int, console: Console) -> None:
    """Print the JSON, a table, and some replies as they are."""
    table = RichTable(title="the untrained base, alone", title_justify="left")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in report["figures"].items():
        shown = "-" if value is None else f"{value:g}" if value == int(value) else f"{value:.4g}"
        table.add_row(name, shown)
    console.print(table)
    print(json.dumps(report, indent=2))
    stride = max(1, len(rows) // samples) if samples else 0
    for row in rows[: stride * samples : stride] if samples else ():
        print(f"\n--- {row['problem']}, sample {row['sample']}, gold {row['gold']}: ", end="")
        print(f"{row['outcome']} ({row['reason']}), format {row['format']}\n{row['text']}")


def configuration(arguments: argparse.Namespace) -> Config:
    """The arguments as a run's configuration: one policy without a second stage.

    Raises:
        ConfigError: A value that no run could have.
    """
    tables = {
        "model": {"name_or_path": arguments.model, "dtype": arguments.dtype},
        "game": {"policies": 1, "exchange": "none"},
        "reward": {"credit": "correctness"},
        "sampling": {
            "group_size": arguments.group,
            "max_new_tokens": arguments.max_new_tokens,
            "slots": arguments.slots,
        },
        "task": {"name": arguments.task, "path": arguments.path},
        "training": {"problems_per_step": 1, "threads": arguments.threads},
        "seeds": {"data": arguments.seed},
    }
    return build_config(tables, arguments.set, "the arguments")


def read_arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Measure pass rate, format and flat groups of an untrained base."
    )
    parser.add_argument("model", help="a model folder, a hub name, or 'embedded'")
    parser.add_argument("--task", default="gsm8k", help="countdown, gsm8k, math500 or deepmath")
    parser.add_argument("--path", help="local copy of the data set; without it, the hub")
    parser.add_argument("--problems", type=_positive, default=200, help="training problems")
    parser.add_argument("--group", type=int, default=8, help="N, rollouts of each problem")
    parser.add_argument("--max-new-tokens", type=int, default=160)
    parser.add_argument("--seed", type=int, default=0, help="order of problems, and sampling")
    parser.add_argument("--chunk", type=_positive, default=16, help="problems sampled at once")
    parser.add_argument("--slots", type=int, default=64, help="rows that decode at once")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, help="CPU threads; without it torch's own choice")
    parser.add_argument("--samples", type=int, default=5, help="replies to print")
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.FIELD=VALUE", help="as in agon train"
    )
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="results; continues there")
    return parser.parse_args(given)


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a whole number from 1")
    return int(text)


def main() -> int:
    """Read arguments and measure."""
    arguments = read_arguments()
    console = Console()
    keys = ("model", "task", "path", "problems", "group", "max_new_tokens", "seed", "dtype", "set")
    settings = {key: getattr(arguments, key) for key in keys}
    try:
        if arguments.out and arguments.out.suffix != ".json":
            raise DataError(f"--out: got {arguments.out}, expected a name that ends in .json")
        config = configuration(arguments)
        if arguments.out:
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
        measured, memory = measure(
            config, settings, arguments.problems, arguments.chunk, arguments.out, console
        )
    except AgonError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command continues after the last chunk", file=sys.stderr)
        return 130
    values = figures(measured, arguments.group)
    report = {"settings": settings, "figures": {**values, "peak_memory_mib": memory}}
    show(report, measured.rows, arguments.samples, console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
