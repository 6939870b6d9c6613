"""Programs that others use: the official client, curl, and another Agon server as upstream."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agon.errors import ConfigError
from agon.serving.upstream import seed_of
from conftest import PROBLEM, WAIT, Running, Start

openai = pytest.importorskip("openai", reason="the official client is not installed")

MESSAGES: Any = [{"role": "user", "content": PROBLEM}]


def client_of(served: Running, key: str = "none") -> Any:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key=key, timeout=WAIT, max_retries=0)


def test_the_official_client_lists_models_and_solves(served: Running) -> None:
    client = client_of(served)
    assert next(iter(client.models.list())).id == "agon"
    assert client.models.retrieve("b").id == "b"
    answer = client.chat.completions.create(model="agon", messages=MESSAGES, seed=7, n=2)
    expected = served.chat("agon", n=2)
    for choice, other in zip(answer.choices, expected["choices"], strict=True):
        assert choice.message.content == other["message"]["content"]
        assert choice.message.reasoning_content == other["message"]["reasoning_content"]
        assert choice.finish_reason == other["finish_reason"]
    assert answer.usage.completion_tokens == expected["usage"]["completion_tokens"]
    assert answer.usage.completion_tokens_details.reasoning_tokens > 0
    text = client.completions.create(model="a", prompt=PROBLEM, max_tokens=3)
    assert text.usage.completion_tokens == 3


def test_the_official_client_streams(served: Running) -> None:
    stream = client_of(served).chat.completions.create(
        model="agon-b-a", messages=MESSAGES, seed=7, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    content = reasoning = ""
    usage = None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning", None) or ""
    expected = served.chat("agon-b-a")
    assert content == expected["choices"][0]["message"]["content"]
    assert reasoning == expected["choices"][0]["message"]["reasoning"]
    assert usage is not None
    assert usage.total_tokens == expected["usage"]["total_tokens"]


def test_the_asynchronous_client_solves_many_at_once(served: Running) -> None:
    async def ask() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none") as client:

            async def one(seed: int) -> Any:
                stream = await client.chat.completions.create(
                    model="agon", messages=MESSAGES, seed=seed, stream=True
                )
                return [choice.delta.content async for c in stream for choice in c.choices]

            return await asyncio.gather(*(one(seed) for seed in range(6)))

    answers = ["".join(filter(None, pieces)) for pieces in asyncio.run(ask())]
    expected = [
        served.chat("agon", seed=seed)["choices"][0]["message"]["content"] for seed in range(6)
    ]
    assert answers == expected


def test_the_official_client_raises_its_own_errors(served: Running, serve: Start) -> None:
    client = client_of(served)
    with pytest.raises(openai.NotFoundError, match="there is no 'x'"):
        client.chat.completions.create(model="x", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="agon", messages=MESSAGES, top_p=0.5)
    assert caught.value.param == "top_p"
    closed = serve(api_key="k")
    with pytest.raises(openai.AuthenticationError):
        client_of(closed).models.list()
    assert client_of(closed, "k").models.list()


def test_curl_streams(served: Running) -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("curl is not installed")
    body = json.dumps({"model": "agon", "messages": MESSAGES, "seed": 7, "stream": True})
    command = [curl, "-sSN", f"{served.url}/v1/chat/completions", "-d", body]
    command += ["-H", "Content-Type: application/json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=WAIT)
    events = [line.removeprefix("data: ") for line in done.stdout.splitlines() if line]
    assert events[-1] == "[DONE]"
    deltas = [json.loads(event)["choices"][0]["delta"] for event in events[:-1]]
    answer = "".join(delta.get("content", "") for delta in deltas)
    assert answer == served.chat("agon")["choices"][0]["message"]["content"]


# Another server as upstream


def beside(serve: Start, served: Running, **options: Any) -> Running:
    names = options.pop("upstream_names", ("a", "b", "base"))
    return serve(upstream=served.url, upstream_names=names, **options)


def test_an_upstream_writes_the_stages_and_the_cascade_is_ours(
    served: Running, serve: Start
) -> None:
    """Greedy replies hang on no seed, so they are those of the engine itself."""
    front = beside(serve, served)
    for model in ("agon-a-b", "agon-b-a", "a", "base"):
        here = served.chat(model, temperature=0)
        there = front.chat(model, temperature=0)
        assert there["choices"][0]["message"] == here["choices"][0]["message"]
        assert there["choices"][0]["finish_reason"] == here["choices"][0]["finish_reason"]
        for field in ("prompt_tokens", "completion_tokens"):
            assert there["usage"][field] == here["usage"][field]
    again = [[c["message"] for c in front.chat("agon", n=3)["choices"]] for _ in range(2)]
    assert again[0] == again[1]
    cut = front.chat("a", max_tokens=5)["choices"][0]
    assert cut["finish_reason"] == "length"


def test_shortcuts_and_stop_strings_work_over_an_upstream(served: Running, serve: Start) -> None:
    front = beside(serve, served, cut_drafts=True)
    answer = front.chat("agon-a-b", temperature=0, stop="</think>")
    reasoning = answer["choices"][0]["message"]["reasoning"]
    assert "<answer>" not in reasoning
    plain = served.chat("agon-a-b", temperature=0, stop="</think>")
    assert reasoning.endswith(
        plain["choices"][0]["message"]["reasoning"].rpartition("[challenge")[2]
    )
    assert answer["usage"]["completion_tokens"] > 0


def test_an_upstream_that_fails_is_told_as_such(served: Running, serve: Start) -> None:
    upstream = serve()
    front = beside(serve, upstream)
    upstream.stop()
    error = front.refused(502, "/v1/chat/completions", {"model": "a", "messages": MESSAGES})
    assert error["type"] == "server_error"
    assert "upstream" in error["message"]
    assert front.service.in_work == 0


def test_an_upstream_must_have_the_pair(served: Running, serve: Start) -> None:
    with pytest.raises(ConfigError, match="has no model c"):
        beside(serve, served, upstream_names=("a", "c", None))
    with pytest.raises(ConfigError, match="--upstream-b"):
        beside(serve, served, upstream_names=("a", None, None))
    with pytest.raises(ConfigError, match="cannot be read"):
        serve(upstream="http://127.0.0.1:9", upstream_names=("a", "b", None))
    pair = beside(serve, served, upstream_names=("a", "b", None))
    assert "base" not in pair.service.models


def test_seeds_of_keys_are_whole_numbers_that_every_server_takes() -> None:
    seeds = {seed_of(f"eval/0/draft/p/{sample}") for sample in range(1000)}
    assert len(seeds) == 1000
    assert 0 <= min(seeds) <= max(seeds) < 2**53


def test_adapter_folders_and_a_base_are_served_as_the_run_is(
    served: Running, serve: Start, run: Path
) -> None:
    folders = run / "checkpoints" / "step-000003" / "adapters"
    options = {"adapter_a": folders / "a", "adapter_b": folders / "b", "base": "embedded"}
    alone = serve(run=None, max_tokens=128, **options)
    assert (
        alone.chat("agon-a-b")["choices"][0]["message"]
        == (served.chat("agon-a-b")["choices"][0]["message"])
    )
