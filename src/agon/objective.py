"""The GRPO surrogate on tensors.

With ratio r_t = exp(log p_t - log q_t) of a token under the policy now and under the policy that
sampled it, and A the row's advantage, the loss of a token is

    l_t = - min(r_t A, clip(r_t, 1 - epsilon, 1 + epsilon) A) + beta k_t
    k_t = exp(log p_ref_t - log p_t) - (log p_ref_t - log p_t) - 1

(Schulman et al. 2017; Shao et al. 2024 for the group-relative form and for k_t). q is what the
sampler returned or, with `objective.old_logprobs = "trainer"`, what the trainer's own forward pass
says before the first update; the surrogate's first term is then multiplied by the weight of
`importance_weights`, if a cap is set. A stream, all
rollouts of one role of one step, has the loss sum_rows w_row sum_t l_t with the weights of
`row_weights`. It is a plain sum, so the result is the same for every split into microbatches, and
rows whose advantage is zero add nothing when beta = 0: they need neither forward nor backward.

This module holds no model (`logprobs` runs it) and takes no step (`update` does).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Row:
    """One scored rollout of a stream, as the update needs it."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    advantage: float

    @property
    def tokens(self) -> int:
        """Prompt and completion together."""
        return len(self.prompt_ids) + len(self.completion_ids)


@dataclass(frozen=True, slots=True)
class StreamSize:
    """Scored rows of a whole stream and their completion tokens."""

    rows: int
    tokens: int


def row_weights(
    aggregation: str, lengths: Sequence[int], limit: int, size: StreamSize | None = None
) -> list[float]:
    """Weight of each row's summed token losses, for the scored rows of one stream.

    Args:
        aggregation: `dapo` divides by the stream's completion tokens; `grpo` averages each row
            over its tokens and then the rows; `dr_grpo` divides by rows times the limit.
        lengths: Completion tokens of every scored row, the zero-advantage rows included.
        limit: Completion limit in tokens.
        size: Of the whole stream, where these rows are a part of it.

    Sources: Yu et al. 2025 (DAPO), Shao et al. 2024 (GRPO), Liu et al. 2025 (Dr. GRPO).
    """
    size = size or StreamSize(len(lengths), sum(lengths))
    if not lengths:
        return []
    if aggregation == "dapo":
        return [1.0 / size.tokens] * len(lengths)
    if aggregation == "grpo":
        return [1.0 / (size.rows * length) for length in lengths]
    if aggregation == "dr_grpo":
        return [1.0 / (size.rows * limit)] * len(lengths)
    raise ValueError(f"aggregation: got {aggregation!r}, expected dapo, grpo or dr_grpo")


def token_losses(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, clip: float
) -> tuple[Tensor, Tensor]:
    """Clipped surrogate of each token, and which tokens the clip holds back.

    Args:
        logprobs: Log-probabilities under the policy being updated, one for each token.
        old_logprobs: Under the policy that sampled, by the sampler's word or the trainer's.
        advantages: The advantage of each token's row; broadcast.
        clip: epsilon.

    Returns:
        Losses, and a boolean mask of tokens whose gradient the clip cuts off.
    """
    ratio = torch.exp(logprobs - old_logprobs)
    clamped = ratio.clamp(1 - clip, 1 + clip)
    losses = -torch.minimum(ratio * advantages, clamped * advantages)
    low = (ratio < 1 - clip) & (advantages < 0)
    high = (ratio > 1 + clip) & (advantages > 0)
    return losses, low | high


def importance_weights(trainer: Tensor, sampler: Tensor, cap: float) -> tuple[Tensor, Tensor]:
    """Truncated importance weights of tokens that another implementation sampled.

    The tokens come from the sampler's distribution mu, the surrogate's expectation is over the
    trainer's pi of the same weights; w_t = min(pi_t / mu_t, C) weighs one by the other, truncated
    so that no token outweighs C others. The weight is a constant of the update.

    Args:
        trainer: log pi_t, by the trainer's forward pass under the weights that sampled.
        sampler: log mu_t, as the sampler returned them.
        cap: C.

    Returns:
        Weights without gradient, and a boolean mask of tokens whose weight was truncated.

    Sources: Ionides 2008 (truncated importance sampling); Yao et al. 2025, "Your Efficient RL
    Framework Secretly Brings You Off-Policy RL Training" (for samplers); as implemented by TRL
    1.16 (`vllm_importance_sampling_mode = "token_truncate"`) and by verl (token-level
    `rollout_is`): both multiply the clipped surrogate alone, not the KL penalty.
    """
    ratio = torch.exp(trainer - sampler).detach()
    return ratio.clamp(max=cap), ratio > cap


def kl_penalty(logprobs: Tensor, reference: Tensor) -> Tensor:
    """k_t, the low-variance estimate of KL(policy || reference) of each token."""
    difference = reference - logprobs
    return torch.exp(difference) - difference - 1


def microbatches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices of rows of like length, grouped so that padded tokens stay within the budget.

    A row longer than the budget runs alone.
    """
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    groups: list[list[int]] = []
    for index in order:
        if groups and lengths[groups[-1][0]] * (len(groups[-1]) + 1) <= budget:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups
