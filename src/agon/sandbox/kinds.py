"""The kinds of isolation, and how a launcher makes its place for each of them.

What each kind covers stands in docs/verifiers.md. What this module does not do: choose among them
(`isolation`) or run programs in them (`supervisor`).
"""

from __future__ import annotations

import errno
import os
import platform
import re
import shutil
import tempfile
from dataclasses import dataclass
from typing import Literal

from agon.sandbox import jail, linux, seccomp
from agon.sandbox.limits import Limits

Kind = Literal["bubblewrap", "namespaces", "limits"]

MOUNT_POINT = "/sys"
"""A folder that every Linux system has and nothing in a launcher needs: the jail is mounted over
it, in the launcher's own mount namespace."""

INSIDE_ID = 1000
"""Uid and gid that a program sees as its own in a user namespace."""

SPARE_TASKS = 8
"""Tasks that count towards the program's uid but are not its own: bwrap, a second program."""

SPARE_TASKS_OF_USER = 512
"""The same where the uid is the caller's, whose other programs come and go."""

_OUTER_NAMESPACES = (
    linux.CLONE_NEWNS
    | linux.CLONE_NEWNET
    | linux.CLONE_NEWIPC
    | linux.CLONE_NEWUTS
    | linux.CLONE_NEWCGROUP
)


class Unavailable(Exception):
    """Why a kind of isolation does not work here, in words."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a launcher's programs run.

    Attributes:
        kind: The isolation.
        layout: What they see of the machine's files.
        root: Folder of the built jail; empty where files are shown from their own places.
        owner: Uid and gid of programs, where they are not the caller's.
        counted_tasks: Tasks that count towards the programs' uid besides their own.
        bwrap: Path of bubblewrap.
        scratch: Folder for the runs' folders, where no jail gives them one.
    """

    kind: Kind
    layout: jail.Layout
    root: str = ""
    owner: tuple[int, int] | None = None
    counted_tasks: int = SPARE_TASKS
    bwrap: str = ""
    scratch: str = ""

    def most_tasks(self, limits: Limits) -> int:
        """RLIMIT_NPROC of a program."""
        return limits.processes + self.counted_tasks


def prepare(kind: Kind) -> Place:
    """Make the calling process, a launcher, ready to run programs in this kind of isolation.

    Raises:
        Unavailable: It does not work here.
    """
    if platform.system() != "Linux":
        raise Unavailable(f"programs can be held on Linux only, and this is {platform.system()}")
    try:
        return {"namespaces": _namespaces, "bubblewrap": _bubblewrap, "limits": _limits}[kind]()
    except OSError as error:
        raise Unavailable(_in_words(error)) from error


def _namespaces() -> Place:
    layout = jail.describe_machine()
    owner = _own_ids() if os.geteuid() == 0 else None
    counted = SPARE_TASKS
    if owner is not None:
        try:
            linux.unshare(_OUTER_NAMESPACES)
        except OSError:  # root without the right to mount, as in most containers
            owner = None
    if owner is None:
        _enter_user_namespace()
        counted = SPARE_TASKS if _counts_tasks_by_namespace() else _tasks_of_user()
    linux.load()
    _build(layout)
    jail_root = f"{MOUNT_POINT}/jail"
    os.mkdir(f"{MOUNT_POINT}/proc")
    os.mkdir(f"{MOUNT_POINT}/old")
    linux.mount("/proc", f"{MOUNT_POINT}/proc", flags=linux.MS_BIND | linux.MS_REC)
    jail.enter(MOUNT_POINT)
    return Place("namespaces", layout, jail_root.removeprefix(MOUNT_POINT), owner, counted)


def _bubblewrap() -> Place:
    bwrap = shutil.which("bwrap", path="/usr/bin:/bin:/usr/local/bin:/usr/sbin")
    if bwrap is None:
        raise Unavailable("the program bwrap is not installed (Debian, Fedora: bubblewrap)")
    layout = jail.describe_machine()
    if os.geteuid() != 0:
        return Place("bubblewrap", layout, counted_tasks=_tasks_of_user(), bwrap=bwrap)
    # bwrap runs as the programs' uid, which may not reach the interpreter by its own path.
    linux.unshare(linux.CLONE_NEWNS)
    _build(layout)
    return Place("bubblewrap", layout, f"{MOUNT_POINT}/jail", _own_ids(), bwrap=bwrap)


