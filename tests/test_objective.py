"""Properties of the surrogate on tensors: weights, clip, penalty, batches."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agon.objective import (
    Row,
    kl_penalty,
    microbatches,
    row_weights,
    token_losses,
)

AGGREGATIONS = ["dapo", "grpo", "dr_grpo"]


# Weights


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_the_weights_are_those_of_the_definitions(aggregation: str) -> None:
    lengths, limit = [2, 5, 3], 8
    expected = {
        "dapo": [1 / 10, 1 / 10, 1 / 10],
        "grpo": [1 / 6, 1 / 15, 1 / 9],
        "dr_grpo": [1 / 24, 1 / 24, 1 / 24],
    }
    assert row_weights(aggregation, lengths, limit) == pytest.approx(expected[aggregation])


@pytest.mark.parametrize("length", [1, 6])
@pytest.mark.parametrize("rows", [1, 4])
def test_with_equal_lengths_the_aggregations_agree_but_for_the_limit(
    rows: int, length: int
) -> None:
    limit = 12
    dapo, grpo, dr_grpo = (row_weights(name, [length] * rows, limit) for name in AGGREGATIONS)
    assert dapo == pytest.approx(grpo)
    assert dr_grpo == pytest.approx([weight * length / limit for weight in grpo])


def test_rows_of_full_length_weigh_the_same_under_all_three() -> None:
    dapo, grpo, dr_grpo = (row_weights(name, [7] * 3, 7) for name in AGGREGATIONS)
    assert dapo == pytest.approx(grpo)
    assert dapo == pytest.approx(dr_grpo)


def test_dapo_weighs_tokens_alike_and_grpo_rows() -> None:
    lengths = [1, 9]
    assert len(set(row_weights("dapo", lengths, 10))) == 1
    shares = [
        weight * length
        for weight, length in zip(row_weights("grpo", lengths, 10), lengths, strict=True)
    ]
    assert shares == pytest.approx([0.5, 0.5])


def test_the_limit_matters_to_dr_grpo_alone() -> None:
    for aggregation in AGGREGATIONS:
        short, long = (row_weights(aggregation, [2, 3], limit) for limit in (10, 20))
        assert (short == long) == (aggregation != "dr_grpo")


def test_an_unknown_aggregation_is_refused() -> None:
    with pytest.raises(ValueError, match="got 'bnpo', expected dapo, grpo or dr_grpo"):
        row_weights("bnpo", [1], 1)


# Clip


def losses_of(
    ratios: list[float], advantage: float, clip: float = 0.2
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Losses, clipped tokens and the gradient with respect to log p of tokens with given ratios."""
    old_1T = torch.full((1, len(ratios)), -1.5, dtype=torch.float64)
    logprobs_1T = (old_1T + torch.tensor([ratios], dtype=torch.float64).log()).requires_grad_()
    losses_1T, clipped_1T = token_losses(
        logprobs_1T, old_1T, torch.tensor([advantage], dtype=torch.float64), clip
    )
    (gradient_1T,) = torch.autograd.grad(losses_1T.sum(), logprobs_1T)
    return losses_1T[0].detach(), clipped_1T[0], gradient_1T[0]


@pytest.mark.parametrize("advantage", [1.5, -0.7, 0.0])
def test_at_a_ratio_of_one_the_gradient_is_the_policy_gradient(advantage: float) -> None:
    losses, clipped, gradient = losses_of([1.0, 1.0], advantage)
    assert losses.tolist() == [-advantage] * 2
    assert gradient.tolist() == [-advantage] * 2
    assert not clipped.any()


