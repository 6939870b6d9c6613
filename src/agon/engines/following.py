"""An engine that samples elsewhere, from copies of the adapters.

What samples is a `Backend`: vLLM in a process beside this one (`vllm_engine`), or vLLM servers
(`vllm_server`). This module keeps the backend's adapters those of the trainer:

    changed?  ->  drain  ->  copy aside  ->  register under a fresh name and id
              ->  compare log-probabilities  ->  switch  ->  unload the old copy, delete it

Adapters are never merged. A fresh name for every copy means that nothing cached for one version,
prefixes above all, can serve another. Each completion carries the adapter and version of the copy
that wrote it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from threading import RLock
from typing import Protocol

from agon.engines.adapter_store import AdapterStore, Copy
from agon.engines.base import BASE, OnToken, Sampling
from agon.engines.canary import Canary
from agon.engines.checks import check_requests
from agon.errors import EngineError
from agon.policies import Policies
from agon.records import Completion, PolicyVersion, Prompt


@dataclass(frozen=True, slots=True)
class Request:
    """One completion to sample.

    Attributes:
        token_ids: The prompt.
        seed: Of the completion's randomness, 0 to 2^63 - 1.
    """

    token_ids: tuple[int, ...]
    seed: int


@dataclass(frozen=True, slots=True)
class Sampled:
    """A completion as a backend returns it.

    Attributes:
        token_ids: The token that ended it included.
        logprobs: Of each token, natural, under the tempered distribution.
        stopped: Whether a token ended it and not the limit.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stopped: bool


class Backend(Protocol):
    """What samples."""

    @property
    def places(self) -> Sequence[str]:
        """Names of the places that sample, each with adapters of its own."""
        ...

    @property
    def context_limit(self) -> int:
        """Most tokens of prompt and completion together."""
        ...

    def register(self, copy: Copy) -> None:
        """Load an adapter everywhere."""
        ...

    def unregister(self, copy: Copy) -> None:
        """Unload it."""
        ...

    def reclaim(self, folders: Sequence[str]) -> None:
        """Unload adapters that lie in these folders, left by processes that are gone."""
        ...

    def drain(self) -> None:
        """Return when nothing is being sampled any more for this process."""
        ...

    def sample(
        self,
        requests: Sequence[Request],
        adapter: Copy | None,
        sampling: Sampling,
        on_token: OnToken | None = None,
        place: int | None = None,
    ) -> list[Sampled]:
        """Sample from an adapter, or from the base; at one place, or spread over all."""
        ...

    def describe(self) -> dict[str, str]:
        """Versions."""
        ...

    def close(self) -> None:
        """End it."""
        ...


