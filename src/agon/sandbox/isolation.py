"""Which isolation is in force: chosen by setting, proved by a probe run, said in a sentence.

What this module does not do: isolate. A kind that the probe passes may still be weaker than it
looks on a machine whose kernel has holes; docs/verifiers.md says what each kind covers.
"""

from __future__ import annotations

from typing import Literal

from agon.sandbox import seccomp
from agon.sandbox.kinds import Kind, Unavailable
from agon.sandbox.limits import Ending, Limits
from agon.sandbox.sandbox import Sandbox, SandboxError

Isolation = Literal["strongest", "bubblewrap", "namespaces", "limits"]

STRONG: tuple[Kind, ...] = ("bubblewrap", "namespaces")
"""What `strongest` may take, in this order."""

COVERS: dict[Kind, str] = {
    "bubblewrap": (
        "bubblewrap (own user, process, mount and network namespaces, a read-only view of the "
        "system, system call filter)"
    ),
    "namespaces": (
        "Linux namespaces (own process, mount and network namespaces, a read-only view of the "
        "system, system call filter)"
    ),
    "limits": (
        "resource limits and a system call filter alone: programs can READ WHAT THEIR USER CAN "
        "READ, and write where it can write"
    ),
}

# Fails unless the box can be written, children can be started, and the claims of the kind hold.
_PROBE = b"""
import os, socket
open("file", "w").write("x")
pid = os.fork()
if pid == 0:
    os._exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
assert os.getuid() != 0
try:
    socket.socket(socket.AF_INET)
except PermissionError:
    pass
else:
    assert not %(filtered)r
assert not (%(walled)r and (os.path.exists("/proc/1") or os.path.exists("/home")))
print(input())
"""
_WORD = b"agon probe"


class NoIsolation(Exception):
    """The isolation that was asked for does not work here; says why, kind by kind."""


def open_sandbox(isolation: Isolation) -> Sandbox:
    """A sandbox of the first kind that the setting allows and the probe passes.

    Raises:
        NoIsolation: There is none.
    """
    reasons = []
    for kind in STRONG if isolation == "strongest" else (isolation,):
        try:
            return _probed(kind)
        except (Unavailable, SandboxError, OSError) as reason:
            reasons.append(f"{kind}: {reason}")
    raise NoIsolation("; ".join(reasons))


def describe(sandbox: Sandbox) -> str:
    """What is in force, for people."""
    return f"programs run with {sandbox.interpreter} in {COVERS[sandbox.kind]}"


def _probed(kind: Kind) -> Sandbox:
    sandbox = Sandbox(kind)
    try:
        result = sandbox.run(_probe(kind), _WORD + b"\n", Limits(seconds=30.0))
        if result.status.ending is not Ending.EXIT or result.output.strip() != _WORD:
            said = result.error_tail.decode(errors="replace").strip().splitlines()
            raise SandboxError(
                f"the probe program failed ({result.status.ending}, code {result.status.code})"
                + (f": {said[-1]}" if said else "")
            )
    except BaseException:
        sandbox.close()
        raise
    return sandbox


def _probe(kind: Kind) -> bytes:
    facts = {b"filtered": seccomp.supported(), b"walled": kind != "limits"}
    return _PROBE % facts
