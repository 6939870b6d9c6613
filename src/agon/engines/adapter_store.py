"""Copies of the adapters, written aside for a sampler to read.

Each version of each adapter gets a folder of its own, as PEFT and vLLM read it, under a name that
is never used again: a sampler that saw a name twice could serve what it had cached under the
first. The copies lie in one folder for each process; what a killed process left is removed by the
next one on the same machine.

    /dev/shm/agon-adapters-HOST-PID-TOKEN/agon-TOKEN-a-v12-7/adapter_model.safetensors
                                                  │   │  └ number of the copy
                                                  │   └ optimizer steps of the adapter
                                                  └ adapter

Imports no torch.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agon.errors import EngineError

if TYPE_CHECKING:
    from agon.policies import Policies

SHARED_MEMORY = Path("/dev/shm")
_ROOMY = 8
"""Copies that must fit in shared memory for it to be used."""


@dataclass(frozen=True, slots=True)
class Copy:
    """One adapter at one version.

    Attributes:
        policy: `a` or `b`.
        name: Under which a sampler knows it; fresh for every copy.
        number: Of the copy, from 1; an id that is not used again.
        folder: PEFT's files.
        version: Optimizer steps that the adapter had.
        revision: `Policies.revision` when it was copied.
    """

    policy: str
    name: str
    number: int
    folder: Path
    version: int
    revision: int


def choose_place(wanted: str | None, near: bool, run: Path, adapter_bytes: int) -> Path:
    """Where copies go: the folder that is asked for, shared memory, or the run's folder.

    Args:
        wanted: `engine.folder`.
        near: Whether the sampler reads on this machine.
        run: The run's folder.
        adapter_bytes: Size of one adapter.
    """
    if wanted is not None:
        return Path(wanted).resolve()
    there = SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK)
    if near and there and shutil.disk_usage(SHARED_MEMORY).free > _ROOMY * adapter_bytes:
        return SHARED_MEMORY
    return run.resolve()


class AdapterStore:
    """Writes and removes the copies.

    Attributes:
        folder: Of this process.
    """

    def __init__(self, place: Path) -> None:
        """Make the folder.

        Raises:
            EngineError: It cannot be made.
        """
        self._token = secrets.token_hex(4)
        self._number = 0
        self._place = place
        self.folder = place / f"agon-adapters-{_host()}-{os.getpid()}-{self._token}"
        try:
            self.folder.mkdir(parents=True)
        except OSError as error:
            raise self._unwritten(error) from error

    def write(self, policies: Policies, name: str) -> Copy:
        """Copy an adapter as it stands.

        Raises:
            EngineError: There is no room.
        """
        self._number += 1
        version = policies.version(name)
        label = f"agon-{self._token}-{name}-v{version}-{self._number}"
        aside, final = self.folder / f".{label}.part", self.folder / label
        try:
            policies.save(aside, [name])
            (aside / name).rename(final)
            shutil.rmtree(aside)
        except OSError as error:
            raise self._unwritten(error) from error
        return Copy(name, label, self._number, final, version, policies.revision(name))

    def remove(self, copy: Copy) -> None:
        """Delete a copy that no sampler needs any more."""
        shutil.rmtree(copy.folder, ignore_errors=True)

    def discard(self, folder: Path) -> None:
        """Delete a folder that `abandoned` named."""
        shutil.rmtree(folder, ignore_errors=True)

    def abandoned(self) -> list[Path]:
        """Folders that processes of this machine have left behind."""
        pattern = re.compile(rf"agon-adapters-{re.escape(_host())}-(\d+)-[0-9a-f]{{8}}")
        found = []
        for path in self._place.glob("agon-adapters-*"):
            match = pattern.fullmatch(path.name)
            if match and not _alive(int(match[1])):
                found.append(path)
        return found

    def close(self) -> None:
        """Remove all copies."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _unwritten(self, error: OSError) -> EngineError:
        return EngineError(
            f"the adapters cannot be copied to {self.folder} for the sampler: {error}. Free some "
            "space, or set engine.folder"
        )


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9_.]", "_", socket.gethostname())


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