@pytest.mark.parametrize("clip", [0.1, 0.2, 0.5])
@pytest.mark.parametrize("advantage", [1.5, -0.7])
def test_the_clip_cuts_exactly_the_tokens_of_the_definition(advantage: float, clip: float) -> None:
    ratios = [0.01, 1 - clip - 1e-3, 1 - clip + 1e-3, 1.0, 1 + clip - 1e-3, 1 + clip + 1e-3, 40.0]
    losses, clipped, gradient = losses_of(ratios, advantage, clip)
    for index, ratio in enumerate(ratios):
        too_high = advantage > 0 and ratio > 1 + clip
        too_low = advantage < 0 and ratio < 1 - clip
        bounded = min(max(ratio, 1 - clip), 1 + clip)
        assert losses[index].item() == pytest.approx(-min(ratio * advantage, bounded * advantage))
        assert clipped[index].item() == (too_high or too_low)
        expected = 0.0 if too_high or too_low else -advantage * ratio
        assert gradient[index].item() == pytest.approx(expected, abs=1e-12)


def test_without_an_advantage_nothing_is_lost_or_clipped() -> None:
    losses, clipped, gradient = losses_of([0.01, 1.0, 40.0], 0.0)
    assert not losses.any()
    assert not gradient.any()
    assert not clipped.any()


def test_each_row_has_its_own_advantage() -> None:
    zeros_BT = torch.zeros(2, 3)
    losses_BT, _ = token_losses(zeros_BT, zeros_BT, torch.tensor([[1.0], [-2.0]]), 0.2)
    assert losses_BT.tolist() == [[-1.0] * 3, [2.0] * 3]


# Penalty


def test_the_penalty_and_its_gradient_are_zero_at_equality() -> None:
    logprobs_BT = torch.tensor([[-0.3, -2.0, -7.0]], requires_grad=True)
    penalty_BT = kl_penalty(logprobs_BT, logprobs_BT.detach())
    (gradient_BT,) = torch.autograd.grad(penalty_BT.sum(), logprobs_BT)
    assert not penalty_BT.any()
    assert not gradient_BT.any()


@given(st.floats(-8, 0), st.floats(-8, 0))
def test_the_penalty_is_never_negative_and_pulls_towards_the_reference(
    logprob: float, reference: float
) -> None:
    value = torch.tensor(logprob, dtype=torch.float64, requires_grad=True)
    penalty = kl_penalty(value, torch.tensor(reference, dtype=torch.float64))
    (gradient,) = torch.autograd.grad(penalty, value)
    assert penalty.item() >= -1e-12
    assert gradient.item() == pytest.approx(1 - math.exp(reference - logprob), abs=1e-9)


def test_the_mean_penalty_under_the_policy_is_the_divergence() -> None:
    generator = torch.Generator().manual_seed(0)
    policy_V, reference_V = (
        torch.randn(9, generator=generator, dtype=torch.float64).log_softmax(0) for _ in range(2)
    )
    mean = (policy_V.exp() * kl_penalty(policy_V, reference_V)).sum()
    divergence = (policy_V.exp() * (policy_V - reference_V)).sum()
    assert mean.item() == pytest.approx(divergence.item(), rel=1e-12)


# Microbatches


@given(st.lists(st.integers(1, 60), max_size=40), st.integers(1, 300))
def test_microbatches_hold_every_row_once_and_stay_within_the_budget(
    lengths: list[int], budget: int
) -> None:
    groups = microbatches(lengths, budget)
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    for group in groups:
        padded = len(group) * max(lengths[index] for index in group)
        assert padded <= budget or len(group) == 1


def test_a_row_longer_than_the_budget_runs_alone() -> None:
    assert microbatches([3, 50, 3, 3], 9) == [[1], [0, 2, 3]]


def test_a_budget_for_everything_makes_one_batch_and_none_makes_rows() -> None:
    assert len(microbatches([4, 9, 2], 10**9)) == 1
    assert len(microbatches([4, 9, 2], 1)) == 3
    assert microbatches([], 100) == []


def test_rows_of_like_length_run_together() -> None:
    groups = microbatches([10, 2, 10, 2, 10, 2], 30)
    assert groups == [[0, 2, 4], [1, 3, 5]]


def test_a_row_counts_prompt_and_completion() -> None:
    row = Row((1, 2, 3), (4, 5), (-1.0, -1.0), 0.5)
    assert row.tokens == 5
    with pytest.raises(dataclasses.FrozenInstanceError):
        row.advantage = 1.0  # type: ignore[misc]
