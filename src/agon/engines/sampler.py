"""Drawing tokens: exact inverse-CDF sampling from whole vocabularies, without a sort.

Small vocabularies are searched in one level. Large ones in two: sums of blocks first, then inside
the block that holds the random number, so that double precision costs next to nothing.

Dimensions: B rows, R of them at a time, V vocabulary, N blocks of K tokens.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

_BLOCK = 128
"""Tokens of a vocabulary block in the two-level search; most vocabularies are multiples of it."""

_ONE_LEVEL = 1024
"""Vocabularies up to this size are searched in one level."""

_CACHED = 2**20
"""Numbers of a block of rows that stays in a core's cache while it is worked on (4 MiB). Whole
batches would go to memory and back a dozen times, and new memory for each result costs more still:
the kernel clears every page of it."""

_LOWEST = -1e4
"""Stands for minus infinity among shifted logits: its exponential is 0 and 0 times it is 0."""


def generator(key: str) -> np.random.Generator:
    """A counter-based generator seeded by the key's text alone."""
    digest = blake2b(key.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


def sample(
    logits_BV: Tensor, uniforms_B: Tensor | None, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw one token for each row by inverting the cumulative distribution.

    Args:
        logits_BV: Unnormalised log-probabilities, any floating type.
        uniforms_B: Numbers in [0, 1), double; None takes the most likely token.
        temperature: Divides the logits where numbers are given.

    Returns:
        Tokens, their log-probabilities and the entropies of the distributions (nats, double).
        A token of zero probability is never drawn.
    """
    rows = len(logits_BV)
    if logits_BV.device.type == "cpu":
        rows = max(1, _CACHED // logits_BV.shape[1])
    scratch_2RV = logits_BV.new_empty((2, min(rows, len(logits_BV)), logits_BV.shape[1])).float()
    parts = [
        _sample(
            logits_BV[start : start + rows],
            None if uniforms_B is None else uniforms_B[start : start + rows],
            temperature,
            scratch_2RV,
        )
        for start in range(0, len(logits_BV), rows)
    ]
    tokens_B, logprobs_B, entropies_B = (torch.cat(part) for part in zip(*parts, strict=True))
    return tokens_B, logprobs_B, entropies_B


def _sample(
    logits_RV: Tensor, uniforms_R: Tensor | None, temperature: float, scratch_2RV: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """As `sample`, for rows that fit the scratch memory."""
    shifted_RV, weights_RV = scratch_2RV[:, : len(logits_RV)]
    shifted_RV.copy_(logits_RV)
    if uniforms_R is not None and temperature != 1:
        shifted_RV /= temperature
    shifted_RV -= shifted_RV.amax(-1, keepdim=True)
    shifted_RV.clamp_(min=_LOWEST)
    torch.exp(shifted_RV, out=weights_RV)
    if weights_RV.shape[1] <= _ONE_LEVEL:
        blocks_RNK = weights_RV.double()[:, None]
    else:
        padding = -weights_RV.shape[1] % _BLOCK
        padded_RV = torch.nn.functional.pad(weights_RV, (0, padding)) if padding else weights_RV
        blocks_RNK = padded_RV.view(len(padded_RV), -1, _BLOCK)
    sums_RN = blocks_RNK.sum(-1).double()
    total_R = sums_RN.sum(-1)
    if uniforms_R is None:
        tokens_R = shifted_RV.argmax(-1)
    else:
        tokens_R = _search(blocks_RNK, sums_RN, uniforms_R * total_R)
    logprobs_R = shifted_RV.gather(1, tokens_R[:, None])[:, 0].double() - total_R.log()
    expected_R = shifted_RV.mul_(weights_RV).sum(-1).double()
    return tokens_R, logprobs_R, total_R.log() - expected_R / total_R


def _search(blocks_BNK: Tensor, sums_BN: Tensor, target_B: Tensor) -> Tensor:
    """Index whose share of the cumulative weights holds the target: first its block, then it."""
    block_B = torch.zeros_like(target_B, dtype=torch.long)
    if blocks_BNK.shape[1] > 1:
        block_B, target_B = _invert(sums_BN, target_B)
    rows_B = torch.arange(len(block_B), device=block_B.device)
    within_B, _ = _invert(blocks_BNK[rows_B, block_B].double(), target_B)
    return block_B * blocks_BNK.shape[2] + within_B


def _invert(weights_BN: Tensor, target_B: Tensor) -> tuple[Tensor, Tensor]:
    """First index of positive weight whose cumulative weight exceeds the target, and the rest."""
    cumulative_BN = weights_BN.cumsum(-1)
    # Rounding may put a target at the very end: keep it under the sum by a few units.
    target_B = torch.minimum(target_B, cumulative_BN[:, -1] * (1 - 2**-50))
    chosen_BN = (cumulative_BN > target_B[:, None]) & (weights_BN > 0)
    index_B1 = chosen_BN.to(torch.uint8).argmax(-1, keepdim=True)
    before_B = (cumulative_BN.gather(1, index_B1) - weights_BN.gather(1, index_B1))[:, 0]
    return index_B1[:, 0], (target_B - before_B).clamp(min=0)
