"""Properties of an adapter's optimizer step on whole streams."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

import models
from agon.config import Config, OptimizerConfig
from agon.objective import Row, row_weights
from agon.policies import Policies
from agon.records import Draft
from agon.update import Pass, Updater, UpdateStats, learning_rate, stream_rows

AGGREGATIONS = ["dapo", "grpo", "dr_grpo"]
ADVANTAGES = [1.2, -0.8, 0.5, -1.0, 0.3, -0.2]
FLAT = [0.0, 0.9, 0.0, -0.9, 0.0, 0.0, 0.4, -0.4]


def by_hand(
    policies: Policies,
    policy: str,
    rows: Sequence[Row],
    weights: Sequence[float],
    config: Config,
) -> float:
    """Leave the gradient of the definition in the adapter: row by row, token by token."""
    objective, temperature = config.objective, config.sampling.temperature
    total = 0.0
    for row, weight in zip(rows, weights, strict=True):
        ids = (row.prompt_ids, row.completion_ids)
        with torch.no_grad():
            reference_T = models.plain_logprobs(policies, "base", *ids, temperature)
        with policies.active(policy):
            logprobs_T = models.plain_logprobs(policies, policy, *ids, temperature)
            loss = torch.zeros(())
            for new, old, reference in zip(logprobs_T, row.logprobs, reference_T, strict=True):
                ratio = torch.exp(new - old)
                if row.advantage > 0 and ratio > 1 + objective.clip:
                    loss = loss - (1 + objective.clip) * row.advantage
                elif row.advantage < 0 and ratio < 1 - objective.clip:
                    loss = loss - (1 - objective.clip) * row.advantage
                else:
                    loss = loss - ratio * row.advantage
                gap = reference - new
                loss = loss + objective.beta * (torch.exp(gap) - gap - 1)
            (weight * loss).backward()
        total += weight * loss.item()
    return total


def accumulated(
    policies: Policies,
    policy: str,
    drafts: Sequence[Draft],
    config: Config,
    updater: Updater | None = None,
) -> tuple[dict[str, torch.Tensor], Pass]:
    """Gradients and figures of a stream as the updater accumulates them."""
    models.clear_gradients(policies)
    rows, weights = stream_rows(drafts, config)
    figures = (updater or models.updater(policies, config)).backward(policy, rows, weights)
    return models.gradients(policies, policy), figures


class RowCounter:
    """Counts the rows that go through the model with gradients on, and without."""

    def __init__(self, policies: Policies) -> None:
        self.trained = self.reference = 0
        policies.model.get_input_embeddings().register_forward_hook(self._count)

    def _count(self, _module: Any, args: tuple[torch.Tensor, ...], _output: Any) -> None:
        if torch.is_grad_enabled():
            self.trained += len(args[0])
        else:
            self.reference += len(args[0])


# The gradient


@pytest.mark.parametrize(("beta", "temperature"), [(0.0, 1.0), (0.1, 0.7)])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_loss_and_gradient_are_those_of_the_definition(
    aggregation: str, beta: float, temperature: float
) -> None:
    policies = models.tiny_policies()
    config = models.settings(
        objective={"aggregation": aggregation, "beta": beta},
        sampling={"temperature": temperature},
    )
    drafts = models.sampled_by(policies, "b", ADVANTAGES, noise=0.3, temperature=temperature)
    gradients, (loss, clipped, gap, _) = accumulated(policies, "b", drafts, config)
    models.clear_gradients(policies)
    rows, weights = stream_rows(drafts, config)
    expected = by_hand(policies, "b", rows, weights, config)
    assert loss == pytest.approx(expected, rel=1e-5)
    models.assert_same(gradients, models.gradients(policies, "b"), relative=1e-5)
    assert 0 < clipped < 1
    assert gap > 0.1


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_the_split_into_microbatches_changes_nothing(aggregation: str, beta: float) -> None:
    policies = models.tiny_policies()
    drafts = models.sampled_by(policies, "a", ADVANTAGES * 2, noise=0.3)
    results = []
    for budget in (1, 64, 10**9):
        config = models.settings(
            objective={"aggregation": aggregation, "beta": beta},
            training={"microbatch_tokens": budget},
        )
        results.append(accumulated(policies, "a", drafts, config))
    (whole_gradients, whole_figures), *others = results
    for gradients, figures in others:
        models.assert_same(gradients, whole_gradients, relative=1e-5)
        assert figures == pytest.approx(whole_figures, rel=1e-5)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_microbatch_per_row_really_runs_row_by_row(aggregation: str) -> None:
    policies = models.tiny_policies()
    drafts = models.sampled_by(policies, "a", ADVANTAGES)
    config = models.settings(
        objective={"aggregation": aggregation}, training={"microbatch_tokens": 1}
    )
    updater = models.updater(policies, config)
    passes = []
    policies.model.get_input_embeddings().register_forward_hook(
        lambda _module, args, _output: passes.append(tuple(args[0].shape))
    )
    accumulated(policies, "a", drafts, config, updater)
    # The last token of a row predicts nothing that counts.
    tokens = sorted(row.tokens - 1 for row in models.rows_of(drafts))
    assert sorted(length for _, length in passes) == tokens
    assert {rows for rows, _ in passes} == {1}


# Rows that are left out


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_leaving_out_rows_of_zero_advantage_leaves_the_gradient(aggregation: str) -> None:
    """`step` leaves them out and `backward` does not; one row per pass makes it exact."""
    policies = models.tiny_policies(moved=True)
    config = models.settings(
        objective={"aggregation": aggregation}, training={"microbatch_tokens": 1}
    )
    drafts = models.sampled_by(policies, "a", FLAT, noise=0.1)
    all_rows, (loss, *_) = accumulated(policies, "a", drafts, config)
    models.clear_gradients(policies)
    rows, weights = stream_rows(drafts, config)
    kept = [index for index, row in enumerate(rows) if row.advantage != 0]
    figures = models.updater(policies, config).backward(
        "a", [rows[i] for i in kept], [weights[i] for i in kept]
    )
    models.assert_same(models.gradients(policies, "a"), all_rows)
    assert figures[0] == pytest.approx(loss, rel=1e-6)


@pytest.mark.parametrize(("beta", "trained"), [(0.0, 4), (0.1, 8)])
def test_rows_of_zero_advantage_are_run_only_for_the_penalty(beta: float, trained: int) -> None:
    policies = models.tiny_policies()
    drafts = models.sampled_by(policies, "a", FLAT)
    updater = models.updater(policies, models.settings(objective={"beta": beta}))
    counter = RowCounter(policies)
    stats = updater.step("a", [drafts], 1e-3)
    assert counter.trained == stats.rows == trained
    assert counter.reference == (8 if beta else 0)
    assert stats.scored == 8


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_rows_of_zero_advantage_count_in_the_denominator(aggregation: str) -> None:
    config = models.settings(objective={"aggregation": aggregation})
    drafts = models.sampled_by(models.tiny_policies(), "a", FLAT)
    lengths = [draft.reply.length for draft in drafts]
    _, weights = stream_rows(drafts, config)
    assert weights == row_weights(aggregation, lengths, config.sampling.max_new_tokens)


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_unscored_rows_enter_neither_gradient_nor_denominator(
    aggregation: str, beta: float
) -> None:
    policies = models.tiny_policies()
    config = models.settings(objective={"aggregation": aggregation, "beta": beta})
    drafts = models.sampled_by(policies, "a", [0.7, None, -0.7, 0.2, None])
    scored = [draft for draft in drafts if draft.reward is not None]
    with_them, figures = accumulated(policies, "a", drafts, config)
    without_them, figures_without = accumulated(policies, "a", scored, config)
    models.assert_same(with_them, without_them)
    assert figures == figures_without


def test_a_stream_without_scored_rows_is_empty() -> None:
    drafts = models.sampled_by(models.tiny_policies(), "a", [None, None])
    assert stream_rows(drafts, models.settings()) == ([], [])


# What changes, and what does not


@pytest.mark.parametrize(
    ("policy", "checkpointing", "updates", "beta"),
    [
        *itertools.product(["a", "b"], [False, True], [1, 2], [0.0]),
        ("a", True, 1, 0.1),
        ("b", True, 1, 0.1),
    ],
)
def test_only_the_adapter_that_is_updated_changes(
    policy: str, checkpointing: bool, updates: int, beta: float
) -> None:
    policies = models.tiny_policies()
    config = models.settings(
        training={"gradient_checkpointing": checkpointing},
        objective={"updates_per_step": updates, "beta": beta},
    )
    drafts = models.sampled_by(policies, policy, ADVANTAGES)
    before, own = models.digests(policies), models.weights(policies, policy)
    updater = models.updater(policies, config)
    updater.step(policy, [drafts], 1e-2)
    after = models.digests(policies)
    other = "b" if policy == "a" else "a"
    assert after["base"] == before["base"]
    assert after[other] == before[other]
    for name, value in policies.parameters(policy).items():
        assert not torch.equal(value, own[name]), f"{name} did not change"
    assert not updater.optimizers[other].state
    assert all(parameter.grad is None for parameter in policies.model.parameters())
    versions = {name: policies.version(name) for name in policies.known}
    assert versions == {"base": 0, policy: updates, other: 0}


def test_taking_turns_never_moves_the_idle_adapter() -> None:
    """Its moments and its step count rest too, though it has momentum."""
    policies = models.tiny_policies()
    updater = models.updater(policies)
    streams = {name: [models.sampled_by(policies, name, ADVANTAGES)] for name in ("a", "b")}
    for name in ("a", "b"):
        updater.step(name, streams[name], 1e-2)
    for name, idle in (("a", "b"), ("b", "a"), ("b", "a")):
        before = models.digests(policies)
        moments = [
            {key: value.clone() for key, value in state.items()}
            for state in updater.optimizers[idle].state.values()
        ]
        updater.step(name, streams[name], 1e-2)
        after = models.digests(policies)
        assert after[idle] == before[idle]
        assert after["base"] == before["base"]
        assert after[name] != before[name]
        now = updater.optimizers[idle].state.values()
        for old, new in zip(moments, now, strict=True):
            models.assert_same(dict(new), old)


def test_what_one_adapter_learns_does_not_hang_on_the_other() -> None:
    alone, both = models.tiny_policies(), models.tiny_policies()
    drafts = models.sampled_by(alone, "a", ADVANTAGES)
    rivals = models.sampled_by(both, "b", ADVANTAGES, seed=1)
    models.updater(alone).step("a", [drafts], 1e-2)
    updater = models.updater(both)
    updater.step("b", [rivals], 1e-2)
    updater.step("a", [drafts], 1e-2)
    models.assert_same(models.weights(both, "a"), models.weights(alone, "a"))


def test_a_step_leaves_the_model_as_the_sampler_needs_it() -> None:
    policies = models.tiny_policies()
    config = models.settings(training={"gradient_checkpointing": True})
    models.updater(policies, config).step("a", [models.sampled_by(policies, "a", [1.0])], 1e-2)
    assert not any(module.training for module in policies.model.modules())
    assert not any(parameter.requires_grad for parameter in policies.model.parameters())


# Gradient checkpointing


class TestGradientCheckpointing:
    """Activations are recomputed in the backward pass, under the adapter that ran the forward."""

    @pytest.mark.parametrize("beta", [0.0, 0.1])
    @pytest.mark.parametrize("policy", ["a", "b"])
    def test_it_changes_no_gradient(self, policy: str, beta: float) -> None:
        results = []
        for checkpointing in (False, True):
            policies = models.tiny_policies()
            drafts = models.sampled_by(policies, policy, ADVANTAGES, noise=0.1)
            config = models.settings(
                training={"gradient_checkpointing": checkpointing, "microbatch_tokens": 40},
                objective={"beta": beta},
            )
            results.append(accumulated(policies, policy, drafts, config))
        (plain, figures), (recomputed, recomputed_figures) = results
        models.assert_same(recomputed, plain, absolute=1e-6)
        assert recomputed_figures == pytest.approx(figures, rel=1e-6)

    def test_it_really_recomputes(self) -> None:
        calls = {}
        for checkpointing in (False, True):
            policies = models.tiny_policies()
            drafts = models.sampled_by(policies, "a", [1.0])
            config = models.settings(training={"gradient_checkpointing": checkpointing})
            updater = models.updater(policies, config)
            seen: list[int] = []
            layer = policies.model.get_base_model().model.layers[0].mlp
            layer.register_forward_pre_hook(lambda *_, seen=seen: seen.append(1))
            accumulated(policies, "a", drafts, config, updater)
            calls[checkpointing] = len(seen)
        assert calls == {False: 1, True: 2}

    @pytest.mark.parametrize(("first", "second"), [("a", "b"), ("b", "a")])
    def test_activating_the_other_adapter_afterwards_leaves_the_gradient(
        self, first: str, second: str
    ) -> None:
        policies = models.tiny_policies()
        config = models.settings(training={"gradient_checkpointing": True})
        drafts = {
            name: models.sampled_by(policies, name, ADVANTAGES, seed)
            for seed, name in enumerate("ab")
        }
        alone = {name: accumulated(policies, name, drafts[name], config)[0] for name in "ab"}
        models.clear_gradients(policies)
        updater = models.updater(policies, config)
        updater.backward(first, *stream_rows(drafts[first], config))
        with policies.active(second), torch.no_grad():
            policies.model(input_ids=torch.tensor([[3, 4, 5]]))
        models.assert_same(models.gradients(policies, first), alone[first])
        assert not models.gradients(policies, second)
        updater.backward(second, *stream_rows(drafts[second], config))
        models.assert_same(models.gradients(policies, first), alone[first])
        models.assert_same(models.gradients(policies, second), alone[second])


# Several updates on one step's rollouts


def test_the_second_of_two_updates_uses_the_sampler_s_log_probabilities() -> None:
    """Against AdamW on gradients computed by hand, with the old log-probabilities kept."""
    policies, twin = models.tiny_policies(), models.tiny_policies()
    config = models.settings(objective={"updates_per_step": 2})
    drafts = models.sampled_by(policies, "a", ADVANTAGES)
    stats = models.updater(policies, config).step("a", [drafts], 0.03)
    optimizer = torch.optim.AdamW(twin.parameters("a").values(), lr=0.03, weight_decay=0.0)
    rows, weights = stream_rows(drafts, config)
    for _ in range(2):
        optimizer.zero_grad()
        loss = by_hand(twin, "a", rows, weights, config)
        optimizer.step()
    assert stats.loss == pytest.approx(loss, rel=1e-4)
    assert stats.clipped > 0
    assert stats.ratio_gap > 0.01
    assert policies.version("a") == 2
    models.assert_same(models.weights(policies, "a"), models.weights(twin, "a"), absolute=1e-3)


def test_the_first_update_finds_the_policy_where_the_sampler_left_it() -> None:
    policies = models.tiny_policies()
    stats = models.updater(policies).step("b", [models.sampled_by(policies, "b", ADVANTAGES)], 1e-2)
    assert stats.clipped == 0.0
    assert stats.ratio_gap < 1e-5


# Two streams of one policy


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_policy_of_both_roles_takes_the_sum_of_two_normalised_streams(aggregation: str) -> None:
    policies = models.tiny_policies(count=1)
    config = models.settings(objective={"aggregation": aggregation})
    drafts = models.sampled_by(policies, "a", [1.0, -1.0], seed=1, longest=3)
    challenges = models.sampled_by(policies, "a", [0.5, -0.8, 0.1, 0.2], seed=2, longest=11)
    limit = config.sampling.max_new_tokens
    twin, total = models.tiny_policies(count=1), 0.0
    for stream in (drafts, challenges):
        rows = models.rows_of(stream)
        weights = row_weights(aggregation, [len(row.completion_ids) for row in rows], limit)
        total += by_hand(twin, "a", rows, weights, config)
    expected = models.gradients(twin, "a")
    updater = models.updater(policies, config)
    stats = updater.step("a", [drafts, challenges], 1e-2)
    assert stats.loss == pytest.approx(total, rel=1e-5, abs=1e-6)
    norm = math.sqrt(sum(float(value.square().sum()) for value in expected.values()))
    assert stats.grad_norm == pytest.approx(norm, rel=1e-5)
    # After one step AdamW's first moment is (1 - beta_1) times the gradient that it was given.
    first_moments = {
        name: updater.optimizers["a"].state[parameter]["exp_avg"] / 0.1
        for name, parameter in policies.parameters("a").items()
    }
    models.assert_same(first_moments, expected, relative=1e-5)
    assert policies.version("a") == 1


def test_two_streams_are_not_one_stream() -> None:
    """Under dapo a joint denominator would weigh the longer stream more."""
    policies = models.tiny_policies(count=1)
    config = models.settings()
    drafts = models.sampled_by(policies, "a", [1.0, -1.0], seed=1, longest=3)
    challenges = models.sampled_by(policies, "a", [0.5, -0.8], seed=2)
    separate = {
        index: accumulated(policies, "a", stream, config)[0]
        for index, stream in enumerate((drafts, challenges))
    }
    joint, _ = accumulated(policies, "a", [*drafts, *challenges], config)
    name = next(iter(joint))
    assert not torch.allclose(joint[name], separate[0][name] + separate[1][name], rtol=1e-2)


# Steps without a gradient, and the optimizer's settings


def step_on(policies: Policies, advantages: list[float | None]) -> UpdateStats:
    drafts = models.sampled_by(policies, "a", advantages)
    return models.updater(policies).step("a", [drafts], 1e-2)


@pytest.mark.parametrize("advantages", [[0.0, 0.0], [None, None], []])
def test_a_fresh_adapter_without_a_row_to_run_stays_and_has_had_its_step(
    advantages: list[float | None],
) -> None:
    policies = models.tiny_policies()
    before = models.digests(policies)
    stats = step_on(policies, advantages)
    assert models.digests(policies) == before
    assert policies.version("a") == 1
    assert (stats.loss, stats.grad_norm, stats.rows) == (0.0, 0.0, 0)


def test_a_step_without_a_row_to_run_is_a_step_of_the_optimizer() -> None:
    """All played and all flat: the moments decay, as they do in an arm whose rows are all run."""
    policies = models.tiny_policies()
    updater = models.updater(policies)
    updater.step("a", [models.sampled_by(policies, "a", ADVANTAGES)], 1e-2)
    first = [state["exp_avg"].clone() for state in updater.optimizers["a"].state.values()]
    updater.step("a", [models.sampled_by(policies, "a", [0.0, 0.0])], 1e-2)
    states = updater.optimizers["a"].state.values()
    for state, moment in zip(states, first, strict=True):
        assert state["step"] == 2
        torch.testing.assert_close(state["exp_avg"], 0.9 * moment)


def test_the_gradient_norm_is_reported_before_it_is_clipped() -> None:
    stats, moments = {}, {}
    for limit in (1e-3, 1e6):
        policies = models.tiny_policies()
        updater = models.updater(policies, models.settings(optimizer={"clip_norm": limit}))
        drafts = models.sampled_by(policies, "a", ADVANTAGES)
        stats[limit] = updater.step("a", [drafts], 1e-2)
        state = updater.optimizers["a"].state.values()
        moments[limit] = math.sqrt(sum(float(s["exp_avg"].square().sum()) for s in state)) / 0.1
    assert stats[1e-3].grad_norm == stats[1e6].grad_norm > 1e-2
    assert moments[1e-3] == pytest.approx(1e-3, rel=1e-2)
    assert moments[1e6] == pytest.approx(stats[1e6].grad_norm, rel=1e-5)


def test_a_small_step_lowers_the_loss() -> None:
    policies = models.tiny_policies()
    config = models.settings()
    drafts = models.sampled_by(policies, "a", ADVANTAGES)
    _, (before, *_) = accumulated(policies, "a", drafts, config)
    models.updater(policies, config).step("a", [drafts], 1e-4)
    _, (after, *_) = accumulated(policies, "a", drafts, config)
    assert after < before


@pytest.mark.parametrize(
    ("steps", "warmup"), [(100, 0.1), (7, 0.3), (10, 0.0), (10, 1.0), (1, 0.1)]
)
def test_the_rate_rises_to_its_peak_falls_and_is_never_zero(steps: int, warmup: float) -> None:
    config = OptimizerConfig(learning_rate=2.0, warmup=warmup)
    rates = [learning_rate(step, steps, config) for step in range(steps)]
    top = rates.index(max(rates))
    assert max(rates) == pytest.approx(2.0)
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert min(rates) > 0
    assert learning_rate(steps, steps, config) == 0.0
