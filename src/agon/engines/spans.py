"""Attention of decoding rows over the columns that they have, instead of the longest row's.

Rows of the slot cache end at one column and begin where they begin, so one attention over all of
them reads the longest row's columns for everybody. Rows that stand side by side and are about as
long make a span; each span is attended apart, over its own longest row. What is left out was
masked, so only the order of additions in a sum may change.

A span costs a call of the attention kernel, so a batch is split where that reads enough less, and
rows keep their neighbours when finished ones leave. On a CPU only: there reading keys and values
takes a third of a step. This module decodes nothing: that is `decoder`.

Dimensions: B rows that decode, H key-value heads, W columns, D head width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from heapq import heappop, heappush
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

NAME = "agon_spans"

_PIECES = 16
"""A batch is split between so many equal pieces at the most."""

_CALL = 128 * 1024
"""Bytes of keys and values that are read in the time that a call more takes (some 20 us)."""

Span = tuple[int, int]
"""The row behind the last one, and the columns that its longest row has."""

_active: ContextVar[Sequence[Span]] = ContextVar("spans", default=())


def plan(length_B: np.ndarray, bytes_per_token: int) -> list[int]:
    """Where spans end: the split that reads least, a call's price included.

    Args:
        length_B: Tokens of each row.
        bytes_per_token: Keys and values of one token in one layer.

    Returns:
        The row behind each span's last one, ascending; the last is B.
    """
    rows = len(length_B)
    ends = np.unique(np.linspace(0, rows, min(_PIECES, rows) + 1).round().astype(int)).tolist()
    # cheapest[k]: least cost of the rows before ends[k], and where its last span begins.
    cheapest: list[tuple[float, int]] = [(0.0, 0)]
    for last in range(1, len(ends)):
        longest, options = 0, []
        for first in range(last - 1, -1, -1):
            longest = max(longest, int(length_B[ends[first] : ends[first + 1]].max()))
            read = (ends[last] - ends[first]) * longest * bytes_per_token
            options.append((cheapest[first][0] + read + _CALL, first))
        cheapest.append(min(options))
    found, place = [], len(ends) - 1
    while place > 0:
        found.append(ends[place])
        place = cheapest[place][1]
    return found[::-1]


def spans(length_B: np.ndarray, ends: Sequence[int]) -> list[Span]:
    """The spans that end there, with their longest row's tokens."""
    begins = [0, *ends[:-1]]
    return [(end, int(length_B[begin:end].max())) for begin, end in zip(begins, ends, strict=True)]


def close_gaps(finished_B: np.ndarray, ends: Sequence[int]) -> np.ndarray:
    """Which row stands at each place once finished rows have left, with few rows moved.

    A gap is filled from the next span that has a row, whose gap is filled likewise: at most one
    move a span for each row that leaves, and every span keeps rows of its age.

    Args:
        finished_B: Rows that leave.
        ends: Where spans end, as from `plan`.

    Returns:
        Old places in their new order, as many as rows stay.
    """
    stay = (~finished_B).tolist()
    live = sum(stay)
    order = np.arange(live)
    span_of = np.searchsorted(ends, np.arange(len(stay)), side="right").tolist()
    donors: list[list[int]] = [[] for _ in ends]
    for row, stays in enumerate(stay):
        if stays:
            donors[span_of[row]].append(row)
    gaps = [row for row in range(live) if not stay[row]]
    while gaps:
        gap = heappop(gaps)
        giver = next((rows for rows in donors[span_of[gap] + 1 :] if rows), donors[span_of[gap]])
        row = giver.pop()
        order[gap] = row
        if row < live:
            heappush(gaps, row)
    return order


@contextmanager
def over(chosen: Sequence[Span]) -> Iterator[None]:
    """Attention of single tokens inside is done span by span; none is plain attention."""
    token = _active.set(chosen if len(chosen) > 1 else ())
    try:
        yield
    finally:
        _active.reset(token)


@contextmanager
def installed(base: Any) -> Iterator[None]:
    """Inside, a transformers model on a CPU attends through this module instead of by `sdpa`."""
    changed = {
        id(module.config): module.config
        for module in base.modules()
        if base.device.type == "cpu"
        and getattr(getattr(module, "config", None), "_attn_implementation", None) == "sdpa"
    }
    for config in changed.values():
        config._attn_implementation_internal = NAME
    try:
        yield
    finally:
        for config in changed.values():
            config._attn_implementation_internal = "sdpa"


def _attend(
    module: torch.nn.Module,
    query_BHQD: Tensor,
    key_BHWD: Tensor,
    value_BHWD: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Transformers' attention function; the output is (B, Q, heads, D)."""
    chosen = _active.get()
    if not chosen or query_BHQD.shape[2] != 1 or attention_mask is None:
        output: tuple[Tensor, None] = sdpa_attention_forward(
            module, query_BHQD, key_BHWD, value_BHWD, attention_mask, **options
        )
        return output
    width, begin, outputs = key_BHWD.shape[2], 0, []
    for end, columns in chosen:
        rows, seen = slice(begin, end), slice(max(0, width - columns), None)
        part, _ = sdpa_attention_forward(
            module,
            query_BHQD[rows],
            key_BHWD[rows, :, seen],
            value_BHWD[rows, :, seen],
            attention_mask[rows, ..., seen],
            **options,
        )
        outputs.append(part)
        begin = end
    return torch.cat(outputs), None


AttentionInterface.register(NAME, _attend)
AttentionMaskInterface.register(NAME, sdpa_mask)
