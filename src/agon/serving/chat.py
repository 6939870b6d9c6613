"""`/v1/chat/completions`: the answer as content, everything on the way to it as reasoning.

Reasoning stands in two fields of the same text: `reasoning`, which vLLM writes since 0.16 and which
OpenAI recommends, and `reasoning_content`, which DeepSeek's API and older clients use. Each chunk
says in `agon` which part it belongs to. The content comes whole, at the end: whether a reply has a
single closed answer block is known only then.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from agon.serving.models import Served
from agon.serving.play import Answer, Event, Stage, Try
from agon.serving.question import question_of
from agon.serving.schema import ChatRequest
from agon.serving.service import Service
from agon.serving.sidebyside import Done, SideBySide
from agon.serving.streams import QUIET, EventStream, sse, unless_gone


@dataclass(frozen=True, slots=True)
class Job:
    """A request that has been understood."""

    service: Service
    served: Served
    tries: Sequence[Try]
    head: dict[str, Any]
    usage_wanted: bool

    @property
    def plays(self) -> SideBySide[Event, Answer]:
        """Its tries, about to run."""
        works = [self.service.attempt(self.served.name, asked) for asked in self.tries]
        return SideBySide(works, self.service.settings.timeout_seconds)


async def chat(service: Service, body: ChatRequest, request: Request) -> Response:
    """Serve one request.

    Raises:
        ApiError: It cannot be served.
    """
    job = await _understood(service, body)
    choices = len(job.tries)
    if body.stream:
        service.admit(choices)
        gone = service.metrics.disconnects.inc
        return EventStream(_chunks(job), lambda: service.release(choices), gone)
    with service.admitted(choices):
        done = await unless_gone(request, _whole(job), service.metrics.disconnects.inc)
    return done if isinstance(done, Response) else JSONResponse(done)


async def _understood(service: Service, body: ChatRequest) -> Job:
    settings = service.settings
    served = service.model(body.model)
    cascade = len(served.stages) > 1
    problem, plain, longest = await service.problem(question_of(body.messages), cascade)
    asked = min((v for v in (body.max_tokens, body.max_completion_tokens) if v), default=None)
    limit = service.limit(longest, asked, "messages, max_tokens")
    temperature = settings.temperature if body.temperature is None else body.temperature
    seed = service.fresh_seed() if body.seed is None else body.seed
    tries = [
        Try(problem, plain, served.stages, seed, sample, temperature, limit, body.stops)
        for sample in range(body.n or 1)
    ]
    head = {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "created": int(time.time()),
        "model": served.name,
        "system_fingerprint": settings.identity,
        "agon": {"system": served.system, "seed": seed, "max_tokens": limit},
    }
    options = body.stream_options
    return Job(service, served, tries, head, bool(options and options.include_usage))


async def _whole(job: Job) -> dict[str, Any]:
    """The response in one piece."""
    reasoning = [""] * len(job.tries)
    answers: dict[int, Answer] = {}
    async with job.plays as plays, aclosing(plays.events()) as events:
        async for happened in events:
            if happened is None:
                continue
            index, event = happened
            if isinstance(event, Done):
                answers[index] = event.end
            else:
                reasoning[index] += event.text
    choices = [
        {
            "index": index,
            "message": {
                "role": "assistant",
                "content": answers[index].content,
                "refusal": None,
                "reasoning": reasoning[index],
                "reasoning_content": reasoning[index],
            },
            "finish_reason": answers[index].finish,
            "logprobs": None,
            "agon": _account(answers[index]),
        }
        for index in range(len(job.tries))
    ]
    usage = usage_of(job.service, list(answers.values()))
    return {"object": "chat.completion", **job.head, "choices": choices, "usage": usage}


async def _chunks(job: Job) -> AsyncGenerator[str]:
    """The response as server-sent events."""
    answers: list[Answer] = []
    for index in range(len(job.tries)):
        yield _chunk(job, index, {"role": "assistant", "content": ""})
    async with job.plays as plays, aclosing(plays.events()) as events:
        async for happened in events:
            if happened is None:
                yield QUIET
                continue
            index, event = happened
            if not isinstance(event, Done):
                delta = {"reasoning": event.text, "reasoning_content": event.text}
                about = {"part": str(event.part), "policy": event.policy}
                yield _chunk(job, index, delta, about=about)
                continue
            answers.append(event.end)
            yield _chunk(job, index, {"content": event.end.content})
            yield _chunk(job, index, {}, event.end.finish, _account(event.end))
    if job.usage_wanted:
        usage = usage_of(job.service, answers)
        head = {"object": "chat.completion.chunk", **job.head}
        yield sse({**head, "choices": [], "usage": usage})


def _chunk(
    job: Job,
    index: int,
    delta: dict[str, Any],
    finish: str | None = None,
    about: dict[str, Any] | None = None,
) -> str:
    choice: dict[str, Any] = {
        "index": index, "delta": delta, "finish_reason": finish, "logprobs": None,
    }  # fmt: skip
    if about is not None:
        choice["agon"] = about
    usage = {"usage": None} if job.usage_wanted else {}
    return sse({"object": "chat.completion.chunk", **job.head, "choices": [choice], **usage})


def _account(answer: Answer) -> dict[str, Any]:
    """What a choice came from."""
    return {
        "answered": answer.answered,
        "skipped_challenge": answer.skipped,
        "stages": [_stage(stage) for stage in answer.stages],
    }


def _stage(stage: Stage) -> dict[str, Any]:
    written = stage.written
    return {
        "role": str(stage.role),
        "policy": stage.policy,
        "prompt_tokens": written.prompt_tokens,
        "cached_tokens": written.cached,
        "completion_tokens": written.generated,
        "finish": written.finish,
    }


def usage_of(service: Service, answers: Sequence[Answer]) -> dict[str, Any]:
    """Tokens of all stages of all choices; reasoning is all that is not the answer's text."""
    stages = [stage.written for answer in answers for stage in answer.stages]
    prompt = sum(written.prompt_tokens for written in stages)
    completion = sum(written.generated for written in stages)
    shown = sum(service.backend.count(answer.content) for answer in answers if answer.content)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(written.cached for written in stages)},
        "completion_tokens_details": {"reasoning_tokens": max(0, completion - shown)},
    }
