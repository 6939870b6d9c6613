"""The parent's end of one worker process: start it, hand over a check, wait, kill.

Workers are programs of their own and not children of `multiprocessing`: that would import the
main module again in each, and with it torch. They are not in the terminal's process group, so
Ctrl-C does not reach them, and they end when our end of their channel is closed, by whatever
death. POSIX only; the memory limit holds on Linux alone.

What this module does not do: choose a worker, retry, or say what a limit means. That is `pool`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing import Pipe
from typing import Any

from agon.records import Outcome, Verdict
from agon.verifiers.worker import UNLIMITED

START_SECONDS = 60.0
"""Longest time for a worker to start and import; a busy machine needs several seconds."""


class Unusable(Exception):
    """A worker failed before the check began; says so in words.

    Attributes:
        detail: The traceback where there is one, else empty.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.detail = detail


class Worker:
    """A worker process and our end of its channel."""

    def __init__(self, seconds: float, memory_mib: int | None, modules: Sequence[str]) -> None:
        """Start it; it is usable after `wait_until_ready`.

        Args:
            seconds: Longest time of a check, after which the kernel ends the worker.
            memory_mib: Address space, MiB; None sets no limit.
            modules: What it imports before it is ready.

        Raises:
            Unusable: The operating system starts no process.
        """
        self.channel, theirs = Pipe()
        memory = UNLIMITED if memory_mib is None else str(memory_mib)
        command = [sys.executable, "-P", "-m", "agon.verifiers.worker", str(theirs.fileno())]
        try:
            self.process = subprocess.Popen(
                [*command, str(seconds), memory, *modules],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ
                | {
                    "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path),
                    # Verdicts must not hang on the order of sets, and generated entries do.
                    "PYTHONHASHSEED": "0",
                },
                process_group=0,
            )
        except OSError as error:
            self.channel.close()
            raise Unusable(f"a worker cannot start: {error}") from error
        finally:
            theirs.close()

    def wait_until_ready(self) -> None:
        """Wait for the worker's imports.

        Raises:
            Unusable: It did not start.
        """
        message = self._next("ready")
        if message[0] != "ready":
            raise Unusable(message[1], message[2])

    def begin(self, function: str, arguments: tuple[str, ...]) -> Verdict | None:
        """Hand over a check and wait until it begins.

        Returns:
            None when it has begun; unscored where the function cannot be imported, after which
            the worker can be used again.

        Raises:
            Unusable: The worker is gone or silent; the item has no part in that.
        """
        try:
            self.channel.send_bytes(json.dumps([function, *arguments]).encode())
        except OSError as error:
            raise Unusable(f"a worker's channel is broken: {error}") from error
        message = self._next("begun")
        if message[0] == "begun":
            return None
        return Verdict(Outcome.UNSCORED, message[1], detail=message[2])

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

    def end(self) -> None:
        """Kill and reap the process; it has nothing to lose."""
        self.channel.close()
        self.process.kill()
        self.process.wait()

    def _next(self, expected: str) -> list[Any]:
        """The next message, which is the expected one or a failure."""
        try:
            message = self.receive(START_SECONDS)
        except EOFError as error:
            code = self.process.wait()
            raise Unusable(f"a worker ended with code {code} before '{expected}'") from error
        if message is None:
            raise Unusable(f"a worker was not '{expected}' within {START_SECONDS:g} s")
        return message
