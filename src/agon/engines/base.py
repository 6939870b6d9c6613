"""What an engine is: it samples completions for prompts from a named policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from agon.records import Completion, Prompt

BASE = "base"
"""Name of the policy that is the frozen model with its adapters off."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample: from the whole vocabulary, never truncated.

    Attributes:
        max_new_tokens: Completion limit, the end-of-turn token included.
        temperature: Divides the logits; 0 takes the most likely token.
    """

    max_new_tokens: int
    temperature: float = 1.0


OnToken = Callable[[int, int], None]
"""Called with a prompt's index and the token just sampled for it."""


class Engine(Protocol):
    """Samples one completion for each prompt."""

    def generate(
        self,
        prompts: Sequence[Prompt],
        policy: str,
        sampling: Sampling,
        keys: Sequence[str],
        on_token: OnToken | None = None,
    ) -> list[Completion]:
        """Sample one completion for each prompt, in order.

        Args:
            prompts: Repeated prompts are prefilled once.
            policy: `base`, `a` or `b`.
            sampling: Length limit and temperature.
            keys: One for each prompt. A completion's randomness hangs on its key alone: not on
                its neighbours, their order, or what was sampled before.
            on_token: Told each token as it is sampled.

        Raises:
            EngineError: A prompt and its completion limit do not fit the context, or the policy
                is unknown.
        """
        ...


class Follower(Protocol):
    """An engine that samples from copies of the adapters and has to be given the new ones."""

    def sync(self) -> dict[str, float]:
        """Bring every adapter that has changed to the sampler, and check that it took it.

        Returns:
            Figures of what was brought, `sync.a.gap` and its like; nothing changed, none.

        Raises:
            EngineError: The sampler refuses an adapter or does not sample from it.
        """
        ...

    def describe(self) -> dict[str, str]:
        """Versions of what samples, for a run's environment file."""
        ...

    def close(self) -> None:
        """End what samples and remove the copies."""
        ...
