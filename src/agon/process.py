"""What a process must be told before torch starts: how threads wait and how memory is kept.

Applications call `prepare`, the command line and the benchmarks among them; importing the library
changes nothing. What a user has set in the environment stands.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

DEFAULTS = {
    # Idle OpenMP threads that spin cost several times the work when another process wants the core.
    "OMP_WAIT_POLICY": "PASSIVE",
    # GNU's threads, which wait for the next small product most of the time, spin for some ten
    # microseconds all the same: waking costs that much. Measured: 5 to 10 % faster where the cores
    # are free, and nothing lost beside a busy neighbour; ten times as long loses a quarter there.
    "GOMP_SPINCOUNT": "5000",
    # Tokenizers warn about, and switch off, their own threads once worker processes are forked.
    "TOKENIZERS_PARALLELISM": "false",
    # Tensors from 2 MiB on lie on huge pages where Linux offers them: a five-hundredth of the page
    # faults, and fewer misses of the processor's address cache in large matrices.
    "THP_MEM_ALLOC_ENABLE": "1",
}

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_KEPT = 2**31 - 1
_HEAP, _MAPPED = _KEPT // 2, 2**20
_OWN_SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")

_prepared = False


def prepare() -> None:
    """Set the environment's defaults and let the C library keep the memory that it is given.

    glibc maps large tensors anew at each allocation, and the kernel clears every page of them
    again: in sampling a batch of logits costs more to allocate than to compute with. Other C
    libraries have no `mallopt`, or ignore it; what a user has set for glibc stands.
    """
    global _prepared
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    if sys.platform.startswith("linux") and not any(name in os.environ for name in _OWN_SETTINGS):
        _prepared = _call("mallopt", _M_MMAP_THRESHOLD, _HEAP)
        _call("mallopt", _M_TRIM_THRESHOLD, _KEPT)


@contextmanager
def mapped_tensors(trim: bool = True) -> Iterator[None]:
    """Within, tensors from 1 MiB on are mapped one by one and go back when they are freed.

    A backward pass frees and allocates gigabytes in thousands of sizes, and a kept heap grew to
    three times what was alive. Blocks that the heap already has free are used first, so this
    cannot undo an earlier growth. Without `prepare` this does nothing.

    Args:
        trim: Whether free memory of the heap goes back first.
    """
    if not _prepared:
        yield
        return
    if trim:
        _call("malloc_trim", 0)
    _call("mallopt", _M_MMAP_THRESHOLD, _MAPPED)
    try:
        yield
    finally:
        _call("mallopt", _M_MMAP_THRESHOLD, _HEAP)


def settings() -> dict[str, str | None]:
    """What is in force, for a run's environment file."""
    names = (*DEFAULTS, "OMP_NUM_THREADS", *_OWN_SETTINGS)
    return {name.lower().rstrip("_"): os.environ.get(name) for name in names}


def _call(name: str, *arguments: int) -> bool:
    """Call a function of the C library, if there is one of this name."""
    function = getattr(ctypes.CDLL(None), name, None)
    if function is not None:
        function(*arguments)
    return function is not None
