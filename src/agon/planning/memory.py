"""Memory of one process: what the sampler and the update hold at their worst moments.

    held      base + adapters + AdamW's two moments of each adapter [+ folded copies on a CPU]
    sampler   held + key-value cache at the completion limit + working memory
    update    held + one adapter's gradient + activations of the largest microbatch + working memory

Weights, adapters and their optimizers are counted by tensor; caches, activations and working memory
by running the code on a ghost (`ghost`, `traces`). Both phases happen in turns in one process, so
its peak is the larger of the two. This module knows no cards: that is `cards`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from agon.config import Config
from agon.objective import Row
from agon.planning.arithmetic import Arithmetic, count
from agon.planning.ghost import Ghost, raise_ghost
from agon.planning.traces import SamplerTrace, UpdateTrace, trace_sampler, trace_update

FLOAT = 4
"""Bytes of adapters, their gradients and AdamW's moments, whatever the base's type."""

MOMENTS = 2

_BLOCK = 16
"""Tokens of one of vLLM's cache blocks, its default."""

_VLLM_WORK = 2**30
"""Bytes of vLLM's activations and recorded graphs: an assumption."""

Bytes = dict[str, int]
"""Bytes by what they are for."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of both phases.

    Attributes:
        sampler: All that the sampler's peak consists of.
        update: Likewise of the update.
        rows: That decode at once.
    """

    sampler: Bytes
    update: Bytes
    rows: int

    @property
    def peak(self) -> int:
        """The larger of the two phases."""
        return max(sum(self.sampler.values()), sum(self.update.values()))


@dataclass(frozen=True, slots=True)
class Counted:
    """A model's ghost and what was counted on it; equal questions are answered once.

    Attributes:
        ghost: The policies without weights.
        arithmetic: What a token takes.
    """

    ghost: Ghost
    arithmetic: Arithmetic
    _traces: dict[tuple[Any, ...], SamplerTrace | UpdateTrace] = field(default_factory=dict)

    @classmethod
    def of(cls, config: Config, shape: Any) -> Counted:
        """Raise the ghost of a configuration's policies.

        Args:
            config: The run's configuration.
            shape: The model's transformers configuration.
        """
        dtype = base_dtype(config, shape)
        ghost = raise_ghost(
            shape, dtype, config.model.attention, config.adapters, config.game.policies
        )
        return cls(ghost, count(ghost))

    def sampler(self, *question: Any) -> SamplerTrace:
        """`trace_sampler` on the ghost."""
        found = self._traces.get(question) or trace_sampler(self.ghost, *question)
        assert isinstance(found, SamplerTrace)
        self._traces[question] = found
        return found

    def update(self, rows: tuple[int, int, int, int], *question: Any) -> UpdateTrace:
        """`trace_update` on the ghost, over `longest_rows`."""
        key = (rows, *question)
        found = self._traces.get(key) or trace_update(self.ghost, longest_rows(*rows), *question)
        assert isinstance(found, UpdateTrace)
        self._traces[key] = found
        return found


def base_dtype(config: Config, shape: Any) -> torch.dtype:
    """The type that the base is loaded in."""
    if config.model.dtype != "auto":
        return getattr(torch, config.model.dtype)  # type: ignore[no-any-return]
    found = shape.dtype
    return found if isinstance(found, torch.dtype) else torch.float32


def plan_memory(
    config: Config,
    counted: Counted,
    prompt: int,
    on_cpu: bool,
    processes: int = 1,
    vllm: bool = False,
) -> MemoryPlan:
    """Count one process's memory.

    Args:
        config: The run's configuration.
        counted: The model.
        prompt: Tokens of the longest prompt that is sampled from.
        on_cpu: Whether it runs on a CPU, where linear layers may be folded for sampling.
        processes: That share a step's problems; each holds the whole base.
        vllm: Whether vLLM samples on the same card, instead of the in-process engine.

    Raises:
        EngineError: The in-process engine cannot sample this architecture.
    """
    ghost = counted.ghost
    held = held_bytes(ghost, on_cpu and not vllm and config.sampling.fold_weights)
    problems = -(-config.training.problems_per_step // processes)
    group, limit = config.sampling.group_size, config.sampling.max_new_tokens
    rows = min(config.sampling.slots, problems * group)
    if vllm:
        sampler = vllm_bytes(counted, rows, prompt + limit)
    else:
        # Challenges differ by the summaries that they show; drafts of one problem share a prompt.
        shared = config.game.exchange in ("none", "hidden")
        prompts = min(rows, problems if shared else problems * group)
        sampled = counted.sampler(prompts, prompt, limit, rows, on_cpu)
        sampler = {"KV cache": sampled.cache, "sampler's working memory": sampled.work}
    updated = counted.update(
        (problems, group, prompt, limit),
        config.training.microbatch_tokens,
        config.training.share_prefixes,
        config.training.gradient_checkpointing,
        config.objective.beta,
    )
    update = {
        "gradient": FLOAT * ghost.adapter_parameters(),
        "activations": updated.activations,
        "logits": updated.logits,
        "update's other working memory": updated.work - updated.logits,
    }
    # vLLM keeps what it has reserved unless it is put to sleep.
    beside = sampler if vllm else {}
    return MemoryPlan(sampler=held | sampler, update=held | beside | update, rows=rows)


def held_bytes(ghost: Ghost, folded: bool) -> Bytes:
    """What lies in memory from the first step to the last.

    Args:
        ghost: The policies.
        folded: Whether float32 linear layers have folded copies.
    """
    adapters = len(ghost.names) * ghost.adapter_parameters() * FLOAT
    held = {
        "base": ghost.base_bytes(),
        "adapters": adapters,
        "optimizer": MOMENTS * adapters,
    }
    if folded:
        held["folded copies"] = sum(
            layer.weight.numel() * FLOAT
            for layer in ghost.linears().values()
            if layer.weight.dtype == torch.float32
        )
    return held


def vllm_bytes(counted: Counted, rows: int, longest: int) -> Bytes:
    """What vLLM holds on the card: its own base, two versions of each adapter, and blocks.

    Every row has its blocks of `_BLOCK` tokens up to the longest text; adapters are kept in the
    base's type.
    """
    ghost, model = counted.ghost, counted.arithmetic
    blocks = -(-longest // _BLOCK) * _BLOCK
    return {
        "vLLM's base": ghost.base_bytes(),
        "vLLM's adapters": 2 * len(ghost.names) * ghost.adapter_parameters() * model.weight_bytes,
        "KV cache": rows * model.stored_bytes(blocks),
        "vLLM's working memory (assumed)": _VLLM_WORK,
    }


def longest_rows(problems: int, group: int, prompt: int, limit: int) -> list[Row]:
    """One stream whose rows all reach the limit, with a nonzero advantage each.

    The problems' prompts differ from the first token on.
    """
    completion, logprobs = (0,) * limit, (0.0,) * limit
    prompts = [(problem, *(0,) * (prompt - 1)) for problem in range(problems)]
    return [Row(ids, completion, logprobs, 1.0) for ids in prompts for _ in range(group)]
