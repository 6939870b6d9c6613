"""Latency and throughput of served systems: the cascade and its shortcuts beside a single pass.

    python benchmarks/serving.py [--run RUN] [--clients 1,4,16] [--requests 64] [--json FILE]

Servers of one run, each a process of its own (`agon serve RUN`), are asked the same dev problems
with the same seeds by closed-loop clients: each sends its next request when it has its answer.
The arms take turns in every repeat; nothing else runs meanwhile.

    a            one adapter alone, one pass: plain serving
    b            the other
    cascade      agon-a-b
    cut          the same with --cut-drafts
    early exit   the same with --early-exit

"Equal load" is the same number of clients. Latency is from the first byte sent to the last
received, without streaming; throughput is answers per second. The cost of an arm is its median
latency over that of `a` at the same number of clients, repeat by repeat. Without --run a fresh pair
over the embedded base is served, whose adapters differ from it by noise: its answers mean nothing,
its lengths are the base's.

What this does not measure: the network, the accuracy of shortcuts (`early_exit.py` does), or GPUs.
"""

# ruff: noqa: I001 - `common` makes settings that torch reads when it is imported

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import common
import httpx

ARMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "a": ("a", ()),
    "b": ("b", ()),
    "cascade": ("agon-a-b", ()),
    "cut": ("agon-a-b", ("--cut-drafts",)),
    "early exit": ("agon-a-b", ("--early-exit",)),
}
QUICK = {"requests": 8, "clients": [1, 4], "threads": [1]}
START_SECONDS = 180.0


def read_arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = common.parser("Latency and throughput of served systems.")
    parser.add_argument("--run", type=Path, help="a run folder; else a fresh pair over --model")
    parser.add_argument("--clients", type=common.whole_numbers, default=[1, 4, 16])
    parser.add_argument("--requests", type=int, default=64, help="requests of each measurement")
    parser.add_argument("--arms", type=common.names(list(ARMS)), default=list(ARMS))
    parser.set_defaults(model="embedded", threads=[2])
    return common.parse(parser, QUICK, given)


@dataclass
class Server:
    """`agon serve` in a process of its own."""

    run: Path
    options: tuple[str, ...]
    threads: int
    url: str = ""
    process: subprocess.Popen[str] | None = field(default=None, repr=False)

    def __enter__(self) -> Server:
        """Start it and wait until it serves."""
        command = [sys.executable, "-m", "agon", "serve", str(self.run), "--port", "0"]
        environment = {**os.environ, "OMP_NUM_THREADS": str(self.threads)}
        self.process = subprocess.Popen(
            [*command, "--max-requests", "100000", *self.options],
            stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        assert self.process.stdout is not None
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            line = self.process.stdout.readline()
            if "serves at " in line:
                self.url = line.partition("serves at ")[2].split()[0]
                break
            if not line and self.process.poll() is not None:
                sys.exit("the server did not start: its message stands above")
        while httpx.get(f"{self.url}/health", timeout=5.0).status_code != 200:
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        assert self.process is not None
        self.process.terminate()
        self.process.wait(60)


async def load(
    url: str, model: str, problems: Sequence[str], seeds: Sequence[int], clients: int
) -> dict[str, Any]:
    """Closed-loop clients share out the requests; returns latencies, seconds and tokens."""
    waiting = list(zip(problems, seeds, strict=True))[::-1]
    latencies: list[float] = []
    tokens = skipped = 0

    async def client(session: httpx.AsyncClient) -> None:
        nonlocal tokens, skipped
        while waiting:
            problem, seed = waiting.pop()
            body = {
                "model": model,
                "messages": [{"role": "user", "content": problem}],
                "seed": seed,
            }
            begin = time.perf_counter()
            answer = await session.post(f"{url}/v1/chat/completions", json=body)
            latencies.append(time.perf_counter() - begin)
            answer.raise_for_status()
            data = answer.json()
            tokens += data["usage"]["completion_tokens"]
            skipped += data["choices"][0]["agon"]["skipped_challenge"]

    async with httpx.AsyncClient(timeout=600.0) as session:
        begin = time.perf_counter()
        await asyncio.gather(*(client(session) for _ in range(clients)))
        seconds = time.perf_counter() - begin
    return {"latencies": latencies, "seconds": seconds, "tokens": tokens, "skipped": skipped}


def fresh_run(folder: Path, model: str) -> Path:
    """A run folder with two fresh adapters, as if after no step."""
    from agon.policies import Policies, load_base
    from agon.recipes import load_recipe
    from agon.runs import RunFolder

    config = load_recipe("countdown-agon", [f"model.name_or_path={model}"])
    run = RunFolder(folder / "run")
    run.create()
    run.config.write_text(config.model_dump_json())
    policies = Policies(load_base(config.model), config.adapters, 2, config.seeds.init)
    policies.save(run.checkpoints / "step-000000" / "adapters")
    (run.checkpoints / "step-000000" / "state.json").write_text("{}")
    return run.path


def problems_of(run: Path, number: int) -> list[str]:
    """Dev problems of the run's task, again from the first where there are too few."""
    from agon.runs import RunFolder
    from agon.tasks import load_task
    from agon.tasks.splits import Split

    dev = load_task(RunFolder(run).read_config().task).problems[Split.DEV]
    return [dev[index % len(dev)].question for index in range(number)]


def percentile(values: Sequence[float], share: float) -> float:
    """The value that so large a share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(share * len(ordered)) - 1))]


def measure(arguments: argparse.Namespace, run: Path, threads: int) -> dict[str, Any]:
    """All arms at every number of clients, in turns; servers stay up, only one is asked."""
    problems = problems_of(run, arguments.requests)
    kinds = {ARMS[name][1] for name in arguments.arms}
    measured: dict[str, Any] = {}
    servers = {kind: Server(run, kind, threads) for kind in kinds}
    opened: list[Server] = []
    try:
        for server in servers.values():
            opened.append(server.__enter__())
        for server in servers.values():  # weights are folded at the first use
            for model in ("a", "b"):
                asyncio.run(load(server.url, model, problems[:1], [0], 1))
        for repeat in range(arguments.repeats):
            for clients in arguments.clients:
                for name in arguments.arms:
                    model, kind = ARMS[name]
                    seeds = [repeat * arguments.requests + i for i in range(arguments.requests)]
                    found = asyncio.run(load(servers[kind].url, model, problems, seeds, clients))
                    measured.setdefault(f"{clients}", {}).setdefault(name, []).append(found)
                    common.note(f"  {clients} clients, {name}: {found['seconds']:.1f} s")
    finally:
        for server in opened:
            server.__exit__()
    return measured


def rows(arms: dict[str, list[dict[str, Any]]]) -> list[list[str]]:
    """The table of one number of clients."""
    made = []
    plain = [statistics.median(found["latencies"]) for found in arms["a"]] if "a" in arms else None
    for name, repeats in arms.items():
        medians = [statistics.median(found["latencies"]) for found in repeats]
        tails = [percentile(found["latencies"], 0.95) for found in repeats]
        rates = [len(found["latencies"]) / found["seconds"] for found in repeats]
        answers = sum(len(found["latencies"]) for found in repeats)
        made.append(
            [
                name,
                common.spread([1000 * value for value in medians], ".0f"),
                common.spread([1000 * value for value in tails], ".0f"),
                common.spread(rates, ".2f"),
                "" if plain is None else common.spread(common.ratios(medians, plain), ".2f"),
                f"{sum(found['tokens'] for found in repeats) / answers:.0f}",
                f"{sum(found['skipped'] for found in repeats) / answers:.0%}",
            ]
        )
    return made


def main() -> None:
    """Measure and print."""
    arguments = read_arguments()
    facts = common.machine()
    common.describe(facts)
    head = ["arm", "median ms", "p95 ms", "answers/s", "median over a", "tokens", "skipped"]
    measured = {}
    with tempfile.TemporaryDirectory() as folder:
        run = arguments.run or fresh_run(Path(folder), arguments.model)
        for threads in arguments.threads:
            found = measure(arguments, run, threads)
            for clients, arms in found.items():
                common.show(f"{clients} clients, {threads} threads", head, rows(arms))
            measured[threads] = found
    common.finish("serving", facts, arguments, measured)


if __name__ == "__main__":
    main()
