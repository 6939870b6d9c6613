"""Who writes a stage: the in-process engine, or another server (`upstream`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from agon.engines.continuous import News, Request, Scheduler, Told, tell
from agon.errors import EngineError
from agon.preflight import Language
from agon.records import Prompt
from agon.serving.errors import ApiError
from agon.serving.text import StopFilter, TextStream


@dataclass(frozen=True, slots=True)
class Ask:
    """One stage to be written.

    Attributes:
        prompt: What to continue.
        policy: `base`, `a` or `b`.
        key: The stage's randomness.
        temperature: 0 is greedy.
        limit: Most tokens, the end-of-turn token included.
        stage: 0 for a draft, 1 for a challenge, which goes first where both wait.
    """

    prompt: Prompt
    policy: str
    key: str
    temperature: float
    limit: int
    stage: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that has been added, and what is known so far.

    Attributes:
        text: May be empty.
        tokens: Generated tokens up to here; None where only the end will tell.
        prompt_tokens: None where only the end will tell.
        cached: Prompt tokens that were not run again.
        finished: This is the last piece.
        truncated: The limit ended it.
    """

    text: str
    tokens: int | None
    prompt_tokens: int | None
    cached: int = 0
    finished: bool = False
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Written:
    """A stage's whole text and its costs.

    Attributes:
        finish: `stop` by the end of the turn or a stop string, `length` by the limit, `cut` where
            the caller had read enough.
    """

    text: str
    generated: int
    prompt_tokens: int
    cached: int
    finish: str


class Backend(Protocol):
    """Writes stages."""

    async def start(self) -> None:
        """Begin to work, inside the event loop."""
        ...

    async def close(self) -> None:
        """Stop."""
        ...

    def write(self, ask: Ask) -> AsyncGenerator[Piece]:
        """Write one stage, piece by piece; closing the generator frees what it holds.

        Raises:
            ApiError: It cannot be written.
        """
        ...

    def count(self, text: str) -> int:
        """Tokens of a text."""
        ...

    @property
    def healthy(self) -> bool:
        """Whether requests can be served."""
        ...


class EngineBackend:
    """The in-process engine."""

    def __init__(self, scheduler: Scheduler, language: Language) -> None:
        """Take a scheduler that has not been started."""
        self.scheduler, self._language = scheduler, language

    async def start(self) -> None:
        """Start the worker; its news comes to this event loop."""
        loop = asyncio.get_running_loop()

        def post(news: News) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(tell, news)

        self.scheduler.post = post
        self.scheduler.start()

    async def close(self) -> None:
        """End the worker after its step."""
        await asyncio.to_thread(self.scheduler.close)

    @property
    def healthy(self) -> bool:
        """Whether the worker lives."""
        return self.scheduler.running

    def count(self, text: str) -> int:
        """Tokens of a text."""
        return self._language.prompter.count(text)

    async def write(self, ask: Ask) -> AsyncGenerator[Piece]:
        """See `Backend`; tokens that came together make one piece."""
        queue: asyncio.Queue[Told] = asyncio.Queue()
        request = Request(
            prompt_ids=ask.prompt.token_ids,
            policy=ask.policy,
            key=ask.key,
            temperature=ask.temperature,
            limit=ask.limit,
            stage=ask.stage,
            listener=queue.put_nowait,
        )
        stream = TextStream(self._language.tokenizer, self._language.prompter.end_token_ids)
        tokens, finished = 0, False
        try:
            self.scheduler.submit(request)
            while not finished:
                text, told = "", await queue.get()
                while True:
                    if told.error is not None or told.token is None:
                        raise _failure(told.error)
                    tokens += 1
                    text += stream.push(told.token)
                    finished = told.finished
                    if finished or queue.empty():
                        break
                    told = queue.get_nowait()
                if finished:
                    text += stream.rest()
                size = len(ask.prompt.token_ids)
                yield Piece(text, tokens, size, told.cached, finished, told.truncated)
        except EngineError as error:
            raise _failure(error) from error
        finally:
            if not finished:
                self.scheduler.cancel(request)


def _failure(error: Exception | None) -> ApiError:
    """What a client is told: the text of our own errors, the kind of others."""
    if isinstance(error, EngineError):
        return ApiError(503, f"the engine could not go on: {error}", code="engine_error")
    return ApiError(500, f"the engine failed ({type(error).__name__})", code="engine_error")


Emit = Callable[[str], None]


async def write_out(
    backend: Backend,
    ask: Ask,
    emit: Emit,
    stops: Sequence[str] = (),
    enough: Callable[[str], bool] | None = None,
) -> Written:
    """Write one stage to its end.

    Args:
        backend: Who writes.
        ask: What.
        emit: Told the text as it grows.
        stops: Strings that end the text; they are not part of it.
        enough: Asked with the whole text where a tag may have been closed; True ends the stage.
    """
    text, held, cut = "", StopFilter(stops), False
    piece = Piece("", 0, len(ask.prompt.token_ids))
    async with aclosing(backend.write(ask)) as pieces:
        async for piece in pieces:
            added = held.push(piece.text)
            if piece.finished:
                added += held.rest()
            text += added
            if added:
                emit(added)
            cut = enough is not None and ">" in added and enough(text)
            if held.stopped or cut:
                break
    generated = backend.count(text) if piece.tokens is None else piece.tokens
    ended = piece.finished and piece.truncated and not held.stopped and not cut
    return Written(
        text=text,
        generated=generated,
        prompt_tokens=piece.prompt_tokens or len(ask.prompt.token_ids),
        cached=piece.cached,
        finish="length" if ended else "cut" if cut and not piece.finished else "stop",
    )
