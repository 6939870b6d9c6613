"""Log-probabilities of completions under a policy, with gradients and without wasted work.

A prefix that several rows share is run once: its keys and values are detached, every row's
backward pass adds to their gradients, and one backward pass through the prefix ends it. That is
the chain rule, so the gradient is the plain one to rounding. Only positions that predict a
completion token meet the vocabulary, and no logits are kept (`head`). Rows are padded on the
right, so that causal attention keeps padding out of every position that counts.

Dimensions: B rows, L padded tokens of a row, U prefixes, P padded prefix tokens, N completion
tokens of all rows together, H key-value heads, D their width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from agon.engines.cache import attention_layout, cache_argument, masks_by_kind
from agon.errors import EngineError
from agon.head import Head
from agon.objective import Row
from agon.sharing import Pack, plan


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows as tensors, their completion tokens in one line.

    Attributes:
        input_ids_BL: What follows the row's prefix, without its last token, then padding.
        places_N: Positions in the flattened (B, L) whose next token is a completion token.
        targets_N: Those tokens, row by row.
        sampler_logprobs_N: The sampler's log-probabilities of them.
        advantages_N: Their row's advantage.
        rows_N: Their row's place in the batch.
    """

    input_ids_BL: Tensor
    places_N: Tensor
    targets_N: Tensor
    sampler_logprobs_N: Tensor
    advantages_N: Tensor
    rows_N: Tensor


def collate(
    rows: Sequence[Row], begins: Sequence[int], pad_token_id: int, device: torch.device
) -> Batch:
    """Pad rows on the right and line their completion tokens up.

    Args:
        rows: At least one.
        begins: How many of each row's prompt tokens its prefix has run already.
        pad_token_id: Fills short rows; its value reaches no result.
        device: Where the tensors go.
    """
    lengths = [row.tokens - begin - 1 for row, begin in zip(rows, begins, strict=True)]
    width = max(lengths)
    ids_BL = torch.full((len(rows), width), pad_token_id)
    places = []
    for place, (row, begin, length) in enumerate(zip(rows, begins, lengths, strict=True)):
        ids_BL[place, :length] = torch.tensor((row.prompt_ids + row.completion_ids)[begin:-1])
        end = place * width + length
        places.append(torch.arange(end - len(row.completion_ids), end))
    counts = torch.tensor([len(row.completion_ids) for row in rows])
    rows_N = torch.arange(len(rows)).repeat_interleave(counts)
    return Batch(
        input_ids_BL=ids_BL.to(device),
        places_N=torch.cat(places).to(device),
        targets_N=torch.tensor([t for row in rows for t in row.completion_ids], device=device),
        sampler_logprobs_N=torch.tensor([p for row in rows for p in row.logprobs], device=device),
        advantages_N=torch.tensor([row.advantage for row in rows])[rows_N].to(device),
        rows_N=rows_N.to(device),
    )


