"""Worker processes that judge what may hang, crash or eat the memory.

A time or memory limit that an item hits by its own content is a wrong answer, after one retry
alone in a fresh worker while the rest of the pool stands still; otherwise a policy would learn to
write what cannot be checked. So is a worker that dies of an item twice. Every other failure of
the judge, such as a worker that does not start, is unscored.

Workers are programs of their own and not children of `multiprocessing`: that would import the
main module again in each, and with it torch. They are started when first needed, are not in the
terminal's process group, so Ctrl-C does not reach them, and end when the pool's end of their
channel is closed, by whatever death. POSIX only; the memory limit holds on Linux alone.

What this module does not do: know what is judged; `worker` runs the functions.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import Pipe
from types import TracebackType
from typing import Any, Self

from agon.records import Outcome, Verdict

START_SECONDS = 60.0
"""Longest time for a worker to start and import; a busy machine needs several seconds."""

GRACE_SECONDS = 0.5
"""What a worker may be late with ending itself before it is killed."""

Arguments = tuple[str, ...]


class _Unusable(Exception):
    """A worker failed before the check began, in words."""


@dataclass(frozen=True, slots=True)
class _Finding:
    """An attempt's verdict; `retry` says that it blames the item, which needs a second attempt."""

    verdict: Verdict
    retry: bool = False


