"""The system calls that a program in the sandbox may not make, as a seccomp filter.

Everything is allowed but what is named here: calls that reach into other processes, change the
machine, open namespaces or sockets, or hold memory that no limit of ours counts. Programs that
read, compute, write and fork notice nothing.

The filter is assembled by hand, since it has to be there without any library: each rule is two to
five instructions of classic BPF. Numbers are those of the kernel's headers for x86-64 and for the
common table that aarch64 uses. Other machines have no filter, which `supported` says.
"""

from __future__ import annotations

import errno
import functools
import platform
import struct
from collections.abc import Iterable

_AUDIT_ARCH = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
_COLUMN = {"x86_64": 0, "aarch64": 1}
_X32_BIT = 0x4000_0000

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF_0000, 0x8000_0000, 0x0005_0000
_NUMBER_OFFSET, _ARCH_OFFSET, _ARGUMENTS_OFFSET = 0, 4, 16

_NAMESPACE_FLAGS = 0x7E02_0000
_AF_UNIX = 1

Numbers = tuple[int | None, int | None]
"""A call's number on x86-64 and on aarch64; None where the machine does not have it."""

OTHER_PROCESSES: dict[str, Numbers] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
}
FILE_SYSTEMS: dict[str, Numbers] = {
    "mount": (165, 40),
    "umount2": (166, 39),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "fanotify_init": (300, 262),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "acct": (163, 89),
}
NAMESPACES: dict[str, Numbers] = {"setns": (308, 268), "unshare": (272, 97)}
KERNEL: dict[str, Numbers] = {
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "personality": (135, 92),
    "vhangup": (153, 58),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
}
UNCOUNTED_MEMORY: dict[str, Numbers] = {
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
}
PEERS: dict[str, Numbers] = {
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "tkill": (200, 130),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
}
"""Calls that act on processes of the same uid; refused where no pid namespace hides those."""

_CLONE: Numbers = (56, 220)
_CLONE3: Numbers = (435, 435)
_SOCKET: Numbers = (41, 198)
_PRLIMIT: Numbers = (302, 261)
_KILL_CALL: Numbers = (62, 129)
_TGKILL: Numbers = (234, 131)


def supported(machine: str = "") -> bool:
    """Whether there is a filter for a machine, this one by default."""
    return (machine or platform.machine()) in _AUDIT_ARCH


@functools.cache
def build_filter(shared_pids: int | None = None, machine: str = "") -> bytes:
    """The filter as an array of `struct sock_filter`.

    Args:
        shared_pids: Where no pid namespace hides other processes, the program's own process id:
            signals may then go to it alone, and no socket may be opened at all.
        machine: As `platform.machine` names it; empty is this one.

    Raises:
        KeyError: There is no table for the machine.
    """
    machine = machine or platform.machine()
    column = _COLUMN[machine]
    code = [
        _statement(_LOAD, _ARCH_OFFSET),
        _jump(_JUMP_EQUAL, _AUDIT_ARCH[machine], 1, 0),
        _statement(_RETURN, _KILL),
        _statement(_LOAD, _NUMBER_OFFSET),
    ]
    if machine == "x86_64":  # the 32-bit pointer ABI has numbers of its own for the same calls
        code += [_jump(_JUMP_AT_LEAST, _X32_BIT, 0, 1), _statement(_RETURN, _KILL)]
    tables = [OTHER_PROCESSES, FILE_SYSTEMS, NAMESPACES, KERNEL, UNCOUNTED_MEMORY]
    if shared_pids is not None:
        tables.append(PEERS)
    code += _refuse((numbers[column] for table in tables for numbers in table.values()), "EPERM")
    # The C library falls back to clone, whose flags can be seen from here.
    code += _refuse([_CLONE3[column]], "ENOSYS")
    code += _refuse_unless(_CLONE[column], _jump(_JUMP_SET, _NAMESPACE_FLAGS, 0, 1))
    code += _refuse_unless(_PRLIMIT[column], _jump(_JUMP_EQUAL, 0, 1, 0))
    if shared_pids is None:
        code += _refuse_unless(_SOCKET[column], _jump(_JUMP_EQUAL, _AF_UNIX, 1, 0))
    else:  # a socket file of the machine is a way out; a socket pair is not
        code += _refuse([_SOCKET[column]], "EPERM")
        for call in (_KILL_CALL, _TGKILL):
            code += _refuse_unless(call[column], _jump(_JUMP_EQUAL, shared_pids, 1, 0))
    code.append(_statement(_RETURN, _ALLOW))
    return b"".join(code)


def _statement(operation: int, value: int) -> bytes:
    return struct.pack("=HBBI", operation, 0, 0, value)


def _jump(operation: int, value: int, if_true: int, if_false: int) -> bytes:
    return struct.pack("=HBBI", operation, if_true, if_false, value)


def _refuse(numbers: Iterable[int | None], error: str) -> list[bytes]:
    """Rules that answer calls with an error; the accumulator holds the call's number."""
    answer = _statement(_RETURN, _ERRNO | getattr(errno, error))
    code = []
    for number in numbers:
        if number is not None:
            code += [_jump(_JUMP_EQUAL, number, 0, 1), answer]
    return code


def _refuse_unless(number: int | None, test: bytes) -> list[bytes]:
    """A rule on a call's first argument: refused unless the test jumps over one instruction."""
    if number is None:
        return []
    refusal = _statement(_RETURN, _ERRNO | errno.EPERM)
    body = [_statement(_LOAD, _ARGUMENTS_OFFSET), test, refusal]
    return [
        _jump(_JUMP_EQUAL, number, 0, len(body)),
        *body,
        _statement(_LOAD, _NUMBER_OFFSET),
    ]
