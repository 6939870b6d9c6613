"""The filter's answers, computed by an interpreter of its instructions, for both machines."""

from __future__ import annotations

import errno
import struct

import pytest

from agon.sandbox import seccomp

ARCH = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
COLUMN = {"x86_64": 0, "aarch64": 1}
ALLOW, KILL = 0x7FFF_0000, 0x8000_0000
EPERM, ENOSYS = 0x0005_0000 | errno.EPERM, 0x0005_0000 | errno.ENOSYS


def answer(code: bytes, arch: int, number: int, argument: int = 0) -> int:
    """What the kernel would do with a call; every jump must stay inside the filter."""
    data = struct.pack("=IIQ6Q", number, arch, 0, argument, 0, 0, 0, 0, 0)
    instructions = [struct.unpack_from("=HBBI", code, at) for at in range(0, len(code), 8)]
    accumulator = place = 0
    while True:
        operation, if_true, if_false, value = instructions[place]
        place += 1
        if operation == 0x06:
            return int(value)
        if operation == 0x20:
            accumulator = struct.unpack_from("=I", data, value)[0]
            continue
        holds = {
            0x15: accumulator == value,
            0x35: accumulator >= value,
            0x45: bool(accumulator & value),
        }[operation]
        place += if_true if holds else if_false


@pytest.fixture(params=["x86_64", "aarch64"])
def machine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_calls_of_another_architecture_end_the_process(machine: str) -> None:
    code = seccomp.build_filter(machine=machine)
    for arch in (ARCH["x86_64"], ARCH["aarch64"], 0x4000_0003):
        if arch != ARCH[machine]:
            assert answer(code, arch, 0) == KILL


def test_calls_of_the_other_pointer_size_end_the_process() -> None:
    code = seccomp.build_filter(machine="x86_64")
    assert answer(code, ARCH["x86_64"], 0x4000_0000 | 101) == KILL


def test_every_named_call_is_refused_and_every_other_allowed(machine: str) -> None:
    code = seccomp.build_filter(machine=machine)
    column = COLUMN[machine]
    tables = (
        seccomp.OTHER_PROCESSES,
        seccomp.FILE_SYSTEMS,
        seccomp.NAMESPACES,
        seccomp.KERNEL,
        seccomp.UNCOUNTED_MEMORY,
    )
    named = {numbers[column] for table in tables for numbers in table.values()} - {None}
    special = {(56, 220)[column], 435, (41, 198)[column], (302, 261)[column]}
    for number in range(600):
        expected = EPERM if number in named else ALLOW
        if number not in special:
            assert answer(code, ARCH[machine], number) == expected, number
    assert answer(code, ARCH[machine], 435) == ENOSYS


def test_arguments_decide_where_a_call_has_a_harmless_form(machine: str) -> None:
    code = seccomp.build_filter(machine=machine)
    column = COLUMN[machine]

    def says(numbers: tuple[int, int], argument: int) -> int:
        return answer(code, ARCH[machine], numbers[column], argument)

    clone, socket, prlimit = (56, 220), (41, 198), (302, 261)
    assert says(clone, 0x003D_0F00) == ALLOW  # a thread
    assert says(clone, 0x0120_0011) == ALLOW  # a fork
    for flag in (0x2_0000, 0x200_0000, 0x400_0000, 0x800_0000, 1 << 28, 1 << 29, 1 << 30):
        assert says(clone, flag | 17) == EPERM
    assert says(socket, 1) == ALLOW
    assert says(socket, 2) == says(socket, 10) == says(socket, 16) == EPERM
    assert says(prlimit, 0) == ALLOW
    assert says(prlimit, 1) == EPERM


def test_where_processes_are_shared_signals_reach_the_program_alone(machine: str) -> None:
    shared = seccomp.build_filter(shared_pids=4321, machine=machine)
    alone = seccomp.build_filter(machine=machine)
    column = COLUMN[machine]
    for call in ((62, 129), (234, 131)):
        number = call[column]
        assert answer(shared, ARCH[machine], number, 4321) == ALLOW
        for other in (0, 1, 4322, 0xFFFF_FFFF):
            assert answer(shared, ARCH[machine], number, other) == EPERM
            assert answer(alone, ARCH[machine], number, other) == ALLOW
    assert answer(shared, ARCH[machine], (41, 198)[column], 1) == EPERM


def test_a_machine_without_a_table_is_said_to_have_no_filter() -> None:
    assert seccomp.supported("x86_64")
    assert not seccomp.supported("riscv64")
