"""Checks per second and error rates of Agon's mathematics verdicts, beside math-verify in-process.

    python benchmarks/verifiers.py --data FOLDER

FOLDER holds `gsm8k/test.jsonl` and `math500/test.jsonl` in the hub's schemas and, for the error
rates, `verifier_cases.jsonl` with the fields gold, pred, equal, pred_kind and contested.

What is timed: judging a list of distinct (gold, answer) pairs, workers already started. The mix is
what a training step asks for: GSM8K's and MATH-500's gold answers, each against its own text and
against the same text with one digit changed. The hard pairs are those of it that Agon cannot decide
from the text alone. All systems run in turn in every repeat; the first repeat warms caches and is
not counted; the figures are medians, in brackets the lowest and highest repeat.

math-verify is called as its documentation shows, with its defaults, in this process: no isolation,
and its time limits by signals, which work in main threads alone. For the error rates both run in
worker processes with the same limits, since some cases hang; an answer that hits a limit is wrong.

What this does not measure: code, or the time that a limit itself takes.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from agon.records import Outcome, Problem, Verdict

Pair = tuple[str, str]
System = Callable[[Sequence[Pair]], object]

CASES = "verifier_cases.jsonl"
SECONDS, MEMORY_MIB = 3.0, 2048


def math_verify_alone(gold: str, answer: str, kind: str = "answer") -> Verdict:
    """math-verify's own verdict; its time limits are off, since the worker has one."""
    import math_verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)
    given = answer if kind == "completion" else f"${answer}$"
    expected = math_verify.parse(f"${gold}$", parsing_timeout=None)
    read = math_verify.parse(given, parsing_timeout=None)
    right = math_verify.verify(expected, read, timeout_seconds=None)
    return Verdict(Outcome.RIGHT if right else Outcome.WRONG, "math-verify")


def math_verify_in_process(pairs: Sequence[Pair]) -> None:
    """Parse and compare with math-verify's defaults."""
    import math_verify

    for gold, answer in pairs:
        math_verify.verify(math_verify.parse(f"${gold}$"), math_verify.parse(f"${answer}$"))


def agon_in_process(pairs: Sequence[Pair]) -> None:
    """Agon's rules without worker processes, and so without limits."""
    from agon.verifiers import maths

    for gold, answer in pairs:
        maths.verify(gold, answer)


