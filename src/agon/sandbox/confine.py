"""What a process does to itself in the last moment before it becomes the program.

Everything here is for good: descriptors closed, limits lowered, uid given up, capabilities and
future privileges dropped, the system call filter installed, and then exec. Nothing returns.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from agon.sandbox import linux, seccomp
from agon.sandbox.limits import Limits

MOST_DESCRIPTORS = 256
ADDRESS_SLACK_MIB = 64
"""Address space that a process may have beyond the memory limit: mapped files, stacks' guards."""

STACK_MIB = 16
SELF_ENDED = 127
"""Exit status of a process that could not become the program; the error pipe says why."""


@dataclass(frozen=True, slots=True)
class Command:
    """What to become.

    Attributes:
        arguments: The program and its arguments.
        environment: Its whole environment.
        folder: Where it begins; None is where the process is.
        descriptors: Descriptors that become 0, 1, 2, ... in this order.
        owner: Uid and gid to become; None stays.
        most_tasks: RLIMIT_NPROC; None leaves it.
        parent: Process id of the one that forked this process, with which it dies.
        shared_pids: Whether other processes of this uid can be seen, so that signals must be
            held back by the filter.
        confined: Whether to take future privileges and system calls away here; bubblewrap does
            both itself.
    """

    arguments: Sequence[str]
    environment: dict[str, str]
    folder: str | None
    descriptors: Sequence[int]
    owner: tuple[int, int] | None
    most_tasks: int | None
    parent: int
    shared_pids: bool
    confined: bool


def become(command: Command, limits: Limits, errors: int) -> None:
    """Exec the command, confined; on failure write the reason to `errors` and end the process."""
    try:
        errors = _arrange_descriptors(command.descriptors, errors)
        if command.folder is not None:
            os.chdir(command.folder)
        os.setsid()  # a signal to its process group must not reach the supervisor
        _reset_signals()
        os.umask(0o077)
        set_limits(limits, command.most_tasks)
        _give_up_rights(command)
        os.execve(command.arguments[0], list(command.arguments), command.environment)
    except BaseException as error:
        os.write(errors, f"{type(error).__name__}: {error}".encode()[:2000])
    finally:
        os._exit(SELF_ENDED)


def set_limits(limits: Limits, most_tasks: int | None) -> None:
    """Lower this process's resource limits; a hard limit that is lower already stays.

    They are the second line: wall time, total memory and count are watched from outside.
    """
    mib = 2**20
    address = (limits.memory_mib + ADDRESS_SLACK_MIB) * mib
    cpu = int(limits.seconds) + 2
    wanted = {
        resource.RLIMIT_AS: (address, address),
        resource.RLIMIT_CORE: (0, 0),
        resource.RLIMIT_CPU: (cpu, cpu),
        resource.RLIMIT_FSIZE: (limits.file_mib * mib, limits.file_mib * mib),
        resource.RLIMIT_NOFILE: (MOST_DESCRIPTORS, MOST_DESCRIPTORS),
        resource.RLIMIT_STACK: (STACK_MIB * mib, limits.memory_mib * mib),
        resource.RLIMIT_MEMLOCK: (0, 0),
    }
    if most_tasks is not None:
        wanted[resource.RLIMIT_NPROC] = (most_tasks, most_tasks)
    for kind, (soft, hard) in wanted.items():
        ceiling = resource.getrlimit(kind)[1]
        if ceiling != resource.RLIM_INFINITY:
            hard = min(hard, ceiling)
        resource.setrlimit(kind, (min(soft, hard), hard))


def _arrange_descriptors(descriptors: Sequence[int], errors: int) -> int:
    """Put the descriptors at 0, 1, 2, ..., close all others; returns where `errors` is now."""
    count = len(descriptors)
    high = 100  # out of the way of the final places and of each other
    for place, descriptor in enumerate([*descriptors, errors]):
        os.dup2(descriptor, high + place, inheritable=False)
    for place in range(count):
        os.dup2(high + place, place, inheritable=True)
    os.dup2(high + count, count, inheritable=False)
    os.closerange(count + 1, os.sysconf("SC_OPEN_MAX"))
    return count


def _reset_signals() -> None:
    """Python ignores SIGPIPE and SIGXFSZ, and what is ignored stays so across exec."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGCHLD, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _give_up_rights(command: Command) -> None:
    linux.drop_capability_bounds()
    if command.owner is not None:
        uid, gid = command.owner
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    linux.die_with_parent()  # after the change of uid, which would undo it
    if os.getppid() != command.parent:  # it died before that line
        os._exit(SELF_ENDED)
    if not command.confined:
        return
    linux.forbid_new_privileges()
    if seccomp.supported():
        own = os.getpid() if command.shared_pids else None
        linux.install_filter(seccomp.build_filter(own))
