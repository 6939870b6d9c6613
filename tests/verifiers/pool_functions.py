"""Functions that a worker is asked to run in the tests of the pool."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from pathlib import Path

from agon.records import Outcome, Verdict
from agon.verifiers.base import Contested

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


def raise_with_long_text(length: str) -> Verdict:
    raise ValueError("x" * int(length) + "the end")


class Slow(Exception):
    """An error whose text never comes."""

    def __str__(self) -> str:
        time.sleep(3600)
        return ""


def raise_slow_text(text: str) -> Verdict:
    raise Slow


def no_verdict(text: str) -> Verdict:
    return True  # type: ignore[return-value]


def in_full(outcome: str) -> Verdict:
    return Verdict(Outcome(outcome), "the rule", ("passed", "time limit"), "read as 1/2")


def long_detail(length: str) -> Verdict:
    return Verdict(Outcome.RIGHT, "done", detail="x" * int(length))


def address_space(text: str) -> Verdict:
    return Verdict(Outcome.RIGHT, str(resource.getrlimit(resource.RLIMIT_AS)[0]))


def misbehave_once(kind: str, marker: str) -> Verdict:
    """Hang, or end the process, on the first call alone."""
    if Path(marker).exists():
        return RIGHT
    Path(marker).touch()
    return hang("") if kind == "hang" else leave("9")


def contest(marker: str, times: str) -> Verdict:
    """Contest the verdict so often, then give it."""
    calls = Path(marker).read_text() if Path(marker).exists() else ""
    Path(marker).write_text(calls + "x")
    if len(calls) < int(times):
        raise Contested(Verdict(Outcome.WRONG, "time limit", ("time limit",), f"{len(calls)}"))
    return RIGHT


def wait_for(path: str) -> Verdict:
    """End only once a file is there."""
    while not Path(path).exists():
        time.sleep(0.01)
    return RIGHT


def touch(path: str) -> Verdict:
    Path(path).touch()
    return RIGHT


def log_line(log: str, line: str) -> Verdict:
    with Path(log).open("a") as lines:
        lines.write(f"{line}\n")
    return RIGHT


def log_and_hang(log: str, line: str) -> Verdict:
    log_line(log, line)
    return hang("")


def log_both_ends(log: str, name: str, kind: str) -> Verdict:
    """Write begin and end to a log; the kind `once` ends its process in between, the first time."""
    first = not (Path(log).exists() and f" {name} " in Path(log).read_text())
    log_line(log, f"begin {name} {os.getpid()}")
    if kind == "once" and first:
        leave("9")
    time.sleep(0.3 if kind == "once" else 0.05)
    return log_line(log, f"end {name} {os.getpid()}")


def leave_or_meet(kind: str, name: str, folder: str) -> Verdict:
    """`leave` always ends the process; `meet` does so once, and then waits for the others' call.

    Two that meet end only when both are called for the second time at once.
    """
    if kind == "leave" or not (Path(folder) / name).exists():
        (Path(folder) / name).touch()
        leave("9")
    (Path(folder) / f"{name}.again").touch()
    while len(list(Path(folder).glob("meet*.again"))) < 2:
        time.sleep(0.01)
    return RIGHT