def read_jsonl(path: Path) -> list[dict[str, str]]:
    """The rows of a JSON Lines file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def mix(data: Path, count: int, seed: int = 0) -> list[Pair]:
    """At most so many distinct pairs of the mix, half of them right, in a seeded order."""
    golds = [row["answer"].split("#### ")[-1] for row in read_jsonl(data / "gsm8k/test.jsonl")]
    golds += [row["answer"] for row in read_jsonl(data / "math500/test.jsonl")]
    distinct = list(dict.fromkeys(golds))
    random.Random(seed).shuffle(distinct)
    pairs = [pair for gold in distinct for pair in ((gold, gold), (gold, perturbed(gold)))]
    return pairs[:count]


def perturbed(text: str) -> str:
    """A text with its last digit raised by one, 9 becoming 0; with `+1` where there is none."""
    for place in range(len(text) - 1, -1, -1):
        if text[place] in "0123456789":
            return f"{text[:place]}{(int(text[place]) + 1) % 10}{text[place + 1 :]}"
    return f"{text}+1"


def rates(
    systems: dict[str, System], pairs: Sequence[Pair], repeats: int
) -> dict[str, list[float]]:
    """Checks per second of each system in each counted repeat."""
    measured: dict[str, list[float]] = {name: [] for name in systems}
    for repeat in range(repeats + 1):
        for name, judge in systems.items():
            started = time.perf_counter()
            judge(pairs)
            if repeat:
                measured[name].append(len(pairs) / (time.perf_counter() - started))
    return measured


def errors(data: Path) -> dict[str, str]:
    """False rejects, false accepts and unscored cases, by system, over the uncontested cases."""
    from agon.commands.claims import read_claims
    from agon.commands.verify import judge_claims
    from agon.config import VerifierConfig
    from agon.verifiers import PooledJudge, WorkerPool

    rows = read_jsonl(data / CASES)
    contested = [bool(row["contested"]) for row in rows]
    expected = [bool(row["equal"]) for row in rows]
    with PooledJudge(VerifierConfig(seconds=SECONDS, memory_mib=MEMORY_MIB)) as judge:
        ours = judge_claims(judge, list(read_claims(str(data / CASES), "answer", "math")))
    with WorkerPool(2, SECONDS, MEMORY_MIB, ["math_verify"]) as pool:
        items = [(row["gold"], row["pred"], row["pred_kind"]) for row in rows]
        theirs = pool.map("verifiers.math_verify_alone", items)
    return {
        "math-verify": _error_text(theirs, expected, contested),
        "Agon": _error_text(ours, expected, contested),
    }


def _error_text(
    verdicts: Sequence[Verdict], expected: Sequence[bool], contested: Sequence[bool]
) -> str:
    cases = [
        (verdict, equal)
        for verdict, equal, open_question in zip(verdicts, expected, contested, strict=True)
        if not open_question
    ]
    right = sum(equal for _, equal in cases)
    rejects = sum(equal and verdict.outcome is Outcome.WRONG for verdict, equal in cases)
    accepts = sum(not equal and verdict.outcome is Outcome.RIGHT for verdict, equal in cases)
    unscored = sum(not verdict.scored for verdict, _ in cases)
    return (
        f"{rejects} of {right} right answers rejected, {accepts} of {len(cases) - right} wrong "
        f"answers accepted, {unscored} unscored"
    )


def machine() -> str:
    """The processor, the cores that are ours, the load before, and the versions."""
    model = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.is_file():
        names = [line for line in information.read_text().splitlines() if "model name" in line]
        model = names[0].partition(":")[2].strip() if names else model
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count()
    packages = ", ".join(f"{name} {version(name)}" for name in ("agon-rl", "math-verify", "sympy"))
    return (
        f"{model}, {cores} cores, load {os.getloadavg()[0]:.1f} before; {platform.system()}, "
        f"Python {platform.python_version()}, {packages}"
    )


def cell(values: Sequence[float], base: float) -> str:
    """Median, spread, and how many times the base."""
    middle = statistics.median(values)
    return f"{middle:,.0f} ({min(values):,.0f}, {max(values):,.0f}), {middle / base:.1f}x"


def main() -> None:
    """Measure, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with the data sets")
    parser.add_argument("--pairs", type=int, default=2000, help="most pairs of the mix")
    parser.add_argument("--repeats", type=int, default=5, help="counted repeats")
    arguments = parser.parse_args()
    from agon.config import VerifierConfig
    from agon.verifiers import PooledJudge, maths

    logging.disable(logging.WARNING)  # libraries warn once for each check
    described = machine()
    pairs = mix(arguments.data, arguments.pairs)
    hard = [pair for pair in pairs if maths.verify_quickly(*pair) is None]
    if not hard:
        parser.error("the mix has no hard pairs; raise --pairs")
    with (
        PooledJudge(VerifierConfig(workers=1)) as one,
        PooledJudge(VerifierConfig(workers=2)) as two,
    ):
        systems: dict[str, System] = {
            "math-verify in-process": math_verify_in_process,
            "Agon in-process, no limits": agon_in_process,
            "Agon, 1 worker": lambda items: one.judge(problems(items)),
            "Agon, 2 workers": lambda items: two.judge(problems(items)),
        }
        columns = [rates(systems, items, arguments.repeats) for items in (pairs, hard)]
    easy = 1 - len(hard) / len(pairs)
    print(described)
    print(f"{len(pairs)} pairs, {easy:.0%} of them easy; {len(hard)} hard pairs; checks per second")
    print("\n| system | mix | hard pairs alone |\n| --- | --- | --- |")
    bases = [statistics.median(column["math-verify in-process"]) for column in columns]
    for name in systems:
        cells = [cell(column[name], base) for column, base in zip(columns, bases, strict=True)]
        print(f"| {name} | {cells[0]} | {cells[1]} |")
    if (arguments.data / CASES).is_file():
        for name, text in errors(arguments.data).items():
            print(f"\n{name}, uncontested cases: {text}")


def problems(pairs: Sequence[Pair]) -> list[tuple[Problem, str]]:
    """Pairs as the judge takes them."""
    return [(Problem("", "", gold, "math"), answer) for gold, answer in pairs]


if __name__ == "__main__":
    main()
