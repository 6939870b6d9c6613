"""A second copy of a tiny model that samples from adapter folders, as vLLM does, faults included.

`Mirror` reads the PEFT files that the engine writes and samples them with a model of its own. It
can be told to get things wrong in the ways that samplers have been seen to. `serve` puts a mirror
behind the HTTP interface of a vLLM server.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch

import models
from agon.config import AdapterConfig
from agon.engines.adapter_store import AdapterStore, Copy
from agon.engines.base import OnToken, Sampling
from agon.engines.canary import Canary
from agon.engines.following import Backend, FollowingEngine, Request, Sampled
from agon.engines.torch_engine import TorchEngine
from agon.policies import Policies
from agon.records import Prompt

END = 1
LONGEST = models.COMMON["max_position_embeddings"]
PROMPTS = [Prompt("", (5, 6, 7, 8, 9, 10), False), Prompt("", (11, 12, 13, 14, 15), False)]


@dataclass
class Mirror:
    """Implements `agon.engines.following.Backend`.

    Attributes:
        ignores: Modules whose adapters are silently left out; "" is all of them.
        stale: Whether the first weights seen under a policy are served for ever.
        temperature_left_out: Whether log-probabilities are those before the temperature.
        ends: Tokens that end a completion.
        log: What was done, in order.
    """

    base: torch.nn.Module = field(default_factory=models.tiny_base)
    adapters: AdapterConfig = field(default_factory=models.adapter_config)
    ignores: str | None = None
    stale: bool = False
    temperature_left_out: bool = False
    ends: Sequence[int] = (END,)
    log: list[tuple[str, str]] = field(default_factory=list)
    places: Sequence[str] = ("the mirror",)
    context_limit: int = LONGEST
    closed: bool = False

    def __post_init__(self) -> None:
        self._policies = Policies(self.base, self.adapters, 2, seed=7)
        self._engine = TorchEngine(self._policies, self.ends, models.PAD, 64, self.context_limit)
        self._loaded: dict[str, dict[str, torch.Tensor]] = {}
        self._first: dict[str, dict[str, torch.Tensor]] = {}
        self._lock = threading.Lock()

    def load(self, name: str, folder: Path) -> None:
        assert name not in self._loaded, "a name was used twice"
        self._policies.load("a", folder)
        weights = models.weights(self._policies, "a")
        if self.ignores is not None:
            for key, value in weights.items():
                if self.ignores in key and "lora_B" in key:
                    value.zero_()
        policy = name.split("-")[2]
        shaken = "v0" in name  # the canary's; the mirror forgets what it saw then
        self._first[policy] = weights if shaken else self._first.get(policy, weights)
        self._loaded[name] = self._first[policy] if self.stale else weights

    def register(self, copy: Copy) -> None:
        self.log.append(("register", copy.name))
        self.load(copy.name, copy.folder)

    def unregister(self, copy: Copy) -> None:
        self.log.append(("unregister", copy.name))
        self.unload(copy.name)

    def unload(self, name: str) -> bool:
        return self._loaded.pop(name, None) is not None

    @property
    def loaded(self) -> list[str]:
        return sorted(self._loaded)

    def reclaim(self, folders: Sequence[str]) -> None:
        self.log.append(("reclaim", " ".join(folders)))

    def drain(self) -> None:
        self.log.append(("drain", ""))

    def sample(
        self,
        requests: Sequence[Request],
        adapter: Copy | None,
        sampling: Sampling,
        on_token: OnToken | None = None,
        place: int | None = None,
    ) -> list[Sampled]:
        self.log.append(("sample", "base" if adapter is None else adapter.name))
        name = None if adapter is None else adapter.name
        return self.complete(requests, name, sampling, on_token)

    def complete(
        self,
        requests: Sequence[Request],
        name: str | None,
        sampling: Sampling,
        on_token: OnToken | None = None,
    ) -> list[Sampled]:
        """Sample from a loaded adapter."""
        with self._lock:
            policy = "base"
            if name is not None:
                policy = "a"
                with torch.no_grad():
                    for key, parameter in self._policies.parameters("a").items():
                        parameter.copy_(self._loaded[name][key])
            prompts = [Prompt("", request.token_ids, False) for request in requests]
            keys = [str(request.seed) for request in requests]
            found = self._engine.generate(prompts, policy, sampling, keys, on_token)
            results = []
            for prompt, completion in zip(prompts, found, strict=True):
                logprobs = completion.logprobs
                if self.temperature_left_out:
                    ids = prompt.token_ids, completion.token_ids
                    with torch.no_grad():
                        plain = models.plain_logprobs(self._policies, policy, *ids)
                    logprobs = tuple(plain.tolist())
                stopped = not completion.truncated
                results.append(Sampled(completion.token_ids, logprobs, stopped))
            return results

    def describe(self) -> dict[str, str]:
        return {"mirror": "1"}

    def close(self) -> None:
        self.closed = True


def follow(
    policies: Policies, backend: Backend, place: Path, temperature: float = 1.0, limit: float = 0.1
) -> FollowingEngine:
    """The engine around a backend, unproved."""
    canary = Canary(policies, PROMPTS, temperature, models.PAD, limit)
    return FollowingEngine(backend, policies, AdapterStore(place), canary, (END,), LONGEST)


@dataclass
class Served:
    """A server, and what it has seen and shall do.

    Attributes:
        requests: Path and body of each call.
        fail: Paths that are answered with a status and a message.
        without_lora: Whether it was started without run-time LoRA.
        hold: Seconds before each completion.
        vanish_after: Completions after which it breaks every connection.
    """

    url: str
    mirror: Mirror
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    fail: dict[str, tuple[int, str]] = field(default_factory=dict)
    without_lora: bool = False
    hold: float = 0.0
    vanish_after: int | None = None
    completions: int = 0
    cut_off: int = 0
    without_ids: bool = False
    roots: dict[str, str] = field(default_factory=dict)

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """As vLLM 0.32 answers."""
        if path in self.fail:
            status, message = self.fail[path]
            return status, {"error": {"message": message, "type": "x", "code": status}}
        match path:
            case "/v1/models":
                cards = [{"id": "tiny", "max_model_len": LONGEST, "parent": None}]
                cards += [
                    {"id": name, "root": root, "parent": "tiny"}
                    for name, root in self.roots.items()
                ]
                return 200, {"data": cards}
            case "/version":
                return 200, {"version": "0.32.0"}
            case "/v1/load_lora_adapter" if not self.without_lora:
                self.mirror.load(body["lora_name"], Path(body["lora_path"]))
                self.roots[body["lora_name"]] = body["lora_path"]
                return 200, {}
            case "/v1/unload_lora_adapter" if not self.without_lora:
                self.mirror.unload(body["lora_name"])
                if self.roots.pop(body["lora_name"], None) is not None:
                    return 200, {}
                return 404, {"error": {"message": "cannot be found", "code": 404}}
            case "/v1/completions":
                return 200, self.complete(body)
        return 404, {"detail": "Not Found"}

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        self.completions += 1
        time.sleep(self.hold)
        assert body["top_p"] == 1
        assert body["top_k"] == -1
        assert body["ignore_eos"]
        assert body["return_token_ids"]
        name = None if body["model"] == "tiny" else body["model"]
        request = Request(tuple(body["prompt"]), body["seed"])
        sampling = Sampling(body["max_tokens"], body["temperature"])
        [found] = self.mirror.complete([request], name, sampling)
        return {
            "choices": [
                {
                    "token_ids": None if self.without_ids else list(found.token_ids),
                    "logprobs": {"token_logprobs": list(found.logprobs)},
                    "finish_reason": "stop" if found.stopped else "length",
                }
            ]
        }


def _handler(served: Served) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Quietly."""

        def do_GET(self) -> None:
            self._respond({})

        def do_POST(self) -> None:
            self._respond(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _respond(self, body: dict[str, Any]) -> None:
            served.requests.append((self.path, body))
            served.headers.append(dict(self.headers))
            gone = served.vanish_after is not None and served.completions >= served.vanish_after
            if gone:
                self.close_connection = True
                return
            try:
                status, fields = served.answer(self.path, body)
                if body.get("stream"):
                    self._stream(fields["choices"][0])
                    return
                data = json.dumps(fields).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except OSError:
                served.cut_off += 1

        def _stream(self, choice: dict[str, Any]) -> None:
            self.send_response(200)
            self.send_header("Connection", "close")
            self.end_headers()
            ids, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
            for place, (token, logprob) in enumerate(zip(ids, logprobs, strict=True)):
                last = place == len(ids) - 1
                piece = {
                    "token_ids": [token],
                    "logprobs": {"token_logprobs": [logprob]},
                    "finish_reason": choice["finish_reason"] if last else None,
                }
                self.wfile.write(f"data: {json.dumps({'choices': [piece]})}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")
            self.close_connection = True

    return Handler


@contextmanager
def serve(mirror: Mirror | None = None, **settings: Any) -> Iterator[Served]:
    """A server on a free port of this machine."""
    served = Served("", mirror or Mirror(), **settings)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(served))
    server.daemon_threads = True
    served.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
