"""Tokens per second of sampling: Agon's engine, transformers' `generate`, and the floor.

    python benchmarks/sampling.py [--model smollm2|embedded|PATH] [--threads 1,2] [--json FILE]

256 requests in groups of 8 that share a prompt of about 60 tokens, over 64 slots. Completion
lengths are fixed by the seed, uniform between 32 and 256. No arm has an end token: a row ends at
its length, by a stopping criterion in transformers and by a limit in Agon. Temperature 1, the
whole vocabulary, float32. All arms take turns in each repeat; before the first, each samples a few
tokens that are not counted.

    generate           transformers, prompts padded on the left, batches of as many requests as
                       there are slots, in the order of arrival; a batch ends with its longest row
    Agon, base         the in-process engine with the adapters off
    Agon, a            with the adapter `a` (rank 16, every linear layer)
    Agon, a, unfolded  the same through the adapter's own layers
    floor              the weight products of Agon's base run, one after the other at the batch
                       sizes that it had, and nothing else; the faster of products with the
                       weights as they are and with transposed copies

The last column is the largest difference between a token's log-probability as sampled and that of
a plain forward pass, over a few completions.

What this does not measure: loading, verification, or the memory of anything.
"""

# ruff: noqa: I001 - `common` makes settings that torch reads when it is imported

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import common  # before torch
import torch
import workloads
from agon.config import AdapterConfig, ModelConfig
from agon.engines.base import BASE, Sampling
from agon.engines.torch_engine import TorchEngine
from agon.policies import Policies, load_base
from agon.records import Completion, Prompt
from floor import Floor, Shape, recorded

GENERATE, OURS, ADAPTER, UNFOLDED = "generate", "Agon, base", "Agon, a", "Agon, a, unfolded"
FLOORS = ("floor, as they are", "floor, transposed")
CHECKED = 4
QUICK = {"requests": 16, "slots": 8, "group": 4, "prompt": 20, "low": 4, "high": 24}

Run = Callable[[Sequence[list[int]], Sequence[int]], object]


def read_arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = common.parser("Tokens per second of sampling, beside transformers and the floor.")
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--slots", type=int, default=64, help="rows at once, and generate's batch")
    parser.add_argument("--group", type=int, default=8, help="requests that share a prompt")
    parser.add_argument("--prompt", type=int, default=60, help="about so many prompt tokens")
    parser.add_argument("--low", type=int, default=32, help="shortest completion")
    parser.add_argument("--high", type=int, default=256, help="longest completion")
    arguments = common.parse(parser, QUICK, given)
    if arguments.requests % arguments.group:
        parser.error("--requests must be a multiple of --group")
    return arguments


class Generate:
    """transformers' `generate` on a plain model."""

    def __init__(self, model: Any, pad: int, slots: int, high: int):
        """Take a model without adapters."""
        from transformers import GenerationConfig

        self._model, self._pad, self._slots = model, pad, slots
        # Nothing of the checkpoint's own settings: no end token, no truncated distribution.
        model.generation_config = GenerationConfig(
            do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=high,
            pad_token_id=pad, eos_token_id=None,
        )  # fmt: skip

    def __call__(self, prompts: Sequence[list[int]], limits: Sequence[int]) -> int:
        """Sample; returns the tokens of the longest rows, a check that every row ran its length."""
        steps = 0
        for start in range(0, len(prompts), self._slots):
            part = slice(start, start + self._slots)
            steps += self._batch(prompts[part], limits[part])
        return steps

    def _batch(self, prompts: Sequence[list[int]], limits: Sequence[int]) -> int:
        from transformers import StoppingCriteriaList

        width = max(map(len, prompts))
        padding = [[self._pad] * (width - len(ids)) for ids in prompts]
        limit_B = torch.as_tensor(limits)

        def at_its_length(input_ids: torch.Tensor, _scores: Any, **_: Any) -> torch.Tensor:
            return input_ids.shape[1] - width >= limit_B

        tokens = self._model.generate(
            input_ids=torch.tensor([[*p, *ids] for p, ids in zip(padding, prompts, strict=True)]),
            attention_mask=torch.tensor(
                [[0] * len(p) + [1] * len(ids) for p, ids in zip(padding, prompts, strict=True)]
            ),
            stopping_criteria=StoppingCriteriaList([at_its_length]),
        )
        made = tokens.shape[1] - width
        assert made == max(limits), (made, max(limits))
        return int(made)


class Agon:
    """Our engine with one policy; keeps its last completions."""

    def __init__(self, engine: TorchEngine, policy: str, high: int, seed: int):
        """Take an engine without end tokens."""
        self.engine, self.policy, self._high, self._seed = engine, policy, high, seed
        self.completions: list[Completion] = []
        self._calls = itertools.count()

    def __call__(self, prompts: Sequence[list[int]], limits: Sequence[int]) -> None:
        """Sample."""
        call = next(self._calls)
        asked = [Prompt("", tuple(ids), thinking_open=False) for ids in prompts]
        keys = [f"{self._seed}/{call}/{index}" for index in range(len(prompts))]
        self.completions = self.engine.generate(
            asked, self.policy, Sampling(self._high), keys, limits=limits
        )
        assert [len(c.token_ids) for c in self.completions] == list(limits)


