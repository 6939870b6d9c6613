"""One optimizer step of one policy on given rollouts: Agon, plain Agon, and TRL's GRPOTrainer.

    python benchmarks/update.py [--model smollm2|embedded|PATH] [--threads 1,2] [--json FILE]

16 problems with groups of 8, prompts of about 60 tokens; LoRA of rank 16 on every linear layer,
`dapo` loss, beta 0, float32. Workloads:

    a   every completion has 144 tokens, no advantage is zero
    b   completions of 32 to 256 tokens, no advantage is zero
    c   as b, half of the groups flat, so that half of the rows have a zero advantage

Arms, each a process of its own that loads once and waits for its turn:

    TRL     its own training loop, 8 rows a forward pass (`per_device_train_batch_size`), in the
            random order and padding that it makes: to the longest prompt and the longest completion
            of the whole batch
    plain   Agon with every row run, nothing shared and PEFT's own layers, passes of the same padded
            tokens as TRL's: 8 x (longest prompt + longest completion of the workload)
    Agon    with the same budget

The clock runs from rollouts that are scored and, in TRL, padded and shuffled, to the end of the
optimizer step. Peak memory is each process's own resident peak during the step, in brackets the
resident memory before the first step. The gradient's difference is the largest one of any element
to plain Agon's, over the largest element. All arms begin every step with the same adapter, take
turns, and are warmed up by a step on few rows (TRL: by a whole step on short rows).

What this does not measure: sampling, verification, or what a step logs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import common  # before torch
import workloads
from peers.protocol import Arm, open_arms

TRL, PLAIN, OURS = "TRL", "plain", "Agon"
QUICK = {"problems": 4, "group": 4, "prompt": 20, "low": 4, "high": 24, "checkpointing": ["off"]}

Steps = dict[str, list[dict[str, Any]]]
"""Each arm's steps of one workload."""


def read_arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = common.parser("Time, memory and gradients of one optimizer step, beside TRL.")
    parser.add_argument("--problems", type=int, default=16)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=60, help="about so many prompt tokens")
    parser.add_argument("--low", type=int, default=32, help="shortest completion of b and c")
    parser.add_argument("--high", type=int, default=256, help="longest completion of b and c")
    parser.add_argument("--slice", type=int, default=8, help="TRL's rows of a forward pass")
    parser.add_argument("--workloads", type=common.names("abc"), default=["a", "b", "c"])
    parser.add_argument("--checkpointing", type=common.names(("off", "on")), default=["off", "on"])
    parser.add_argument("--trl-python", default=trl_python(), help="interpreter that has TRL")
    arguments = common.parse(parser, QUICK, given)
    if arguments.problems * arguments.group % arguments.slice:
        parser.error("--problems x --group must be a multiple of --slice")
    return arguments


def trl_python() -> str:
    """TRL's own environment where `make bench-peers` has made it, else this one."""
    own = common.peer_python("trl")
    return own if Path(own).exists() else sys.executable


