"""The side of the sandbox that verifiers use: start runs, feed them, read what they print.

What a program prints is read here and up to its limit alone. A run is over when its supervisor
says so, and then no process of it is left. Use a `Sandbox` from one thread.

What this module does not do: choose the isolation (`isolation`), or judge output.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import selectors
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from agon.sandbox.kinds import Kind, Unavailable
from agon.sandbox.limits import Ending, Limits, Status

START_SECONDS = 60.0
"""Longest time for a launcher to start; a busy machine needs several seconds."""

LATE_SECONDS = 20.0
"""What a run's status may be late before the sandbox counts as broken."""

MOMENT_SECONDS = 0.5
"""How long runs may take to notice that the run they belong to is over."""

ERROR_TAIL_BYTES = 4096
"""How much is kept of what a program writes to stderr: the end."""

_CHUNK = 1 << 16


class SandboxError(Exception):
    """The sandbox itself failed; nothing is known of the program."""


@dataclass(frozen=True, slots=True)
class Result:
    """How a run went.

    Attributes:
        status: Why it ended.
        output: What it printed, up to its limit.
        error_tail: The end of what it wrote to stderr.
    """

    status: Status
    output: bytes
    error_tail: bytes


@dataclass(slots=True, eq=False)
class Running:
    """A run that has been started; `Sandbox.finish` waits for it."""

    limits: Limits
    control: socket.socket
    streams: dict[int, str]
    begin: float = field(default_factory=time.monotonic)
    output: bytearray = field(default_factory=bytearray)
    errors: bytearray = field(default_factory=bytearray)
    status: Status | None = None
    overflow: bool = False

    @property
    def result(self) -> Result:
        """How it went.

        Raises:
            SandboxError: The sandbox failed.
        """
        status = self.status
        if status is None or status.ending is Ending.FAILURE:
            message = "no status came" if status is None else status.message
            said = bytes(self.errors[-300:]).decode(errors="replace").strip()
            raise SandboxError(f"{message}: {said}" if said else message)
        if self.overflow:
            status = Status(Ending.OUTPUT, wall=status.wall, cpu=status.cpu)
        return Result(status, bytes(self.output), bytes(self.errors))

    def cancel(self) -> None:
        """Have it ended; its status still comes."""
        try:
            self.control.send(b"x")
        except OSError:  # it has ended
            return

    def close(self) -> None:
        """Let go of it; a supervisor that still runs ends the run."""
        self.control.close()
        for descriptor in self.streams:
            os.close(descriptor)
        self.streams.clear()


