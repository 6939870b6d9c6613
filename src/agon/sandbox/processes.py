"""What a process and its descendants use, and how to end them all. Linux's /proc, nothing else.

What this module does not do: find a process that has left the tree. Whoever counts on that has to
adopt orphans first (`linux.adopt_orphans`) or to hold the processes in a pid namespace.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


@dataclass(frozen=True, slots=True)
class Usage:
    """Sums over living processes.

    Attributes:
        threads: Threads of all processes.
        memory: Resident bytes; a page that several processes share counts for each.
    """

    threads: int
    memory: int


def descendants(pid: int) -> list[int]:
    """Every living or unreaped descendant of a process, parents first."""
    found: list[int] = []
    waiting = _children(pid)
    while waiting:
        found += waiting
        waiting = [child for parent in waiting for child in _children(parent)]
    return found


def usage(pids: Iterable[int]) -> Usage:
    """What processes use now; those that have ended count nothing."""
    threads = memory = 0
    for pid in pids:
        fields = _stat(pid)
        if fields and fields[0] not in (b"Z", b"X"):
            threads += int(fields[17])
            memory += int(fields[21]) * PAGE
    return Usage(threads, memory)


def shared_memory(pids: Iterable[int]) -> int:
    """Resident bytes of processes, each shared page counted once.

    Slow, so for when `usage` says that it is near a limit. A process whose shares cannot be read
    counts with all that is resident.
    """
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
                total += next(int(line.split()[1]) for line in file if line[:4] == b"Pss:") << 10
        except (OSError, StopIteration):
            total += usage([pid]).memory
    return total


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU time that processes, and the children that they have reaped, have taken so far."""
    ticks = sum(sum(map(int, fields[11:15])) for pid in pids if (fields := _stat(pid)))
    return ticks / os.sysconf("SC_CLK_TCK")


def end_descendants(seconds: float) -> bool:
    """Kill and reap every descendant of this process, again and again until none is left.

    Returns:
        Whether none is left within the time.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for pid in descendants(os.getpid()):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        time.sleep(0.001)
    return False


def _stat(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat from the state on; none when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return file.read(4096).rpartition(b")")[2].split()
    except OSError:
        return []


def _children(pid: int) -> list[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    found = []
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb", buffering=0) as file:
                found += [int(child) for child in file.read(1 << 16).split()]
        except FileNotFoundError:
            if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
                return _children_by_scan(pid)
        except OSError:
            continue
    return found


def _children_by_scan(parent: int) -> list[int]:
    """For kernels that keep no list of children."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := _stat(int(entry))):
            children[int(fields[1])].append(int(entry))
    return children[parent]
