"""Worker processes that judge what may hang, crash or eat the memory.

A time or memory limit that an item hits by its own content is a wrong answer; otherwise a policy
would learn to write what cannot be checked. So is a worker that dies of an item. But the machine
may be slow, or the worker worn by what it did before, so such an item is blamed only when a second
attempt in a fresh worker ends in the same way; likewise where a function contests its own verdict.

The second attempt runs alone: the rest of the pool stands still meanwhile, and the pool's own load
cannot be the cause. That cannot be had for a flood of such items, whose limits would add up one
after the other. So after `IN_VAIN` lone attempts in a row that changed nothing, the others run
beside each other, still each in a fresh worker, until one of them ends well or the pool has nothing
to do. The load of other programs is never excluded.

Every other failure of the judge, such as a function that raises or a worker that does not start,
is unscored, with the traceback in the verdict's detail where there is one.

The clock of a check starts in the worker when the check begins; waiting for a worker costs none of
it. Workers start when first needed.

What this module does not do: know what is judged (`worker` runs the functions), or handle
processes (`process` does).
"""

from __future__ import annotations

import asyncio
import queue
import signal
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from agon.records import Outcome, Verdict
from agon.verifiers.process import Unusable, Worker

GRACE_SECONDS = 0.5
"""What a worker may be late with ending itself before it is killed."""

IN_VAIN = 4
"""Second attempts alone that change nothing, in a row, after which they run beside each other."""

CLOSED = Verdict(Outcome.UNSCORED, "the pool was closed")
ABANDONED = Verdict(Outcome.UNSCORED, "the check was abandoned")

Arguments = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Finding:
    """An attempt's verdict; `retry` says that it blames the item, which needs a second attempt."""

    verdict: Verdict
    retry: bool = False


@dataclass(eq=False, slots=True)
class _Check:
    """One check, from its queueing to its verdict; `worker` is set while it runs in one."""

    function: str
    arguments: Arguments
    abandoned: bool = False
    worker: Worker | None = None


