"""Key-value cache of the in-process engine: rows in slots, all of them ending at one column.

Every row is right-aligned: its newest token lies in the cache's last column, whatever its length,
so a decoding step writes one column for all rows and attention reads one slice without copying.
What lies left of a row's first token is masked. A finished row's slot is filled with the last
row; a new row is written so that its prompt ends at the last column.

Layers with a sliding window read and keep only that window. This module samples nothing and knows
no requests: that is `torch_engine`.

Dimensions: B live rows, M rows that enter, H key-value heads, C columns, T prompt length, D head
width, L layers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache

from agon.errors import EngineError

_HEADROOM = 64
"""Columns that a buffer has free at the least after it was laid out anew."""


class Lane:
    """Keys and values of one layer, allocated with room to grow and written in place.

    Attributes:
        window: Sliding window in tokens, None where a token sees everything before it.
        end: Columns in use; the last of them holds every row's newest token.
        buffers_BHCD: Keys and values; empty until something is laid out.
    """

    def __init__(self, window: int | None) -> None:
        self.window = window
        self.end = 0
        self.buffers_BHCD: tuple[Tensor, ...] = ()

    def visible(self, length: int) -> int:
        """Columns that a token sees when `length` tokens, itself included, have been written."""
        return length if self.window is None else min(length, self.window)

    def append(self, states_BH1D: tuple[Tensor, Tensor], length: int) -> tuple[Tensor, ...]:
        """Write one column of keys and values; return views of what the new token sees."""
        rows, column = states_BH1D[0].shape[0], self.end
        for buffer_BHCD, state_BH1D in zip(self.buffers_BHCD, states_BH1D, strict=True):
            buffer_BHCD[:rows, :, column : column + 1] = state_BH1D
        self.end = column + 1
        start = self.end - self.visible(length)
        return tuple(buffer[:rows, :, start : self.end] for buffer in self.buffers_BHCD)

    def insert(self, row: int, states_UHTD: tuple[Tensor, ...], sources_M: Sequence[int]) -> None:
        """Write the rows from `row` on, their last column being the lane's last.

        What lies to their left is zeroed: masked values still enter a product with zero, which
        would spread the NaN that fresh memory may hold.

        Args:
            row: The first.
            states_UHTD: Keys and values, of which every new row takes one.
            sources_M: Which; neighbours that take the same are written at once.
        """
        width = min(states_UHTD[0].shape[2], self.end)
        for buffer_BHCD, state_UHTD in zip(self.buffers_BHCD, states_UHTD, strict=True):
            begin = row
            for source, copies in groupby(sources_M):
                rows = slice(begin, begin + sum(1 for _ in copies))
                buffer_BHCD[rows, :, : self.end - width] = 0
                buffer_BHCD[rows, :, self.end - width : self.end] = state_UHTD[source, :, -width:]
                begin = rows.stop

    def move(self, sources: Tensor, targets: Tensor, length: int) -> None:
        """Copy rows onto others, as far back as `length` tokens."""
        columns = slice(self.end - self.visible(length), self.end)
        for buffer_BHCD in self.buffers_BHCD:
            buffer_BHCD[targets, :, columns] = buffer_BHCD[sources, :, columns]

    def full(self, incoming: int, rows: int = 0) -> bool:
        """Whether a column more, a prompt of so many tokens or so many rows do not fit as is."""
        if not self.buffers_BHCD or self.buffers_BHCD[0].shape[0] < rows:
            return True
        return self.end >= self.buffers_BHCD[0].shape[2] or self.end < self.visible(incoming)

    def lay_out(
        self,
        states_BHTD: tuple[Tensor, Tensor],
        rows: int,
        kept_rows: int,
        kept_length: int,
        incoming: int,
        limit: int,
    ) -> None:
        """Move the live part into new buffers, with room for about as much again.

        Args:
            states_BHTD: Give heads, widths, type and device.
            rows: Rows of the new buffers.
            kept_rows: Live rows.
            kept_length: Tokens of the longest live row.
            incoming: Tokens of the longest row that is about to enter.
            limit: Tokens of the longest row there will ever be.
        """
        kept = self.visible(kept_length) if kept_rows else 0
        end = max(kept, self.visible(incoming))
        longest = self.visible(limit)
        columns = max(end, min(2 * end, longest + longest // 4)) + _HEADROOM
        new = []
        for index, state_BHTD in enumerate(states_BHTD):
            _, heads, _, width = state_BHTD.shape
            new_BHCD = state_BHTD.new_empty(rows, heads, columns, width)
            new_BHCD[:kept_rows, :, : end - kept] = 0
            if kept:
                old_BHCD = self.buffers_BHCD[index]
                live_BHCD = old_BHCD[:kept_rows, :, self.end - kept : self.end]
                new_BHCD[:kept_rows, :, end - kept : end] = live_BHCD
            new.append(new_BHCD)
        self.buffers_BHCD = tuple(new)
        self.end = end


class SlotCache(Cache):  # type: ignore[misc]  # transformers is untyped
    """The lanes of all layers behind the interface that transformers' models call.

    Only `update` and `get_seq_length` are implemented: the engine passes ready masks and
    positions, so that models ask for nothing else.

    Attributes:
        rows: Live rows B.
        length: Tokens of the longest live row.
        rows_wanted: Most rows that will ever be live from now on.
    """

    def __init__(self, windows_L: Sequence[int | None], limit: int) -> None:
        """Create an empty cache.

        Args:
            windows_L: Each layer's sliding window, None where it attends to everything.
            limit: Tokens of the longest row there will ever be.
        """
        super().__init__(layers=[])
        self.lanes = [Lane(window) for window in windows_L]
        self.limit = limit
        self.rows = 0
        self.length = 0
        self.rows_wanted = 0

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Called by the attention layers of a decoding step, with one column for each live row."""
        lane = self.lanes[layer_idx]
        states = (key_states, value_states)
        if lane.full(0):
            lane.lay_out(states, self.rows_wanted, self.rows, self.length - 1, 0, self.limit)
        keys_BHWD, values_BHWD = lane.append(states, self.length)
        return keys_BHWD, values_BHWD

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens of the longest row."""
        return self.length

    def advance(self) -> None:
        """Announce a decoding step: every row is about to be one token longer."""
        self.length += 1

    def admit(self, states_L: Sequence[tuple[Tensor, Tensor] | None], rows_M: Tensor) -> None:
        """Append rows after the live ones.

        Args:
            states_L: Keys and values of a prefill by layer, left-padded, (U, H, T, D); None for
                layers without any of their own.
            rows_M: Which of the U prefilled rows each new row takes.
        """
        sources_M = rows_M.tolist()
        for lane, states in zip(self.lanes, states_L, strict=False):
            if states is None:
                continue
            incoming = states[0].shape[2]
            if lane.full(incoming, self.rows + len(sources_M)):
                lane.lay_out(states, self.rows_wanted, self.rows, self.length, incoming, self.limit)
            lane.insert(self.rows, states, sources_M)
        self.rows += len(sources_M)

    @property
    def bytes_per_token(self) -> int:
        """Keys and values of one token in the widest layer; 0 before anything is laid out."""
        return max(
            (
                sum(b.shape[1] * b.shape[3] * b.element_size() for b in lane.buffers_BHCD)
                for lane in self.lanes
            ),
            default=0,
        )

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Copy rows onto finished ones in every layer."""
        for lane in self.lanes:
            lane.move(sources, targets, self.length)


