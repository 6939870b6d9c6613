"""Spans leave out masked columns alone, move few rows, and are used where they save reading."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agon.engines import spans

lengths = st.lists(st.integers(1, 400), min_size=1, max_size=70).map(np.array)


def read(length_B: np.ndarray, ends: list[int]) -> int:
    begin, total = 0, 0
    for end, columns in spans.spans(length_B, ends):
        total += (end - begin) * columns
        begin = end
    return total


@given(lengths, st.integers(1, 10_000))
def test_spans_cover_every_row_once_and_every_token_of_it(length_B: np.ndarray, size: int) -> None:
    ends = spans.plan(length_B, size)
    assert ends == sorted(set(ends))
    assert ends[-1] == len(length_B)
    begin = 0
    for end, columns in spans.spans(length_B, ends):
        assert (length_B[begin:end] <= columns).all()
        begin = end


@given(lengths, st.integers(1, 10_000))
def test_a_split_never_costs_more_than_none(length_B: np.ndarray, size: int) -> None:
    ends = spans.plan(length_B, size)
    price = read(length_B, ends) * size + len(ends) * spans._CALL
    assert price <= len(length_B) * int(length_B.max()) * size + spans._CALL


def test_equal_rows_and_small_rows_are_not_split() -> None:
    assert spans.plan(np.full(64, 300), 10_000) == [64]
    assert spans.plan(np.array([300] * 32 + [10] * 32), 1) == [64]


def test_long_and_short_rows_part_where_reading_is_dear() -> None:
    assert spans.plan(np.array([300] * 32 + [10] * 32), 1_536) == [32, 64]


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.data())
def test_closing_gaps_loses_and_doubles_no_row(finished: list[bool], data: st.DataObject) -> None:
    finished_B = np.array(finished)
    cuts = data.draw(st.sets(st.integers(1, len(finished))))
    ends = sorted(cuts | {len(finished)})
    order = spans.close_gaps(finished_B, ends)
    assert sorted(order) == np.flatnonzero(~finished_B).tolist()
    moved = int((order != np.arange(len(order))).sum())
    assert moved <= int(finished_B.sum()) * len(ends)
    # A row never comes to stand among older ones than those of the spans after a gap allow.
    assert (order >= np.arange(len(order))).all()


def test_a_gap_is_filled_from_the_next_span() -> None:
    finished_B = np.zeros(9, dtype=bool)
    finished_B[1] = True
    assert spans.close_gaps(finished_B, [3, 6, 9]).tolist() == [0, 5, 2, 3, 4, 8, 6, 7]


@pytest.mark.parametrize("window", [None, 6])
def test_attention_by_spans_is_masked_attention(window: int | None) -> None:
    torch.manual_seed(0)
    length_B, heads, groups, depth = np.array([12, 11, 12, 5, 4, 2]), 6, 2, 4
    width = int(length_B.max())
    seen = width if window is None else window
    query = torch.randn(6, heads, 1, depth)
    key, value = torch.randn(2, 6, heads // groups, width, depth)[..., -seen:, :]
    hidden = torch.arange(width) < width - torch.as_tensor(length_B)[:, None]
    mask = torch.zeros(6, width).masked_fill(hidden, torch.finfo().min)[:, None, None, -seen:]
    layer = SimpleNamespace(num_key_value_groups=groups, is_causal=True)
    expected, _ = spans._attend(layer, query, key, value, mask)  # type: ignore[arg-type]
    chosen = spans.spans(length_B, [3, 5, 6])
    short = sum(max(0, seen - columns) for _, columns in chosen)
    assert short > 0, "nothing would be left out"
    # What is left out is not read: it may be anything.
    for row, length in enumerate(length_B):
        longest = next(columns for end, columns in chosen if row < end)
        assert length <= longest
        key[row, :, : max(0, seen - longest)] = torch.nan
        value[row, :, : max(0, seen - longest)] = torch.nan
    with spans.over(chosen):
        found, _ = spans._attend(layer, query, key, value, mask)  # type: ignore[arg-type]
    torch.testing.assert_close(found, expected)
