"""The process that starts programs: small, single-threaded, standard library alone.

Started by `sandbox` as `python -m agon.sandbox.launcher CHANNEL KIND`, once for many runs. It
prepares its place, says so, and then forks a supervisor for each request. Messages are JSON over
a socket that keeps their bounds:

    from the launcher   {"ready": interpreter, "scratch": folder or nothing}, or
                        {"unavailable": reason}, once
    to the launcher     {"main", "files", "limits"}, with the descriptors: the control socket of
                        the run, its program's 0, 1, 2 and further ones, and one for each file

When the other end is closed, by whatever death, it ends every run and itself.

What this module does not do: watch a run. That is `supervisor`.
"""

from __future__ import annotations

import array
import gc
import json
import os
import shutil
import signal
import socket
import sys

from agon.sandbox import linux, processes, seccomp
from agon.sandbox.kinds import Kind, Place, Unavailable, prepare
from agon.sandbox.limits import Limits
from agon.sandbox.supervisor import END_SECONDS, Run, supervise

MOST_DESCRIPTORS = 32
MOST_BYTES = 65_536


def main(channel_number: str, kind: Kind) -> None:
    """Prepare the place, then serve until the channel's other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = socket.socket(fileno=int(channel_number))
    channel.set_inheritable(False)
    try:
        place = prepare(kind)
    except Unavailable as reason:
        channel.send(json.dumps({"unavailable": str(reason)}).encode())
        return
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        channel.send(json.dumps({"unavailable": message}).encode())
        return
    try:
        greeting = {"ready": place.layout.interpreter, "scratch": place.scratch}
        channel.send(json.dumps(greeting).encode())
        linux.adopt_orphans()
        if place.kind == "limits":  # programs may have the same uid, and see this process
            linux.hide_from_peers()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors need no reaping
        if seccomp.supported():
            seccomp.build_filter()  # once, for all that are forked from here
        gc.freeze()  # so that a collection in a fork copies no page
        _serve(channel, place)
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        processes.end_descendants(END_SECONDS)
        if place.scratch:
            shutil.rmtree(place.scratch, ignore_errors=True)


def _serve(channel: socket.socket, place: Place) -> None:
    number = 0
    while True:
        try:
            message, descriptors = _receive(channel)
        except OSError:
            return
        if not message:
            return
        number += 1
        if os.fork() == 0:
            try:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                channel.close()
                supervise(_run(json.loads(message), descriptors, place, number), place)
            finally:
                os._exit(1)
        for descriptor in descriptors:
            os.close(descriptor)


def _receive(channel: socket.socket) -> tuple[bytes, list[int]]:
    room = socket.CMSG_SPACE(MOST_DESCRIPTORS * array.array("i").itemsize)
    message, ancillary, _, _ = channel.recvmsg(MOST_BYTES, room)
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return message, descriptors.tolist()


def _run(request: dict[str, object], descriptors: list[int], place: Place, number: int) -> Run:
    """A request as a run; its files are read here, so that no descriptor of them goes on."""
    names = list(map(str, request["files"]))  # type: ignore[call-overload]
    control, *own = descriptors[: len(descriptors) - len(names)]
    contents = {}
    for name, descriptor in zip(names, descriptors[len(descriptors) - len(names) :], strict=True):
        with open(descriptor, "rb") as file:
            contents[name] = file.read()
    folder = f"{place.scratch}/{number}" if place.scratch else ""
    limits = Limits.from_json(str(request["limits"]))
    return Run(control, own, contents, str(request["main"]), limits, folder)


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
