"""The GRPO surrogate on tensors.

With ratio r_t = exp(log p_t - log q_t) of a token under the policy now and under the policy that
sampled it, and A the row's advantage, the loss of a token is

    l_t = - min(r_t A, clip(r_t, 1 - epsilon, 1 + epsilon) A) + beta k_t
    k_t = exp(log p_ref_t - log p_t) - (log p_ref_t - log p_t) - 1

(Schulman et al. 2017; Shao et al. 2024 for the group-relative form and for k_t). A stream, all
rollouts of one role of one step, has the loss sum_rows w_row sum_t l_t with the weights of
`row_weights`. It is a plain sum, so the result is the same for every split into microbatches, and
rows whose advantage is zero add nothing when beta = 0: they need neither forward nor backward.

This module holds no model and takes no step: `update` does.
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
class Batch:
    """Rows padded to tensors.

    Attributes:
        input_ids_BL: Prompt, completion, padding.
        columns_T: The input positions whose next token is some row's completion token.
        targets_BT: The next token at each of them.
        mask_BT: 1.0 where that token belongs to the row's completion.
        old_logprobs_BT: The sampler's log-probabilities, 0 elsewhere.
        advantages_B: One for each row.
    """

    input_ids_BL: Tensor
    columns_T: Tensor
    targets_BT: Tensor
    mask_BT: Tensor
    old_logprobs_BT: Tensor
    advantages_B: Tensor


def row_weights(aggregation: str, lengths: Sequence[int], limit: int) -> list[float]:
    """Weight of each row's summed token losses, for the scored rows of one stream.

    Args:
        aggregation: `dapo` divides by the stream's completion tokens; `grpo` averages each row
            over its tokens and then the rows; `dr_grpo` divides by rows times the limit.
        lengths: Completion tokens of every scored row, the zero-advantage rows included.
        limit: Completion limit in tokens.

    Sources: Yu et al. 2025 (DAPO), Shao et al. 2024 (GRPO), Liu et al. 2025 (Dr. GRPO).
    """
    if aggregation == "dapo":
        return [1.0 / sum(lengths)] * len(lengths)
    if aggregation == "grpo":
        return [1.0 / (len(lengths) * length) for length in lengths]
    if aggregation == "dr_grpo":
        return [1.0 / (len(lengths) * limit)] * len(lengths)
    raise ValueError(f"aggregation: got {aggregation!r}, expected dapo, grpo or dr_grpo")


def token_losses(
    logprobs_BT: Tensor, old_logprobs_BT: Tensor, advantages_B: Tensor, clip: float
) -> tuple[Tensor, Tensor]:
    """Clipped surrogate of each token, and which tokens the clip holds back.

    Args:
        logprobs_BT: Log-probabilities under the policy being updated.
        old_logprobs_BT: The sampler's.
        advantages_B: One for each row.
        clip: epsilon.

    Returns:
        Losses (B, T) and a boolean mask (B, T) of tokens whose gradient the clip cuts off.
    """
    advantages_B1 = advantages_B.unsqueeze(1)
    ratio_BT = torch.exp(logprobs_BT - old_logprobs_BT)
    clamped_BT = ratio_BT.clamp(1 - clip, 1 + clip)
    losses_BT = -torch.minimum(ratio_BT * advantages_B1, clamped_BT * advantages_B1)
    low_BT = (ratio_BT < 1 - clip) & (advantages_B1 < 0)
    high_BT = (ratio_BT > 1 + clip) & (advantages_B1 > 0)
    return losses_BT, low_BT | high_BT


def kl_penalty(logprobs_BT: Tensor, reference_BT: Tensor) -> Tensor:
    """k_t, the low-variance estimate of KL(policy || reference) of each token."""
    difference_BT = reference_BT - logprobs_BT
    return torch.exp(difference_BT) - difference_BT - 1


def token_logprobs(model: torch.nn.Module, batch: Batch, temperature: float) -> Tensor:
    """Log-probabilities (B, T) of the batch's completion tokens; 0 where `mask_BT` is 0.

    Rows are padded on the right, so causal attention alone keeps padding out of every position
    that counts: no mask is needed, and only columns that predict a completion token are projected
    onto the vocabulary.
    """
    logits_BTV: Tensor = model(
        input_ids=batch.input_ids_BL, logits_to_keep=batch.columns_T, use_cache=False
    ).logits.float()
    if temperature != 1.0:
        logits_BTV = logits_BTV / temperature
    chosen_BT = logits_BTV.gather(2, batch.targets_BT.unsqueeze(2)).squeeze(2)
    return (chosen_BT - torch.logsumexp(logits_BTV, dim=2)) * batch.mask_BT


def collate(rows: Sequence[Row], pad_token_id: int, device: torch.device) -> Batch:
    """Pad rows on the right and line up their completion tokens by input position."""
    length = max(row.tokens for row in rows)
    start = min(len(row.prompt_ids) for row in rows) - 1
    ids_BL = torch.full((len(rows), length), pad_token_id)
    mask_BL = torch.zeros((len(rows), length))
    old_BL = torch.zeros((len(rows), length))
    for index, row in enumerate(rows):
        ids_BL[index, : row.tokens] = torch.tensor(row.prompt_ids + row.completion_ids)
        mask_BL[index, len(row.prompt_ids) : row.tokens] = 1.0
        old_BL[index, len(row.prompt_ids) : row.tokens] = torch.tensor(row.logprobs)
    return Batch(
        input_ids_BL=ids_BL.to(device),
        columns_T=torch.arange(start, length - 1, device=device),
        targets_BT=ids_BL[:, start + 1 :].to(device),
        mask_BT=mask_BL[:, start + 1 :].to(device),
        old_logprobs_BT=old_BL[:, start + 1 :].to(device),
        advantages_B=torch.tensor([row.advantage for row in rows], device=device),
    )


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