def draw(arguments: argparse.Namespace, folder: str) -> dict[str, workloads.Rollouts]:
    """The chosen workloads."""
    words = workloads.Vocabulary.of(folder)
    middle = (arguments.low + arguments.high) // 2
    kinds = {
        "a": ((middle, middle), 0),
        "b": ((arguments.low, arguments.high), 0),
        "c": ((arguments.low, arguments.high), arguments.problems // 2),
    }
    key = f"update/{arguments.seed}"
    return {
        name: workloads.rollouts(
            arguments.problems, arguments.group, arguments.prompt, *kinds[name], words, key
        )
        for name in arguments.workloads
    }


def start(
    stack: ExitStack,
    arguments: argparse.Namespace,
    folder: str,
    drawn: dict[str, workloads.Rollouts],
    checkpointing: bool,
) -> dict[str, Arm]:
    """The three processes, with one adapter."""
    some = next(iter(drawn.values()))
    longest = max(rollouts.longest_completion for rollouts in drawn.values())
    shared = {"folder": folder, "checkpointing": checkpointing, "seed": arguments.seed}
    ours = shared | {"microbatch_tokens": pass_tokens(arguments, some)}
    trl = shared | {
        "given": True,
        "problems": arguments.problems,
        "group": arguments.group,
        "slice": arguments.slice,
        "limit": longest,
    }
    arms = open_arms(
        stack,
        {
            TRL: ("peers.trl_grpo", trl, arguments.trl_python),
            PLAIN: ("arms.agon_update", ours | {"plain": True}, sys.executable),
            OURS: ("arms.agon_update", ours | {"plain": False}, sys.executable),
        },
    )
    with tempfile.TemporaryDirectory() as scratch:
        adapter = str(Path(scratch) / "adapter.pt")
        arms[PLAIN].ask("export", path=adapter)
        arms[TRL].ask("adapter", path=adapter)
    return arms


def pass_tokens(arguments: argparse.Namespace, rollouts: workloads.Rollouts) -> int:
    """Padded tokens of TRL's longest pass over a workload: what Agon may hold at once too."""
    return int(arguments.slice * (rollouts.longest_prompt + rollouts.longest_completion))


def warm_up(arms: dict[str, Arm], rollouts: workloads.Rollouts) -> None:
    """A step of every arm on little."""
    short = replace(rollouts, completions=[ids[-4:] for ids in rollouts.completions])
    for name, arm in arms.items():
        arm.ask("load", rollouts=asdict(short if name == TRL else rollouts))
        arm.ask("step", **({} if name == TRL else {"only": 2}))


def measure(
    arms: dict[str, Arm], rollouts: workloads.Rollouts, budget: int, repeats: int
) -> tuple[Steps, dict[str, float]]:
    """Every arm's steps, in turns, and the gradients' largest relative differences to plain's."""
    for name, arm in arms.items():
        if name != TRL:
            arm.ask("budget", microbatch_tokens=budget)
        arm.ask("load", rollouts=asdict(rollouts))
    steps: Steps = {name: [] for name in arms}
    with tempfile.TemporaryDirectory() as scratch:
        files = {name: str(Path(scratch) / f"{name}.pt") for name in arms}
        for repeat in range(repeats):
            for name, arm in arms.items():
                more = {"gradients": files[name]} if repeat == 0 else {}
                steps[name].append(arm.ask("step", **more))
                common.note(f"  {name}: {steps[name][-1]['seconds']:.2f} s")
        return steps, gradient_differences(files)


def gradient_differences(files: dict[str, str]) -> dict[str, float]:
    """Largest difference of any element to the plain gradient, over the latter's largest."""
    import torch

    gradients = {name: torch.load(path) for name, path in files.items()}
    plain = gradients[PLAIN]
    largest = max(float(value.abs().max()) for value in plain.values())
    assert largest > 0, "the plain gradient is zero: there is nothing to compare with"
    differences = {}
    for name, found in gradients.items():
        assert found.keys() == plain.keys(), f"{name}: other parameters have gradients"
        gaps = [float((found[key] - value).abs().max()) for key, value in plain.items()]
        differences[name] = max(gaps) / largest
    return differences


def table(steps: Steps, differences: dict[str, float], tokens: int) -> list[list[str]]:
    """One workload's rows."""
    rows = []
    trl = [step["seconds"] for step in steps[TRL]]
    for name, taken in steps.items():
        seconds = [step["seconds"] for step in taken]
        peak = max(step["peak_mib"] for step in taken)
        theirs = max(step["peak_mib"] for step in steps[TRL])
        rows.append(
            [
                name,
                common.spread(seconds, ".2f"),
                common.spread([tokens / s for s in seconds], ".0f"),
                common.spread(common.ratios(trl, seconds), ".2f"),
                f"{peak:.0f} [{taken[0]['before_mib']:.0f}]",
                f"{peak / theirs:.2f}",
                "" if name == PLAIN else f"{differences[name]:.1e}",
            ]
        )
    return rows


HEAD = (
    "arm",
    "seconds",
    "completion tokens/s",
    "times TRL's speed",
    "peak MiB [before]",
    "of TRL's peak",
    "gradient difference",
)


def main() -> None:
    """Measure and print."""
    arguments = read_arguments()
    facts = common.machine()
    folder = common.model_path(arguments.model)
    drawn = draw(arguments, folder)
    common.describe(facts)
    measured: list[dict[str, Any]] = []
    for checkpointing in arguments.checkpointing:
        with ExitStack() as stack:
            arms = start(stack, arguments, folder, drawn, checkpointing == "on")
            for threads in arguments.threads:
                for arm in arms.values():
                    arm.ask("threads", threads=threads)
                warm_up(arms, next(iter(drawn.values())))
                for name, rollouts in drawn.items():
                    title = (
                        f"{arguments.model}, {name}: {len(rollouts.prompts)} rollouts, "
                        f"{rollouts.tokens} completion tokens; checkpointing {checkpointing}, "
                        f"{threads} threads"
                    )
                    common.note(title)
                    steps, differences = measure(
                        arms, rollouts, pass_tokens(arguments, rollouts), arguments.repeats
                    )
                    common.show(title, HEAD, table(steps, differences, rollouts.tokens))
                    measured.append(
                        {
                            "workload": name,
                            "checkpointing": checkpointing,
                            "threads": threads,
                            "completion_tokens": rollouts.tokens,
                            "steps": steps,
                            "gradient_differences": differences,
                        }
                    )
    common.finish("update", facts, arguments, measured)


if __name__ == "__main__":
    main()
