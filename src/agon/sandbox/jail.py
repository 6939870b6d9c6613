"""The file system that a program sees: what Python needs, read-only, and a folder of its own.

    /usr /bin /lib ...      the system's programs and libraries
    PREFIX/lib              the interpreter's standard library, where it lies outside /usr;
                            installed packages are covered by empty folders
    /dev                    null, zero, full, random, urandom; shm points to /box
    /etc                    passwd with one entry, ld.so.cache
    /code                   the program
    /box                    new, empty, limited in size; home, /tmp and current folder

No /proc, no /sys, no /home, nothing else of the machine.

What this module does not do: enter namespaces, or start anything.
"""

from __future__ import annotations

import glob
import os
import sys
import sysconfig
from dataclasses import dataclass

from agon.sandbox import linux

BOX, CODE = "/box", "/code"
BOX_FILES = 16_384
DEVICES = ("null", "zero", "full", "random", "urandom")
_SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
_PACKAGES = ("lib*/python3*/site-packages", "lib*/python3*/dist-packages", "lib/python3/*-packages")
_PASSWD = "box:x:1000:1000::/box:/bin/sh\n"


@dataclass(frozen=True, slots=True)
class Layout:
    """What of the machine a program may see.

    Attributes:
        interpreter: The Python that programs run with.
        shown: Files and folders shown where they are, read-only.
        links: Symbolic links of the machine's root, as (name, target).
        covered: Folders that are shown empty.
    """

    interpreter: str
    shown: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    covered: tuple[str, ...]


def base_interpreter() -> str:
    """The Python under any virtual environment, as a path without symbolic links."""
    return os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)


def describe_machine(interpreter: str = "") -> Layout:
    """The layout for an interpreter, the running one's base by default."""
    interpreter = interpreter or base_interpreter()
    prefix = os.path.realpath(sys.base_prefix)
    links, shown = [], []
    for name in _SYSTEM:
        path = f"/{name}"
        if os.path.islink(path):
            links.append((path, os.readlink(path)))
        elif os.path.isdir(path):
            shown.append(path)
    own = [interpreter, *(f"{prefix}/{lib}" for lib in ("lib", "lib64")), "/nix/store"]
    shown += [path for path in own if os.path.exists(path) and not _inside(path, shown)]
    if os.path.exists("/etc/ld.so.cache"):
        shown.append("/etc/ld.so.cache")
    covered = [
        folder
        for root in dict.fromkeys((prefix, "/usr", "/usr/local"))
        for pattern in _PACKAGES
        for folder in glob.glob(f"{root}/{pattern}")
        if os.path.isdir(folder) and not os.path.islink(folder)
    ]
    return Layout(interpreter, tuple(shown), tuple(links), tuple(dict.fromkeys(covered)))


def environment(interpreter: str, box: str = BOX) -> dict[str, str]:
    """A program's whole environment."""
    values = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": box,
        "TMPDIR": box,
        "LANG": "C.UTF-8",
        "PYTHONIOENCODING": "utf-8",
        "PYTHONHASHSEED": "0",  # the same program has the same verdict each time
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONNOUSERSITE": "1",
        "MALLOC_ARENA_MAX": "2",  # glibc reserves 64 MiB of address space for each arena
        "OMP_NUM_THREADS": "1",
    }
    prefix = os.path.realpath(sys.base_prefix)
    own = interpreter == base_interpreter()
    if own and sysconfig.get_config_var("Py_ENABLE_SHARED") and prefix != "/usr":
        values["LD_LIBRARY_PATH"] = f"{prefix}/lib"
    return values


def build(root: str, layout: Layout) -> None:
    """Mount the part that all runs share at a folder that is a mount point already.

    Raises:
        OSError: The kernel refuses a mount.
    """
    for folder in (BOX, CODE, "/dev", "/etc", "/old"):
        os.mkdir(root + folder)
    for name, target in (*layout.links, ("/tmp", BOX), ("/dev/shm", BOX)):
        os.symlink(target, root + name)
    for path in (*layout.shown, *(f"/dev/{name}" for name in DEVICES)):
        _show(path, root + path)
    with open(f"{root}/etc/passwd", "w") as file:
        file.write(_PASSWD)
    for folder in layout.covered:
        linux.mount("none", root + folder, "tmpfs", data="size=4k,mode=755")
    for point in linux.mounts_below(root):
        linux.make_read_only(point)


def fill(root: str, file_mib: int, owner: tuple[int, int] | None, files: dict[str, bytes]) -> None:
    """Mount the part that one run has for itself.

    Args:
        root: A folder that `build` has filled.
        file_mib: Most that may be written to the box, MiB.
        owner: Uid and gid that the box belongs to; None is this process's own.
        files: Content of /code by file name.

    Raises:
        OSError: The kernel refuses a mount.
    """
    box, code = root + BOX, root + CODE
    size = f"size={file_mib}m,nr_inodes={BOX_FILES},mode=700"
    linux.mount("none", box, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, size)
    if owner is not None:
        os.chown(box, *owner)
    linux.mount("none", code, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=755")
    write_files(code, files)
    linux.make_read_only(code)


def write_files(folder: str, files: dict[str, bytes]) -> None:
    """Write a program's files, with the folders of their names, where everyone may read them."""
    for name, content in files.items():
        parent = os.path.dirname(name)
        for depth in range(1, len(parent.split("/")) + 1) if parent else ():
            inner = "/".join([folder, *parent.split("/")[:depth]])
            if not os.path.isdir(inner):
                os.mkdir(inner)
                os.chmod(inner, 0o755)
        with open(f"{folder}/{name}", "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), 0o444)


def enter(root: str) -> None:
    """Make a folder the root of this mount namespace and let go of everything else.

    Raises:
        OSError: The kernel refuses.
    """
    linux.pivot_root(root, f"{root}/old")
    os.chdir("/")
    linux.unmount("/old")


def _show(source: str, target: str) -> None:
    """Bind a file or folder, below folders that are made for it."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    linux.mount(source, target, flags=linux.MS_BIND | linux.MS_REC)


def _inside(path: str, folders: list[str]) -> bool:
    return any(path == folder or path.startswith(folder + "/") for folder in folders)
