"""Rows that decode together under one policy, a step at a time.

A request takes a seat, a row of the tables below, before its prompt enters; finished seats are
given back. Who waits, who enters when, and what becomes of the tokens is the caller's affair:
`torch_engine` runs a fixed set of requests to its end, `continuous` serves requests that arrive
at any time. Callers keep the policy active around every call (`TorchEngine.sampling`).

Dimensions: B rows that decode, M rows that enter, R seats, V vocabulary, W columns that a row
attends to, U different prompts, L layers, D numbers drawn ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from agon.engines import spans
from agon.engines.cache import SlotCache, masks_by_kind
from agon.engines.prefill import Forward, Prefilled
from agon.engines.sampler import generator, sample
from agon.errors import EngineError

_DRAWS = 64
"""Uniform numbers drawn ahead for each row."""

_MASK_AHEAD = 64
"""Steps that an attention mask is built for."""

Note = Callable[[np.ndarray, np.ndarray, np.ndarray], None]
"""Told after each sampling: the seats, (B,); their tokens, log-probabilities and entropies, (3, B);
and which of them are finished, (B,)."""


class Model(Forward, Protocol):
    """What a decoder needs of the engine."""

    windows_L: list[int | None]
    end_token_ids: np.ndarray


class Decoder:
    """Rows in slots, their cache, and the sampling of their next tokens."""

    def __init__(self, engine: Model, longest: int, note: Note) -> None:
        """Begin without rows.

        Args:
            engine: The model's side.
            longest: Tokens of the longest row there will ever be, prompt and completion.
            note: Told what is sampled.
        """
        self.engine, self.note = engine, note
        self.device = engine.base.device
        self.dtype = engine.base.dtype
        self.cache = SlotCache(engine.windows_L, longest)
        self.prompts: list[tuple[int, ...]] = []
        self.generators: list[np.random.Generator] = []
        self.uniforms_RD = np.empty((0, _DRAWS))
        self.limit_R = np.empty(0, dtype=np.int64)
        self.temperature_R = np.empty(0)
        self.free: list[int] = []
        self.request_B = np.empty(0, dtype=np.int64)
        self.length_B = np.empty(0, dtype=np.int64)
        self.count_B = np.empty(0, dtype=np.int64)
        self.tokens_B = torch.empty(0, dtype=torch.long, device=self.device)
        self.mask_steps = 0
        self.ends: list[int] = []

    @property
    def live(self) -> int:
        """Rows that decode."""
        return len(self.request_B)

    def seat(self, ids: tuple[int, ...], key: str, temperature: float, limit: int) -> int:
        """Give a request a seat; its row begins with `enter`.

        Args:
            ids: The prompt.
            key: Seeds its randomness.
            temperature: 0 is greedy.
            limit: Most tokens of the completion.
        """
        if not self.free:
            seats = len(self.prompts)
            more = max(8, seats)
            self.prompts += [()] * more
            self.generators += [generator("")] * more
            self.uniforms_RD = np.concatenate([self.uniforms_RD, np.empty((more, _DRAWS))])
            self.limit_R = np.concatenate([self.limit_R, np.zeros(more, dtype=np.int64)])
            self.temperature_R = np.concatenate([self.temperature_R, np.zeros(more)])
            self.free = list(range(seats + more - 1, seats - 1, -1))
        seat = self.free.pop()
        self.prompts[seat] = ids
        self.generators[seat] = generator(key)
        self.limit_R[seat], self.temperature_R[seat] = limit, temperature
        return seat

    def give_back(self, seat: int) -> None:
        """A seat whose row is no longer there may be given to another request."""
        self.free.append(seat)

    def expect(self, rows: int) -> None:
        """Announce the most rows that will be live at once, so that the cache has room."""
        self.cache.rows_wanted = rows

    def enter(self, done: Prefilled, seats: Sequence[int]) -> None:
        """Sample the first token of each request and give slots to those that go on."""
        if not len(seats):
            return
        request_M = np.asarray(seats)
        row_M = self._tensor(np.asarray([done.rows[self.prompts[seat]] for seat in seats]))
        count_M = np.zeros(len(seats), dtype=np.int64)
        tokens_M, finished_M = self._sample(done.logits_UV[row_M], request_M, count_M)
        going = np.flatnonzero(~finished_M)
        if not len(going):
            return
        going_M = self._tensor(going)
        self.cache.admit(done.states_L, row_M[going_M])
        lengths_M = np.asarray([len(self.prompts[seat]) for seat in request_M[going]])
        self.request_B = np.concatenate([self.request_B, request_M[going]])
        self.length_B = np.concatenate([self.length_B, lengths_M])
        self.count_B = np.concatenate([self.count_B, count_M[going] + 1])
        self.tokens_B = torch.cat([self.tokens_B, tokens_M[going_M]])
        self.cache.length = int(self.length_B.max())
        self.mask_steps = 0

    def step(self) -> None:
        """Feed every row its newest token and sample the next."""
        if self.mask_steps == 0:
            self._build_mask()
        self.length_B += 1
        self.cache.advance()
        with spans.over(spans.spans(self.length_B, self.ends)):
            logits_BV = self.engine.forward(
                self.tokens_B[:, None], self.positions_B[:, None], self._masks(), self.cache
            )
        self.positions_B += 1
        self.mask_steps -= 1
        self.tokens_B, finished_B = self._sample(logits_BV, self.request_B, self.count_B)
        self.count_B += 1
        if finished_B.any():
            self._remove(finished_B)

    def cancel(self, seats: Collection[int]) -> None:
        """Take rows out in mid-course; seats without a row are ignored."""
        gone_B = np.isin(self.request_B, list(seats))
        if gone_B.any():
            self._remove(gone_B)

    def _build_mask(self) -> None:
        """Additive mask of the next steps over columns that count from the longest row's first."""
        device, longest = self.device, int(self.length_B.max())
        self.cache.length = longest
        lengths_B1 = torch.as_tensor(self.length_B, device=device)[:, None]
        self.positions_B = lengths_B1[:, 0].clone()
        column_W = torch.arange(longest + _MASK_AHEAD, device=device)
        hidden_BW = column_W < longest - lengths_B1
        mask_BW = torch.zeros(hidden_BW.shape, dtype=self.dtype, device=device)
        mask_BW.masked_fill_(hidden_BW, torch.finfo(self.dtype).min)
        self.mask_B11W = mask_BW[:, None, None]
        self.mask_steps = _MASK_AHEAD
        self.ends = [len(self.length_B)]
        if device.type == "cpu":
            self.ends = spans.plan(self.length_B, self.cache.bytes_per_token)

    def _masks(self) -> Any:
        end = self.cache.length

        def mask_of(window: int | None) -> Tensor:
            start = 0 if window is None else max(0, end - window)
            return self.mask_B11W[..., start:end]

        return masks_by_kind(self.engine.kinds, mask_of)

    def _remove(self, finished_B: np.ndarray) -> None:
        """Close the gaps that finished rows leave."""
        rows = len(finished_B)
        ends = self.ends if self.ends and self.ends[-1] == rows else [rows]
        order = spans.close_gaps(finished_B, ends)
        live = len(order)
        moved = np.flatnonzero(order != np.arange(live))
        if len(moved):
            self.cache.move(self._tensor(order[moved]), self._tensor(moved))
        self.cache.rows = live
        self.request_B, self.length_B = self.request_B[order], self.length_B[order]
        self.count_B = self.count_B[order]
        self.tokens_B = self.tokens_B[self._tensor(order)]
        self.cache.length = int(self.length_B.max(initial=0))
        self.mask_steps = 0

    def _sample(
        self, logits_BV: Tensor, request_B: np.ndarray, count_B: np.ndarray
    ) -> tuple[Tensor, np.ndarray]:
        """Sample a token for each row, note it, and say which rows are finished by it."""
        warm_B = self.temperature_R[request_B]
        first = warm_B[0]
        if (warm_B == first).all():
            sampled = self._draw(logits_BV, request_B, count_B, float(first))
        else:
            sampled = self._draw_mixed(logits_BV, request_B, count_B, warm_B)
        tokens_B, logprobs_B, entropies_B = sampled
        # One transfer a step: token numbers are exact in double precision.
        noted_3B = torch.stack([tokens_B.double(), logprobs_B, entropies_B]).cpu().numpy()
        if not np.isfinite(noted_3B).all():
            raise EngineError(
                "the model's logits are not finite: its weights have diverged or its dtype "
                "overflows; lower optimizer.learning_rate or set model.dtype"
            )
        ended_B = np.isin(noted_3B[0], self.engine.end_token_ids)
        finished_B = ended_B | (count_B + 1 == self.limit_R[request_B])
        self.note(request_B, noted_3B, finished_B)
        return tokens_B, finished_B

    def _draw(
        self, logits_BV: Tensor, request_B: np.ndarray, count_B: np.ndarray, temperature: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Sample rows of one temperature."""
        uniforms_B = None
        if temperature > 0:
            for seat in request_B[count_B % _DRAWS == 0]:
                self.uniforms_RD[seat] = self.generators[seat].random(_DRAWS)
            uniforms_B = self._tensor(self.uniforms_RD[request_B, count_B % _DRAWS])
        return sample(logits_BV, uniforms_B, temperature)

    def _draw_mixed(
        self, logits_BV: Tensor, request_B: np.ndarray, count_B: np.ndarray, warm_B: np.ndarray
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Sample rows of several temperatures, one after the other."""
        rows = len(request_B)
        tokens_B = torch.empty(rows, dtype=torch.long, device=self.device)
        others_2B = torch.empty(2, rows, dtype=torch.double, device=self.device)
        for temperature in np.unique(warm_B).tolist():
            chosen = np.flatnonzero(warm_B == temperature)
            where = self._tensor(chosen)
            drawn = self._draw(logits_BV[where], request_B[chosen], count_B[chosen], temperature)
            tokens_B[where] = drawn[0]
            others_2B[0, where], others_2B[1, where] = drawn[1], drawn[2]
        return tokens_B, others_2B[0], others_2B[1]

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)