def attention_layout(base: Any) -> tuple[list[int | None], dict[str, int | None]]:
    """Each layer's sliding window, and the window of each kind of layer there is.

    Raises:
        EngineError: A layer is no plain attention, or the implementation takes no ready masks.
    """
    config = base.config.get_text_config(decoder=True)
    name = type(base).__name__
    window = getattr(config, "sliding_window", None)
    kinds_L = getattr(config, "layer_types", None)
    if kinds_L is None:
        kind = "sliding_attention" if window else "full_attention"
        if getattr(config, "attention_chunk_size", None):
            kind = "chunked_attention"
        kinds_L = [kind] * config.num_hidden_layers
    other = sorted(set(kinds_L) - {"full_attention", "sliding_attention"})
    if other or base.config.is_encoder_decoder or getattr(base, "_is_stateful", False):
        raise EngineError(
            f"{name} keeps more than attention keys and values "
            f"({', '.join(other) or 'a recurrent or encoder state'}): the torch engine cannot "
            "sample it; take a model with full or sliding-window attention, or sample with vLLM "
            '(engine.kind = "vllm")'
        )
    attention = config._attn_implementation
    if attention not in ("sdpa", "eager"):
        raise EngineError(
            f'model.attention = "{attention}" takes no ready-made masks, which the torch engine '
            'needs: set model.attention = "sdpa"'
        )
    windows = {"full_attention": None, "sliding_attention": window}
    return [windows[kind] for kind in kinds_L], {kind: windows[kind] for kind in set(kinds_L)}


def cache_argument(base: Any) -> str:
    """What a model's forward pass calls its cache; transformers has renamed it."""
    return "cache" if "cache" in inspect.signature(base.forward).parameters else "past_key_values"


def masks_by_kind(kinds: Mapping[str, int | None], mask_of: Callable[[int | None], Tensor]) -> Any:
    """Masks in the form that models take: by kind of layer, or one where all are alike.

    Args:
        kinds: Sliding window of each kind of layer, from `attention_layout`.
        mask_of: Makes the additive mask of a window.
    """
    made = {kind: mask_of(window) for kind, window in kinds.items()}
    return made if len(made) > 1 else next(iter(made.values()))
