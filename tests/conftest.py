"""Fixtures of more than one test file."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED_DATA = Path(__file__).resolve().parents[1] / ".." / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with real rows in the hub's schemas, which is not part of the repository."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"the real rows are not here: {SHARED_DATA.resolve()} does not exist")
    return SHARED_DATA.resolve()
