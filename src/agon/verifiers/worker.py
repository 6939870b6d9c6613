"""A worker process: it judges one item after the other and says when each begins.

Started by `process` as `python -m agon.verifiers.worker CHANNEL SECONDS MEMORY_MIB MODULE...`. It
imports neither torch nor the program that started it. Messages are JSON, in both directions:

    to the worker      [function, argument, argument, ...]
    from the worker    ["ready"] once, when the modules are imported
                       ["begun"] when the check itself begins
                       ["judged", outcome, reason, detail, tests], or ["contested", ...] with
                           the same where the function says that a limit may be to blame
                       ["memory"] when the memory ran out
                       ["failed", reason, traceback, whether the worker can be used again], instead
                           of any of these

A check that outlasts its time is ended by the kernel, through an alarm without a handler: it
needs neither the interpreter, which a long multiplication blocks, nor a living parent.

What this module does not do: decide what a limit means. That is `pool`.
"""

from __future__ import annotations

import importlib
import json
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

from agon.records import Outcome, Verdict
from agon.verifiers.base import Contested, Prepared

MAX_DETAIL = 4_000
"""Most characters of a verdict's detail; of a traceback the last ones, which name the error."""

UNLIMITED = "unlimited"
"""What stands for MEMORY_MIB where the address space has no limit."""


def main(channel_number: str, seconds: str, memory_mib: str, *modules: str) -> None:
    """Import the modules, then serve until the other end of the channel is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    channel = Connection(int(channel_number))
    if memory_mib != UNLIMITED and sys.platform == "linux":  # macOS refuses such limits
        limit = int(memory_mib) * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        if not _import_all(channel, modules):
            return
        while True:
            function, *arguments = json.loads(channel.recv_bytes())
            _serve(channel, function, arguments, float(seconds))
    except (EOFError, OSError):  # the parent closed the pool, or is gone
        return


def _import_all(channel: Connection, modules: tuple[str, ...]) -> bool:
    """Import now, so that no check pays for it with its time."""
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:
            channel.send_bytes(_failure(f"cannot import {module}", error, usable=False))
            return False
    channel.send_bytes(_encode("ready"))
    return True


def _serve(channel: Connection, name: str, arguments: list[str], seconds: float) -> None:
    try:
        function = _function(name)
        if isinstance(function, Prepared):
            function.prepare(arguments[0])
            function = function.function
    except MemoryError:  # a fresh worker may have room, so this one ends
        raise
    except (Exception, SystemExit) as error:  # before the check began, so not the item's doing
        channel.send_bytes(_failure(f"cannot prepare {name}", error, usable=True))
        return
    channel.send_bytes(_encode("begun"))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    reply = _judge(name, function, arguments)
    signal.setitimer(signal.ITIMER_REAL, 0)
    channel.send_bytes(reply)


def _judge(name: str, function: Callable[..., Verdict], arguments: list[str]) -> bytes:
    """The message with the verdict.

    It is made ready within the limits too: the text of an error may itself take for ever to build.
    """
    try:
        try:
            return _encode_verdict("judged", function(*arguments))
        except Contested as contested:
            return _encode_verdict("contested", contested.verdict)
        except MemoryError:
            raise
        except Exception as error:
            return _failure(f"{name} raised", error, usable=True)
        except BaseException as error:  # even SystemExit must not end the worker unexplained
            return _failure(f"{name} raised", error, usable=False)
    except MemoryError:
        return _encode("memory")


def _function(name: str) -> Callable[..., Verdict] | Prepared:
    module, _, attribute = name.rpartition(".")
    function: Callable[..., Verdict] | Prepared = getattr(
        importlib.import_module(module), attribute
    )
    return function


def _failure(what: str, error: BaseException, usable: bool) -> bytes:
    """What failed with the error's type, and the traceback from the function's own frame on."""
    frames: TracebackType | None = error.__traceback__
    if frames is not None and frames.tb_next is not None:
        frames = frames.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames))
    if len(text) > MAX_DETAIL:
        text = f"(cut)\n{text[-MAX_DETAIL:]}"
    return _encode("failed", f"{what}: {type(error).__name__}", text, usable)


def _encode_verdict(kind: str, verdict: Verdict) -> bytes:
    return _encode(
        kind,
        Outcome(verdict.outcome).value,
        str(verdict.reason),
        str(verdict.detail)[:MAX_DETAIL],
        [str(test) for test in verdict.tests],
    )


def _encode(*message: Any) -> bytes:
    return json.dumps(message).encode()


if __name__ == "__main__":
    main(*sys.argv[1:])
