"""A server process: a socket, uvicorn around the application, and an orderly end.

On SIGTERM or Ctrl-C no new connection is taken, and streams that are under way have `drain_seconds`
to finish; a second Ctrl-C ends at once.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass

import uvicorn

from agon.errors import ConfigError
from agon.serving.app import create_app
from agon.serving.guard import Limits
from agon.serving.service import Service


@dataclass(frozen=True, slots=True)
class Place:
    """Where the server listens.

    Attributes:
        host: Address; the loopback one serves this machine alone.
        port: 0 takes a free one.
        drain_seconds: Time for streams to finish at the end.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    drain_seconds: int = 120


def listen(place: Place) -> socket.socket:
    """Take the port.

    Raises:
        ConfigError: It is taken, or there is no such address here.
    """
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    try:
        return socket.create_server((place.host, place.port), family=family, backlog=512)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"--host {place.host} --port {place.port} cannot be served: {error}; choose another "
            "port, or 0 for a free one"
        ) from error


def url_of(listening: socket.socket) -> str:
    """The server's address for people."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def make_server(service: Service, limits: Limits, place: Place) -> uvicorn.Server:
    """A server that has not been started."""
    config = uvicorn.Config(
        create_app(service, limits),
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        http="h11",
        loop="asyncio",
        timeout_keep_alive=30,
        timeout_graceful_shutdown=place.drain_seconds,
    )
    return uvicorn.Server(config)
