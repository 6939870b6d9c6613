"""`/v1/completions`: a policy continues a text or token ids as they stand, without role prompts.

Only the policies themselves have it: a cascade answers problems and continues nothing. A text is
encoded so that none of it is a control token; token ids are taken as they are, and it is through
them that another Agon server uses this one as its upstream.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from agon.records import Prompt
from agon.serving.backends import Ask, Written, write_out
from agon.serving.errors import ApiError
from agon.serving.models import Served
from agon.serving.schema import CompletionRequest
from agon.serving.service import Service
from agon.serving.sidebyside import Done, SideBySide, Work
from agon.serving.streams import QUIET, EventStream, sse, unless_gone


@dataclass(frozen=True, slots=True)
class Job:
    """A request that has been understood: one stage for each choice."""

    service: Service
    served: Served
    asks: list[Ask]
    stops: tuple[str, ...]
    head: dict[str, Any]
    usage_wanted: bool


async def complete(service: Service, body: CompletionRequest, request: Request) -> Response:
    """Serve one request.

    Raises:
        ApiError: It cannot be served.
    """
    job = await _understood(service, body)
    choices = len(job.asks)
    if body.stream:
        service.admit(choices)
        gone = service.metrics.disconnects.inc
        return EventStream(_chunks(job), lambda: service.release(choices), gone)
    with service.admitted(choices):
        done = await unless_gone(request, _whole(job), service.metrics.disconnects.inc)
    return done if isinstance(done, Response) else JSONResponse(done)


async def _understood(service: Service, body: CompletionRequest) -> Job:
    served = service.model(body.model)
    if len(served.stages) > 1:
        alone = ", ".join(m.name for m in service.models.values() if len(m.stages) == 1)
        raise ApiError(
            400,
            f"model: {served.name} answers problems and continues no text: ask "
            f"/v1/chat/completions, or one of {alone} here",
            param="model",
        )
    prompts = await _prompts(service, body)
    longest = max(len(prompt.token_ids) for prompt in prompts)
    limit = service.limit(longest, body.max_tokens, "prompt, max_tokens")
    temperature = service.settings.temperature if body.temperature is None else body.temperature
    seed = service.fresh_seed() if body.seed is None else body.seed
    asks = [
        Ask(prompt, served.stages[0], _key(seed, prompt, sample), temperature, limit)
        for prompt in prompts
        for sample in range(body.n or 1)
    ]
    head = {
        "id": f"cmpl-{uuid.uuid4().hex}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": served.name,
        "system_fingerprint": service.settings.identity,
    }
    options = body.stream_options
    usage_wanted = bool(options and options.include_usage)
    return Job(service, served, asks, body.stops, head, usage_wanted)


def _key(seed: int, prompt: Prompt, sample: int) -> str:
    digest = hashlib.sha256(repr(prompt.token_ids).encode()).hexdigest()
    return f"complete/{seed}/{digest[:24]}/{sample}"


async def _prompts(service: Service, body: CompletionRequest) -> list[Prompt]:
    """Prompts of all forms.

    Raises:
        ApiError: One is empty, or a token id is none.
    """
    given: Any = body.prompt
    many = given if isinstance(given, list) and not isinstance(given[0], int) else [given]
    vocabulary = len(service.language.tokenizer)
    prompts = []
    for item in many:
        if isinstance(item, str):
            prompt = await service.raw(item)
        elif all(0 <= token < vocabulary for token in item):
            prompt = Prompt("", tuple(item), thinking_open=False)
        else:
            raise ApiError(
                400, f"prompt: token ids lie between 0 and {vocabulary - 1}", param="prompt"
            )
        if not prompt.token_ids:
            raise ApiError(400, "prompt: it is empty, there is nothing to continue", "prompt")
        prompts.append(prompt)
    return prompts


def _running(job: Job) -> SideBySide[str, Written]:
    def work(ask: Ask) -> Work[str, Written]:
        return lambda tell: write_out(job.service.backend, ask, tell, job.stops)

    return SideBySide([work(ask) for ask in job.asks], job.service.settings.timeout_seconds)


async def _whole(job: Job) -> dict[str, Any]:
    """The response in one piece."""
    written: dict[int, Written] = {}
    async with _running(job) as running, aclosing(running.events()) as events:
        async for happened in events:
            if happened is not None and isinstance(happened[1], Done):
                written[happened[0]] = happened[1].end
    choices = [
        {"index": i, "text": written[i].text, "finish_reason": written[i].finish, "logprobs": None}
        for i in range(len(job.asks))
    ]
    return {**job.head, "choices": choices, "usage": _usage(job, list(written.values()))}


async def _chunks(job: Job) -> AsyncGenerator[str]:
    """The response as server-sent events."""
    written: list[Written] = []
    async with _running(job) as running, aclosing(running.events()) as events:
        async for happened in events:
            if happened is None:
                yield QUIET
                continue
            index, news = happened
            if isinstance(news, Done):
                written.append(news.end)
                yield _chunk(job, index, "", news.end.finish)
            else:
                yield _chunk(job, index, news, None)
    usage = _usage(job, written)
    if job.usage_wanted:
        yield sse({**job.head, "choices": [], "usage": usage})


def _chunk(job: Job, index: int, text: str, finish: str | None) -> str:
    choice = {"index": index, "text": text, "finish_reason": finish, "logprobs": None}
    usage = {"usage": None} if job.usage_wanted else {}
    return sse({**job.head, "choices": [choice], **usage})


def _usage(job: Job, written: list[Written]) -> dict[str, Any]:
    """Tokens of all choices; they are counted for the metrics too."""
    for w in written:
        job.service.metrics.count(job.served.stages[0], w.prompt_tokens, w.cached, w.generated)
    prompt = sum(w.prompt_tokens for w in written)
    completion = sum(w.generated for w in written)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(w.cached for w in written)},
    }
