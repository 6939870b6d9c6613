"""Time and peak resident memory of one piece of work in this process.

On Linux the kernel's high-water mark of the resident set is set back before the work begins
(`/proc/self/clear_refs`), so that loading a model does not count. Elsewhere, or where that is not
allowed, the mark is the one since the process began. Memory of child processes is not counted.
"""

from __future__ import annotations

import gc
import resource
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Meter:
    """A stopwatch that reads memory too."""

    def __init__(self) -> None:
        """Begin: what was left over is collected, the mark is set back, the clock starts."""
        gc.collect()
        with suppress(OSError):
            _CLEAR.write_text("5")
        self.before_mib = resident_mib()
        self._started = time.perf_counter()

    def read(self) -> dict[str, float]:
        """Seconds since the beginning, and MiB before it and at its peak."""
        seconds = time.perf_counter() - self._started
        return {"seconds": seconds, "before_mib": self.before_mib, "peak_mib": peak_mib()}


def resident_mib() -> float:
    """Resident memory now, MiB; the peak so far where only that is known."""
    return _status("VmRSS") or peak_mib()


def peak_mib() -> float:
    """Peak resident memory since it was last set back, MiB."""
    # Linux counts kibibytes, macOS bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return _status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def _status(field: str) -> float | None:
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith(f"{field}:")]
    return int(found[0]) / 1024 if found else None


def set_threads(threads: int) -> None:
    """Use so many threads for torch's operations from now on."""
    import torch

    torch.set_num_threads(threads)


def ready() -> dict[str, Any]:
    """What an arm says when it has loaded."""
    import torch

    return {"torch": torch.__version__, "resident_mib": resident_mib()}
