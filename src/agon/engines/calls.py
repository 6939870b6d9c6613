"""Calls to a server, over connections that can be cut off from another thread.

The standard library's client, one connection for each caller, kept open between calls. No retries
but one: a connection that the server closed while it lay idle is opened anew. Redirects are not
followed.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

from agon.errors import EngineError, SamplerLost

_RESUME = (
    "look at its log, start it again, and continue the run with `agon train --resume RUN` "
    "(another address with --set engine.urls=...)"
)
"""What to do when a server is lost in the middle of a run."""

_SHOWN = 300
"""Characters of an answer that an error shows."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is."""

    url: str
    secure: bool
    host: str
    port: int
    path: str

    @classmethod
    def of(cls, url: str) -> Address:
        """Read a URL that the configuration has checked."""
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        port = parts.port or (443 if secure else 80)
        return cls(url.rstrip("/"), secure, parts.hostname or "", port, parts.path.rstrip("/"))

    @property
    def near(self) -> bool:
        """Whether it is this machine by its name."""
        return self.host in ("localhost", "127.0.0.1", "::1", socket.gethostname())


@dataclass(frozen=True, slots=True)
class Answer:
    """A server's answer."""

    status: int
    body: bytes

    def fields(self) -> dict[str, Any]:
        """The answer's JSON object; empty where it is none."""
        try:
            found = json.loads(self.body)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def message(self) -> str:
        """What the server says went wrong."""
        fields = self.fields()
        error = fields.get("error", fields)
        text = error.get("message") if isinstance(error, dict) else None
        return str(text or self.body.decode("utf-8", "replace") or "nothing more")[:_SHOWN]


class Closed(SamplerLost):
    """The caller was closed by another thread."""


class Caller:
    """One connection to a server."""

    def __init__(
        self, address: Address, key: str | None, seconds: float, remedy: str = _RESUME
    ) -> None:
        """Open nothing yet.

        Args:
            address: Of the server.
            key: Its API key.
            seconds: Longest wait for an answer, or for its next part.
            remedy: What to do where the server is lost, for the error.
        """
        self._address, self._seconds, self._remedy = address, seconds, remedy
        self._headers = {"Content-Type": "application/json"}
        if key is not None:
            self._headers["Authorization"] = f"Bearer {key}"
        self._connection: http.client.HTTPConnection | None = None
        self._closed, self._lock = False, Lock()

    def __enter__(self) -> Caller:
        """The caller itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Cut the connection off, from any thread; a call under way raises `Closed`."""
        with self._lock:
            self._closed = True
            connection = self._connection
        if connection is not None and connection.sock is not None:
            with suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)
            connection.close()

    def get(self, path: str) -> Answer:
        """GET.

        Raises:
            SamplerLost: The server cannot be reached or does not answer in time.
        """
        return self._call("GET", path, None)

    def post(self, path: str, body: dict[str, Any]) -> Answer:
        """POST a JSON object.

        Raises:
            SamplerLost: As for `get`.
        """
        return self._call("POST", path, json.dumps(body).encode())

    def events(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """POST a JSON object and read server-sent events until `[DONE]`.

        Raises:
            SamplerLost: As for `get`, or the stream breaks off.
            EngineError: The server refuses.
        """
        try:
            response = self._send("POST", path, json.dumps(body).encode())
            if response.status != 200:
                answer = Answer(response.status, response.read())
                raise EngineError(
                    f"{self._address.url} answers {answer.status}: {answer.message()}"
                )
            for line in response:
                data = line.strip().removeprefix(b"data:").strip()
                if data == b"[DONE]":
                    response.read()
                    return
                if data:
                    yield json.loads(data)
        except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
            raise self._lost(error) from error
        raise self._lost(ConnectionError("the stream broke off"))

    def _call(self, method: str, path: str, body: bytes | None) -> Answer:
        try:
            response = self._send(method, path, body)
            return Answer(response.status, response.read())
        except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
            raise self._lost(error) from error

    def _send(self, method: str, path: str, body: bytes | None) -> http.client.HTTPResponse:
        reused = self._connection is not None and self._connection.sock is not None
        try:
            return self._send_once(method, path, body)
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            if not reused or self._closed:
                raise
            assert self._connection is not None
            self._connection.close()
            return self._send_once(method, path, body)

    def _send_once(self, method: str, path: str, body: bytes | None) -> http.client.HTTPResponse:
        connection = self._open()
        connection.request(method, self._address.path + path, body, self._headers)
        if self._closed:  # while it connected
            connection.close()
            raise self._cut()
        return connection.getresponse()

    def _open(self) -> http.client.HTTPConnection:
        with self._lock:
            if self._closed:
                raise self._cut()
            if self._connection is None:
                secure, plain = http.client.HTTPSConnection, http.client.HTTPConnection
                kind = secure if self._address.secure else plain
                self._connection = kind(
                    self._address.host, self._address.port, timeout=self._seconds
                )
            return self._connection

    def _cut(self) -> Closed:
        return Closed(f"the connection to {self._address.url} was closed")

    def _lost(self, error: Exception) -> SamplerLost:
        """The error to raise.

        Raises:
            AttributeError: `error` is one and the connection was not closed. While another thread
                closes it, parts of it can be None in the middle of a read.
        """
        if self._closed:
            return self._cut()
        if isinstance(error, AttributeError):
            raise error
        what = (
            f"did not answer within {self._seconds:g} s (engine.seconds is the longest wait)"
            if isinstance(error, TimeoutError)
            else f"is gone or cannot be reached ({type(error).__name__}: {error})"
        )
        return SamplerLost(f"the vLLM server at {self._address.url} {what}: {self._remedy}")