class Scorer:
    """Runs rows through a policy's model; whoever calls it chooses the active policy."""

    def __init__(self, model: Any, pad_token_id: int, share: bool = True) -> None:
        """Look at what the model allows.

        Args:
            model: A PEFT model around a transformers causal language model.
            pad_token_id: Fills short rows; its value reaches no result.
            share: Whether shared prefixes may be run once. Models that keep more than attention
                keys and values never share.
        """
        self.base = model.get_base_model()
        self.device = self.base.device
        self._pad = pad_token_id
        self._head = Head.of(self.base)
        self._share = share
        self._kinds: dict[str, int | None] = {}
        try:
            _, self._kinds = attention_layout(self.base)
        except EngineError:
            self._share = False
        self._cache_argument = cache_argument(self.base)

    def plan(self, rows: Sequence[Row], budget: int) -> list[Pack]:
        """Packs of all rows within a budget of padded tokens for each pass."""
        return plan(rows, budget, self._share)

    def batch(self, rows: Sequence[Row], pack: Pack, indices: Sequence[int]) -> Batch:
        """One of a pack's microbatches as tensors."""
        begins = [len(pack.prefixes[pack.prefix_of[i]]) if pack.prefixes else 0 for i in indices]
        return collate([rows[i] for i in indices], begins, self._pad, self.device)

    def prefixes(self, pack: Pack) -> Prefixes | None:
        """Run a pack's prefixes under the active policy; None where it has none."""
        if not pack.prefixes:
            return None
        width = max(map(len, pack.prefixes))
        ids_UP = torch.full((len(pack.prefixes), width), self._pad)
        for place, ids in enumerate(pack.prefixes):
            ids_UP[place, : len(ids)] = torch.tensor(ids)
        cache = DynamicCache()
        self.base.get_decoder()(
            input_ids=ids_UP.to(self.device), use_cache=True, **{self._cache_argument: cache}
        )
        states_L = [
            (layer.keys, layer.values) if layer.is_initialized else None for layer in cache.layers
        ]
        return Prefixes(states_L, [len(ids) for ids in pack.prefixes])

    def logprobs(
        self,
        batch: Batch,
        temperature: float,
        prefixes: Prefixes | None = None,
        prefix_B: Sequence[int] = (),
    ) -> Tensor:
        """Log-probabilities (N,) of a batch's completion tokens under the active policy.

        Args:
            batch: From `batch`.
            temperature: Divides the logits.
            prefixes: What the rows continue, from `prefixes`.
            prefix_B: Which of them each row continues.
        """
        more: dict[str, Any] = {"use_cache": False}
        if prefixes is not None:
            more = self._continued(batch, prefixes, list(prefix_B))
        if self._head is not None:
            hidden_BLD = self.base.get_decoder()(input_ids=batch.input_ids_BL, **more)
            hidden_ND = hidden_BLD.last_hidden_state.flatten(0, 1)[batch.places_N]
            return self._head.logprobs(hidden_ND, batch.targets_N, temperature)
        logits_BLV = self.base(input_ids=batch.input_ids_BL, **more).logits
        logits_NV = logits_BLV.flatten(0, 1)[batch.places_N].float() / temperature
        chosen_N = logits_NV.gather(1, batch.targets_N[:, None])[:, 0]
        logprobs_N: Tensor = chosen_N - torch.logsumexp(logits_NV, dim=1)
        return logprobs_N

    def _continued(self, batch: Batch, prefixes: Prefixes, prefix_B: list[int]) -> dict[str, Any]:
        """Arguments of a forward pass over rows that continue prefixes."""
        lengths_B1 = torch.tensor([[prefixes.lengths[u]] for u in prefix_B], device=self.device)
        width, length = prefixes.width, batch.input_ids_BL.shape[1]
        ahead_L = torch.arange(length, device=self.device)
        column_P = torch.arange(width, device=self.device)
        query_BL = lengths_B1 + ahead_L
        # A prefix's padding counts as standing behind every query, so causality hides it.
        key_BP = torch.where(column_P < lengths_B1, column_P, torch.iinfo(torch.long).max // 2)
        key_BK = torch.cat([key_BP, query_BL], dim=1)
        distance_BLK = query_BL[:, :, None] - key_BK[:, None]

        def mask_of(window: int | None) -> Tensor:
            near_BLK = distance_BLK >= 0
            if window is not None:
                near_BLK &= distance_BLK < window
            dtype = self.base.dtype
            mask_BLK = torch.zeros(near_BLK.shape, dtype=dtype, device=self.device)
            return mask_BLK.masked_fill_(~near_BLK, torch.finfo(dtype).min)[:, None]

        return {
            "use_cache": True,
            "position_ids": query_BL,
            "attention_mask": masks_by_kind(self._kinds, mask_of),
            self._cache_argument: prefixes.cache(torch.tensor(prefix_B, device=self.device)),
        }


class Prefixes:
    """Keys and values of prefixes, cut out of the graph so that each row's backward is its own.

    Attributes:
        lengths: Tokens of each.
        width: Tokens of the longest.
    """

    def __init__(
        self, states_L: Sequence[tuple[Tensor, Tensor] | None], lengths: list[int]
    ) -> None:
        """Take the states of a forward pass, (U, H, P, D), None for layers without their own."""
        self.lengths, self.width = lengths, max(lengths)
        self._states_L = states_L
        self._leaves_L = [
            None
            if states is None
            else tuple(state.detach().requires_grad_(state.requires_grad) for state in states)
            for states in states_L
        ]

    def cache(self, prefix_B: Tensor) -> DynamicCache:
        """The cache of rows that continue these prefixes."""
        cache = DynamicCache()
        for index, leaves in enumerate(self._leaves_L):
            if leaves is not None:
                cache.update(*(leaf[prefix_B] for leaf in leaves), index)
        return cache

    def backward(self) -> None:
        """Bring the gradients that the rows have left on through the prefixes themselves."""
        pairs = [
            (state, leaf.grad)
            for states, leaves in zip(self._states_L, self._leaves_L, strict=True)
            if states is not None and leaves is not None
            for state, leaf in zip(states, leaves, strict=True)
            if leaf.grad is not None
        ]
        if pairs:
            states, gradients = zip(*pairs, strict=True)
            torch.autograd.backward(states, gradients)