class WorkerPool:
    """Judges items in worker processes, each within limits.

    Safe to use from several threads, from coroutines and with torch loaded. Use it as a context
    manager, or call `close`.

    Attributes:
        workers: Most processes at once.
        seconds: Longest time of one check, from its begin in the worker.
        memory_mib: Address space of a worker, MiB, the libraries' own share included; None sets no
            limit.
        modules: Modules that a worker imports when it starts.
        settings: The configuration's section that these limits come from, for error messages.
    """

    def __init__(
        self,
        workers: int,
        seconds: float,
        memory_mib: int | None,
        modules: Sequence[str] = ("agon.verifiers.maths", "math_verify"),
        settings: str = "verifier",
    ) -> None:
        self.workers = workers
        self.seconds = seconds
        self.memory_mib = memory_mib
        self.modules = tuple(modules)
        self.settings = settings
        # A slot is the right to run one check; it holds the worker that ran the one before. The
        # last one used is the first one reused, so no more workers start than are needed at once.
        self._slots: queue.LifoQueue[Worker | None] = queue.LifoQueue()
        for _ in range(workers):
            self._slots.put(None)
        self._entrance = threading.Lock()  # held while a check runs alone
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="agon-verifier")
        self._state = threading.Lock()  # guards all that follows, and the checks' fields
        self._alive: set[Worker] = set()
        self._closed = False
        self._unfinished = 0
        self._in_vain = 0

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
        checks = {arguments: _Check(function, arguments) for arguments in items}
        try:
            futures = [self._submit(check) for check in checks.values()]
            verdicts = dict(zip(checks, [future.result() for future in futures], strict=True))
        except BaseException:  # Ctrl-C above all: what nobody waits for must not hold the exit
            self._abandon(checks.values())
            raise
        return [verdicts[arguments] for arguments in items]

    async def map_async(self, function: str, items: Sequence[Arguments]) -> list[Verdict]:
        """`map` for coroutines: the event loop is never blocked.

        A cancelled call leaves no work behind: checks that have not begun are dropped, and the
        workers of those that have are killed.
        """
        checks = {arguments: _Check(function, arguments) for arguments in items}
        try:
            futures = [asyncio.wrap_future(self._submit(check)) for check in checks.values()]
            verdicts = dict(zip(checks, await asyncio.gather(*futures), strict=True))
        except BaseException:
            self._abandon(checks.values())
            raise
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

    def _submit(self, check: _Check) -> Future[Verdict]:
        future = self._threads.submit(self._judge, check)
        with self._state:
            self._unfinished += 1
        future.add_done_callback(self._finished)
        return future

    def _finished(self, future: Future[Verdict]) -> None:
        with self._state:
            self._unfinished -= 1
            if self._unfinished == 0:
                self._in_vain = 0

    def _abandon(self, checks: Iterable[_Check]) -> None:
        """Give up checks that nobody waits for any more."""
        with self._state:
            for check in checks:
                check.abandoned = True
                if check.worker is not None:
                    check.worker.process.kill()

    def _judge(self, check: _Check) -> Verdict:
        finding = self._attempt_beside_others(check)
        if finding.retry:
            finding = self._second_attempt(check)
        return finding.verdict

    def _second_attempt(self, check: _Check) -> _Finding:
        with self._entrance:
            alone = self._in_vain < IN_VAIN
            if alone:
                finding = self._attempt_alone(check)
        if not alone:
            finding = self._attempt_beside_others(check, fresh=True)
        with self._state:
            self._in_vain = self._in_vain + 1 if finding.retry else 0
        return finding

    def _attempt_beside_others(self, check: _Check, fresh: bool = False) -> _Finding:
        with self._entrance:  # closed while a check runs alone
            worker = self._slots.get()
        try:
            if fresh and worker is not None:
                self._discard(worker)
                worker = None
            finding, worker = self._attempt(worker, check)
        except BaseException:
            worker = None
            raise
        finally:
            self._slots.put(worker)
        return finding

    def _attempt_alone(self, check: _Check) -> _Finding:
        """An attempt in a fresh worker while no other check of this pool runs."""
        slots = [self._slots.get() for _ in range(self.workers)]
        try:
            # The least used worker makes room, so that there are never more than `workers`.
            slots.sort(key=lambda worker: worker is not None)
            if slots[0] is not None:
                self._discard(slots[0])
            slots[0] = None
            finding, slots[0] = self._attempt(None, check)
        finally:
            for worker in slots:
                self._slots.put(worker)
        return finding

    def _attempt(self, worker: Worker | None, check: _Check) -> tuple[_Finding, Worker | None]:
        """What a check found, and the worker if it can be used again.

        A worker that fails before the check begins, for one killed from outside while it was
        idle, is replaced once.
        """
        failure = Unusable("")
        for candidate in (worker, None):
            if check.abandoned or self._closed:
                return _Finding(ABANDONED if check.abandoned else CLOSED), candidate
            try:
                usable = self._start() if candidate is None else candidate
                try:
                    unscored = usable.begin(check.function, check.arguments)
                except Unusable:
                    self._discard(usable)
                    raise
            except Unusable as error:
                failure = error
                continue
            if unscored is not None:
                return _Finding(unscored), usable
            finding, reusable = self._run(usable, check)
            if not reusable:
                self._discard(usable)
            return finding, usable if reusable else None
        return _Finding(Verdict(Outcome.UNSCORED, str(failure), detail=failure.detail)), None

    def _run(self, worker: Worker, check: _Check) -> tuple[_Finding, bool]:
        """What a check that has begun found, and whether its worker can be used again."""
        with self._state:
            check.worker = worker
            if check.abandoned:
                worker.process.kill()
        finding, reusable = self._await_verdict(worker)
        with self._state:
            check.worker = None
        if check.abandoned:  # its worker may have been killed at any moment
            return _Finding(ABANDONED), False
        return finding, reusable

    def _await_verdict(self, worker: Worker) -> tuple[_Finding, bool]:
        too_long = Verdict(Outcome.WRONG, f"takes more than {self.seconds:g} s to check")
        try:
            message = worker.receive(self.seconds + GRACE_SECONDS)
        except EOFError:
            code = worker.process.wait()
            if self._closed:
                return _Finding(CLOSED), False
            if code == -signal.SIGALRM:
                return _Finding(too_long, retry=True), False
            died = Verdict(Outcome.WRONG, f"ends the process that checks it (code {code})")
            return _Finding(died, retry=True), False
        match message:
            case None:
                return _Finding(too_long, retry=True), False
            case ["judged" | "contested" as kind, outcome, reason, detail, tests]:
                verdict = Verdict(Outcome(outcome), reason, tuple(tests), detail)
                return _Finding(verdict, retry=kind == "contested"), True
            case ["memory"]:
                return _Finding(self._too_large(), retry=True), False
            case [_, reason, detail, usable]:
                return _Finding(Verdict(Outcome.UNSCORED, reason, detail=detail)), usable
        raise AssertionError(f"a worker speaks another language: {message}")

    def _start(self) -> Worker:
        worker = Worker(self.seconds, self.memory_mib, self.modules)
        with self._state:  # not around the start, which would keep an event loop waiting
            self._alive.add(worker)
            closed = self._closed
        if closed:
            self._discard(worker)
            raise Unusable("the pool is closed")
        try:
            worker.wait_until_ready()
        except Unusable as error:
            self._discard(worker)
            memory = f"{self.settings}.memory_mib = {self.memory_mib} and "
            hint = f"check {'' if self.memory_mib is None else memory}the installation"
            raise Unusable(f"{error}; {hint}", error.detail) from error
        return worker

    def _too_large(self) -> Verdict:
        limit = "memory than there is" if self.memory_mib is None else f"than {self.memory_mib} MiB"
        return Verdict(Outcome.WRONG, f"takes more {limit} to check")

    def _discard(self, worker: Worker) -> None:
        worker.end()
        with self._state:
            self._alive.discard(worker)
