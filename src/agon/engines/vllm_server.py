"""vLLM servers: the backend of `engine.kind = "vllm-server"`.

One or several OpenAI-compatible vLLM servers, each started with

    VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve MODEL --enable-lora --max-loras 2
        --max-cpu-loras 4 --max-lora-rank R --logprobs-mode processed_logprobs
        --generation-config vllm

Requests go to /v1/completions as token ids and come back as token ids; equal prompts go to the
same server, where their prefix is cached. Adapters are loaded and unloaded through
/v1/load_lora_adapter and /v1/unload_lora_adapter: a server is told a folder's path and reads the
files itself, so servers and trainer must see the same folder under the same path.

When one server fails, the open requests to all of them are cut off, which makes the others abort
theirs, and the run ends with its state saved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from agon.engines.adapter_store import Copy
from agon.engines.base import OnToken, Sampling
from agon.engines.calls import Address, Answer, Caller, Closed
from agon.engines.following import Request, Sampled
from agon.errors import EngineError

_ASK_SECONDS = 30.0
"""Longest wait for what a server says of itself."""

_START = (
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve MODEL --enable-lora --max-loras 2 "
    "--max-cpu-loras 4 --max-lora-rank RANK --logprobs-mode processed_logprobs "
    "--generation-config vllm"
)


@dataclass(frozen=True, slots=True)
class Server:
    """One server, as it described itself.

    Attributes:
        address: Where it is.
        base: Name under which it serves the base.
        context: Most tokens of prompt and completion together.
        version: Of vLLM.
        adapters: Loaded adapters, folder by name.
    """

    address: Address
    base: str
    context: int
    version: str
    adapters: Mapping[str, str]


def ask_server(url: str, key: str | None, seconds: float) -> Server:
    """What a server is, and whether it takes adapters at run time.

    Raises:
        SamplerLost: It cannot be reached.
        EngineError: It is no vLLM server, or one without run-time LoRA.
    """
    remedy = f"start it, or set engine.urls to one that runs. Start: {_START}"
    with Caller(Address.of(url), key, min(seconds, _ASK_SECONDS), remedy) as caller:
        models = _json(caller.get("/v1/models"), url)["data"]
        bases = [model for model in models if not model.get("parent")]
        if not bases or not bases[0].get("max_model_len"):
            raise EngineError(f"{url} is no vLLM server: /v1/models names no base. Start: {_START}")
        probe = caller.post("/v1/unload_lora_adapter", {"lora_name": "agon-no-such-adapter"})
        # Without the endpoints the answer is the web framework's, which has no `error`.
        if probe.status not in (400, 404) or "error" not in probe.fields():
            raise EngineError(
                f"{url} takes no adapters at run time (/v1/unload_lora_adapter answers "
                f"{probe.status}). Start: {_START}"
            )
        version = caller.get("/version").fields().get("version", "unknown")
    return Server(
        Address.of(url),
        str(bases[0]["id"]),
        int(bases[0]["max_model_len"]),
        str(version),
        {str(m["id"]): str(m.get("root", "")) for m in models if m.get("parent")},
    )


class ServerBackend:
    """vLLM servers that are running; implements `agon.engines.following.Backend`."""

    def __init__(
        self,
        urls: Sequence[str],
        end_token_ids: Sequence[int],
        slots: int,
        seconds: float,
        key: str | None = None,
    ) -> None:
        """Ask the servers who they are.

        Args:
            urls: Their addresses.
            end_token_ids: Each of these ends a completion.
            slots: Most requests that are open at each server.
            seconds: Longest wait for a reply.
            key: Their API key.

        Raises:
            SamplerLost: One cannot be reached.
            EngineError: One is no vLLM server, or one without run-time LoRA.
        """
        self._servers = [ask_server(url, key, seconds) for url in urls]
        self._end_token_ids = sorted(end_token_ids)
        self._slots, self._seconds, self._key = slots, seconds, key

    @property
    def places(self) -> Sequence[str]:
        """Each server's address."""
        return [f"the server at {server.address.url}" for server in self._servers]

    @property
    def context_limit(self) -> int:
        """The smallest of the servers' limits."""
        return min(server.context for server in self._servers)

    def register(self, copy: Copy) -> None:
        """Load an adapter at every server."""
        for server in self._servers:
            body = {"lora_name": copy.name, "lora_path": str(copy.folder)}
            with Caller(server.address, self._key, self._seconds) as caller:
                answer = caller.post("/v1/load_lora_adapter", body)
            if answer.status != 200:
                raise EngineError(
                    f"{server.address.url} cannot load adapter {copy.policy} from {copy.folder}: "
                    f"{answer.message()}. Servers and trainer must see this folder under the same "
                    "path (engine.folder names another), and the server's --max-lora-rank must be "
                    "at least adapters.rank"
                )

    def unregister(self, copy: Copy) -> None:
        """Unload it at every server."""
        self._unload(copy.name, self._servers)

    def reclaim(self, folders: Sequence[str]) -> None:
        """Unload adapters that lie in these folders, left by processes that are gone."""
        for server in self._servers:
            for name, root in server.adapters.items():
                if any(root.startswith(f"{folder}/") for folder in folders):
                    self._unload(name, [server])

    def _unload(self, name: str, servers: Sequence[Server]) -> None:
        for server in servers:
            with Caller(server.address, self._key, self._seconds) as caller:
                answer = caller.post("/v1/unload_lora_adapter", {"lora_name": name})
            # A server that was started anew does not know it, which is as well.
            if answer.status not in (200, 404):
                raise EngineError(
                    f"{server.address.url} cannot unload adapter {name}: {answer.message()}"
                )

    def drain(self) -> None:
        """Nothing to wait for: `sample` returns when every request has ended or been cut off."""

    def sample(
        self,
        requests: Sequence[Request],
        adapter: Copy | None,
        sampling: Sampling,
        on_token: OnToken | None = None,
        place: int | None = None,
    ) -> list[Sampled]:
        """Sample one completion for each request, in order, spread over the servers."""
        shares = (
            spread(requests, len(self._servers)) if place is None else {place: range(len(requests))}
        )
        found: dict[int, Sampled] = {}
        callers: list[Caller] = []
        workers = sum(min(self._slots, len(share)) for share in shares.values())
        with ThreadPoolExecutor(max(1, workers), thread_name_prefix="agon-vllm") as pool:
            lines: list[Future[None]] = []
            for index, share in shares.items():
                server, left = self._servers[index], list(reversed(share))
                for _ in range(min(self._slots, len(share))):
                    caller = Caller(server.address, self._key, self._seconds)
                    callers.append(caller)
                    line = _Line(caller, server, self._end_token_ids, adapter, sampling, on_token)
                    lines.append(pool.submit(line.work, requests, left, found))
            try:
                wait(lines, return_when=FIRST_EXCEPTION)
            finally:
                for caller in callers:
                    caller.close()
        for done in lines:
            error = done.exception()
            if error is not None and not isinstance(error, Closed):
                raise error
        return [found[index] for index in range(len(requests))]

    def describe(self) -> dict[str, str]:
        """VLLM's version at each server."""
        return {f"vllm at {s.address.url}": s.version for s in self._servers}

    def close(self) -> None:
        """Servers stay; their adapters have been unloaded."""


