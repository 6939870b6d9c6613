"""A backend that asks another OpenAI-compatible server, such as vLLM with both adapters loaded.

Prompts are rendered and encoded here, as in training, and sent as token ids to the upstream's
`/v1/completions`; its own chat template plays no part. The upstream must count the same vocabulary.
vLLM's `skip_special_tokens = false` is sent along, so that thinking delimiters that are special
tokens stay in the text; other servers must accept or ignore it.

A seed is derived from each stage's key, so the same request gives the same seeds; whether the
upstream then gives the same tokens is its affair.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import httpx

from agon.errors import ConfigError
from agon.preflight import Language
from agon.serving.backends import Ask, Piece
from agon.serving.errors import ApiError, clean


class UpstreamBackend:
    """Policies that another server has loaded under names of its own."""

    def __init__(
        self,
        url: str,
        names: Mapping[str, str],
        language: Language,
        key: str | None = None,
        seconds: float = 600.0,
    ) -> None:
        """Name the server; nothing is asked yet.

        Args:
            url: Its base, with or without `/v1`.
            names: The upstream's model name of each policy.
            language: Encodes the prompts.
            key: Its API key.
            seconds: Longest silence of the upstream.
        """
        self._url = _api(url)
        self._names, self._language = dict(names), language
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        timeout = httpx.Timeout(seconds, connect=10.0)
        self._client = httpx.AsyncClient(headers=headers, timeout=timeout, limits=limits)

    async def start(self) -> None:
        """Nothing is begun; `check_upstream` has looked."""

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    @property
    def healthy(self) -> bool:
        """Whether this side can still send; the upstream's own health is not asked."""
        return not self._client.is_closed

    def count(self, text: str) -> int:
        """Tokens of a text."""
        return self._language.prompter.count(text)

    async def write(self, ask: Ask) -> AsyncGenerator[Piece]:
        """See `Backend`."""
        payload = {
            "model": self._names[ask.policy],
            "prompt": list(ask.prompt.token_ids),
            "max_tokens": ask.limit,
            "temperature": ask.temperature,
            "seed": seed_of(ask.key),
            "stream": True,
            "stream_options": {"include_usage": True},
            "skip_special_tokens": False,
        }
        usage: dict[str, Any] = {}
        reason: str | None = None
        try:
            async with self._client.stream(
                "POST", f"{self._url}/completions", json=payload
            ) as answer:
                if answer.status_code != 200:
                    raise _refused(answer.status_code, await answer.aread())
                async for line in answer.aiter_lines():
                    if not line.startswith("data:") or line.endswith("[DONE]"):
                        continue
                    event = json.loads(line.removeprefix("data:"))
                    if "error" in event:
                        raise ApiError(502, f"the upstream failed: {event['error']}"[:500])
                    usage = event.get("usage") or usage
                    for choice in event["choices"]:
                        reason = choice.get("finish_reason") or reason
                        if choice.get("text"):
                            yield Piece(choice["text"], None, None)
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            raise ApiError(
                502, f"the upstream did not answer as expected ({type(error).__name__})"
            ) from error
        if reason is None:
            raise ApiError(502, "the upstream's answer ended before its completion did")
        details = usage.get("prompt_tokens_details") or {}
        yield Piece(
            text="",
            tokens=usage.get("completion_tokens"),
            prompt_tokens=usage.get("prompt_tokens"),
            cached=details.get("cached_tokens") or 0,
            finished=True,
            truncated=reason == "length",
        )


def check_upstream(url: str, names: Mapping[str, str], key: str | None) -> None:
    """Check that the upstream answers and has the models.

    Raises:
        ConfigError: It does not.
    """
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    try:
        answer = httpx.get(f"{_api(url)}/models", headers=headers, timeout=10.0)
        answer.raise_for_status()
        there = {str(model["id"]) for model in answer.json()["data"]}
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"--upstream {url}: its list of models cannot be read ({error}): start that server "
            "first, or correct the address or --upstream-key"
        ) from error
    missing = sorted(set(names.values()) - there)
    if missing:
        raise ConfigError(
            f"--upstream {url} has no model {', '.join(missing)}; it has "
            f"{', '.join(sorted(there))}: name them with --upstream-a, --upstream-b and "
            "--upstream-base"
        )


def _api(url: str) -> str:
    base = url.rstrip("/")
    return base if base.endswith("/v1") else f"{base}/v1"


def seed_of(key: str) -> int:
    """A seed for a server that takes numbers, from a stage's key: 0 to 2^53 - 1."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 11


def _refused(status: int, body: bytes) -> ApiError:
    text = clean(body[:300].decode("utf-8", "replace"))
    if status == 429:
        return ApiError(429, f"the upstream is busy: {text}", retry_after=1)
    return ApiError(502, f"the upstream refused with status {status}: {text}")
