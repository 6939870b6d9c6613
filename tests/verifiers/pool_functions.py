"""Functions that a worker is asked to run in the tests of the pool."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from agon.records import Outcome, Verdict

RIGHT = Verdict(Outcome.RIGHT, "done")


def echo(text: str) -> Verdict:
    return Verdict(Outcome.RIGHT, text)


def whoami(text: str) -> Verdict:
    return Verdict(Outcome.RIGHT, str(os.getpid()))


def modules(text: str) -> Verdict:
    return Verdict(Outcome.RIGHT, " ".join(sorted(sys.modules)))


def sleep(seconds: str) -> Verdict:
    time.sleep(float(seconds))
    return RIGHT


def hang(text: str) -> Verdict:
    while True:
        time.sleep(1)


def hang_in_c(text: str) -> Verdict:
    """One multiplication that never gives the interpreter back."""
    return Verdict(Outcome.RIGHT, str(len(str(7 ** (10**9)))))


def hog(text: str) -> Verdict:
    held = []
    while True:
        held.append(bytearray(16 * 2**20))


def leave(code: str) -> Verdict:
    os._exit(int(code))


def segfault(text: str) -> Verdict:
    os.kill(os.getpid(), signal.SIGSEGV)
    return RIGHT


def raise_error(text: str) -> Verdict:
    raise ValueError(text)


def system_exit(text: str) -> Verdict:
    sys.exit(3)


def misbehave_once(kind: str, marker: str) -> Verdict:
    """Hang, or end the process, on the first call alone."""
    if Path(marker).exists():
        return RIGHT
    Path(marker).touch()
    return hang("") if kind == "hang" else leave("9")


def log_times(kind: str, log: str) -> Verdict:
    """Write begin and end to a log; the kind `hang` never ends by itself."""
    with Path(log).open("a") as lines:
        lines.write(f"begin {kind} {os.getpid()} {time.monotonic()}\n")
    if kind == "hang":
        hang("")
    time.sleep(0.2)
    with Path(log).open("a") as lines:
        lines.write(f"end {kind} {os.getpid()} {time.monotonic()}\n")
    return RIGHT
