"""Does the sampler sample from the adapters that the trainer trains?

More than one model family has been served with its adapters silently ignored, and an adapter that
never arrives looks like a policy that does not learn. So nothing is taken on trust: a few tokens
are sampled and their log-probabilities compared with the trainer's own forward pass.

At the start each adapter is shaken for a moment, since a fresh one changes nothing by which it
could be seen, and put back. After each renewal the adapters are compared as they are.

A gap is the mean of |log p by the sampler - log p by the trainer| in nats a token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from agon.engines.base import BASE, Sampling
from agon.errors import EngineError
from agon.logprobs import Scorer, collate
from agon.objective import Row
from agon.policies import Policies
from agon.records import Completion, Prompt

TOKENS = 8
"""Sampled for each prompt."""

_EFFECT = 0.5
"""Mean change of the log-probabilities that a shaken adapter must make, nats a token."""

_DOUBLINGS = 16

Probe = Callable[[Sequence[Prompt], Sampling, Sequence[str]], list[Completion]]
"""Samples from one policy at one place."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """One comparison.

    Attributes:
        own: Gap to the trainer's forward pass under the policy that was asked for.
        base: Gap to the trainer's forward pass under the base.
        effect: Mean change that the policy makes to the base's log-probabilities of these tokens,
            by the trainer's word.
    """

    own: float
    base: float
    effect: float


class Canary:
    """Compares a sampler with the trainer."""

    def __init__(
        self,
        policies: Policies,
        prompts: Sequence[Prompt],
        temperature: float,
        pad_token_id: int,
        limit: float,
    ) -> None:
        """Keep what comparisons need.

        Args:
            policies: The trainer's.
            prompts: A few.
            temperature: Of the run, so that the sampler's way of reporting log-probabilities is
                checked with it.
            pad_token_id: Fills short rows; its value reaches no result.
            limit: Largest gap, `engine.gap_limit`.
        """
        self._policies, self._prompts = policies, list(prompts)
        self._sampling = Sampling(TOKENS, temperature)
        self._pad, self._limit = pad_token_id, limit
        self._scorer = Scorer(policies.model, pad_token_id, share=False)
        self._floor = 0.0
        self._compared = 0

    def check_base(self, probe: Probe, where: str) -> float:
        """Compare the base.

        Args:
            probe: Samples from the base.
            where: Names the place, for the error.

        Returns:
            The gap.

        Raises:
            EngineError: The sampler's base is not the trainer's, or its log-probabilities are of
                another distribution.
        """
        gaps = self._compare(BASE, probe)
        if gaps.own > self._limit:
            raise EngineError(
                f"{where} does not sample from this run's base: the log-probabilities of its "
                f"tokens differ from the trainer's by {gaps.own:.3g} nats on average "
                f"(engine.gap_limit = {self._limit:g}). Give it the model of model.name_or_path in "
                "model.dtype, and log-probabilities of the distribution that is sampled "
                "(--logprobs-mode processed_logprobs)"
            )
        self._floor = max(self._floor, gaps.own)
        return gaps.own

    def check_shaken(self, name: str, probe: Probe, where: str) -> float:
        """Compare an adapter inside `shaken`.

        Raises:
            EngineError: The sampler ignores the adapter, wholly or in part.
        """
        gaps = self._compare(name, probe)
        if gaps.own > self._limit:
            raise self._ignored(name, gaps, where)
        return gaps.own

    def check(self, name: str, probe: Probe, where: str) -> float:
        """Compare an adapter as it is, after a renewal.

        Raises:
            EngineError: The sampler samples from something else.
        """
        gaps = self._compare(name, probe)
        visible = gaps.effect > 4 * max(self._floor, 1e-4)
        if gaps.own > self._limit or (visible and gaps.base < gaps.own / 2):
            raise self._ignored(name, gaps, where)
        return gaps.own

    def _ignored(self, name: str, gaps: Gaps, where: str) -> EngineError:
        how = (
            "ignores the adapter"
            if gaps.base < gaps.effect / 2
            else "does not apply the adapter as the trainer does"
        )
        return EngineError(
            f"{where} {how}: {name} changes log-probabilities by {gaps.effect:.3g} nats a token in "
            f"the trainer, and what was sampled differs from the trainer's adapter by "
            f"{gaps.own:.3g} and from the base by {gaps.base:.3g} "
            f"(engine.gap_limit = {self._limit:g}). Some versions of vLLM ignore adapters, or some "
            "of their modules, for some model families: try adapters.target_modules with "
            'attention and MLP layers alone, another version of vLLM, or engine.kind = "torch"'
        )

    def _compare(self, policy: str, probe: Probe) -> Gaps:
        self._compared += 1
        keys = [f"canary/{self._compared}/{place}" for place in range(len(self._prompts))]
        completions = probe(self._prompts, self._sampling, keys)
        pairs = [
            (prompt.token_ids, completion.token_ids)
            for prompt, completion in zip(self._prompts, completions, strict=True)
        ]
        said_N = torch.tensor([p for c in completions for p in c.logprobs], dtype=torch.float64)
        own_N, base_N = self._trainer(policy, pairs), self._trainer(BASE, pairs)
        return Gaps(
            own=float((said_N - own_N).abs().mean()),
            base=float((said_N - base_N).abs().mean()),
            effect=float((own_N - base_N).abs().mean()),
        )

    def _trainer(
        self, policy: str, pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]
    ) -> torch.Tensor:
        """Log-probabilities (N,) of completions' tokens by the trainer's forward pass."""
        rows = [Row(prompt, tokens, (0.0,) * len(tokens), 0.0) for prompt, tokens in pairs]
        batch = collate(rows, [0] * len(rows), self._pad, self._scorer.device)
        with self._policies.active(policy), torch.no_grad():
            return self._scorer.logprobs(batch, self._sampling.temperature).double().cpu()

    @contextmanager
    def shaken(self, name: str) -> Iterator[None]:
        """Inside, an adapter's weights are far enough from the base to be seen from outside."""
        parameters = self._policies.parameters(name)
        kept = {key: parameter.detach().clone() for key, parameter in parameters.items()}
        try:
            self._shake(name, kept)
            yield
        finally:
            with torch.no_grad():
                for key, parameter in parameters.items():
                    parameter.copy_(kept[key])

    def _shake(self, name: str, kept: dict[str, torch.Tensor]) -> None:
        # A prompt's own tokens stand in for what would be sampled.
        halves = [
            (prompt.token_ids[: len(prompt.token_ids) // 2 or 1], prompt.token_ids[-TOKENS:])
            for prompt in self._prompts
        ]
        base_N = self._trainer(BASE, halves)
        parameters = self._policies.parameters(name)
        for doubling in range(_DOUBLINGS):
            generator = torch.Generator().manual_seed(0)
            with torch.no_grad():
                for key, parameter in parameters.items():
                    if "lora_B" in key:
                        noise = torch.randn(parameter.shape, generator=generator)
                        parameter.copy_(kept[key] + 1e-3 * 2**doubling * noise.to(parameter))
            if float((self._trainer(name, halves) - base_N).abs().mean()) > _EFFECT:
                return
        raise EngineError(
            f"adapter {name} changes nothing in the trainer's own forward pass, however large its "
            "weights are: its modules (adapters.target_modules) are not used by this model"
        )
