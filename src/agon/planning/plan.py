"""A run's plan: memory of a card, tokens, hours, what limits it, and what would make it fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from agon.config import Config
from agon.engines.cache import attention_layout
from agon.errors import EngineError
from agon.planning.cards import CPU, IN_PROCESS, VLLM, Assumptions, Card
from agon.planning.hours import FLOPS, Spent, sampling_time, update_time
from agon.planning.memory import Counted, MemoryPlan, plan_memory
from agon.planning.workload import Workload, evaluation_stages, evaluations, stages
from agon.recipes import change

TORCH, VLLM_ENGINE = "torch", "vllm"


@dataclass(frozen=True, slots=True)
class Hours:
    """Hours of a run on so many cards, by part.

    Attributes:
        sampling: Rollouts.
        update: Both adapters' optimizer steps.
        evaluation: On dev.
        limit: What most of the time is spent on, in words.
        batch: Mean number of rows that decode at once on a card.
    """

    sampling: float
    update: float
    evaluation: float
    limit: str
    batch: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.sampling + self.update + self.evaluation


@dataclass(frozen=True, slots=True)
class Plan:
    """What one configuration takes.

    Attributes:
        config: The run's configuration.
        counted: The model.
        load: What there is to do.
        engine: `torch` or `vllm`.
        processes: Cards that share a step.
        notes: Sentences that the plan hangs on.
    """

    config: Config
    counted: Counted
    load: Workload
    engine: str
    processes: int
    notes: tuple[str, ...] = ()

    @property
    def assumed(self) -> Assumptions:
        """What is assumed about every card."""
        return VLLM if self.engine == VLLM_ENGINE else IN_PROCESS

    def memory(self, card: Card) -> MemoryPlan:
        """One process's memory, without runtime and fragmentation."""
        return plan_memory(
            self.config,
            self.counted,
            self.longest_prompt,
            card.key == CPU,
            self.processes,
            self.engine == VLLM_ENGINE,
        )

    @property
    def longest_prompt(self) -> int:
        """Tokens, of a challenge where there are any."""
        shows = self.config.game.second_stage or self.config.evaluation.every > 0
        return (self.load.challenge_prompt if shows else self.load.draft_prompt)[0]

    def needed(self, card: Card) -> float:
        """Bytes that a card must have."""
        return with_overhead(self.memory(card).peak, self.assumed)

    def fits(self, card: Card) -> bool:
        """Whether a card has them."""
        return self.needed(card) <= card.memory

    def tokens(self, mean: float) -> float:
        """Completion tokens of one step on all cards."""
        here = stages(self.config, self.load, mean, self.processes)
        return self.processes * sum(stage.rollouts * mean for stage in here)

    def hours(self, card: Card, mean: float | None = None) -> Hours:
        """How long the run takes.

        Args:
            card: One of equal cards.
            mean: Tokens of a reply in the mean; None takes the workload's.
        """
        mean = self.load.mean_reply if mean is None else mean
        config, load, model, assumed = self.config, self.load, self.counted.arithmetic, self.assumed
        checkpointing = config.training.gradient_checkpointing
        spent, rows, update = Spent(), [], 0.0
        for stage in stages(config, load, mean, self.processes):
            own, batch = sampling_time(model, stage, card, assumed)
            for limit, seconds in own.seconds.items():
                spent.add(limit, seconds)
            rows.append(batch)
            once = update_time(model, stage, card, assumed, checkpointing)
            update += once * config.objective.updates_per_step
        evaluated = sum(
            sampling_time(model, stage, card, assumed)[0].total
            for stage in evaluation_stages(config, load, mean, self.processes)
        )
        steps = load.steps
        limit = f"update: {FLOPS}" if update > spent.total else f"decoding: {spent.limit}"
        return Hours(
            sampling=steps * spent.total / 3600,
            update=steps * update / 3600,
            evaluation=evaluations(config, steps) * evaluated / 3600,
            limit=limit,
            batch=sum(rows) / len(rows),
        )


def with_overhead(planned: float, assumed: Assumptions) -> float:
    """Planned bytes with what the allocator wastes and the runtime takes."""
    return planned * (1 + assumed.fragmentation) + assumed.runtime


def make_plan(
    config: Config,
    shape: Any,
    load: Workload,
    processes: int = 1,
    engine: str | None = None,
    notes: tuple[str, ...] = (),
) -> Plan:
    """Count what a configuration takes.

    Args:
        config: The run's configuration.
        shape: The model's transformers configuration.
        load: From `read_workload`.
        processes: Cards that share a step.
        engine: `torch` or `vllm`; None takes the first that can sample the model.
        notes: What was assumed so far.

    Raises:
        EngineError: The engine that was asked for cannot sample the model.
    """
    counted = Counted.of(config, shape)
    reason = refused(counted)
    if reason is not None and engine is None:
        notes = (*notes, f"vLLM samples: {reason}")
        engine = VLLM_ENGINE
    if reason is not None and engine == TORCH:
        raise EngineError(reason)
    return Plan(config, counted, load, engine or TORCH, processes, notes)


def refused(counted: Counted) -> str | None:
    """Why the in-process engine cannot sample a model, or None."""
    try:
        attention_layout(counted.ghost.base)
    except EngineError as error:
        return str(error)
    return None


def suggestions(plan: Plan, card: Card) -> tuple[list[str], Plan]:
    """Settings that make a run fit, each as `--set` takes it, and the plan with them.

    They are tried in the order of what they cost: recomputing activations, smaller microbatches,
    fewer rows at once. None changes what is learned but by rounding. The list may not be enough:
    look at the returned plan.
    """
    tried: list[str] = []
    while not plan.fits(card):
        step = _next_change(plan, card)
        if step is None:
            break
        tried = [text for text in tried if text.partition("=")[0] != step.partition("=")[0]]
        tried.append(step)
        plan = replace(plan, config=change(plan.config, [step]))
    return tried, plan


def _next_change(plan: Plan, card: Card) -> str | None:
    config, memory, assumed = plan.config, plan.memory(card), plan.assumed
    room = (card.memory - assumed.runtime) / (1 + assumed.fragmentation)
    longest = plan.longest_prompt + config.sampling.max_new_tokens
    if sum(memory.update.values()) > room:
        if not config.training.gradient_checkpointing:
            return "training.gradient_checkpointing=true"
        if config.training.microbatch_tokens > longest:
            smaller = max(longest, config.training.microbatch_tokens // 2)
            return f"training.microbatch_tokens={smaller}"
        return None
    held, cache = sum(memory.sampler.values()), memory.sampler["KV cache"]
    rows = min(config.sampling.slots, memory.rows)
    fewer = min(rows - 1, int(rows * (room - (held - cache)) / cache))
    return f"sampling.slots={fewer}" if fewer >= 1 else None
