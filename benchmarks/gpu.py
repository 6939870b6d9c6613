"""Sampling and updating on one GPU: tokens per second, share of the peak, two adapters against one.

    python benchmarks/gpu.py [--model random|PATH] [--peak-tflops 989] [--json FILE]

The model is a randomly initialised Qwen3 of the 0.6B's shape unless a folder is given; bfloat16,
SDPA. 64 problems with groups of 8, prompts of about 200 tokens, completion lengths uniform between
128 and 1,024 and forced. Arms, in turns:

    two      drafts by `a` and as many challenges by `b`, then one optimizer step of each
    one      twice the rollouts by `a`, and one optimizer step on all of them

Floating-point operations are counted as 2 a weight and token of a forward pass and 4 of a forward
pass with the backward pass through frozen weights (gradients of inputs alone), attention and
adapters left out, over all tokens that run: prompts once a group. The peak is an assumption from
the command line, the data sheet's figure for dense bfloat16; the default is that of an H200.

`--quick` runs a tiny model on whatever is there, the CPU too, and says nothing about speed.
"""

# ruff: noqa: I001 - `common` makes settings that torch reads when it is imported

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import common  # before torch
import torch
import workloads
from arms.agon_update import UpdateArm
from peers.memory import Meter

from agon.engines.base import Sampling
from agon.engines.torch_engine import TorchEngine
from agon.records import Prompt

TWO, ONE = "two", "one"
PARTS = ("sampling", "update")
END, PAD = 1, 0
QUICK = {
    "problems": 2, "group": 2, "prompt": 12, "low": 4, "high": 9, "slots": 8,
    "microbatch_tokens": 256, "width": 64, "layers": 2, "vocabulary": 512,
}  # fmt: skip


def read_arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = common.parser("Tokens per second on one GPU, and its share of the peak.")
    parser.set_defaults(model="random")
    parser.add_argument("--problems", type=int, default=64)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=200, help="about so many prompt tokens")
    parser.add_argument("--low", type=int, default=128, help="shortest completion")
    parser.add_argument("--high", type=int, default=1024, help="longest completion")
    parser.add_argument("--slots", type=int, default=512, help="rows that decode at once")
    parser.add_argument("--microbatch-tokens", type=int, default=65_536)
    parser.add_argument("--width", type=int, default=1024, help="of the random model")
    parser.add_argument("--layers", type=int, default=28, help="of the random model")
    parser.add_argument("--vocabulary", type=int, default=151_936, help="of the random model")
    parser.add_argument("--peak-tflops", type=float, default=989.0, help="assumed, dense bfloat16")
    arguments = common.parse(parser, QUICK, given)
    if arguments.quick and arguments.model == "embedded":
        arguments.model = "random"
    if not arguments.quick and not torch.cuda.is_available():
        parser.error("there is no GPU here: --quick runs the script on the CPU, as a trial alone")
    return arguments


