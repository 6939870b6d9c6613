"""The in-process engine: samples from the policies' own torch model, on any device.

One decoding loop with slots. Identical prompts are prefilled once; a finished row's slot is
emptied at once and refilled from the waiting prompts; keys and values are written in place
(`cache`). A completion's random numbers come from a generator seeded by its key, so its tokens
depend on its key alone. Its logits still carry the rounding of the batch that computed them
(matrix products sum in another order for another shape): a token changes with its company only
where the random number falls within that rounding of a boundary between two tokens.

Distributions are never truncated. This module decodes no text and trains nothing.

Dimensions: B rows that decode, V vocabulary, T prompt length, U
different prompts, W columns that a row attends to, L layers, R requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from agon.engines.base import BASE, OnToken, Sampling
from agon.engines.cache import SlotCache, attention_layout, cache_argument, masks_by_kind
from agon.engines.folded import FoldedLinears
from agon.engines.prefill import Prefilled, chunks, prefill
from agon.engines.sampler import generator, sample
from agon.errors import EngineError
from agon.records import Completion, PolicyVersion, Prompt

_DRAWS = 64
"""Uniform numbers drawn ahead for each row."""

_MASK_AHEAD = 64
"""Steps that an attention mask is built for."""


class PolicyModel(Protocol):
    """What the engine needs of the policies."""

    @property
    def model(self) -> Any:
        """A PEFT model around a transformers causal language model."""
        ...

    def active(self, name: str) -> AbstractContextManager[None]:
        """Forward passes inside use this policy: `base`, `a` or `b`."""
        ...

    def version(self, name: str) -> int:
        """Optimizer steps that a policy has had."""
        ...


class TorchEngine:
    """Samples in this process; implements `agon.engines.base.Engine`."""

    def __init__(
        self,
        policies: PolicyModel,
        end_token_ids: Sequence[int],
        pad_token_id: int,
        slots: int,
        context_limit: int,
        fold: bool = True,
    ) -> None:
        """Check that the model can be sampled here.

        Args:
            policies: The model and its adapters.
            end_token_ids: Each of these ends a completion.
            pad_token_id: Fills the left of shorter prompts; it is never attended to.
            slots: Most rows that decode at once.
            context_limit: Most tokens of prompt and completion together.
            fold: Whether linear layers on a CPU are sampled through folded copies (`folded`).

        Raises:
            EngineError: The model keeps a state other than attention keys and values, or runs an
                attention implementation that takes no ready masks.
        """
        self.policies = policies
        self.base = policies.model.get_base_model()
        self.windows_L, self.kinds = attention_layout(self.base)
        self.end_token_ids = np.asarray(sorted(end_token_ids))
        self.pad_token_id = pad_token_id
        self.slots = slots
        self.context_limit = context_limit
        self._folded = FoldedLinears(self.base) if fold else None
        self.cache_argument = cache_argument(self.base)

    def generate(
        self,
        prompts: Sequence[Prompt],
        policy: str,
        sampling: Sampling,
        keys: Sequence[str],
        on_token: OnToken | None = None,
        limits: Sequence[int] | None = None,
    ) -> list[Completion]:
        """Sample one completion for each prompt, in order; see `agon.engines.base.Engine`.

        Log-probabilities and entropies are those of the tempered distribution over the whole
        vocabulary, in nats; at temperature 0 those of temperature 1.

        Args:
            prompts: Repeated prompts are prefilled once.
            policy: `base`, `a` or `b`.
            sampling: Length limit and temperature.
            keys: One for each prompt; a completion's randomness hangs on its key alone.
            on_token: Told each token as it is sampled.
            limits: Completion limit in tokens of each prompt, from 1 to
                `sampling.max_new_tokens`; None is the latter for all.

        Raises:
            EngineError: A prompt and its limit do not fit the context, a prompt is empty, a limit
                is out of range, the policy is unknown, or the model's logits are not finite.
        """
        limit_R = self._check(prompts, policy, sampling, keys, limits)
        if not prompts:
            return []
        version = PolicyVersion(policy, self.policies.version(policy))
        adapter = None if policy == BASE else policy
        with (
            self.policies.active(policy),
            _eval_mode(self.base),
            torch.inference_mode(),
            self._folded.applied(adapter) if self._folded else nullcontext(),
        ):
            loop = _Loop(self, prompts, sampling, keys, on_token, limit_R)
            loop.run()
        return loop.completions(version)

    def _check(
        self,
        prompts: Sequence[Prompt],
        policy: str,
        sampling: Sampling,
        keys: Sequence[str],
        limits: Sequence[int] | None,
    ) -> np.ndarray:
        """Refuse what cannot be sampled; return each request's completion limit, (R,)."""
        known = [BASE, *self.policies.model.peft_config]
        if policy not in known:
            raise EngineError(f"unknown policy {policy!r}: expected one of {', '.join(known)}")
        if len(keys) != len(prompts):
            raise EngineError(f"{len(prompts)} prompts came with {len(keys)} keys: give one each")
        most = sampling.max_new_tokens
        if most < 1:
            raise EngineError(f"sampling.max_new_tokens is {most}, expected 1 or more")
        limit_R = np.full(len(prompts), most) if limits is None else np.asarray(limits, dtype=int)
        if limit_R.shape != (len(prompts),):
            raise EngineError(
                f"{len(prompts)} prompts came with {len(limit_R)} limits: give one each"
            )
        if len(limit_R) and not 1 <= limit_R.min() <= limit_R.max() <= most:
            raise EngineError(
                f"the limits lie between {limit_R.min()} and {limit_R.max()}, expected 1 to "
                f"sampling.max_new_tokens = {most}"
            )
        longest, limit = max(
            (
                (len(prompt.token_ids), int(limit))
                for prompt, limit in zip(prompts, limit_R, strict=True)
            ),
            key=sum,
            default=(0, 0),
        )
        if longest + limit > self.context_limit:
            name = "sampling.max_new_tokens" if limits is None else "its limit"
            raise EngineError(
                f"a prompt of {longest} tokens and {name} = {limit} make {longest + limit}, but "
                f"the model's context holds {self.context_limit}: lower {name} (or "
                "game.max_summary_tokens, which lengthens the challenger's prompt)"
            )
        if any(not prompt.token_ids for prompt in prompts):
            raise EngineError("a prompt has no tokens: there is nothing to continue")
        return limit_R

    def forward(self, ids: Tensor, positions: Tensor, masks: Any, cache: Any) -> Tensor:
        """Logits after each row's last token, (rows, V), in the model's type."""
        output = self.base(
            input_ids=ids,
            position_ids=positions,
            attention_mask=masks,
            use_cache=True,
            logits_to_keep=1,
            **{self.cache_argument: cache},
        )
        logits: Tensor = output.logits[:, -1]
        return logits


