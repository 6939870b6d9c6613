"""The embedded base: a small model inside the package, for the demo and the tests."""

from __future__ import annotations

from pathlib import Path

EMBEDDED = "embedded"


def model_folder(name_or_path: str) -> str:
    """A model's folder or hub name; `embedded` is the one inside the package."""
    if name_or_path == EMBEDDED:
        return str(Path(__file__).parent / "countdown-base")
    return name_or_path
