"""One sandbox of each kind for all tests that attack it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agon.sandbox import Kind, Sandbox, Unavailable

KINDS: tuple[Kind, ...] = ("bubblewrap", "namespaces", "limits")


@pytest.fixture(scope="session", params=KINDS)
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    try:
        opened = Sandbox(request.param)
    except Unavailable as reason:
        pytest.skip(f"{request.param} does not work here: {reason}")
    with opened:
        yield opened
