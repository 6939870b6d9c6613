"""Drawing tokens: exact inverse-CDF sampling from whole vocabularies, without a sort.

Small vocabularies are searched in one level. Large ones in two: sums of blocks first, then inside
the block that holds the random number, so that double precision costs next to nothing.

Dimensions: B rows, V vocabulary, N blocks of K tokens.
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
    logits_BV = logits_BV.float()
    if uniforms_B is not None and temperature != 1:
        logits_BV = logits_BV / temperature
    shifted_BV = (logits_BV - logits_BV.amax(-1, keepdim=True)).clamp_(min=_LOWEST)
    weights_BV = shifted_BV.exp()
    expected_B = torch.linalg.vecdot(weights_BV, shifted_BV).double()
    if weights_BV.shape[1] <= _ONE_LEVEL:
        blocks_BNK = weights_BV.double()[:, None]
    else:
        padding = -weights_BV.shape[1] % _BLOCK
        padded_BV = torch.nn.functional.pad(weights_BV, (0, padding)) if padding else weights_BV
        blocks_BNK = padded_BV.view(len(padded_BV), -1, _BLOCK)
    sums_BN = blocks_BNK.sum(-1).double()
    total_B = sums_BN.sum(-1)
    if uniforms_B is None:
        tokens_B = shifted_BV.argmax(-1)
    else:
        tokens_B = _search(blocks_BNK, sums_BN, uniforms_B * total_B)
    logprobs_B = shifted_BV.gather(1, tokens_B[:, None])[:, 0].double() - total_B.log()
    return tokens_B, logprobs_B, total_B.log() - expected_B / total_B


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