def spread(requests: Sequence[Request], servers: int) -> dict[int, list[int]]:
    """Which server gets which requests: equal prompts together, and all about equally many.

    Returns:
        Indices of requests by server.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, request in enumerate(requests):
        groups.setdefault(request.token_ids, []).append(index)
    shares: dict[int, list[int]] = {server: [] for server in range(servers)}
    for group in sorted(groups.values(), key=len, reverse=True):
        smallest = min(shares, key=lambda server: len(shares[server]))
        shares[smallest] += group
    return shares


class _Line:
    """One connection that sends requests of its server's share, one after another."""

    def __init__(
        self,
        caller: Caller,
        server: Server,
        end_token_ids: Sequence[int],
        adapter: Copy | None,
        sampling: Sampling,
        on_token: OnToken | None,
    ) -> None:
        self._caller, self._url, self._on_token = caller, server.address.url, on_token
        self._body = {
            "model": server.base if adapter is None else adapter.name,
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            # A server's defaults could truncate the distribution.
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "logprobs": 0,
            "stop_token_ids": list(end_token_ids),
            "ignore_eos": True,
            "return_token_ids": True,
            "stream": on_token is not None,
        }

    def work(self, requests: Sequence[Request], left: list[int], found: dict[int, Sampled]) -> None:
        """Take requests from the end of `left` until none is left."""
        with self._caller:
            while left:
                try:
                    index = left.pop()
                except IndexError:  # another line took the last one
                    return
                request = requests[index]
                body = self._body | {"prompt": list(request.token_ids), "seed": request.seed}
                found[index] = self._streamed(index, body) if self._on_token else self._whole(body)

    def _whole(self, body: dict[str, Any]) -> Sampled:
        answer = self._caller.post("/v1/completions", body)
        choice = _json(answer, self._url)["choices"][0]
        return self._sampled([choice])

    def _streamed(self, index: int, body: dict[str, Any]) -> Sampled:
        assert self._on_token is not None
        pieces = []
        for event in self._caller.events("/v1/completions", body):
            if "error" in event:
                raise EngineError(f"{self._url} broke off a completion: {event['error']}")
            for choice in event.get("choices", ()):
                pieces.append(choice)
                for token in choice.get("token_ids") or ():
                    self._on_token(index, int(token))
        return self._sampled(pieces)

    def _sampled(self, pieces: Sequence[Mapping[str, Any]]) -> Sampled:
        """One completion from its pieces.

        Raises:
            EngineError: The server returns no token ids or no log-probabilities.
        """
        ids: list[int] = []
        logprobs: list[float] = []
        for piece in pieces:
            if piece.get("token_ids") is None or piece.get("logprobs") is None:
                raise EngineError(
                    f"{self._url} returns no token ids or log-probabilities: this needs a vLLM "
                    "whose /v1/completions knows return_token_ids"
                )
            ids += map(int, piece["token_ids"])
            logprobs += map(float, piece["logprobs"]["token_logprobs"])
        reason = pieces[-1].get("finish_reason") if pieces else None
        if reason not in ("stop", "length"):
            raise EngineError(
                f"{self._url} ended a completion with finish_reason {reason!r}, expected stop or "
                "length"
            )
        return Sampled(tuple(ids), tuple(logprobs), reason == "stop")


def _json(answer: Answer, url: str) -> dict[str, Any]:
    """The fields of a successful answer.

    Raises:
        EngineError: The server refuses.
    """
    if answer.status != 200:
        raise EngineError(f"{url} answers {answer.status}: {answer.message()}")
    return answer.fields()