class _Worker:
    """A worker process and our end of its channel."""

    def __init__(self, seconds: float, memory_mib: int, modules: Sequence[str]) -> None:
        self.channel, theirs = Pipe()
        command = [sys.executable, "-P", "-m", "agon.verifiers.worker", str(theirs.fileno())]
        try:
            self.process = subprocess.Popen(
                [*command, str(seconds), str(memory_mib), *modules],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ
                | {"PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)},
                process_group=0,
            )
        except OSError as error:
            self.channel.close()
            raise _Unusable(f"a worker cannot start: {error}") from error
        finally:
            theirs.close()

    def receive(self, seconds: float) -> list[Any] | None:
        """The next message, or None when none came in time.

        Raises:
            EOFError: The worker is gone.
        """
        try:
            if not self.channel.poll(seconds):
                return None
            message: list[Any] = json.loads(self.channel.recv_bytes())
        except OSError as error:
            raise EOFError from error
        return message

    def begin(self, function: str, arguments: Arguments) -> None:
        """Hand over an item and wait until its check begins.

        Raises:
            _Unusable: It does not begin; the item has no part in that.
        """
        try:
            self.channel.send_bytes(json.dumps([function, *arguments]).encode())
            self._expect("begun")
        except OSError as error:
            raise _Unusable(f"a worker's channel is broken: {error}") from error

    def wait_until_ready(self) -> None:
        """Wait for the worker's imports.

        Raises:
            _Unusable: It did not start.
        """
        self._expect("ready")

    def _expect(self, kind: str) -> None:
        try:
            message = self.receive(START_SECONDS)
        except EOFError as error:
            code = self.process.wait()
            raise _Unusable(f"a worker ended with code {code} before '{kind}'") from error
        if message is None:
            raise _Unusable(f"a worker was not '{kind}' within {START_SECONDS:g} s")
        if message[0] != kind:
            raise _Unusable(str(message[-1]))

    def end(self) -> None:
        """Kill and reap the process; it has nothing to lose."""
        self.channel.close()
        self.process.kill()
        self.process.wait()


class WorkerPool:
    """Judges items in worker processes, each within limits.

    Safe to use from several threads and with torch loaded. Use it as a context manager, or call
    `close`.

    Attributes:
        workers: Most processes at once.
        seconds: Longest time of one check, from its begin in the worker.
        memory_mib: Address space of a worker, MiB, the libraries' own share included.
        modules: Modules that a worker imports when it starts.
    """

    def __init__(
        self,
        workers: int,
        seconds: float,
        memory_mib: int,
        modules: Sequence[str] = ("agon.verifiers.maths", "math_verify"),
    ) -> None:
        self.workers = workers
        self.seconds = seconds
        self.memory_mib = memory_mib
        self.modules = tuple(modules)
        # A slot is the right to run one check; it holds the worker that ran the one before. The
        # last one used is the first one reused, so no more workers start than are needed at once.
        self._slots: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(workers):
            self._slots.put(None)
        self._entrance = threading.Lock()
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="agon-verifier")
        self._state = threading.Lock()
        self._alive: set[_Worker] = set()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def map(self, function: str, items: Sequence[Arguments]) -> list[Verdict]:
        """Call a function on every item, equal items once.

        Args:
            function: Dotted name of a pure function from texts to a `Verdict`.
            items: Its arguments, for each call.

        Returns:
            One verdict for each item, in their order.

        Raises:
            RuntimeError: The pool is closed.
        """
        distinct = list(dict.fromkeys(items))
        findings = list(self._threads.map(partial(self._check, function), distinct))
        verdicts = {
            arguments: self._check_alone(function, arguments) if finding.retry else finding.verdict
            for arguments, finding in zip(distinct, findings, strict=True)
        }
        return [verdicts[arguments] for arguments in items]

    def close(self) -> None:
        """End every worker; checks that are running become unscored."""
        with self._state:
            self._closed = True
            for worker in self._alive:
                worker.process.kill()  # its channel closes, which ends the wait for its verdict
        self._threads.shutdown(wait=True)
        for worker in tuple(self._alive):
            self._discard(worker)

    def _check(self, function: str, arguments: Arguments) -> _Finding:
        """First attempt, beside others."""
        with self._entrance:  # closed while a check runs alone
            slot = self._slots.get()
        worker: _Worker | None = None
        try:
            finding, worker = self._attempt(slot, function, arguments)
        finally:
            self._slots.put(worker)
        return finding

    def _check_alone(self, function: str, arguments: Arguments) -> Verdict:
        """Second attempt, in a fresh worker while no other check of this pool runs."""
        with self._entrance:
            slots = [self._slots.get() for _ in range(self.workers)]
            try:
                finding, fresh = self._attempt(None, function, arguments)
                if fresh is not None and None in slots:
                    slots[slots.index(None)] = fresh
                elif fresh is not None:
                    self._discard(fresh)
            finally:
                for worker in sorted(slots, key=lambda worker: worker is not None):
                    self._slots.put(worker)
        return finding.verdict

    def _attempt(
        self, worker: _Worker | None, function: str, arguments: Arguments
    ) -> tuple[_Finding, _Worker | None]:
        """What a check found, and the worker if it can be used again.

        A worker that fails before the check begins, for one killed from outside while it was
        idle, is replaced once.
        """
        reason = ""
        for candidate in (worker, None):
            try:
                usable = self._start() if candidate is None else candidate
                try:
                    usable.begin(function, arguments)
                except _Unusable:
                    self._discard(usable)
                    raise
            except _Unusable as error:
                reason = str(error)
                continue
            finding, reusable = self._await_verdict(usable)
            if not reusable:
                self._discard(usable)
            return finding, usable if reusable else None
        return _Finding(Verdict(Outcome.UNSCORED, reason)), None

    def _await_verdict(self, worker: _Worker) -> tuple[_Finding, bool]:
        """What a check that has begun found, and whether its worker can be used again."""
        too_long = Verdict(Outcome.WRONG, f"takes more than {self.seconds:g} s to check")
        try:
            message = worker.receive(self.seconds + GRACE_SECONDS)
        except EOFError:
            code = worker.process.wait()
            if self._closed:
                return _Finding(Verdict(Outcome.UNSCORED, "the pool was closed")), False
            if code == -signal.SIGALRM:
                return _Finding(too_long, retry=True), False
            died = Verdict(Outcome.WRONG, f"ends the process that checks it (code {code})")
            return _Finding(died, retry=True), False
        if message is None:
            return _Finding(too_long, retry=True), False
        if message[0] == "judged":
            return _Finding(Verdict(Outcome(message[1]), message[2])), True
        if message[0] == "memory":
            too_large = f"takes more than {self.memory_mib} MiB to check"
            return _Finding(Verdict(Outcome.WRONG, too_large), retry=True), False
        return _Finding(Verdict(Outcome.UNSCORED, message[1])), False

    def _start(self) -> _Worker:
        with self._state:
            if self._closed:
                raise _Unusable("the pool is closed")
            worker = _Worker(self.seconds, self.memory_mib, self.modules)
            self._alive.add(worker)
        try:
            worker.wait_until_ready()
        except _Unusable as error:
            self._discard(worker)
            raise _Unusable(
                f"{error}; check verifier.memory_mib = {self.memory_mib} and the installation"
            ) from error
        return worker

    def _discard(self, worker: _Worker) -> None:
        worker.end()
        with self._state:
            self._alive.discard(worker)