class _Loop:
    """One call of `generate`: requests that wait, rows that decode, tokens that are sampled."""

    def __init__(
        self,
        engine: TorchEngine,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        keys: Sequence[str],
        on_token: OnToken | None,
        limit_R: np.ndarray,
    ) -> None:
        self.engine = engine
        self.prompts = [prompt.token_ids for prompt in prompts]
        self.sampling = sampling
        self.on_token = on_token
        self.device = engine.base.device
        self.dtype = engine.base.dtype
        self.limit_R = limit_R
        longest = int((np.array([len(ids) for ids in self.prompts]) + limit_R).max())
        self.cache = SlotCache(engine.windows_L, longest)
        self.generators = [generator(key) for key in keys]
        self.uniforms_RD = np.empty((len(keys), _DRAWS))
        # Taken from the end. Long prompts first, so that later ones fit to the left of the cache's
        # last column, and equal prompts side by side, so that they share a prefill.
        self.waiting = sorted(
            range(len(prompts)),
            key=lambda request: (len(self.prompts[request]), self.prompts[request]),
        )
        self.prefilled: list[Prefilled] = []
        self.request_B = np.empty(0, dtype=np.int64)
        self.length_B = np.empty(0, dtype=np.int64)
        self.count_B = np.empty(0, dtype=np.int64)
        self.tokens_B = torch.empty(0, dtype=torch.long, device=self.device)
        self.mask_steps = 0
        self.history: list[tuple[np.ndarray, np.ndarray]] = []

    def run(self) -> None:
        """Sample until nothing waits and nothing decodes."""
        slots = self.engine.slots
        while self.waiting or len(self.request_B):
            free = slots - len(self.request_B)
            if self.waiting and (free * 8 >= slots or free >= len(self.waiting)):
                self._admit(min(free, len(self.waiting)))
            if len(self.request_B):
                self._step()

    def _step(self) -> None:
        """Feed every row its newest token and sample the next."""
        if self.mask_steps == 0:
            self._build_mask()
        self.length_B += 1
        self.cache.advance()
        logits_BV = self.engine.forward(
            self.tokens_B[:, None], self.positions_B[:, None], self._masks(), self.cache
        )
        self.positions_B += 1
        self.mask_steps -= 1
        self.tokens_B, finished_B = self._sample(logits_BV, self.request_B, self.count_B)
        self.count_B += 1
        if finished_B.any():
            self._remove(finished_B)

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

    def _masks(self) -> Any:
        end = self.cache.length

        def mask_of(window: int | None) -> Tensor:
            start = 0 if window is None else max(0, end - window)
            return self.mask_B11W[..., start:end]

        return masks_by_kind(self.engine.kinds, mask_of)

    def _remove(self, finished_B: np.ndarray) -> None:
        """Close the gaps that finished rows leave with the last rows."""
        live = int((~finished_B).sum())
        holes = np.flatnonzero(finished_B[:live])
        movers = live + np.flatnonzero(~finished_B[live:])
        order = np.arange(live)
        order[holes] = movers
        if len(holes):
            self.cache.move(self._tensor(movers), self._tensor(holes))
        self.cache.rows = live
        self.request_B, self.length_B = self.request_B[order], self.length_B[order]
        self.count_B = self.count_B[order]
        self.tokens_B = self.tokens_B[self._tensor(order)]
        self.cache.length = int(self.length_B.max(initial=0))
        self.mask_steps = 0

    def _admit(self, number: int) -> None:
        """Let waiting requests in: prefill what is new, sample their first token, fill slots."""
        self.cache.rows_wanted = len(self.request_B) + min(
            len(self.waiting), self.engine.slots - len(self.request_B)
        )
        entering = [self.waiting.pop() for _ in range(number)]
        known = {ids for done in self.prefilled for ids in done.rows}
        new = {self.prompts[request]: None for request in entering}
        self.prefilled += [
            prefill(self.engine, chunk)
            for chunk in chunks([ids for ids in new if ids not in known])
        ]
        for done in self.prefilled:
            self._enter(done, [r for r in entering if self.prompts[r] in done.rows])
        upcoming = self.prompts[self.waiting[-1]] if self.waiting else None
        self.prefilled = [done for done in self.prefilled if upcoming in done.rows]

    def _enter(self, done: Prefilled, requests: list[int]) -> None:
        """Sample the first token of each request and give slots to those that go on."""
        if not requests:
            return
        request_M = np.asarray(requests)
        row_M = self._tensor(np.asarray([done.rows[self.prompts[r]] for r in requests]))
        count_M = np.zeros(len(requests), dtype=np.int64)
        tokens_M, finished_M = self._sample(done.logits_UV[row_M], request_M, count_M)
        going = np.flatnonzero(~finished_M)
        if not len(going):
            return
        going_M = self._tensor(going)
        self.cache.admit(done.states_L, row_M[going_M])
        lengths_M = np.asarray([len(self.prompts[r]) for r in request_M[going]])
        self.request_B = np.concatenate([self.request_B, request_M[going]])
        self.length_B = np.concatenate([self.length_B, lengths_M])
        self.count_B = np.concatenate([self.count_B, count_M[going] + 1])
        self.tokens_B = torch.cat([self.tokens_B, tokens_M[going_M]])
        self.cache.length = int(self.length_B.max())
        self.mask_steps = 0

    def _sample(
        self, logits_BV: Tensor, request_B: np.ndarray, count_B: np.ndarray
    ) -> tuple[Tensor, np.ndarray]:
        """Sample a token for each row, note it, and say which rows are finished by it."""
        uniforms_B = None
        if self.sampling.temperature > 0:
            for request in request_B[count_B % _DRAWS == 0]:
                self.uniforms_RD[request] = self.generators[request].random(_DRAWS)
            uniforms_B = self._tensor(self.uniforms_RD[request_B, count_B % _DRAWS])
        tokens_B, logprobs_B, entropies_B = sample(logits_BV, uniforms_B, self.sampling.temperature)
        # One transfer a step: token numbers are exact in double precision.
        noted_3B = torch.stack([tokens_B.double(), logprobs_B, entropies_B]).cpu().numpy()
        if not np.isfinite(noted_3B).all():
            raise EngineError(
                "the model's logits are not finite: its weights have diverged or its dtype "
                "overflows; lower optimizer.learning_rate or set model.dtype"
            )
        self.history.append((request_B, noted_3B))
        if self.on_token is not None:
            for request, token in zip(request_B.tolist(), noted_3B[0].tolist(), strict=True):
                self.on_token(request, int(token))
        ended_B = np.isin(noted_3B[0], self.engine.end_token_ids)
        return tokens_B, ended_B | (count_B + 1 == self.limit_R[request_B])

    def completions(self, version: PolicyVersion) -> list[Completion]:
        """What was sampled, put together by request."""
        request_S = np.concatenate([request_B for request_B, _ in self.history])
        noted_3S = np.concatenate([noted_3B for _, noted_3B in self.history], axis=1)
        noted_3S = noted_3S[:, np.argsort(request_S, kind="stable")]
        ends = np.cumsum(np.bincount(request_S, minlength=len(self.prompts)))
        result = []
        for noted in np.split(noted_3S, ends[:-1], axis=1):
            tokens, logprobs, entropies = noted.tolist()
            token_ids = tuple(map(int, tokens))
            truncated = token_ids[-1] not in self.engine.end_token_ids
            result.append(
                Completion(token_ids, tuple(logprobs), tuple(entropies), truncated, version)
            )
        return result

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)


@contextmanager
def _eval_mode(model: torch.nn.Module) -> Iterator[None]:
    """Turn training mode off, and afterwards on again in exactly the modules that had it on."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