def seed_of(key: str) -> int:
    """A completion's seed, from its key alone: 63 bits."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "little") >> 1


class FollowingEngine:
    """Samples with a backend; implements `Engine` and `Follower` of `agon.engines.base`."""

    def __init__(
        self,
        backend: Backend,
        policies: Policies,
        store: AdapterStore,
        canary: Canary,
        end_token_ids: Sequence[int],
        context_limit: int,
    ) -> None:
        """Keep what sampling needs; `prove` and `sync` come next.

        Args:
            backend: What samples.
            policies: What is trained.
            store: Where copies go.
            canary: Compares the two.
            end_token_ids: Each of these ends a completion.
            context_limit: The model's; the backend's may be less.
        """
        self._backend, self._policies, self._store = backend, policies, store
        self._canary = canary
        self._end_token_ids = frozenset(end_token_ids)
        self.context_limit = min(context_limit, backend.context_limit)
        self._copies: dict[str, Copy] = {}
        self._lock = RLock()

    def prove(self) -> dict[str, float]:
        """Show at every place that base and adapters are the trainer's; the start's canary.

        Returns:
            The largest gap of each policy, nats a token.

        Raises:
            EngineError: One is not.
        """
        left = self._store.abandoned()
        self._backend.reclaim([str(folder) for folder in left])
        for folder in left:
            self._store.discard(folder)
        places = list(enumerate(self._backend.places))
        gaps = {
            BASE: max(
                self._canary.check_base(partial(self._at, None, place), where)
                for place, where in places
            )
        }
        for name in self._policies.names:
            with self._canary.shaken(name):
                copy = self._store.write(self._policies, name)
                self._backend.register(copy)
                gaps[name] = max(
                    self._canary.check_shaken(name, partial(self._at, copy, place), where)
                    for place, where in places
                )
            self._drop(copy)
        return gaps

    def sync(self) -> dict[str, float]:
        """Renew the copies of adapters that have changed; see `Follower`."""
        figures = {}
        with self._lock:
            for name in self._policies.names:
                known = self._copies.get(name)
                if known is None or known.revision != self._policies.revision(name):
                    figures[f"sync.{name}.gap"] = self._renew(name)
        return figures

    def _renew(self, name: str) -> float:
        self._backend.drain()
        copy = self._store.write(self._policies, name)
        self._backend.register(copy)
        gap = max(
            self._canary.check(name, partial(self._at, copy, place), where)
            for place, where in enumerate(self._backend.places)
        )
        old = self._copies.get(name)
        self._copies[name] = copy
        if old is not None:
            self._drop(old)
        return gap

    def _drop(self, copy: Copy) -> None:
        self._backend.unregister(copy)
        self._store.remove(copy)

    def generate(
        self,
        prompts: Sequence[Prompt],
        policy: str,
        sampling: Sampling,
        keys: Sequence[str],
        on_token: OnToken | None = None,
    ) -> list[Completion]:
        """Sample one completion for each prompt, in order; see `agon.engines.base.Engine`.

        A completion's seed is a hash of its key. Its tokens are the same whatever its neighbours
        are up to rounding, and others than the torch engine's for the same key.

        Log-probabilities are those of the tempered distribution over the whole vocabulary; vLLM
        gives no entropies, so each token's is estimated by its own -log p, whose mean is unbiased.

        Raises:
            EngineError: As for every engine, and as for `sync`.
            SamplerLost: What samples is gone.
        """
        known = self._policies.known
        check_requests(prompts, policy, sampling, keys, known, self.context_limit)
        if not prompts:
            return []
        with self._lock:
            if policy != BASE:
                self.sync()
            copy = self._copies.get(policy)
            return self._sample(copy, None, prompts, sampling, keys, on_token)

    def _at(
        self,
        copy: Copy | None,
        place: int,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        keys: Sequence[str],
    ) -> list[Completion]:
        return self._sample(copy, place, prompts, sampling, keys, None)

    def _sample(
        self,
        copy: Copy | None,
        place: int | None,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        keys: Sequence[str],
        on_token: OnToken | None,
    ) -> list[Completion]:
        requests = [
            Request(prompt.token_ids, seed_of(key))
            for prompt, key in zip(prompts, keys, strict=True)
        ]
        sampled = self._backend.sample(requests, copy, sampling, on_token, place)
        version = (
            PolicyVersion(BASE, 0) if copy is None else PolicyVersion(copy.policy, copy.version)
        )
        return [self._completion(found, version, sampling) for found in sampled]

    def _completion(self, found: Sampled, version: PolicyVersion, sampling: Sampling) -> Completion:
        ended = bool(found.token_ids) and found.token_ids[-1] in self._end_token_ids
        if len(found.token_ids) != len(found.logprobs) or not found.token_ids:
            raise EngineError(
                f"the sampler returned {len(found.token_ids)} tokens with {len(found.logprobs)} "
                "log-probabilities, expected one for each of at least one token"
            )
        if ended is not found.stopped and len(found.token_ids) < sampling.max_new_tokens:
            raise EngineError(
                f"the sampler ended a completion with token {found.token_ids[-1]}, which is not "
                "one of this run's end tokens: start the server with --generation-config vllm, so "
                "that it stops at no tokens of its own"
            )
        entropies = tuple(-logprob for logprob in found.logprobs)
        return Completion(found.token_ids, found.logprobs, entropies, not ended, version)

    def describe(self) -> dict[str, str]:
        """Versions of what samples."""
        return self._backend.describe()

    def close(self) -> None:
        """Unload the adapters where the sampler outlives this process, end it, delete copies."""
        with self._lock:
            try:
                for copy in self._copies.values():
                    self._backend.unregister(copy)
            except EngineError:
                pass  # the sampler is gone already, and its adapters with it
            finally:
                self._copies = {}
                self._backend.close()
                self._store.close()
