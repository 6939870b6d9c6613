"""The command line that runs a program in bubblewrap with the jail's layout.

Needs bubblewrap 0.5 or newer, for the size limit of the box.
"""

from __future__ import annotations

import os

from agon.sandbox import jail, seccomp
from agon.sandbox.kinds import INSIDE_ID, Place
from agon.sandbox.limits import Limits


def command_line(
    place: Place, limits: Limits, files: dict[str, bytes], first_free: int, report: int
) -> tuple[list[str], list[int]]:
    """The program bwrap and its arguments, up to the program's own.

    Args:
        place: From `kinds.prepare`.
        limits: What the program may take.
        files: Content of its code folder by name.
        first_free: Number that the first of the returned descriptors will have in bwrap.
        report: Where bwrap writes that the program has begun and ended.

    Returns:
        The arguments, and the descriptors that they name, in order.
    """
    descriptors: list[int] = []

    def number(descriptor: int) -> str:
        descriptors.append(descriptor)
        return str(first_free + len(descriptors) - 1)

    arguments = [place.bwrap, "--unshare-all", "--die-with-parent", "--new-session"]
    arguments += ["--uid", str(INSIDE_ID), "--gid", str(INSIDE_ID), "--cap-drop", "ALL"]
    arguments += ["--json-status-fd", number(report)]
    if seccomp.supported():
        arguments += ["--seccomp", number(_readable(seccomp.build_filter()))]
    arguments += _file_system(place)
    for name, content in files.items():
        arguments += ["--ro-bind-data", number(_readable(content)), f"{jail.CODE}/{name}"]
    arguments += ["--size", str(limits.file_mib * 2**20), "--tmpfs", jail.BOX]
    arguments += ["--remount-ro", jail.CODE, "--remount-ro", "/"]  # not what is mounted below
    return [*arguments, "--chdir", jail.BOX, "--"], descriptors


def _file_system(place: Place) -> list[str]:
    arguments: list[str] = []
    for path in place.layout.shown:
        arguments += ["--ro-bind", place.root + path, path]
    for name, target in place.layout.links:
        arguments += ["--symlink", target, name]
    for folder in place.layout.covered:
        arguments += ["--size", "4096", "--tmpfs", folder, "--remount-ro", folder]
    arguments += ["--dev", "/dev", "--remount-ro", "/dev", "--symlink", jail.BOX, "/tmp"]
    arguments += ["--dir", "/etc", "--size", "1048576", "--tmpfs", jail.CODE]
    return arguments


def _readable(content: bytes) -> int:
    """A descriptor that the content can be read from."""
    descriptor = os.memfd_create("agon")
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
