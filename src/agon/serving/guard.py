"""What every request passes before it is read: host, key, rate, form and size of the body.

A middleware of its own on the bare ASGI interface: it sees the body's pieces as they come, and adds
nothing to the path of a streamed answer.
"""

from __future__ import annotations

import asyncio
import hmac
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agon.serving.errors import ApiError

_CLIENTS = 4096
"""Clients whose rate is remembered; the one not seen for longest is forgotten."""

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """Who may ask what.

    Attributes:
        api_key: Asked for under /v1 and at /metrics; None asks nobody.
        hosts: Names that the server may be called by, without port; None allows all. On the
            loopback address it keeps foreign web pages from reaching it under a name of theirs.
        body_bytes: Largest body.
        body_seconds: Longest time that a body may take.
        rate_per_minute: Requests of one client (address and key) in a minute; None is any number.
    """

    api_key: str | None = None
    hosts: frozenset[str] | None = None
    body_bytes: int = 1_048_576
    body_seconds: float = 30.0
    rate_per_minute: float | None = None


Count = Callable[[str, int], None]
"""Told path and status of every response."""


class Guard:
    """The middleware."""

    def __init__(self, app: ASGIApp, limits: Limits, count: Count) -> None:
        """Wrap an application."""
        self._app, self._limits, self._count = app, limits, count
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with an error."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = str(scope["path"])

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._count(path, int(message["status"]))
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        try:
            headers = Headers(scope=scope)
            self._check_host(headers)
            self._check_key(path, headers)
            if scope["method"] == "POST":
                self._check_rate(scope, headers)
                self._check_form(headers)
                receive = await self._read(headers, receive)
        except ApiError as error:
            await error.response()(scope, receive, counted)
            return
        except _Gone:
            return
        await self._app(scope, receive, counted)

    def _check_host(self, headers: Headers) -> None:
        hosts = self._limits.hosts
        if hosts is None:
            return
        given = headers.get("host", "")
        name = given.rpartition(":")[0] if ":" in given.rpartition("]")[2] else given
        if name.strip("[]").lower() not in hosts:
            raise ApiError(
                403,
                f"this server is not called {name[:100]!r}: allow that name with --allow-host",
                code="host_not_allowed",
            )

    def _check_key(self, path: str, headers: Headers) -> None:
        key = self._limits.api_key
        if key is None or not (path.startswith("/v1") or path == "/metrics"):
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        known = hmac.compare_digest(given.strip().encode("latin-1"), key.encode())
        if scheme.lower() != "bearer" or not known:
            raise ApiError(
                401, "give this server's key as `Authorization: Bearer KEY`", code="invalid_api_key"
            )

    def _check_rate(self, scope: Scope, headers: Headers) -> None:
        """A bucket that a minute fills, for each client."""
        rate = self._limits.rate_per_minute
        if rate is None:
            return
        address = scope.get("client") or ("", 0)
        client = f"{address[0]} {headers.get('authorization', '')[:200]}"
        now = time.monotonic()
        full = max(1.0, rate)
        level, at = self._buckets.pop(client, (full, now))
        level = min(full, level + (now - at) * rate / 60)
        self._buckets[client] = (level - 1 if level >= 1 else level, now)
        while len(self._buckets) > _CLIENTS:
            self._buckets.popitem(last=False)
        if level < 1:
            raise ApiError(
                429,
                f"more than {rate:g} requests in a minute",
                code="rate_limit_exceeded",
                retry_after=max(1, math.ceil((1 - level) * 60 / rate)),
            )

    def _check_form(self, headers: Headers) -> None:
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise ApiError(
                415, "send JSON with `Content-Type: application/json`", code="unsupported_form"
            )
        length = headers.get("content-length", "")
        if length.isascii() and length.isdigit() and int(length[:20]) > self._limits.body_bytes:
            raise self._too_large()

    def _too_large(self) -> ApiError:
        return ApiError(
            413, f"the body is larger than {self._limits.body_bytes} bytes", code="body_too_large"
        )

    async def _read(self, headers: Headers, receive: Receive) -> Receive:
        """The whole body, within its limits; returns what gives it to the application."""
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _Gone
                    part = message.get("body", b"")
                    size += len(part)
                    if size > self._limits.body_bytes:
                        raise self._too_large()
                    parts.append(part)
                    more = message.get("more_body", False)
        except TimeoutError as error:
            seconds = self._limits.body_seconds
            message_ = f"the body did not come within {seconds:g} seconds"
            raise ApiError(408, message_, code="body_timeout") from error
        body: list[bytes] = [b"".join(parts)]

        async def again() -> Message:
            if body:
                return {"type": "http.request", "body": body.pop(), "more_body": False}
            return await receive()

        return again


class _Gone(Exception):
    """The client went away before it had sent its body."""
