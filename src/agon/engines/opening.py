"""Starts the engine that a configuration names.

Checks what can be checked without starting it (`check_engine`), then opens the torch engine, or a
backend with the copies of the adapters and the canary around it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from agon.config import Config, EngineConfig
from agon.engines.adapter_store import AdapterStore, choose_place
from agon.engines.calls import Address
from agon.engines.canary import Canary
from agon.engines.following import Backend, FollowingEngine
from agon.engines.torch_engine import TorchEngine
from agon.engines.vllm_engine import VllmBackend, check_vllm, lora_rank
from agon.engines.vllm_server import ServerBackend, ask_server
from agon.errors import ConfigError, SamplerLost, Unreachable
from agon.policies import Policies
from agon.preflight import Language
from agon.records import Problem

_QUESTIONS = (
    "What is 17 + 25?",
    "A train leaves at nine and arrives at noon. How many hours does it travel?",
)
"""Asked by the canary: any text will do."""

Say = Callable[[str], None]
"""Told what is going on, in a sentence."""


def check_engine(config: Config) -> list[str]:
    """Find out, before anything is loaded, whether the engine can be had.

    Returns:
        What there is, a sentence each; nothing for the torch engine.

    Raises:
        ConfigError: The rank is too large for vLLM, or the API key is unset.
        Unreachable: vLLM is not installed, or a server does not answer.
        EngineError: A server is no vLLM server, or takes no adapters at run time.
    """
    engine = config.engine
    if engine.kind == "torch":
        return []
    lora_rank(config.adapters.rank)
    if engine.kind == "vllm":
        check_vllm()
        return []
    found = []
    for url in engine.urls:
        try:
            server = ask_server(url, api_key(engine), engine.seconds)
        except SamplerLost as error:
            raise Unreachable(f"engine.urls: {error}") from error
        found.append(
            f"{url}: vLLM {server.version} with {server.base}, context {server.context} tokens"
        )
    return found


def api_key(engine: EngineConfig) -> str | None:
    """The servers' key.

    Raises:
        ConfigError: The variable that should hold it is not set.
    """
    if engine.api_key_variable is None:
        return None
    key = os.environ.get(engine.api_key_variable)
    if not key:
        raise ConfigError(
            f"engine.api_key_variable: {engine.api_key_variable} is not set in the environment"
        )
    return key


def open_torch(
    config: Config,
    language: Language,
    policies: Policies,
    fold: bool = True,
    copies_each: bool = False,
) -> TorchEngine:
    """The engine that samples from the trained model itself; 4-bit weights are never folded.

    Args:
        config: The run's configuration.
        language: From `preflight.read_language`.
        policies: What is sampled.
        fold: Whether the base's weights lie here whole, so that they may be folded at all.
        copies_each: See `TorchEngine`.

    Raises:
        EngineError: The model cannot be sampled in process.
    """
    return TorchEngine(
        policies,
        end_token_ids=language.prompter.end_token_ids,
        pad_token_id=language.pad_token_id,
        slots=config.sampling.slots,
        context_limit=language.context,
        fold=config.sampling.fold_weights and fold and config.model.quantization == "none",
        copies_each=copies_each,
    )


def open_follower(
    config: Config, language: Language, policies: Policies, run: Path, say: Say
) -> FollowingEngine:
    """An engine that samples from copies of the adapters, shown to do so.

    Args:
        config: The run's configuration; `engine.kind` is not `torch`.
        language: From `preflight.read_language`.
        policies: What is trained.
        run: The run's folder.
        say: Told what the canary found.

    Raises:
        EngineError: What samples cannot be had, or does not sample from base and adapters.
    """
    engine = config.engine
    ends = language.prompter.end_token_ids
    sizes = (p.numel() * p.element_size() for p in policies.parameters("a").values())
    near = all(Address.of(url).near for url in engine.urls)
    store = AdapterStore(choose_place(engine.folder, near, run, sum(sizes)))
    try:
        canary = Canary(
            policies,
            [language.prompter.plain(Problem("canary", q, "", "none")) for q in _QUESTIONS],
            config.sampling.temperature,
            language.pad_token_id,
            engine.gap_limit,
        )
        backend: Backend
        if engine.kind == "vllm":
            backend = VllmBackend(config, ends)
        else:
            slots, key = config.sampling.slots, api_key(engine)
            backend = ServerBackend(engine.urls, ends, slots, engine.seconds, key)
    except BaseException:
        store.close()
        raise
    opened = FollowingEngine(backend, policies, store, canary, ends, language.context)
    try:
        gaps = opened.prove()
    except BaseException:
        opened.close()
        raise
    shown = ", ".join(f"{name} {gap:.1e}" for name, gap in gaps.items())
    say(f"sampler against trainer, nats a token: {shown}; copies of the adapters in {store.folder}")
    return opened