def make_model(arguments: argparse.Namespace) -> Any:
    """A random Qwen3 with the head tied to its embedding, or the model of a folder."""
    from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

    dtype = torch.bfloat16 if torch.cuda.is_available() else torch.float32
    if arguments.model != "random":
        folder = common.model_path(arguments.model)
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    torch.manual_seed(arguments.seed)
    heads = max(2, arguments.width // 64)
    config = Qwen3Config(
        vocab_size=arguments.vocabulary,
        hidden_size=arguments.width,
        intermediate_size=3 * arguments.width,
        num_hidden_layers=arguments.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        head_dim=128 if arguments.width >= 512 else 32,
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        eos_token_id=END,
        bos_token_id=None,
    )
    return Qwen3ForCausalLM(config).to(dtype)


class Bench:
    """The model with two adapters, its engine, and what both arms do."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        """Load and draw."""
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self._arguments = arguments
        model = make_model(arguments)
        self.weights = sum(p.numel() for p in model.parameters())
        vocabulary = model.get_output_embeddings().weight.shape[0]
        words = workloads.Vocabulary(tuple(range(2, vocabulary)), END, PAD)
        self._arm = UpdateArm(
            model, arguments.microbatch_tokens, PAD, seed=arguments.seed, device=self.device
        )
        bounds = (arguments.low, arguments.high)
        self.streams = [
            workloads.rollouts(
                arguments.problems, arguments.group, arguments.prompt, bounds, 0, words, f"gpu/{k}"
            )
            for k in range(2)
        ]
        longest = max(s.longest_prompt + s.longest_completion for s in self.streams)
        self._engine = TorchEngine(self._arm.policies, (), PAD, arguments.slots, longest)
        self.tokens = sum(stream.tokens for stream in self.streams)

    def run(self, name: str) -> dict[str, Any]:
        """One step of an arm: its parts' seconds and its peak memory."""
        figures: dict[str, Any] = {}
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        policies = ("a", "b") if name == TWO else ("a", "a")
        figures["sampling"] = self._timed(
            lambda: [
                self._sample(stream, policy)
                for stream, policy in zip(self.streams, policies, strict=True)
            ]
        )
        figures["update"] = 0.0
        for stream in self.streams if name == TWO else [together(self.streams)]:
            self._arm.load(asdict(stream))
            figures["update"] += self._timed(self._arm.step)
        if self.device == "cuda":
            figures["peak_mib"] = torch.cuda.max_memory_allocated() / 2**20
        return figures

    def _sample(self, stream: workloads.Rollouts, policy: str) -> None:
        limits = [len(ids) for ids in stream.completions]
        prompts = [Prompt("", tuple(ids), thinking_open=False) for ids in stream.prompts]
        keys = [f"{self._arguments.seed}/{index}" for index in range(len(prompts))]
        self._engine.generate(prompts, policy, Sampling(max(limits)), keys, limits=limits)

    def _timed(self, work: Any) -> float:
        self._wait()
        meter = Meter()
        work()
        self._wait()
        return meter.read()["seconds"]

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def operations(self, part: str) -> float:
        """Floating-point operations of an arm's part, as the head of this file counts them."""
        prompts = sum(
            len(ids) for stream in self.streams for ids in stream.prompts[:: self._arguments.group]
        )
        return (2 if part == "sampling" else 4) * self.weights * (self.tokens + prompts)


def together(streams: Sequence[workloads.Rollouts]) -> workloads.Rollouts:
    """Several streams as one."""
    return workloads.Rollouts(
        streams[0].group,
        [ids for stream in streams for ids in stream.prompts],
        [ids for stream in streams for ids in stream.completions],
        [reward for stream in streams for reward in stream.rewards],
    )


def main() -> None:
    """Measure and print."""
    arguments = read_arguments()
    facts = common.machine()
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
    common.describe(facts)
    bench = Bench(arguments)
    print(
        f"{arguments.model}: {bench.weights / 1e6:.0f} million weights on {bench.device}, "
        f"{bench.tokens} completion tokens; assumed peak {arguments.peak_tflops:g} TFLOP/s"
    )
    measured: dict[str, list[dict[str, Any]]] = {TWO: [], ONE: []}
    for name in measured:
        bench.run(name)  # the first steps are slower
    for _ in range(arguments.repeats):
        for name, taken in measured.items():
            taken.append(bench.run(name))
            common.note(f"  {name}: {taken[-1]}")
    rows = []
    for name, taken in measured.items():
        for part in PARTS:
            seconds = [step[part] for step in taken]
            share = [bench.operations(part) / s / 1e12 / arguments.peak_tflops for s in seconds]
            rows.append(
                [
                    name,
                    part,
                    common.spread(seconds, ".3f"),
                    common.spread([bench.tokens / s for s in seconds], ".0f"),
                    common.spread(share, ".2%"),
                    common.spread(
                        common.ratios(seconds, [step[part] for step in measured[ONE]]), ".2f"
                    ),
                    f"{max(step.get('peak_mib', 0) for step in taken):.0f}",
                ]
            )
    head = ["arm", "part", "seconds", "completion tokens/s", "of the peak", "times one", "GPU MiB"]
    common.show("One step", head, rows)
    common.finish("gpu", facts, arguments, measured)


if __name__ == "__main__":
    main()
