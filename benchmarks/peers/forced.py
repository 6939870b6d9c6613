"""Makes transformers' `generate` end each row at a length that is given beforehand.

The end token is impossible before a row's last token and certain there. Nothing else is changed:
all other tokens are sampled by the model. Needs transformers and torch, not Agon.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList


class ForcedLengths(LogitsProcessor):  # type: ignore[misc]  # transformers is untyped
    """Ends every row of one call of `generate` at its length."""

    def __init__(self, end_token_ids: Sequence[int], begin: int, lengths: Sequence[int]):
        """Say how long rows shall be.

        Args:
            end_token_ids: What ends a row; the first of them is written.
            begin: Tokens of the padded prompts.
            lengths: Each row's completion tokens, the end token included.
        """
        self._ends = list(end_token_ids)
        self._begin = begin
        self._length_B = torch.as_tensor(lengths)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Change the logits (B, V) that follow the tokens so far (B, T)."""
        scores[:, self._ends] = -torch.inf
        last_B = self._length_B == input_ids.shape[1] - self._begin + 1
        if last_B.any():
            scores[last_B] = -torch.inf
            scores[last_B, self._ends[0]] = 0.0
        return scores


def force_lengths(
    model: Any, end_token_ids: Sequence[int], next_lengths: Callable[[int], Sequence[int]]
) -> None:
    """Have a model's own `generate` end rows as told, whoever calls it.

    Args:
        model: A transformers or PEFT model; its `generate` is wrapped in place.
        end_token_ids: What ends a row; the first of them is written.
        next_lengths: Called with the number of rows of each call; gives their lengths.
    """
    inner = model.generate

    def generate(**arguments: Any) -> Any:
        prompts_BT = arguments["input_ids"]
        rows = len(prompts_BT) * arguments.get("num_return_sequences", 1)
        forced = ForcedLengths(end_token_ids, prompts_BT.shape[1], next_lengths(rows))
        return inner(**arguments, logits_processor=LogitsProcessorList([forced]))

    model.generate = generate
