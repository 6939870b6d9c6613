"""What a process does with memory that it frees, in processes of their own."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these options")

FREED = """
import sys
from pathlib import Path

def resident():
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024

from agon import process
import torch

if "prepare" in sys.argv:
    process.prepare()
sizes = [2**20 * size for size in range(2, 40)]

def grow_and_free():
    before = resident()
    # Small blocks that live on in between keep the heap's end from moving back.
    pairs = [(torch.ones(size // 4), torch.ones(1000)) for size in sizes]
    kept = [small for _, small in pairs]
    del pairs
    return resident() - before, kept

print(grow_and_free()[0])
"""


def freed(*arguments: str, **environment: str) -> float:
    """MiB that stay resident after tensors of 779 MiB in all are freed."""
    found = subprocess.run(
        [sys.executable, "-c", FREED, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(found.stdout)


@glibc
def test_a_prepared_process_keeps_what_it_frees() -> None:
    assert freed("prepare") > 700


@glibc
def test_what_a_user_has_set_for_the_c_library_stands() -> None:
    assert freed("prepare", MALLOC_MMAP_THRESHOLD_="1048576") < 100


@glibc
def test_an_unprepared_process_is_left_as_it_is() -> None:
    """Importing the library changes nothing for the host."""
    assert freed() < 700
