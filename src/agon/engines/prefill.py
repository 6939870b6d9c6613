"""Prefill of the in-process engine: different prompts in one pass, long ones a slice at a time.

Dimensions: U prompts, T their padded length, Q columns of a slice, K columns up to its end,
V vocabulary, L layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from agon.engines.cache import masks_by_kind

States = Sequence[tuple[Tensor, Tensor] | None]
"""Keys and values by layer, (U, H, T, D); None for layers without their own."""

PREFILL_TOKENS = 8192
"""Padded prompt tokens of one pass; a longer prompt runs alone, a slice at a time."""


class Forward(Protocol):
    """What a prefill needs of the engine."""

    base: Any
    kinds: dict[str, int | None]
    pad_token_id: int

    def forward(self, ids: Tensor, positions: Tensor, masks: Any, cache: Any) -> Tensor:
        """Logits after each row's last token, (rows, V)."""
        ...


@dataclass(frozen=True, slots=True)
class Prefilled:
    """Different prompts that went through the model.

    Attributes:
        rows: Each prompt's row.
        logits_UV: What follows its last token.
        states_L: Keys and values, left-padded; None for layers without their own.
    """

    rows: dict[tuple[int, ...], int]
    logits_UV: Tensor
    states_L: list[tuple[Tensor, Tensor] | None]


def chunks(prompts: list[tuple[int, ...]]) -> Iterator[list[tuple[int, ...]]]:
    """Prompts, longest first, in groups of at most `PREFILL_TOKENS` padded tokens."""
    start = 0
    while start < len(prompts):
        size = max(1, PREFILL_TOKENS // len(prompts[start]))
        yield prompts[start : start + size]
        start += size


def prefill(
    engine: Forward, prompts: list[tuple[int, ...]], past_L: States | None = None
) -> Prefilled:
    """Run different prompts, padded on the left.

    Args:
        engine: The model's side.
        prompts: What to run.
        past_L: Keys and values of the beginning of a single prompt, which is then not run again.
            It must be shorter than the prompt.
    """
    device, dtype, longest = engine.base.device, engine.base.dtype, max(map(len, prompts))
    pad = engine.pad_token_id
    ids_UT = torch.tensor([[pad] * (longest - len(ids)) + list(ids) for ids in prompts])
    begin_U1 = longest - torch.tensor([[len(ids)] for ids in prompts], device=device)
    column_T = torch.arange(longest, device=device)
    positions_UT = (column_T - begin_U1).clamp(min=0)
    cache, known = DynamicCache(), 0
    for layer, states in enumerate(past_L or ()):
        if states is not None:
            cache.update(*states, layer)
            known = states[0].shape[2]
    width = max(1, PREFILL_TOKENS // len(prompts))
    for begin in range(known, longest, width):
        part = slice(begin, min(begin + width, longest))
        column_K = column_T[: part.stop]
        real_U1K = (column_K >= begin_U1)[:, None]
        distance_QK = column_T[part, None] - column_K

        def mask_of(
            window: int | None, real_U1K: Tensor = real_U1K, distance_QK: Tensor = distance_QK
        ) -> Tensor:
            near_QK = (distance_QK >= 0) & (distance_QK < (window or longest))
            hidden_U1QK = ~(near_QK & real_U1K)[:, None]
            mask_U1QK = torch.zeros(hidden_U1QK.shape, dtype=dtype, device=device)
            return mask_U1QK.masked_fill_(hidden_U1QK, torch.finfo(dtype).min)

        logits_UV = engine.forward(
            ids_UT[:, part].to(device),
            positions_UT[:, part],
            masks_by_kind(engine.kinds, mask_of),
            cache,
        )
    states_L = [
        (layer.keys, layer.values) if layer.is_initialized else None for layer in cache.layers
    ]
    return Prefilled({ids: row for row, ids in enumerate(prompts)}, logits_UV, states_L)