class Sandbox:
    """Runs Python programs confined, one launcher process for all of them.

    Attributes:
        kind: The isolation.
        interpreter: The Python that programs run with.
    """

    def __init__(self, kind: Kind) -> None:
        """Start the launcher.

        Raises:
            Unavailable: This kind of isolation does not work here.
        """
        self.kind = kind
        self._scratch = ""
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-S", "-P", "-B", "-m", "agon.sandbox.launcher"]
        try:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno()), kind],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={
                    "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
                    **{n: os.environ[n] for n in ("LD_LIBRARY_PATH", "TMPDIR") if n in os.environ},
                },
                process_group=0,
            )
        except OSError as error:
            self._channel.close()
            raise Unavailable(f"the launcher cannot start: {error}") from error
        finally:
            theirs.close()
        self.interpreter = self._greeting()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def launcher(self) -> int:
        """Process id of the launcher."""
        return self._process.pid

    def run(self, program: bytes, stdin: bytes, limits: Limits) -> Result:
        """Run one program to its end.

        Args:
            program: The text of a Python program.
            stdin: What it can read.
            limits: What it may take.

        Raises:
            SandboxError: The sandbox failed.
        """
        source = read_only(stdin)
        try:
            running = self.start({"main.py": program}, "main.py", source, limits)
        finally:
            os.close(source)
        self.finish([running])
        return running.result

    def start(
        self,
        files: Mapping[str, bytes],
        main: str,
        stdin: int,
        limits: Limits,
        *,
        printing: bool = True,
        further: Sequence[int] = (),
    ) -> Running:
        """Start one program and return at once.

        Args:
            files: Content of its code folder by name.
            main: Which of them is run.
            stdin: Descriptor of its standard input, which stays open here.
            limits: What it may take.
            printing: Whether its standard output is read; it is dropped otherwise.
            further: Descriptors that it has as 3, 4, ...; they stay open here.

        Raises:
            SandboxError: The launcher is gone.
        """
        ours, control = socket.socketpair()
        null = os.open(os.devnull, os.O_WRONLY)
        output, output_end = os.pipe() if printing else (-1, os.dup(null))
        errors, errors_end = os.pipe()
        contents = [read_only(content) for content in files.values()]
        sent = [control.fileno(), stdin, output_end, errors_end, *further, *contents]
        request = {"main": main, "files": list(files), "limits": limits.to_json()}
        streams = {errors: "errors"} | ({output: "output"} if printing else {})
        running = Running(limits, ours, streams)
        try:
            rights = array.array("i", sent).tobytes()
            self._channel.sendmsg(
                [json.dumps(request).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
            )
        except OSError as error:
            running.close()
            raise SandboxError(f"the launcher is gone: {error}") from error
        finally:
            control.close()
            for descriptor in (null, output_end, errors_end, *contents):
                os.close(descriptor)
        return running

    def finish(self, runs: Sequence[Running], main: Running | None = None) -> None:
        """Read what runs print until each is over.

        Args:
            runs: All runs that belong together.
            main: The one whose end ends the others, after a moment in which they may do so by
                themselves; None waits for all.

        Raises:
            SandboxError: A run's status does not come; the sandbox is closed then, which ends
                whatever is left of its runs.
        """
        try:
            with selectors.DefaultSelector() as selector:
                for running in runs:
                    selector.register(running.control, selectors.EVENT_READ, (running, "control"))
                    for descriptor, name in running.streams.items():
                        selector.register(descriptor, selectors.EVENT_READ, (running, name))
                self._pump(selector, runs, main)
        finally:
            for running in runs:
                running.close()

    def close(self) -> None:
        """End the launcher, and with it every run."""
        self._channel.close()
        try:
            self._process.wait(LATE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._scratch:  # which a launcher that was killed has not removed
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _greeting(self) -> str:
        self._channel.settimeout(START_SECONDS)
        try:
            message = json.loads(self._channel.recv(_CHUNK) or b"{}")
        except (OSError, ValueError) as error:
            message = {"unavailable": f"the launcher does not answer: {error}"}
        self._channel.settimeout(None)
        if "ready" not in message:
            self.close()
            raise Unavailable(message.get("unavailable", "the launcher ended when it started"))
        self._scratch = str(message["scratch"])
        return str(message["ready"])

    def _pump(
        self, selector: selectors.BaseSelector, runs: Sequence[Running], main: Running | None
    ) -> None:
        end = max(running.begin + running.limits.seconds for running in runs) + LATE_SECONDS
        patience = end
        while selector.get_map():
            ready = selector.select(max(0.0, min(end, patience) - time.monotonic()))
            if time.monotonic() > end:
                self.close()
                raise SandboxError(f"a run is late by {LATE_SECONDS:g} s")
            if time.monotonic() > patience:
                patience = end
                for running in runs:
                    running.cancel()
            for key, _ in ready:
                running, name = key.data
                if name == "control":
                    _take_status(running)
                    selector.unregister(key.fileobj)
                    if running.status is None:  # what it watched may live on and hold the output
                        self.close()
                        raise SandboxError("a supervisor ended without a word")
                    if running is main:
                        patience = time.monotonic() + MOMENT_SECONDS
                elif not _take_output(running, name, key.fd):
                    selector.unregister(key.fileobj)


def read_only(content: bytes) -> int:
    """A descriptor of a file in memory that can be read from its begin and never written."""
    writable = os.memfd_create("agon")
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(writable, rest) :]
        return os.open(f"/proc/self/fd/{writable}", os.O_RDONLY)
    finally:
        os.close(writable)


def _take_status(running: Running) -> None:
    message = b""
    with contextlib.suppress(OSError):  # reset, where our cancelling came too late to be read
        while chunk := running.control.recv(_CHUNK):
            message += chunk
    if message:
        running.status = Status.from_json(message.decode())


def _take_output(running: Running, name: str, descriptor: int) -> bool:
    """Read a piece; False at the end."""
    piece = os.read(descriptor, _CHUNK)
    if name == "errors":
        running.errors = (running.errors + piece)[-ERROR_TAIL_BYTES:]
    elif not running.overflow:
        running.output += piece
        if len(running.output) > running.limits.output_kib * 1024:
            running.overflow = True
            running.cancel()
    return bool(piece)
