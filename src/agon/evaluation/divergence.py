"""How far two policies are apart on replies that both have before them.

Dimensions: B rows, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from agon.policies import Policies

ROWS = 4
"""Replies of one forward pass; the logits of both policies over the whole vocabulary are kept."""

Reply = tuple[Sequence[int], Sequence[int]]
"""Token ids of a prompt and of its completion."""


def mean_token_kl(policies: Policies, left: str, right: str, replies: Sequence[Reply]) -> float:
    """KL(left || right) in nats, exact over the vocabulary, averaged over completion tokens.

    Args:
        policies: Hold both.
        left: `base`, `a` or `b`.
        right: Likewise.
        replies: Whose contexts are compared; the same for both policies.

    Raises:
        ValueError: There is no completion token.
    """
    total, tokens = 0.0, 0
    for start in range(0, len(replies), ROWS):
        part = replies[start : start + ROWS]
        width = max(len(prompt) + len(completion) for prompt, completion in part)
        ids_BT = torch.zeros((len(part), width), dtype=torch.long)
        counted_BT = torch.zeros((len(part), width - 1), dtype=torch.bool)
        for row, (prompt, completion) in enumerate(part):
            end = len(prompt) + len(completion)
            ids_BT[row, :end] = torch.tensor([*prompt, *completion])
            counted_BT[row, len(prompt) - 1 : end - 1] = True
        logprobs = [_logprobs(policies, name, ids_BT) for name in (left, right)]
        kl_BT = (logprobs[0].exp() * (logprobs[0] - logprobs[1])).sum(-1).cpu()
        total += float(kl_BT[counted_BT].double().sum())
        tokens += int(counted_BT.sum())
    if tokens == 0:
        raise ValueError("there is no completion token to compare policies on")
    return total / tokens


def _logprobs(policies: Policies, name: str, ids_BT: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of the next token after each but the last, (B, T - 1, V).

    Rows are padded on the right, which causal attention keeps from what comes before.
    """
    device = next(policies.model.parameters()).device
    with policies.active(name), torch.inference_mode():
        logits = policies.model(input_ids=ids_BT.to(device), use_cache=False).logits[:, :-1]
        return torch.log_softmax(logits.float(), dim=-1)
