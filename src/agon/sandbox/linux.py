"""The kernel's calls that Python has no function for: mounts, namespaces, process controls.

Thin: one function for each call, errors as `OSError` with the call's name. Importing this module
does nothing and works on every system; the functions work on Linux alone.
"""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

CLONE_NEWNS = 0x0002_0000
CLONE_NEWCGROUP = 0x0200_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_NOATIME = 1024
MS_NODIRATIME = 2048
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MS_RELATIME = 1 << 21
MNT_DETACH = 2

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_CAPBSET_READ = 23
_PR_CAPBSET_DROP = 24
_PR_SET_SECCOMP = 22
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_SIGKILL = 9

# A flag of statvfs and the mount flag that a later remount must repeat: the kernel refuses to
# drop one that a more privileged namespace set.
_KEPT_FLAGS = (
    (2, MS_NOSUID),
    (4, MS_NODEV),
    (8, MS_NOEXEC),
    (1024, MS_NOATIME),
    (2048, MS_NODIRATIME),
    (4096, MS_RELATIME),
)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def load() -> None:
    """Find the C library now, for a process that will not see its files later."""
    _libc()


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc(), name)(*arguments) != 0:
        number = ctypes.get_errno()
        shown = ", ".join(a.decode() for a in arguments if isinstance(a, bytes) and a)
        raise OSError(number, f"{name}({shown}): {os.strerror(number)}")


def _prctl(option: int, value: int = 0, argument: object = 0) -> None:
    long = ctypes.c_ulong
    last = long(argument) if isinstance(argument, int) else argument
    _call("prctl", ctypes.c_int(option), long(value), last, long(0), long(0))


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Attach a file system, or change how one is attached.

    Raises:
        OSError: The kernel refuses.
    """
    _call(
        "mount",
        source.encode(),
        target.encode(),
        kind.encode() or None,
        ctypes.c_ulong(flags),
        data.encode() or None,
    )


def unmount(target: str) -> None:
    """Take a mount and all below it out of this namespace, at once.

    Raises:
        OSError: The kernel refuses.
    """
    _call("umount2", target.encode(), ctypes.c_int(MNT_DETACH))


def make_read_only(target: str) -> None:
    """Make one mount read-only and deaf to set-uid bits, keeping what it already forbids.

    Raises:
        OSError: The kernel refuses.
    """
    have = os.statvfs(target).f_flag
    kept = sum(flag for seen, flag in _KEPT_FLAGS if have & seen)
    mount("none", target, flags=MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | kept)


def mounts_below(folder: str) -> list[str]:
    """Mount points at or under a folder, outer ones first.

    Raises:
        OSError: There is no /proc.
    """
    found = []
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        # Blanks and backslashes in a path are written as three octal digits.
        point = line.split()[4].decode("unicode_escape").encode("latin-1").decode(errors="replace")
        if point == folder or point.startswith(folder.rstrip("/") + "/"):
            found.append(point)
    return found


def pivot_root(new_root: str, old_root: str) -> None:
    """Swap the root of this mount namespace.

    Raises:
        OSError: The kernel refuses.
    """
    _call("pivot_root", new_root.encode(), old_root.encode())


def unshare(flags: int) -> None:
    """Leave namespaces for new ones.

    Raises:
        OSError: The kernel refuses.
    """
    _call("unshare", ctypes.c_int(flags))


def die_with_parent() -> None:
    """Have the kernel kill this process when the one that forked it ends."""
    _prctl(_PR_SET_PDEATHSIG, _SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def hide_from_peers() -> None:
    """Let no other process of this uid trace this one or read its memory."""
    _prctl(_PR_SET_DUMPABLE, 0)


def forbid_new_privileges() -> None:
    """No program that this process becomes gains rights from set-uid bits or file capabilities."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def drop_capability_bounds() -> None:
    """Empty the set of capabilities that could ever be gained again."""
    for capability in range(64):
        try:
            _prctl(_PR_CAPBSET_DROP, capability)
        except OSError:  # beyond the last one that this kernel has, or already without the right
            return


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))


def install_filter(code: bytes) -> None:
    """Put a seccomp filter, an array of `struct sock_filter`, over this process for good.

    Raises:
        OSError: The kernel refuses.
    """
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _FilterProgram(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program))
