"""A worker process: it judges one item after the other and says when each begins.

Started by `pool` as `python -m agon.verifiers.worker CHANNEL SECONDS MEMORY_MIB MODULE...`. It
imports neither torch nor the program that started it. Messages are JSON, in both directions:

    to the worker      [function, argument, argument, ...]
    from the worker    ["ready"] once
                       ["begun"] when the check itself begins
                       ["judged", outcome, reason] | ["memory"] | ["failed", reason]

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
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from agon.records import Verdict


def main(channel_number: str, seconds: str, memory_mib: str, *modules: str) -> None:
    """Import the modules, then serve until the other end of the channel is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    channel = Connection(int(channel_number))
    limit = int(memory_mib) * 2**20
    if sys.platform == "linux":  # macOS refuses limits on the address space
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        for module in modules:  # now, so that no check pays for it with its time
            importlib.import_module(module)
        _send(channel, "ready")
        while True:
            function, *arguments = json.loads(channel.recv_bytes())
            _serve(channel, function, arguments, float(seconds))
    except (EOFError, OSError):  # the parent closed the pool, or is gone
        return


def _serve(channel: Connection, name: str, arguments: list[str], seconds: float) -> None:
    try:
        function = _function(name)
    except Exception as error:  # before the check began, so not the item's doing
        _send(channel, "failed", f"cannot import {name}: {type(error).__name__}: {error}")
        return
    _send(channel, "begun")
    signal.setitimer(signal.ITIMER_REAL, seconds)
    reply: tuple[str, ...]
    try:
        verdict = function(*arguments)
        reply = ("judged", verdict.outcome.value, verdict.reason)
    except MemoryError:
        reply = ("memory",)
    except BaseException as error:  # even SystemExit must not end the worker unexplained
        reply = ("failed", f"{name} raised {type(error).__name__}")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    _send(channel, *reply)


def _function(name: str) -> Callable[..., Verdict]:
    module, _, attribute = name.rpartition(".")
    function: Callable[..., Verdict] = getattr(importlib.import_module(module), attribute)
    return function


def _send(channel: Connection, *message: Any) -> None:
    channel.send_bytes(json.dumps(message).encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
