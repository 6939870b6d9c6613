"""A whole matrix of made-up result files: every section of the report has something to show."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from agon.evaluation.protocols import Attempt
from agon.experiments.results import pack, result_path, write_result
from agon.experiments.spec import Cell, Experiment, cell_config
from agon.records import Outcome

PROBLEMS, SAMPLES, STEPS = 6, 3, 12

ARMS = {
    "base": ("base", "", "untrained"),
    "grpo": ("alone", '"game.policies" = 1, "game.exchange" = "none"', "plain"),
    "grpo-2n": ("self-cascade", '"game.policies" = 1, "game.exchange" = "none"', "twice"),
    "self-refine": ("self-cascade", '"game.policies" = 1', "self"),
    "cooperative": ("cascade", "", "no bonus"),
    "agon": ("cascade", '"reward.credit" = "conversion"', "bonus"),
    "fixed": ("a->b", '"reward.credit" = "conversion", "game.rotate" = false', "no swap"),
    "hidden-paired": (
        "alone", '"reward.credit" = "conversion", "game.exchange" = "hidden"', "unseen",
    ),
}  # fmt: skip

HOSTILE = (
    "<think></script><script>window.pwned=1</script><img src=x onerror=window.pwned=2></think>"
    "<!--<script> ]]> \u2028 &lt; <summary>sum-mary</summary><answer>4*7</answer>"
)


def experiment_text() -> str:
    """The experiment's file."""
    text = 'name = "made-up"\nrecipe = "countdown-agon"\nseeds = [1, 2, 3]\n'
    text += '[settings]\n"reward.credit" = "correctness"\n'
    for name, (reported, settings, about) in ARMS.items():
        trained = "false" if name == "base" else "true"
        text += f'[arms.{name}]\nabout = "{about}"\nreported = "{reported}"\ntrain = {trained}\n'
        text += f"settings = {{ {settings} }}\n"
    for left, right, word in (("agon", "cooperative", "cascade"), ("agon", "cooperative", "alone")):
        text += f'[[primary]]\nname = "{left} {word}"\n'
        text += f'left = {{ arm = "{left}", reported = "{word}" }}\n'
        text += f'right = {{ arm = "{right}", reported = "{word}" }}\n'
    return text


def systems_of(arm: str) -> list[str]:
    """What an arm's runs evaluate."""
    if arm == "base":
        return ["base", "base->base"]
    if arm in ("grpo", "grpo-2n", "self-refine"):
        return ["base", "base->base", "a", "a->a", "a->a/shuffled", "a->a/filler"]
    pairs = ["a->b", "b->a", "a->a", "b->b"]
    controls = [f"{pair}/{shown}" for pair in pairs[:2] for shown in ("shuffled", "filler")]
    return ["base", "base->base", "a", "b", *pairs, *controls]


def made_up(experiment: Experiment, cell: Cell, draft: str = "") -> dict[str, Any]:
    """One cell's file."""
    draw = random.Random(f"{cell.arm}/{cell.seed}")
    config = json.loads(cell_config(experiment, cell).model_dump_json())
    arm = experiment.arms[cell.arm]
    evaluations = {}
    for split in ("dev", "test"):
        ids = [f"{split}-{index}" for index in range(PROBLEMS)]
        systems = {name: packed(ids, "->" in name, draw) for name in systems_of(cell.arm)}
        evaluations[split] = {"problems": ids, "samples": SAMPLES, "systems": systems}
    data = {
        "schema": 2, "experiment": experiment.name, "arm": cell.arm, "seed": cell.seed,
        "about": arm.about, "reported": arm.reported, "trained": arm.train, "stopped": None,
        "config": config, "environment": {"torch": "2", "device": "cpu"},
        "evaluations": evaluations, "test_readings": 1,
    }  # fmt: skip
    if arm.train:
        two = len(systems_of(cell.arm)) > 6
        data |= {"rollouts": 96, "steps": STEPS, "curves": curves(systems_of(cell.arm), two, draw)}
        data["snapshots"] = [snapshot(step, two, draw) for step in (0, STEPS)]
        data["rounds"] = rounds(config["game"]["exchange"], draw, draft)
    return data


