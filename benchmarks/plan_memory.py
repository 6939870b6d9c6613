"""The memory plan beside what processes really take: sampler and update, three models.

    python benchmarks/plan_memory.py [--models embedded,medium,smollm2] [--json FILE]

Every figure is of a process of its own, on the CPU in float32. `runtime` is resident once a model
of nothing has been sampled and updated, `measured` the part's peak above it (the kernel's
high-water mark is set back when the part begins), `planned` what `agon plan` says without runtime
and the allocator's waste. Workloads are such that every row reaches its limit,
as the plan assumes.

On a CPU Agon lets glibc keep freed memory (`agon.process`), up to as much again in the update; the
processes measured here give it back, as a user's own `MALLOC_MMAP_THRESHOLD_=1048576` does.

`medium` is a random Qwen3 of 32 million weights; `smollm2` needs `make smollm2`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import common  # before torch
import workloads
from peers.memory import Meter

PARTS = ("sampler", "update", "update, checkpointed")
MODELS = ("embedded", "medium", "smollm2")
_SIZES = ("problems", "group", "prompt", "limit", "slots", "budget")
WORKLOADS = {
    "embedded": dict(zip(_SIZES, (32, 8, 30, 96, 256, 16_384), strict=True)),
    "medium": dict(zip(_SIZES, (8, 4, 100, 120, 32, 4096), strict=True)),
    "smollm2": dict(zip(_SIZES, (4, 8, 200, 96, 32, 2048), strict=True)),
}
END, PAD = 1, 0


def medium() -> Any:
    """The random model's configuration."""
    from transformers import Qwen3Config

    return Qwen3Config(
        vocab_size=16_384,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        eos_token_id=END,
        bos_token_id=None,
    )


def run_config(name: str, checkpointing: bool) -> Any:
    """The run's settings that memory hangs on."""
    from agon.config import Config

    load = WORKLOADS[name]
    return Config.model_validate(
        {
            "sampling": {
                "group_size": load["group"],
                "max_new_tokens": load["limit"],
                "slots": load["slots"],
            },
            "training": {
                "problems_per_step": load["problems"],
                "microbatch_tokens": load["budget"],
                "gradient_checkpointing": checkpointing,
                "device": "cpu",
            },
            "evaluation": {"every": 0},
            "game": {"exchange": "hidden"},
        }
    )


def write_medium(folder: Path) -> str:
    """Write the random model, so that it is loaded as any other."""
    import torch
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_config(medium(), dtype=torch.float32).save_pretrained(folder)
    return str(folder)


def planned(name: str, folder: str, part: str) -> dict[str, float]:
    """What the plan says, MiB."""
    from transformers import AutoConfig

    from agon.planning.memory import Counted, plan_memory

    load = WORKLOADS[name]
    config = run_config(name, part.endswith("checkpointed"))
    counted = Counted.of(config, AutoConfig.from_pretrained(folder))
    plan = plan_memory(config, counted, load["prompt"], on_cpu=True)
    phase = plan.sampler if part == "sampler" else plan.update
    return {key: value / 2**20 for key, value in phase.items()}


def measure(name: str, folder: str, part: str) -> dict[str, float]:
    """Run one part in this process, MiB."""
    import torch

    from agon.config import ModelConfig
    from agon.policies import load_base

    load = WORKLOADS[name]
    torch.set_num_threads(1)
    config = run_config(name, part.endswith("checkpointed"))
    warm_up()
    runtime = Meter().before_mib
    base = load_base(ModelConfig(name_or_path=folder))
    words = workloads.Vocabulary(tuple(range(2, min(1000, len(embedding(base))))), END, PAD)
    limit = load["limit"]
    drawn = workloads.rollouts(
        load["problems"], load["group"], 2 * load["prompt"], (limit, limit), 0, words, "0"
    )
    prompts = [ids[: load["prompt"]] for ids in drawn.prompts]
    session = Session(base, config, load["prompt"] + limit)
    session.begin(prompts)
    meter = Meter()
    if part == "sampler":
        session.sample(prompts, limit)
    else:
        session.update("b", prompts, drawn.completions)
    figures = meter.read()
    return {"runtime": runtime, "peak": figures["peak_mib"], "before": figures["before_mib"]}


def embedding(base: Any) -> Any:
    """The input embedding's weights."""
    return base.get_input_embeddings().weight


