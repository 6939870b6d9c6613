"""The in-process engine: samples from the policies' own torch model, on any device.

Identical prompts are prefilled once; a finished row's slot is emptied at once and refilled from the
waiting prompts; keys and values are written in place (`cache`). `decoder` has the step itself;
`continuous` drives it for requests that arrive at any time. A completion's random numbers come from
a generator seeded by its key, so its tokens depend on its key alone. Its logits still carry the
rounding of the batch that computed them (matrix products sum in another order for another shape): a
token changes with its company only where the random number falls within that rounding of a boundary
between two tokens.

Distributions are never truncated. This module decodes no text and trains nothing.

Dimensions: B rows that decode, V vocabulary, L layers, R requests, S sampled tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from agon.engines import spans
from agon.engines.base import BASE, OnToken, Sampling
from agon.engines.cache import attention_layout, cache_argument
from agon.engines.checks import check_requests
from agon.engines.decoder import Decoder
from agon.engines.folded import FoldedLinears
from agon.engines.prefill import Prefilled, chunks, prefill
from agon.records import Completion, PolicyVersion, Prompt


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
        copies_each: bool = False,
    ) -> None:
        """Check that the model can be sampled here.

        Args:
            policies: The model and its adapters.
            end_token_ids: Each of these ends a completion.
            pad_token_id: Fills the left of shorter prompts; it is never attended to.
            slots: Most rows that decode at once.
            context_limit: Most tokens of prompt and completion together.
            fold: Whether linear layers on a CPU are sampled through folded copies (`folded`).
            copies_each: Whether every policy keeps folded copies of its own, for callers that go
                back and forth between policies; otherwise they share one set, made anew.

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
        self._fold, self._copies_each = fold, copies_each
        self._folded: dict[str, FoldedLinears] = {}
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
        with self.sampling(policy):
            batch = _Batch(self, prompts, sampling, keys, on_token, limit_R)
            batch.run()
        return batch.completions(version)

    @contextmanager
    def sampling(self, policy: str) -> Iterator[None]:
        """Forward passes inside sample from this policy."""
        adapter = None if policy == BASE else policy
        folded = self._folded.get(policy if self._copies_each else "") if self._fold else None
        if self._fold and folded is None:
            folded = FoldedLinears(self.base)
            self._folded[policy if self._copies_each else ""] = folded
        with (
            self.policies.active(policy),
            _eval_mode(self.base),
            torch.inference_mode(),
            spans.installed(self.base),
            folded.applied(adapter) if folded else nullcontext(),
        ):
            yield

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
        return check_requests(prompts, policy, sampling, keys, known, self.context_limit, limits)

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


class _Batch:
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
        self.on_token = on_token
        longest = int((np.array([len(ids) for ids in self.prompts]) + limit_R).max())
        self.decoder = Decoder(engine, longest, self._note)
        for ids, key, limit in zip(self.prompts, keys, limit_R.tolist(), strict=True):
            self.decoder.seat(ids, key, sampling.temperature, limit)
        # Taken from the end. Long prompts first, so that later ones fit to the left of the cache's
        # last column, and equal prompts side by side, so that they share a prefill.
        self.waiting = sorted(
            range(len(prompts)),
            key=lambda request: (len(self.prompts[request]), self.prompts[request]),
        )
        self.prefilled: list[Prefilled] = []
        self.history: list[tuple[np.ndarray, np.ndarray]] = []

    def run(self) -> None:
        """Sample until nothing waits and nothing decodes."""
        slots, decoder = self.engine.slots, self.decoder
        while self.waiting or decoder.live:
            free = slots - decoder.live
            if self.waiting and (free * 8 >= slots or free >= len(self.waiting)):
                self._admit(min(free, len(self.waiting)))
            if decoder.live:
                decoder.step()

    def _admit(self, number: int) -> None:
        """Let waiting requests in: prefill what is new, sample their first token, fill slots."""
        live = self.decoder.live
        self.decoder.expect(live + min(len(self.waiting), self.engine.slots - live))
        entering = [self.waiting.pop() for _ in range(number)]
        known = {ids for done in self.prefilled for ids in done.rows}
        new = {self.prompts[request]: None for request in entering}
        self.prefilled += [
            prefill(self.engine, chunk)
            for chunk in chunks([ids for ids in new if ids not in known])
        ]
        for done in self.prefilled:
            self.decoder.enter(done, [r for r in entering if self.prompts[r] in done.rows])
        upcoming = self.prompts[self.waiting[-1]] if self.waiting else None
        self.prefilled = [done for done in self.prefilled if upcoming in done.rows]

    def _note(self, request_B: np.ndarray, noted_3B: np.ndarray, _finished_B: np.ndarray) -> None:
        self.history.append((request_B, noted_3B))
        if self.on_token is not None:
            for request, token in zip(request_B.tolist(), noted_3B[0].tolist(), strict=True):
                self.on_token(request, int(token))

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