def packed(ids: list[str], two: bool, draw: random.Random) -> dict[str, Any]:
    """One system's attempts."""
    outcomes = {"x": Outcome.RIGHT, "y": Outcome.WRONG, "z": Outcome.WRONG}
    tries = []
    for problem in ids:
        for sample in range(SAMPLES):
            draft, answer = draw.choice("xxyz"), draw.choice("xxyz")
            tries.append(
                Attempt(
                    problem,
                    sample,
                    outcomes[answer],
                    outcomes[draft] if two else None,
                    answer,
                    (draw.randint(20, 60), draw.randint(20, 60))[: 1 + two],
                    (11, 21)[: 1 + two],
                    draw.random() < 0.1,
                )
            )
    return pack(tries, SAMPLES)


def curves(systems: list[str], two: bool, draw: random.Random) -> dict[str, list[Any]]:
    """Training metrics."""
    found: dict[str, list[Any]] = {"step": list(range(STEPS + 1))}
    for name in systems:
        found[f"dev.{name}.pass"] = [
            draw.random() if step % 4 == 0 else None for step in range(STEPS + 1)
        ]
    for role in ("draft", "challenge")[: 1 + two]:
        for verdict in ("right", "wrong"):
            values = [draw.uniform(20, 60) for _ in range(STEPS)]
            found[f"{role}.length_{verdict}"] = [*values, None]
    return found


def snapshot(step: int, two: bool, draw: random.Random) -> dict[str, Any]:
    """Blind spots."""
    names = ["base", "a", "b"][: 2 + two]
    figures = ("jaccard", "phi", "first_alone", "second_alone")
    return {
        "step": step,
        "pass": {name: draw.random() for name in names},
        "overlap": {
            f"{x}|{y}": {"pairs": 24} | {figure: draw.random() for figure in figures}
            for i, x in enumerate(names)
            for y in names[i:]
        },
        "changes": {},
        "kl": {f"{x}||{y}": draw.random() for x in names for y in names if x != y},
        "weights": {"norm_a": 1.0} | ({"distance": step / 2, "cosine": -0.1} if two else {}),
    }


def rounds(exchange: str, draw: random.Random, draft: str) -> list[dict[str, Any]]:
    """Rounds of three steps with four rollouts each."""
    return [
        {
            "step": step, "problem": f"p{step}", "question": f"make {step} from 4,7", "gold": "28",
            "sample": sample, "draft": rollout("a", draw, draft),
        }
        | (
            {}
            if exchange == "none"
            else {
                "challenge": rollout("b", draw, "")
                | {"shown": None if exchange == "hidden" else "4*7=28", "rival_sample": sample}
            }
        )
        for step in (0, 5, 11)
        for sample in range(4)
    ]  # fmt: skip


def rollout(policy: str, draw: random.Random, text: str) -> dict[str, Any]:
    """One rollout's record."""
    right = draw.random() < 0.5
    return {
        "policy": policy, "version": 3, "answer": "4*7", "format_score": 1.0, "tokens": 12,
        "text": text or "<think>4*7=28</think><summary>4*7=28</summary><answer>4*7</answer>",
        "summary": "4*7=28", "prompt_tokens": 11, "truncated": draw.random() < 0.2,
        "outcome": "right" if right else "wrong", "reason": "evaluates to 28",
        "reward": {
            "correctness": 2.0 * right, "rivalry": 0.0, "tiebreak": 0.0, "format": 0.5,
            "length": -0.0,
        },
        "total_reward": 2.5 * right, "advantage": draw.uniform(-1, 1),
    }  # fmt: skip


def write_cells(folder: Path, experiment: Experiment, names: list[str], draft: str = "") -> Path:
    """Write the files of some cells, named like `agon--seed1`, in that order."""
    for name in names:
        arm, seed = name.split("--seed")
        cell = Cell(arm, int(seed))
        write_result(result_path(folder, cell), made_up(experiment, cell, draft))
    return folder


def all_cells(experiment: Experiment) -> list[str]:
    """Every cell's name."""
    return [Cell(arm, seed).name for seed in experiment.seeds for arm in experiment.arms]
