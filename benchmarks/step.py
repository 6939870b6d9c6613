"""A whole training step: Agon beside two GRPO steps of TRL, Agon's own GRPO, and CoMLRL.

    python benchmarks/step.py [--model smollm2|embedded|PATH] [--threads 1,2] [--json FILE]
        [--comlrl-python .venv-comlrl/bin/python]

One Agon step is P problems x N drafts, as many challenges, verification, and one optimizer step of
each of the two adapters. The same number of rollouts, with the same prompts and the same
completion lengths, is what the others get:

    Agon     `agon.trainer.Trainer`, drafts and challenges, two adapters over one base
    TRL x 2  two steps of TRL's GRPOTrainer, one with the draft prompts and one with the challenge
             prompts, with one adapter: two policies would be two such processes
    GRPO     Agon's trainer with one policy and no second stage: half of the rollouts
    CoMLRL   MAGRPOTrainer with two agents. It trains every weight of two whole models, has no
             adapters, and cannot give the rollouts of a group different prompts

Completion lengths are uniform between --low and --high by the seed and forced in every arm, the
tokens are the model's own samples at temperature 1, answers are dealt. All run in float32 with the
same threads; Agon and TRL with LoRA of rank 16 on every linear layer and passes of the same padded
size (8 rows of TRL's). Agon verifies its answers, the peers' rewards cost nothing. Each arm is a
process of its own that loads once; all take turns. First none of the groups is flat, then half of
them are; the other arms run every row in either case, so GRPO and CoMLRL run in the first alone.

Seconds are of one whole step. Peak memory is the process's own resident peak during it, in
brackets what was resident before the first. CoMLRL is left out where its interpreter is missing
(`make bench-peers`).

The default is small, four problems and one repeat, so that a run ends within a quarter of an hour.
GRPO's memory can be compared with Agon's only where the rollouts of both fill a pass of the update:
take more problems for that (--problems 8).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import common  # before torch
import workloads
from peers.protocol import Arm, open_arms
from update import trl_python

OURS, TRL, GRPO, COMLRL = "Agon", "TRL x 2", "GRPO", "CoMLRL"
ARMS = (OURS, TRL, GRPO, COMLRL)
BOTH = (OURS, TRL)
"""Arms of the second workload: where flat groups may matter, and what they are compared with."""

STAGES = ("draft", "challenge")
QUICK = {"problems": 2, "group": 4, "low": 4, "high": 12, "summary": 8, "slice": 4}


def read_arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = common.parser("Time and memory of a whole training step, beside TRL and CoMLRL.")
    parser.set_defaults(repeats=1, threads=[2])
    parser.add_argument("--problems", type=int, default=4)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--low", type=int, default=16, help="shortest completion")
    parser.add_argument("--high", type=int, default=96, help="longest completion")
    parser.add_argument("--summary", type=int, default=32, help="tokens of a summary")
    parser.add_argument("--slots", type=int, default=64, help="rows that Agon decodes at once")
    parser.add_argument("--slice", type=int, default=8, help="TRL's rows of a forward pass")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--trl-python", default=trl_python(), help="interpreter that has TRL")
    parser.add_argument(
        "--comlrl-python",
        default=common.peer_python("comlrl"),
        help="interpreter that has CoMLRL",
    )
    arguments = common.parse(parser, QUICK, given)
    if arguments.problems < 2:
        parser.error("--problems: at least 2, so that half of the groups can be flat")
    if arguments.problems * arguments.group % arguments.slice:
        parser.error("--problems x --group must be a multiple of --slice")
    return arguments


class Work:
    """What every arm does, told to each in its own words."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        """Draw the lengths."""
        self._arguments = arguments
        key = f"step/{arguments.seed}"
        count = arguments.problems * arguments.group
        self.lengths = {
            stage: workloads.lengths(count, arguments.low, arguments.high, f"{key}/{stage}")
            for stage in STAGES
        }
        self.prompts: dict[str, list[tuple[str, list[int]]]] = {}

    def rewards(self, flat: int) -> list[float]:
        """Right and wrong in turn; all wrong in flat groups."""
        arguments = self._arguments
        return workloads.rewards(
            arguments.problems, arguments.group, flat, f"step/{arguments.seed}"
        )

    def step(self, name: str, arm: Arm, flat: int) -> dict[str, Any]:
        """One step of an arm."""
        rewards = self.rewards(flat)
        if name == TRL:
            parts = []
            for stage in STAGES:
                ids = [ids for _, ids in self.prompts[stage]]
                rollouts = {"prompts": ids, "lengths": self.lengths[stage], "rewards": rewards}
                arm.ask("load", rollouts=rollouts)
                parts.append(arm.ask("step"))
            return {
                "seconds": sum(part["seconds"] for part in parts),
                "before_mib": parts[0]["before_mib"],
                "peak_mib": max(part["peak_mib"] for part in parts),
                "moved": min(part["moved"] for part in parts),
            }
        if name == COMLRL:
            size = self._arguments.group
            pairs = zip(*(self.prompts[stage][::size] for stage in STAGES), strict=True)
            arm.ask(
                "load",
                prompts=[[draft[0], challenge[0]] for draft, challenge in pairs],
                lengths=[self.lengths[stage] for stage in STAGES],
                rewards=rewards,
            )
            figures: dict[str, Any] = arm.ask("step")
            return figures
        arm.ask("load", lengths=self.lengths, right=[reward > 0 for reward in rewards])
        figures = arm.ask("step")
        prompts = figures.pop("prompts")
        if name == OURS:
            self.prompts = prompts
        flat_share = flat / self._arguments.problems
        assert all(share == flat_share for share in figures["flat_groups"]), figures
        return figures


def start(
    stack: ExitStack, arguments: argparse.Namespace, folder: str, model: str
) -> dict[str, Arm]:
    """The processes of all arms that are installed."""
    shared = {
        "problems": arguments.problems,
        "group": arguments.group,
        "limit": arguments.high,
        "seed": arguments.seed,
        "checkpointing": arguments.checkpointing,
        "slice": arguments.slice,
    }
    ours = shared | {
        "folder": model,
        "summary_tokens": arguments.summary,
        "slots": arguments.slots,
    }
    peer = shared | {"folder": folder, "given": False}
    modules: dict[str, tuple[str, Mapping[str, Any], str]] = {
        OURS: ("arms.agon_step", ours | {"policies": 2}, sys.executable),
        TRL: ("peers.trl_grpo", peer, arguments.trl_python),
        GRPO: ("arms.agon_step", ours | {"policies": 1}, sys.executable),
    }
    if Path(arguments.comlrl_python).exists():
        modules[COMLRL] = ("peers.comlrl_magrpo", peer, arguments.comlrl_python)
    else:
        common.note(f"CoMLRL is left out: {arguments.comlrl_python} is missing")
    return open_arms(stack, modules)


def measure(
    arms: Mapping[str, Arm], work: Work, flat: int, repeats: int
) -> dict[str, list[dict[str, Any]]]:
    """Every arm's steps, in turns."""
    steps: dict[str, list[dict[str, Any]]] = {name: [] for name in arms}
    for _ in range(repeats):
        for name, arm in arms.items():
            steps[name].append(work.step(name, arm, flat))
            common.note(f"  {name}: {steps[name][-1]['seconds']:.2f} s")
    return steps


