"""Memory of one process: what the sampler and the update hold at their worst moments.

    held      base + adapters + AdamW's two moments of each adapter [+ folded copies on a CPU]
    sampler   held + key-value cache at the completion limit + working memory
    update    held + one adapter's gradient + activations of the largest microbatch + working memory

Weights, adapters and their optimizers are counted by tensor; caches, activations and working memory
by running the code on a ghost (`ghost`, `traces`). Both phases happen in turns in one process, so
its peak is the larger of the two. This module knows no cards: that is `cards`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from agon.config import Config
from agon.objective import Row
from agon.planning.arithmetic import Arithmetic
from agon.planning.ghost import Ghost, raise_ghost
from agon.planning.traces import trace_sampler, trace_update

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
    """Bytes of both phases, and what they have in common.

    Attributes:
        held: In both phases.
        sampler: All that the sampler's peak consists of.
        update: Likewise of the update.
        rows: That decode at once.
        base_parameters: Weights of the base.
        adapter_parameters: Weights of one adapter.
    """

    held: Bytes
    sampler: Bytes
    update: Bytes
    rows: int
    base_parameters: int
    adapter_parameters: int

    @property
    def peak(self) -> int:
        """The larger of the two phases."""
        return max(sum(self.sampler.values()), sum(self.update.values()))


def base_dtype(config: Config, shape: Any) -> torch.dtype:
    """The type that the base is loaded in."""
    if config.model.dtype != "auto":
        return getattr(torch, config.model.dtype)  # type: ignore[no-any-return]
    found = getattr(shape, "dtype", None)
    return found if isinstance(found, torch.dtype) else torch.float32


def plan_memory(
    config: Config,
    shape: Any,
    draft_prompt: int,
    challenge_prompt: int,
    on_cpu: bool,
    processes: int = 1,
    vllm: Arithmetic | None = None,
) -> MemoryPlan:
    """Count one process's memory.

    Args:
        config: The run's configuration.
        shape: The model's transformers configuration.
        draft_prompt: Tokens of the longest plain prompt.
        challenge_prompt: Tokens of the longest challenge prompt.
        on_cpu: Whether it runs on a CPU, where linear layers may be folded for sampling.
        processes: That share a step's problems; each holds the whole base.
        vllm: The model's figures where vLLM samples on the same card.

    Raises:
        EngineError: The in-process engine cannot sample this architecture.
    """
    dtype, policies = base_dtype(config, shape), config.game.policies
    ghost = raise_ghost(shape, dtype, config.model.attention, config.adapters, policies)
    held = held_bytes(ghost, config, on_cpu and vllm is None)
    problems = -(-config.training.problems_per_step // processes)
    group, limit = config.sampling.group_size, config.sampling.max_new_tokens
    longest = challenge_prompt if config.game.second_stage else draft_prompt
    rows = min(config.sampling.slots, problems * group)
    if vllm is None:
        # Challenges differ by the summaries that they show; drafts of one problem share a prompt.
        shared = config.game.exchange in ("none", "hidden")
        prompts = min(rows, problems if shared else problems * group)
        sampled = trace_sampler(ghost, prompts, longest, limit, rows, on_cpu)
        sampler = {"KV cache": sampled.cache, "sampler's working memory": sampled.work}
    else:
        sampler = vllm_bytes(ghost, vllm, rows, longest + limit)
    updated = trace_update(
        ghost,
        longest_rows(problems, group, longest, limit),
        config.training.microbatch_tokens,
        config.training.share_prefixes,
        config.training.gradient_checkpointing,
        config.objective.beta,
    )
    adapter = ghost.adapter_parameters()
    update = {
        "gradient": FLOAT * adapter,
        "activations": updated.activations,
        "logits": updated.logits,
        "update's other working memory": updated.work - updated.logits,
    }
    # vLLM keeps what it has reserved unless it is put to sleep.
    beside = sampler if vllm is not None else {}
    return MemoryPlan(
        held=held,
        sampler=held | sampler,
        update=held | beside | update,
        rows=rows,
        base_parameters=ghost.base_parameters(),
        adapter_parameters=adapter,
    )


def vllm_bytes(ghost: Ghost, model: Arithmetic, rows: int, longest: int) -> Bytes:
    """What vLLM holds on the card: its own base, two versions of each adapter, and blocks.

    Every row has its blocks of `_BLOCK` tokens up to the longest text; adapters are kept in the
    base's type.
    """
    blocks = -(-longest // _BLOCK) * _BLOCK
    size = model.weight_bytes
    return {
        "vLLM's base": ghost.base_bytes(),
        "vLLM's adapters": 2 * len(ghost.names) * ghost.adapter_parameters() * size,
        "KV cache": rows * model.stored_bytes(blocks),
        "vLLM's working memory": _VLLM_WORK,
    }


def held_bytes(ghost: Ghost, config: Config, on_cpu: bool) -> Bytes:
    """What lies in memory from the first step to the last."""
    adapters = len(ghost.names) * ghost.adapter_parameters() * FLOAT
    held = {
        "base": ghost.base_bytes(),
        "adapters": adapters,
        "optimizer": MOMENTS * adapters,
    }
    if on_cpu and config.sampling.fold_weights:
        held["folded copies"] = sum(
            layer.weight.numel() * FLOAT
            for layer in ghost.linears().values()
            if layer.weight.dtype == torch.float32
        )
    return held


def longest_rows(problems: int, group: int, prompt: int, limit: int) -> list[Row]:
    """One stream whose rows all reach the limit, with a nonzero advantage each.

    The problems' prompts differ from the first token on.
    """
    completion, logprobs = (0,) * limit, (0.0,) * limit
    return [
        Row((problem, *(0,) * (prompt - 1)), completion, logprobs, 1.0)
        for problem in range(problems)
        for _ in range(group)
    ]
