"""The plan's arithmetic: closed forms, limiting cases, and what must grow with what."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from typer.testing import CliRunner

import models
from agon.cli import app
from agon.config import Config
from agon.planning.cards import IN_PROCESS, Card, find_cards, known_cards
from agon.planning.hours import Stage, reply_lengths, sampling_time, timeline, update_time
from agon.planning.memory import Counted
from agon.planning.plan import Plan, make_plan, suggestions
from agon.planning.workload import Workload
from agon.recipes import change

PLAIN, CHALLENGE = (20, 15.0), (40, 30.0)
LOAD = Workload(100, PLAIN, CHALLENGE, 24.0, ())
CARD = Card("some", "some card", 80e9, 1e15, 3e12)


def config_of(*overrides: str) -> Config:
    base = Config.model_validate(
        {
            "sampling": {"max_new_tokens": 32, "group_size": 4, "slots": 16},
            "training": {"problems_per_step": 4, "microbatch_tokens": 256},
            "evaluation": {"every": 0},
            "game": {"max_summary_tokens": 8},
        }
    )
    return change(base, list(overrides))


@cache
def counted() -> Counted:
    return Counted.of(config_of(), models.model_config())


def plan_of(*overrides: str, processes: int = 1, load: Workload = LOAD) -> Plan:
    plan = make_plan(config_of(*overrides), models.model_config(), load, processes)
    return plan


def peaks(plan: Plan) -> tuple[int, int]:
    memory = plan.memory(CARD)
    return sum(memory.sampler.values()), sum(memory.update.values())


def test_weights_adapters_and_moments_are_counted_by_tensor() -> None:
    policies = models.tiny_policies()
    adapter = sum(p.numel() for p in policies.parameters("a").values())
    base = policies.model.get_base_model()
    weights = {id(p): p for n, p in base.named_parameters() if "lora_" not in n}
    held = counted().ghost
    assert held.adapter_parameters() == adapter * config_of().adapters.rank // rank_of(policies)
    buffers = {id(b): b for b in base.buffers()}
    tensors = [*weights.values(), *buffers.values()]
    assert held.base_bytes() == sum(t.numel() * t.element_size() for t in tensors)
    memory = plan_of().memory(CARD).sampler
    assert memory["adapters"] == 2 * 4 * held.adapter_parameters()
    assert memory["optimizer"] == 2 * memory["adapters"]


def rank_of(policies: Any) -> int:
    return int(policies.model.peft_config["a"].r)


def test_the_cache_holds_every_row_at_its_limit() -> None:
    found = plan_of().memory(CARD).sampler["KV cache"]
    rows, longest = 16, CHALLENGE[0] + 32
    layers, heads, width, numbers = 2, 2, 6, 2
    least = rows * longest * layers * heads * width * numbers * 4
    assert least <= found <= 2.6 * least  # buffers grow by doubling, with room to go on


@pytest.mark.parametrize(
    ("setting", "values", "phase"),
    [
        ("sampling.slots", (4, 8, 16), 0),
        ("sampling.max_new_tokens", (64, 256, 1024), 0),
        ("training.microbatch_tokens", (128, 256, 512), 1),
        ("adapters.rank", (4, 8, 16), 1),
    ],
)
def test_memory_grows_with_what_is_held(setting: str, values: tuple[int, ...], phase: int) -> None:
    found = [peaks(plan_of(f"{setting}={value}"))[phase] for value in values]
    assert found == sorted(found)
    assert len(set(found)) == len(found)


def test_checkpointing_lowers_the_update_alone() -> None:
    plain, less = peaks(plan_of()), peaks(plan_of("training.gradient_checkpointing=true"))
    assert less[1] < plain[1]
    assert less[0] == plain[0]


def test_twice_the_steps_take_twice_the_hours() -> None:
    once, twice = plan_of(), plan_of(load=replace(LOAD, steps=200))
    assert twice.hours(CARD).total == pytest.approx(2 * once.hours(CARD).total)


def test_a_card_of_twice_everything_takes_half_the_time_but_for_launches() -> None:
    assumed = replace(IN_PROCESS, launch_seconds=0.0)
    stage = Stage(16, 4, 20.0, 24.0, 32, 8)
    double = replace(CARD, flops=2 * CARD.flops, bandwidth=2 * CARD.bandwidth)
    model = counted().arithmetic
    slow, _ = sampling_time(model, stage, CARD, assumed)
    fast, _ = sampling_time(model, stage, double, assumed)
    assert fast.total == pytest.approx(slow.total / 2)
    update = update_time(model, stage, CARD, assumed, False)
    assert update_time(model, stage, double, assumed, False) == pytest.approx(update / 2)
    assert update_time(model, stage, CARD, assumed, True) > update


def test_launches_bind_where_the_card_is_infinitely_fast() -> None:
    endless = replace(CARD, flops=1e30, bandwidth=1e30)
    stage = Stage(8, 8, 20.0, 32.0, 32, 8)
    spent, batch = sampling_time(counted().arithmetic, stage, endless, IN_PROCESS)
    assert spent.limit == "launches"
    assert spent.total == pytest.approx(32 * 2 * IN_PROCESS.launch_seconds, rel=1e-6)
    assert batch == pytest.approx(8)


@pytest.mark.parametrize(("mean", "limit"), [(10, 100), (50, 100), (90, 100), (100, 100)])
def test_reply_lengths_keep_mean_and_limit(mean: int, limit: int) -> None:
    lengths = reply_lengths(64, mean, limit)
    assert sum(lengths) / 64 == pytest.approx(mean, rel=1e-3)
    assert max(lengths) <= limit + 1e-9


@pytest.mark.parametrize("slots", [1, 7, 100])
def test_the_timeline_decodes_every_token_once(slots: int) -> None:
    stage = Stage(20, 5, 10.0, 24.0, 32, slots)
    decoded = sum(rows * steps for rows, _, steps in timeline(stage))
    assert decoded == pytest.approx(sum(reply_lengths(20, 24.0, 32)))
    assert max(rows for rows, _, _ in timeline(stage)) == min(slots, 20)


def test_cards_share_a_steps_problems() -> None:
    one, four = plan_of(), plan_of(processes=4)
    assert four.tokens(24.0) == pytest.approx(one.tokens(24.0))
    assert four.hours(CARD).total < one.hours(CARD).total
    assert peaks(four)[0] < peaks(one)[0]


def test_suggestions_make_a_run_fit_or_say_that_they_do_not() -> None:
    plan = plan_of("sampling.slots=64", "training.problems_per_step=16")
    needed = plan.needed(CARD)
    tight = replace(CARD, memory=IN_PROCESS.runtime + (needed - IN_PROCESS.runtime) * 0.7)
    assert not plan.fits(tight)
    texts, better = suggestions(plan, tight)
    assert texts
    assert better.fits(tight)
    assert better.config == change(plan.config, texts)
    hopeless = replace(CARD, memory=IN_PROCESS.runtime)
    assert not suggestions(plan, hopeless)[1].fits(hopeless)


def test_an_unknown_card_is_named_with_the_known_ones() -> None:
    assert len(find_cards(list(known_cards()))) == len(known_cards())
    done = CliRunner().invoke(app, ["plan", "countdown-agon", "--card", "abacus"])
    assert "--card: got 'abacus'" in str(done.exception)


def test_the_command_gives_plain_figures() -> None:
    done = CliRunner().invoke(app, ["plan", "countdown-agon", "--card", "cpu", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert found["steps"] > 0
    [row] = found["plans"]
    assert row["fits"]
    assert row["needed"] > sum(row["update"].values())