def table(steps: Mapping[str, list[dict[str, Any]]], grpo_peak: float | None) -> list[list[str]]:
    """One workload's rows."""
    trl = [step["seconds"] for step in steps[TRL]]
    rows = []
    for name, taken in steps.items():
        seconds = [step["seconds"] for step in taken]
        peak = max(step["peak_mib"] for step in taken)
        parts = ("draft", "challenge", "verify", "update")
        rows.append(
            [
                name,
                common.spread(seconds, ".2f"),
                common.spread(common.ratios(seconds, trl), ".2f"),
                " + ".join(f"{taken[-1][part]:.2f}" for part in parts)
                if "draft" in taken[-1]
                else "",
                f"{peak:.0f} [{taken[0]['before_mib']:.0f}]",
                "" if grpo_peak is None else f"{peak / grpo_peak:.2f}",
            ]
        )
    return rows


HEAD = (
    "arm",
    "seconds",
    "of two TRL steps",
    "draft + challenge + verify + update, s",
    "peak MiB [before]",
    "of GRPO's peak",
)


def main() -> None:
    """Measure and print."""
    arguments = read_arguments()
    facts = common.machine()
    folder = common.model_path(arguments.model)
    model = arguments.model if arguments.model == "embedded" else folder
    common.describe(facts)
    count = arguments.problems * arguments.group
    measured = []
    with ExitStack() as stack:
        arms = start(stack, arguments, folder, model)
        for threads in arguments.threads:
            for arm in arms.values():
                arm.ask("threads", threads=threads)
            work = Work(arguments)
            wanted = work.lengths
            work.lengths = {stage: workloads.lengths(count, 2, 3, stage) for stage in STAGES}
            measure(arms, work, 0, 1)  # the first steps are slower, and make the prompts
            work.lengths = wanted
            grpo_peak = None
            for flat, chosen in ((0, ARMS), (arguments.problems // 2, BOTH)):
                title = (
                    f"{arguments.model}: {count} drafts and {count} challenges, "
                    f"{sum(map(sum, work.lengths.values()))} completion tokens, {flat} of "
                    f"{arguments.problems} groups flat, {threads} threads"
                )
                common.note(title)
                some = {name: arms[name] for name in chosen if name in arms}
                steps = measure(some, work, flat, arguments.repeats)
                if GRPO in steps:
                    grpo_peak = max(step["peak_mib"] for step in steps[GRPO])
                common.show(title, HEAD, table(steps, grpo_peak))
                measured.append({"threads": threads, "flat_groups": flat, "steps": steps})
    common.finish("step", facts, arguments, measured)


if __name__ == "__main__":
    main()