@dataclass
class Bench:
    """All arms around one workload."""

    prompts: list[list[int]]
    limits: list[int]
    policies: Policies
    arms: dict[str, Run]
    floor: Floor
    seconds: dict[str, list[float]] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Tokens that each arm samples."""
        return sum(self.limits)

    def warm_up(self) -> None:
        """A few tokens of every arm."""
        for arm in self.arms.values():
            arm(self.prompts[:2], [2, 3])

    def repeat(self) -> None:
        """Every arm once, and both floors."""
        shapes: list[Shape] = []
        for name, arm in self.arms.items():
            noted = isinstance(arm, Agon) and name == OURS
            with recorded(arm.engine, shapes) if noted else nullcontext():  # type: ignore[attr-defined]
                self._time(name, arm, self.prompts, self.limits)
        for name, transposed in zip(FLOORS, (False, True), strict=True):
            self._time(name, self.floor.replay, shapes, transposed)

    def _time(self, name: str, work: Callable[..., object], *arguments: Any) -> None:
        begin = time.perf_counter()
        work(*arguments)
        self.seconds.setdefault(name, []).append(time.perf_counter() - begin)
        common.note(f"  {name}: {self.tokens / self.seconds[name][-1]:.0f} tokens/s")

    def largest_error(self, name: str) -> float | None:
        """Largest difference from a plain forward pass, over the first few completions."""
        arm = self.arms[name]
        if not isinstance(arm, Agon):
            return None
        return max(
            logprob_error(self.policies, arm.policy, ids, completion)
            for ids, completion in list(zip(self.prompts, arm.completions, strict=True))[:CHECKED]
        )


def logprob_error(
    policies: Policies, policy: str, prompt: Sequence[int], completion: Completion
) -> float:
    """Largest difference between the sampler's log-probabilities and a plain forward pass's."""
    ids = torch.tensor([[*prompt, *completion.token_ids]])
    with policies.active(policy), torch.no_grad():
        logits_TV = policies.model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
    chosen_T1 = torch.tensor(completion.token_ids)[:, None]
    plain_T = logits_TV.double().log_softmax(-1).gather(1, chosen_T1)[:, 0]
    return float((plain_T - torch.tensor(completion.logprobs)).abs().max())


def prepare(arguments: argparse.Namespace, folder: str) -> Bench:
    """Load the model twice, once with adapters and once plain, and draw the workload."""
    words = workloads.Vocabulary.of(folder)
    key = f"sampling/{arguments.seed}"
    groups = arguments.requests // arguments.group
    prompts = workloads.prompts(groups, arguments.group, arguments.prompt, words, key)
    limits = workloads.lengths(arguments.requests, arguments.low, arguments.high, key)
    model = ModelConfig(name_or_path=folder)
    policies = Policies(load_base(model), AdapterConfig(), 2, arguments.seed)
    with torch.no_grad():
        for name, parameter in policies.parameters("a").items():
            if "lora_B" in name:  # a fresh `a` is the base, which would hide an error
                parameter.normal_(std=AdapterConfig().start_scale)
    plain: Any = load_base(model).eval()
    context = max(map(len, prompts)) + arguments.high
    folded, unfolded = (
        TorchEngine(policies, (), words.pad, arguments.slots, context, fold=fold)
        for fold in (True, False)
    )
    arms: dict[str, Run] = {
        GENERATE: Generate(plain, words.pad, arguments.slots, arguments.high),
        OURS: Agon(folded, BASE, arguments.high, arguments.seed),
        ADAPTER: Agon(folded, "a", arguments.high, arguments.seed),
        UNFOLDED: Agon(unfolded, "a", arguments.high, arguments.seed),
    }
    return Bench(prompts, limits, policies, arms, Floor(plain))


def report(bench: Bench) -> list[list[str]]:
    """The table of one thread count."""
    seconds = bench.seconds
    floor = [min(both) for both in zip(*(seconds[name] for name in FLOORS), strict=True)]
    rows = []
    for name in (*bench.arms, *FLOORS):
        taken = seconds[name]
        error = bench.largest_error(name) if name in bench.arms else None
        cost = common.ratios(taken, seconds[OURS]) if name in (ADAPTER, UNFOLDED) else None
        rows.append(
            [
                name,
                common.spread([bench.tokens / s for s in taken], ".0f"),
                common.spread(common.ratios(seconds[GENERATE], taken), ".2f"),
                common.spread(common.ratios(floor, taken), ".0%"),
                "" if cost is None else common.spread([1 - 1 / c for c in cost], ".0%"),
                "" if error is None else f"{error:.1e}",
            ]
        )
    return rows


def main() -> None:
    """Measure and print."""
    arguments = read_arguments()
    facts = common.machine()
    bench = prepare(arguments, common.model_path(arguments.model))
    common.describe(facts)
    print(
        f"{arguments.model}: {arguments.requests} requests, {bench.tokens} tokens, lengths "
        f"{min(bench.limits)} to {max(bench.limits)}, {arguments.slots} slots, "
        f"{arguments.repeats} repeats"
    )
    head = ["arm", "tokens/s", "ratio to generate", "share of the floor", "slower than the base"]
    measured = {}
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        bench.seconds = {}
        bench.warm_up()
        for repeat in range(arguments.repeats):
            common.note(f"{threads} threads, repeat {repeat + 1} of {arguments.repeats}")
            bench.repeat()
        common.show(f"{threads} threads", [*head, "log-prob error"], report(bench))
        errors = {name: bench.largest_error(name) for name in bench.arms}
        measured[threads] = {
            "seconds": bench.seconds,
            "tokens": bench.tokens,
            "logprob_errors": errors,
        }
    common.finish("sampling", facts, arguments, measured)


if __name__ == "__main__":
    main()
