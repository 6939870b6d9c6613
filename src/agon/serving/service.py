"""What all endpoints share: models, limits on work, problems from texts, and tries that run."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from agon.preflight import Language
from agon.prompts import Prompter
from agon.records import Problem, Prompt
from agon.serving.backends import Backend
from agon.serving.errors import ApiError
from agon.serving.metrics import Metrics
from agon.serving.models import Served
from agon.serving.play import Answer, Event, Part, Shortcuts, Try, play
from agon.tasks.asked import problem_of


@dataclass(frozen=True, slots=True)
class Settings:
    """How requests are served.

    Attributes:
        task: The run's task; it gives problems their ids.
        max_new_tokens: Completion limit of a stage where a request names none.
        temperature: Where a request names none.
        max_summary_tokens: Longest summary that is passed on.
        identity: Names base and adapters, as `system_fingerprint`.
        shortcuts: Work that may be left out.
        max_requests: Choices that may be in work or wait; more are refused with 429.
        timeout_seconds: Longest time of one request.
    """

    task: str
    max_new_tokens: int
    temperature: float
    max_summary_tokens: int
    identity: str
    shortcuts: Shortcuts
    max_requests: int = 256
    timeout_seconds: float = 600.0


class Service:
    """The server's state; one for each application."""

    def __init__(
        self, backend: Backend, language: Language, models: dict[str, Served], settings: Settings
    ) -> None:
        """Join the parts; the backend is started by the application."""
        self.backend, self.language = backend, language
        self.models, self.settings = models, settings
        self.metrics = Metrics()
        self.in_work = 0
        self.started = int(time.time())
        # Encoding a long text takes as long as it is; the event loop goes on meanwhile.
        self._clerk = ThreadPoolExecutor(1, thread_name_prefix="agon-encode")

    @property
    def prompter(self) -> Prompter:
        """Writes prompts and reads replies."""
        return self.language.prompter

    def model(self, name: str) -> Served:
        """A model by name.

        Raises:
            ApiError: There is none.
        """
        if name not in self.models:
            raise ApiError(
                404,
                f"model: there is no {name[:100]!r}; this server has {', '.join(self.models)}",
                param="model",
                code="model_not_found",
            )
        return self.models[name]

    async def problem(self, question: str, cascade: bool) -> tuple[Problem, Prompt, int]:
        """A question as a problem, its draft prompt, and the longest prompt that may follow.

        Raises:
            ApiError: The model was not taught such questions.
        """
        try:
            problem = problem_of(self.settings.task, question)
        except ValueError as error:
            raise ApiError(400, f"messages: {error}", param="messages") from error
        loop = asyncio.get_running_loop()
        plain = await loop.run_in_executor(self._clerk, self.prompter.plain, problem)
        longest = len(plain.token_ids)
        if cascade and longest < self.language.context:
            frame = await loop.run_in_executor(self._clerk, self.prompter.challenge, problem, "")
            longest = len(frame.token_ids) + self.settings.max_summary_tokens
        return problem, plain, longest

    async def raw(self, text: str) -> Prompt:
        """A text to be continued as it stands."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._clerk, self.prompter.raw, text)

    def limit(self, prompt: int, asked: int | None, params: str) -> int:
        """The completion limit of each stage.

        Args:
            prompt: Tokens of the longest prompt.
            asked: What the request names.
            params: Its parameters, for the error.

        Raises:
            ApiError: Prompt and limit do not fit the context.
        """
        room = self.language.context - prompt
        wanted = asked or 1
        if wanted > room:
            raise ApiError(
                400,
                f"{params}: a prompt of up to {prompt} tokens and a completion of {wanted} do not "
                f"fit the model's context of {self.language.context}; shorten the text"
                + (f" or ask for at most {room} tokens" if asked and room > 0 else ""),
                param=params.partition(",")[0],
                code="context_length_exceeded",
            )
        return asked or min(self.settings.max_new_tokens, room)

    @contextmanager
    def admitted(self, choices: int) -> Iterator[None]:
        """Room for so many choices.

        Raises:
            ApiError: Too many are in work or wait.
        """
        self.admit(choices)
        try:
            yield
        finally:
            self.release(choices)

    def admit(self, choices: int) -> None:
        """Take room; `release` gives it back.

        Raises:
            ApiError: There is none.
        """
        most = self.settings.max_requests
        if not self.backend.healthy:
            raise ApiError(503, "the engine has stopped: restart the server", code="unhealthy")
        if choices > most:
            raise ApiError(400, f"n: this server takes at most {most}", param="n")
        if self.in_work + choices > most:
            raise ApiError(
                429,
                f"{self.in_work} completions are in work or waiting, and this server takes at most "
                f"{most}: try again later",
                code="queue_full",
                retry_after=1,
            )
        self.in_work += choices

    def release(self, choices: int) -> None:
        """Give room back."""
        self.in_work -= choices

    def attempt(
        self, model: str, asked: Try
    ) -> Callable[[Callable[[Event], None]], Awaitable[Answer]]:
        """A try as work that tells its events; it is counted in the metrics."""

        async def work(tell: Callable[[Event], None]) -> Answer:
            begun, first = time.monotonic(), True

            def told(event: Event) -> None:
                nonlocal first
                if first and event.part is not Part.HEADING:
                    first = False
                    self.metrics.first_token.labels(model).observe(time.monotonic() - begun)
                tell(event)

            shortcuts = self.settings.shortcuts
            answer = await play(asked, shortcuts, self.backend, self.prompter, told)
            self.metrics.answered(model, answer, time.monotonic() - begun)
            return answer

        return work

    def fresh_seed(self) -> int:
        """For a request without one."""
        return secrets.randbits(53)

    def close(self) -> None:
        """End the encoder's thread."""
        self._clerk.shutdown(wait=False, cancel_futures=True)
