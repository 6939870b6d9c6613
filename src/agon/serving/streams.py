"""Server-sent events, and work that ends when its client goes away."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from agon.serving.errors import ApiError

Result = TypeVar("Result")

DONE = "data: [DONE]\n\n"
QUIET = ": waiting\n\n"

log = logging.getLogger("agon.serving")


class EventStream(StreamingResponse):
    """A stream whose generator is closed and whose room is given back, however it ends."""

    def __init__(
        self, events: AsyncGenerator[str], release: Callable[[], None], gone: Callable[[], None]
    ) -> None:
        """Prepare.

        Args:
            events: Encoded events.
            release: Gives the room back.
            gone: Told that the client went away before the end.
        """
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        self._release, self._gone, self._ended = release, gone, False
        self._events = self._guarded(events)
        super().__init__(self._events, headers=headers, media_type="text/event-stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            try:
                await self._events.aclose()
            finally:
                self._release()
                if not self._ended:
                    self._gone()

    async def _guarded(self, events: AsyncGenerator[str]) -> AsyncGenerator[str]:
        """A failure after the first byte becomes an event of the API's form."""
        try:
            async for event in events:
                yield event
            yield DONE
        except ApiError as error:
            yield sse(error.body())
        except Exception:
            log.exception("a stream failed")
            yield sse(ApiError(500, "the server failed: its log says why").body())
        finally:
            await events.aclose()
        self._ended = True


def sse(data: Mapping[str, Any]) -> str:
    """One event."""
    return f"data: {json.dumps(data, ensure_ascii=True, separators=(',', ':'))}\n\n"


async def unless_gone(
    request: Request, work: Awaitable[Result], gone: Callable[[], None]
) -> Result | Response:
    """The work's result; where the client goes away first, the work is cancelled."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            gone()
            return Response(status_code=499)
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    """Return once the client has closed the connection; the body has been read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
