"""`agon plan`: what a recipe takes, before anything is paid for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from agon.display import say
from agon.errors import ConfigError
from agon.planning.architectures import read_shape
from agon.planning.cards import CPU, GIB, Card, find_cards, known_cards
from agon.planning.plan import TORCH, VLLM_ENGINE, Plan, make_plan, suggestions, with_overhead
from agon.planning.workload import read_workload
from agon.recipes import load_recipe


def plan(
    recipe: str,
    overrides: Sequence[str],
    cards: Sequence[str],
    processes: int,
    prompt_tokens: int | None,
    reply_tokens: int | None,
    engine: str | None,
    as_json: bool,
    console: Console,
) -> int:
    """Print a recipe's plan.

    Returns:
        0 where the run fits one of the cards, 1 where it fits none.

    Raises:
        AgonError: Anything that the user can mend.
    """
    if processes < 1:
        raise ConfigError(f"--cards: got {processes}, expected 1 or more")
    if engine not in (None, TORCH, VLLM_ENGINE):
        raise ConfigError(f"--engine: got {engine!r}, expected {TORCH} or {VLLM_ENGINE}")
    config = load_recipe(recipe, overrides)
    chosen = find_cards(list(cards) or list(known_cards()))
    if config.training.problems_per_step % processes:
        raise ConfigError(
            f"--cards: training.problems_per_step = {config.training.problems_per_step} cannot be "
            f"shared evenly by {processes} cards: groups stay whole. Set a multiple of {processes}"
        )
    shape, note = read_shape(config.model)
    load = read_workload(config, prompt_tokens, reply_tokens)
    notes = [note] if note else []
    if engine is None and config.engine.kind != TORCH:
        engine = VLLM_ENGINE
    if config.engine.kind == "vllm-server":
        notes.append("vLLM is counted on the trainer's cards, as if its servers ran there")
    made = make_plan(config, shape, load, processes, engine, tuple(notes))
    if as_json:
        console.print_json(json.dumps(describe(made, chosen)))
    else:
        show(made, chosen, bool(cards), console)
    return 0 if any(made.fits(card) for card in chosen) else 1


def describe(plan: Plan, cards: Sequence[Card]) -> dict[str, Any]:
    """A plan as plain figures: bytes, tokens and hours."""
    rows = []
    for card in cards:
        memory = plan.memory(card)
        row: dict[str, Any] = {
            "card": card.key,
            "memory": card.memory,
            "sampler": memory.sampler,
            "update": memory.update,
            "needed": plan.needed(card),
            "fits": plan.fits(card),
        }
        if card.flops:
            for name, mean in (("hours", None), ("hours_at_the_limit", _limit(plan))):
                hours = plan.hours(card, mean)
                row[name] = {
                    "sampling": hours.sampling,
                    "update": hours.update,
                    "evaluation": hours.evaluation,
                    "total": hours.total,
                    "limit": hours.limit,
                }
        if not plan.fits(card):
            row["suggestions"] = suggestions(plan, card)[0]
        rows.append(row)
    return {
        "steps": plan.load.steps,
        "engine": plan.engine,
        "cards": plan.processes,
        "tokens_per_step": plan.tokens(plan.load.mean_reply),
        "tokens_per_step_at_the_limit": plan.tokens(_limit(plan)),
        "notes": [*plan.notes, *plan.load.notes],
        "plans": rows,
    }


def show(plan: Plan, cards: Sequence[Card], named: bool, console: Console) -> None:
    """Print a plan for people.

    Args:
        plan: What to show.
        cards: For which; the memory table is of the first that is large enough.
        named: Whether the cards were asked for by name.
        console: Where to write.
    """
    shown = next((card for card in cards if plan.fits(card)), cards[-1])
    ghost = plan.counted.ghost
    say(
        console,
        f"{plan.config.model.name_or_path}: {ghost.base_parameters() / 1e9:.2f} billion weights, "
        f"{ghost.adapter_parameters() / 1e6:.1f} million in each adapter; "
        f"{plan.processes} x {shown.name}",
    )
    console.print(_memory_table(plan, shown))
    _show_tokens(plan, console)
    console.print(_card_table(plan, cards))
    too_small = [card for card in cards if not plan.fits(card)]
    if named or len(too_small) == len(cards):
        for card in too_small:
            say(console, _remedy(plan, card))
    elif too_small:
        keys = ", ".join(card.key for card in too_small)
        say(console, f"too small: {keys}; --card NAME says what would make it fit")
    _show_assumptions(plan, console)


def _memory_table(plan: Plan, card: Card) -> Table:
    memory = plan.memory(card)
    table = Table(title="memory of one card, GiB", title_justify="left")
    table.add_column("for")
    for column in ("while sampling", "while updating"):
        table.add_column(column, justify="right")
    for name in dict.fromkeys((*memory.sampler, *memory.update)):
        cells = (phase.get(name) for phase in (memory.sampler, memory.update))
        table.add_row(name, *("" if size is None else _gib(size) for size in cells))
    assumed = plan.assumed
    phases = [sum(phase.values()) for phase in (memory.sampler, memory.update)]
    waste = (_gib(assumed.fragmentation * phase) for phase in phases)
    table.add_row("allocator's waste (assumed)", *waste)
    table.add_row("runtime (assumed)", *(_gib(assumed.runtime),) * 2)
    table.add_section()
    table.add_row("in all", *(_gib(with_overhead(phase, assumed)) for phase in phases))
    return table


def _gib(size: float) -> str:
    return f"{size / GIB:.2f}"


def _show_tokens(plan: Plan, console: Console) -> None:
    load, steps = plan.load, plan.load.steps
    mean, most = plan.tokens(load.mean_reply), plan.tokens(_limit(plan))
    config = plan.config
    stages = 2 if config.game.second_stage else 1
    rollouts = config.training.problems_per_step * config.sampling.group_size * stages
    say(
        console,
        f"a step: {rollouts} rollouts, {mean:,.0f} tokens as assumed, {most:,.0f} at most\n"
        f"the run: {steps:,} steps, {mean * steps / 1e6:,.0f} million tokens as assumed, "
        f"{most * steps / 1e6:,.0f} million at most",
    )


def _limit(plan: Plan) -> float:
    return float(plan.config.sampling.max_new_tokens)


def _card_table(plan: Plan, cards: Sequence[Card]) -> Table:
    table = Table(title=f"hours on {plan.processes} of each card", title_justify="left")
    table.add_column("card", no_wrap=True)
    for column in ("needs / has", "sampling", "update", "dev", "in all", "at most"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("most of it", no_wrap=True)
    for card in cards:
        sizes = f"{plan.needed(card) / GIB:.1f} / {card.memory / GIB:.0f}"
        if not plan.fits(card):
            table.add_row(card.key, sizes, *("",) * 5, "does not fit")
        elif card.key == CPU:
            table.add_row(card.key, sizes, *("",) * 5, "not estimated")
        else:
            hours, most = plan.hours(card), plan.hours(card, _limit(plan))
            figures = (hours.sampling, hours.update, hours.evaluation, hours.total, most.total)
            table.add_row(card.key, sizes, *(_hours(x) for x in figures), hours.limit)
    table.caption = (
        "needs and has in GiB; at most: every reply at its limit; most of it: what limits the "
        "longer of sampling and update"
    )
    return table


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:.2g}"


def _remedy(plan: Plan, card: Card) -> str:
    memory = plan.memory(card)
    sampler, update = sum(memory.sampler.values()), sum(memory.update.values())
    phase, parts = ("sampler", memory.sampler) if sampler >= update else ("update", memory.update)
    largest = max(parts, key=lambda name: parts[name])
    words = (
        f"{card.key}: the {phase} does not fit, mostly its {largest} ({_gib(parts[largest])} GiB)"
    )
    changes, changed = suggestions(plan, card)
    settings = " ".join(f"--set {text}" for text in changes)
    if changes and changed.fits(card):
        return f"{words}; {settings} needs {changed.needed(card) / GIB:.1f} GiB and fits"
    more = "a smaller sampling.max_new_tokens, a smaller base or a larger card"
    if changes:
        return f"{words}; {settings} still needs {changed.needed(card) / GIB:.1f} GiB: take {more}"
    return f"{words}: take {more}"


def _show_assumptions(plan: Plan, console: Console) -> None:
    assumed = plan.assumed
    lines = [
        *plan.notes,
        *plan.load.notes,
        f"{plan.engine} samples; the update reaches {assumed.update_share:.0%} of a card's peak "
        f"arithmetic, prompts {assumed.prefill_share:.0%}, decoding {assumed.bandwidth_share:.0%} "
        f"of its bandwidth, and the host needs {1e3 * assumed.launch_seconds:g} ms to launch a "
        "layer's kernels in a decoding step",
        "cards are as their data sheets give them (src/agon/planning/cards.toml); no card was "
        "measured, and no rollout is taken to have zero advantage, whose update costs nothing",
    ]
    say(console, "assumed:")
    for line in lines:
        say(console, f"  - {line}")
