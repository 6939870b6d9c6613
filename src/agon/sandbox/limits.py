"""Limits of one run, and how a run ended. Plain data, sent between processes as JSON."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Self


@dataclass(frozen=True, slots=True)
class Limits:
    """What one run of a program may take.

    Attributes:
        seconds: Wall time, from the program's start.
        memory_mib: Resident memory of all its processes together, MiB; each one's address space
            may be a little larger.
        processes: Processes and threads at once.
        output_kib: What it may print, KiB.
        file_mib: What it may write into its folder, MiB.
    """

    seconds: float = 10.0
    memory_mib: int = 1024
    processes: int = 64
    output_kib: int = 16_384
    file_mib: int = 64

    def to_json(self) -> str:
        """As text."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """From `to_json`'s text."""
        return cls(**json.loads(text))


class Ending(StrEnum):
    """Why a run is over."""

    EXIT = "exit"
    """The program's main process ended by itself or by a signal."""

    TIME = "time limit"
    MEMORY = "memory limit"
    PROCESSES = "process limit"
    FILES = "file limit"
    OUTPUT = "output limit"

    CANCELLED = "cancelled"
    """It was no longer needed."""

    FAILURE = "failure of the sandbox"
    """Not the program's doing; nothing is known of it."""


@dataclass(frozen=True, slots=True)
class Status:
    """How a run ended, as its supervisor reports it.

    Attributes:
        ending: Why.
        code: Exit status of the main process; minus the signal's number where one killed it;
            None unless `ending` is EXIT.
        wall: Seconds from start to end.
        cpu: CPU seconds of all processes that were seen to end.
        message: What failed, where the sandbox did.
    """

    ending: Ending
    code: int | None = None
    wall: float = 0.0
    cpu: float = 0.0
    message: str = ""

    def to_json(self) -> str:
        """As text."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """From `to_json`'s text."""
        values = json.loads(text)
        return cls(**{**values, "ending": Ending(values["ending"])})
