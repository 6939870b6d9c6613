"""What a process must be told before torch starts: how threads wait and how memory is kept.

Applications call `prepare`, the command line and the benchmarks among them; importing the library
changes nothing. What a user has set in the environment stands.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys

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
_OWN_SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


def prepare() -> None:
    """Set the environment's defaults and let the C library keep the memory that it is given."""
    # Where it is installed PEFT imports it, and it warns of a CPU kernel that is never used here.
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    _keep_memory()


def settings() -> dict[str, str | None]:
    """What is in force, for a run's environment file."""
    names = (*DEFAULTS, "OMP_NUM_THREADS", *_OWN_SETTINGS)
    return {name.lower().rstrip("_"): os.environ.get(name) for name in names}


def _keep_memory() -> None:
    """Reuse freed memory instead of returning it to the kernel.

    glibc maps large tensors anew at each allocation, and the kernel clears every page of them
    again: a batch of logits costs more to allocate than to compute with. Other C libraries have no
    `mallopt`, or ignore it.
    """
    if not sys.platform.startswith("linux") or any(name in os.environ for name in _OWN_SETTINGS):
        return
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_MMAP_THRESHOLD, _KEPT // 2)
        set_option(_M_TRIM_THRESHOLD, _KEPT)