def _limits() -> Place:
    if not seccomp.supported():
        raise Unavailable(f"there is no system call filter for {platform.machine()} machines")
    owner = _own_ids() if os.geteuid() == 0 else None
    counted = SPARE_TASKS if owner is not None else _tasks_of_user()
    interpreter = _reachable_interpreter(owner)
    scratch = tempfile.mkdtemp(prefix="agon-sandbox-")
    os.chmod(scratch, 0o711)
    layout = jail.Layout(interpreter, (), (), ())
    return Place("limits", layout, owner=owner, counted_tasks=counted, scratch=scratch)


def _build(layout: jail.Layout) -> None:
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("none", MOUNT_POINT, "tmpfs", data="mode=755,size=1m")
    os.mkdir(f"{MOUNT_POINT}/jail")
    linux.mount("none", f"{MOUNT_POINT}/jail", "tmpfs", data="mode=755,size=1m")
    jail.build(f"{MOUNT_POINT}/jail", layout)


def _enter_user_namespace() -> None:
    uid, gid = os.geteuid(), os.getegid()
    linux.unshare(linux.CLONE_NEWUSER | _OUTER_NAMESPACES)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{INSIDE_ID} {uid} 1"),
        ("gid_map", f"{INSIDE_ID} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def _own_ids() -> tuple[int, int]:
    """A uid and gid that nobody else has: from ranges that distributions keep free.

    Launchers take different ones, since process limits are counted by uid.
    """
    with open("/proc/self/uid_map") as file:
        mapped = [(int(inside), int(count)) for inside, _, count in map(str.split, file)]
    for first, count in ((1_900_000_000, 2**22), (60_578, 606), (1_000, 60_000), (1, 999)):
        chosen = first + os.getpid() % count
        if any(inside <= chosen < inside + length for inside, length in mapped):
            return chosen, chosen
    raise Unavailable("root has no other uid to give to programs")


def _counts_tasks_by_namespace() -> bool:
    """Whether RLIMIT_NPROC counts within a user namespace, as since Linux 5.14."""
    version = re.match(r"(\d+)\.(\d+)", platform.release())
    return version is not None and (int(version[1]), int(version[2])) >= (5, 14)


def _tasks_of_user() -> int:
    """Tasks that this user runs now, and room for more."""
    count = 0
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and os.stat(f"/proc/{entry}").st_uid == os.geteuid():
                count += len(os.listdir(f"/proc/{entry}/task"))
        except OSError:
            continue
    return count + SPARE_TASKS_OF_USER


def _reachable_interpreter(owner: tuple[int, int] | None) -> str:
    """A Python that the programs' uid can execute: the base interpreter, or the system's own."""
    base = jail.base_interpreter()
    if owner is None:
        return base
    for path in (base, "/usr/bin/python3", "/usr/local/bin/python3"):
        if os.path.exists(path) and _everyone_may_read(os.path.realpath(path)):
            return os.path.realpath(path)
    raise Unavailable(
        f"programs have a uid of their own, which cannot read {base}, and there is no "
        "/usr/bin/python3: install Python where everyone can read it"
    )


def _everyone_may_read(path: str) -> bool:
    folder = os.path.dirname(path)
    while folder != "/":
        if not os.stat(folder).st_mode & 0o001:
            return False
        folder = os.path.dirname(folder)
    return bool(os.stat(path).st_mode & 0o001)


def _in_words(error: OSError) -> str:
    text = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    if error.errno == errno.EPERM:
        return (
            f"{text}: the system does not allow new namespaces to this user (see the sysctls "
            "user.max_user_namespaces, kernel.unprivileged_userns_clone and "
            "kernel.apparmor_restrict_unprivileged_userns, or the container's seccomp profile)"
        )
    return str(text)
