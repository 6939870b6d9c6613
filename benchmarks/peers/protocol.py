"""Messages between a benchmark and the processes that it times: one JSON text a line.

A benchmark starts each arm as a process of its own, in the environment where that peer is
installed. The process loads once, and then does what it is asked, one call at a time, so that all
arms take turns within one run and each has a peak memory of its own.

Both sides are here, and only the standard library is imported: a peer's environment need not have
Agon. This module does not time anything; `memory` and the arms do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

HERE = Path(__file__).resolve().parents[1]
"""The folder of the benchmarks, which every process finds its modules in."""

ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "5000",
    "THP_MEM_ALLOC_ENABLE": "1",
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
}
"""What `agon.process` sets for threads and memory: every arm has it, so that no figure tells of the
allocator alone."""

Handler = Callable[..., Any]


class ArmError(Exception):
    """An arm's process failed; the message holds its own words."""


class Channel:
    """The arm's end: calls come by standard input, answers go by what was standard output."""

    def __init__(self) -> None:
        """Take standard output; whatever else is printed goes to standard error from now on."""
        self._calls = sys.stdin
        self._answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def receive(self) -> tuple[str, dict[str, Any]]:
        """The next call's name and arguments.

        Raises:
            EOFError: The benchmark is over.
        """
        line = self._calls.readline()
        if not line:
            raise EOFError
        call = json.loads(line)
        return call["call"], call["with"]

    def answer(self, result: Any) -> None:
        """Answer the call."""
        self._send({"result": result})

    def fail(self) -> None:
        """Answer the call with the exception that is being handled."""
        self._send({"error": traceback.format_exc()})

    def _send(self, message: dict[str, Any]) -> None:
        self._answers.write(json.dumps(message) + "\n")
        self._answers.flush()


def serve(channel: Channel, handlers: Mapping[str, Handler]) -> None:
    """Answer calls until the benchmark is over."""
    while True:
        try:
            name, arguments = channel.receive()
        except EOFError:
            return
        try:
            result = handlers[name](**arguments)
        except Exception:
            channel.fail()
        else:
            channel.answer(result)


class Arm:
    """The benchmark's end: one process that is asked to do things."""

    def __init__(self, module: str, settings: Mapping[str, Any], python: str = sys.executable):
        """Start the process; it loads while the benchmark goes on.

        Args:
            module: Its module under the benchmarks' folder, such as `peers.trl_grpo`.
            settings: What it loads; JSON text as its one argument.
            python: Interpreter of the environment that it runs in.
        """
        self._name = module
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed in `close`
        environment = os.environ | ENVIRONMENT | {"PYTHONPATH": str(HERE)}
        self._process = subprocess.Popen(
            [python, "-m", module, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            text=True,
            encoding="utf-8",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def ask(self, call: str, **arguments: Any) -> Any:
        """Have something done and wait for its result.

        Raises:
            ArmError: It failed, or the process has ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"call": call, "with": arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise ArmError(f"{self._name} ended during {call!r}:\n{self._last_words()}")
        message = json.loads(line)
        if "error" in message:
            raise ArmError(f"{self._name} failed at {call!r}:\n{message['error']}")
        return message["result"]

    def close(self) -> None:
        """End the process."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _last_words(self, characters: int = 4000) -> str:
        self._process.wait()
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-characters:]


def open_arms(
    stack: ExitStack, modules: Mapping[str, tuple[str, Mapping[str, Any], str]]
) -> dict[str, Arm]:
    """Start several arms at once, which then load beside each other, and wait for all.

    Args:
        stack: Ends them.
        modules: By the arm's name, its module, settings and interpreter.
    """
    arms = {name: stack.enter_context(Arm(*given)) for name, given in modules.items()}
    for arm in arms.values():
        arm.ask("ready")
    return arms


def settings_of(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """The settings that an arm's process was started with."""
    given: dict[str, Any] = json.loads((sys.argv if argv is None else argv)[1])
    return given
