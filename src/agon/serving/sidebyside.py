"""Several pieces of work of one request, side by side, under one time limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from agon.serving.errors import ApiError

QUIET_SECONDS = 15.0
"""After so long without news a stream sends a comment, so that proxies keep it open."""

News = TypeVar("News")
End = TypeVar("End")

Work = Callable[[Callable[[News], None]], Awaitable[End]]
"""Does something, tells its news, returns its end."""


@dataclass(frozen=True, slots=True)
class Done(Generic[End]):
    """A piece of work has ended."""

    end: End


class SideBySide(Generic[News, End]):
    """Runs work inside its block; leaving the block cancels what still runs."""

    def __init__(self, works: Sequence[Work[News, End]], seconds: float) -> None:
        """Prepare; nothing runs before `__aenter__`.

        Args:
            works: What to run.
            seconds: Longest time of each.
        """
        self._works, self._seconds = works, seconds
        self._queue: asyncio.Queue[tuple[int, News | Done[End] | Exception]] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> SideBySide[News, End]:
        """Start all."""
        self._tasks = [
            asyncio.create_task(self._run(index, work)) for index, work in enumerate(self._works)
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Cancel what still runs, and wait until it has let go of what it held."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, index: int, work: Work[News, End]) -> None:
        def tell(news: News) -> None:
            self._queue.put_nowait((index, news))

        try:
            async with asyncio.timeout(self._seconds):
                end = await work(tell)
        except TimeoutError:
            message = f"not finished within {self._seconds:g} seconds"
            self._queue.put_nowait((index, ApiError(504, message, code="timeout")))
        except Exception as error:
            self._queue.put_nowait((index, error))
        else:
            self._queue.put_nowait((index, Done(end)))

    async def events(self) -> AsyncGenerator[tuple[int, News | Done[End]] | None]:
        """What happens, until all have ended; None where nothing does for a while.

        Raises:
            ApiError: One failed, or the time is over; the others are given up.
        """
        missing = len(self._works)
        getting: asyncio.Task[tuple[int, News | Done[End] | Exception]] | None = None
        try:
            while missing:
                getting = getting or asyncio.create_task(self._queue.get())
                done, _ = await asyncio.wait({getting}, timeout=QUIET_SECONDS)
                if not done:
                    yield None
                    continue
                index, news = getting.result()
                getting = None
                if isinstance(news, Exception):
                    raise news
                missing -= isinstance(news, Done)
                yield index, news
        finally:
            if getting is not None:
                getting.cancel()