def warm_up() -> None:
    """Sample and update a model of nothing: libraries set up what they need at first use."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8}
    layers = {"num_hidden_layers": 1, "num_attention_heads": 2}
    config = run_config("embedded", False)
    Session(LlamaForCausalLM(LlamaConfig(**sizes, **layers)), config, 16).begin([[2, 3, 4]] * 2)


class Session:
    """A model ready to be sampled and updated, as a run has it."""

    def __init__(self, base: Any, config: Any, context: int) -> None:
        """Start the adapters, the optimizers and the engine."""
        import torch

        from agon.engines.torch_engine import TorchEngine
        from agon.policies import Policies
        from agon.update import Updater

        self.policies = Policies(base, config.adapters, 2, 0)
        self.updater = Updater(self.policies, config, PAD, torch.device("cpu"))
        self.engine = TorchEngine(self.policies, (), PAD, config.sampling.slots, context)

    def begin(self, prompts: list[list[int]]) -> None:
        """What memory shows from the first step on: folded weights and the optimizers' moments."""
        self.sample(prompts[:1], 2)
        for policy in self.policies.names:
            self.update(policy, prompts[:2], [[2, END]] * 2)

    def sample(self, prompts: list[list[int]], limit: int) -> None:
        """Rollouts of `b`, all of them up to the limit."""
        from agon.engines.base import Sampling
        from agon.records import Prompt

        given = [Prompt("", tuple(ids), thinking_open=False) for ids in prompts]
        keys = [str(index) for index in range(len(given))]
        self.engine.generate(given, "b", Sampling(limit), keys)

    def update(self, policy: str, prompts: list[list[int]], completions: list[list[int]]) -> None:
        """One optimizer step."""
        self.updater.step(policy, [make_drafts(prompts, completions)], 1e-6)


def make_drafts(prompts: list[list[int]], completions: list[list[int]]) -> list[Any]:
    """Rollouts as drafts, none of them at zero advantage."""
    from agon.records import (
        Completion,
        Draft,
        Outcome,
        PolicyVersion,
        Prompt,
        Reply,
        Reward,
        Verdict,
    )

    drafts = []
    for place, (prompt, ids) in enumerate(zip(prompts, completions, strict=True)):
        zeros = (0.0,) * len(ids)
        completion = Completion(tuple(ids), (-1.0,) * len(ids), zeros, False, PolicyVersion("b", 0))
        drafts.append(
            Draft(
                Prompt("", tuple(prompt), thinking_open=False),
                Reply("", None, None, None, 0.0, completion),
                Verdict(Outcome.RIGHT if place % 2 else Outcome.WRONG, ""),
                Reward(correctness=1.0),
                place % 2 * 2.0 - 1,
            )
        )
    return drafts


def in_fresh_process(name: str, folder: str, part: str) -> dict[str, float]:
    """`measure` in a process of its own."""
    command = [sys.executable, __file__, "--measure", name, folder, part]
    # Tensors are mapped one by one, so that the peak is what is alive and not what glibc keeps.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(2**20)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"{name}, {part}: {done.stderr.strip().splitlines()[-1]}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def compare(name: str, folder: str, part: str) -> dict[str, Any]:
    """One row of the table."""
    plan, found = planned(name, folder, part), in_fresh_process(name, folder, part)
    measured, expected = found["peak"] - found["runtime"], sum(plan.values())
    return {
        "model": name,
        "part": part,
        "runtime": found["runtime"],
        "before": found["before"] - found["runtime"],
        "measured": measured,
        "planned": expected,
        "ratio": expected / measured,
        "components": plan,
    }


def main() -> None:
    """Measure and print."""
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(*sys.argv[2:5])))
        return
    parser = argparse.ArgumentParser(description="The memory plan beside measured peaks.")
    parser.add_argument("--models", type=common.names(MODELS), default=list(MODELS))
    parser.add_argument("--parts", type=common.names(PARTS), default=list(PARTS))
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    facts = common.machine()
    common.describe(facts)
    rows = []
    with tempfile.TemporaryDirectory() as kept:
        for name in arguments.models:
            folder = write_medium(Path(kept)) if name == "medium" else common.model_path(name)
            for part in arguments.parts:
                rows.append(compare(name, folder, part))
                common.note(f"  {name}, {part}: planned / measured {rows[-1]['ratio']:.2f}")
    common.show(
        "MiB above the runtime",
        (
            "model",
            "part",
            "runtime",
            "resident before",
            "measured",
            "planned",
            "planned / measured",
        ),
        [
            (
                row["model"],
                row["part"],
                *(f"{row[key]:.0f}" for key in ("runtime", "before", "measured", "planned")),
                f"{row['ratio']:.2f}",
            )
            for row in rows
        ],
    )
    common.finish("plan_memory", facts, arguments, rows)


if __name__ == "__main__":
    main()
