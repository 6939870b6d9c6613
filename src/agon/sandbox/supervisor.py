"""One run of one program: start it confined, watch it, end all of it, report.

A supervisor is a process of its own, forked by the launcher for one run. It stands outside of the
program's namespaces, so that nothing the program does can stop its clock. The tree below it:

    namespaces    supervisor - init (1 of a pid namespace) - program - ...
    bubblewrap    supervisor - bwrap - bwrap (1 of a pid namespace) - program - ...
    limits        supervisor - program - ...

In each, the run is over when the program's main process ends, whatever else is running; and the
supervisor reports only when no process of the run is left.

What this module does not do: read the program's output, or judge it.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import shutil
import signal
import time
from dataclasses import dataclass

from agon.sandbox import bubblewrap, jail, linux, processes
from agon.sandbox.confine import Command, become
from agon.sandbox.kinds import Place
from agon.sandbox.limits import Ending, Limits, Status

TICK_SECONDS = 0.01
"""How often memory, processes and files are looked at."""

FOLDER_TICKS = 5
"""How many of them pass between two looks at a folder that no file system limits."""

INIT_PID = 1
"""The first process of a pid namespace, as it is seen inside."""

END_SECONDS = 10.0
"""Longest time for the kernel to end everything."""


@dataclass(slots=True)
class Run:
    """A run's parts, as the launcher received them.

    Attributes:
        control: Where the status goes; when it can be read, or is closed, the run is cancelled.
        descriptors: The program's 0, 1, 2 and further ones.
        files: Content of its code folder by name.
        main: The file that is run.
        limits: What it may take.
        folder: Where its code and box folders are, where no jail has them.
    """

    control: int
    descriptors: list[int]
    files: dict[str, bytes]
    main: str
    limits: Limits
    folder: str = ""


def supervise(run: Run, place: Place) -> None:
    """Do everything, report, and end the process."""
    status = Status(Ending.FAILURE, message="the supervisor ended early")
    try:
        linux.die_with_parent()
        linux.adopt_orphans()
        os.setsid()
        _make_folders(run, place)
        status = _Watch(run, place).watch()
    except BaseException as error:
        processes.end_descendants(END_SECONDS)
        status = Status(Ending.FAILURE, message=f"{type(error).__name__}: {error}")
    finally:
        if run.folder:
            _remove(run.folder)
        with contextlib.suppress(OSError):  # nobody may be listening any more
            os.write(run.control, status.to_json().encode())
        os._exit(0)


class _Watch:
    """The supervisor's view of its run."""

    def __init__(self, run: Run, place: Place) -> None:
        self._run = run
        self._place = place
        self._errors, errors = os.pipe()
        self._report, report = os.pipe()
        if place.kind == "namespaces":
            linux.unshare(linux.CLONE_NEWPID)
        self._begin = time.monotonic()
        own = os.getpid()
        self._child = os.fork()
        if self._child == 0:
            try:
                os.close(self._report)
                os.close(self._errors)
                if place.kind == "namespaces":
                    _become_init(run, place, report, errors)
                else:
                    _become_program(run, place, own, report, errors)
            finally:
                os._exit(1)
        for descriptor in (errors, report, *run.descriptors):
            os.close(descriptor)
        self._ticks = 0

    def watch(self) -> Status:
        """Wait for an end of any kind, and make it one."""
        ending = self._wait()
        wall = time.monotonic() - self._begin
        seen, status = 0.0, None
        if ending is Ending.EXIT:
            status = os.waitpid(self._child, 0)[1]
        else:  # before the kill: what init has not reaped when it dies is counted nowhere
            seen = processes.cpu_seconds(processes.descendants(os.getpid()))
            os.kill(self._child, signal.SIGKILL)
        if not processes.end_descendants(END_SECONDS):
            return Status(Ending.FAILURE, message="processes are left that cannot be killed")
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = max(seen, used.ru_utime + used.ru_stime)
        if message := os.read(self._errors, 4096).decode(errors="replace"):
            return Status(Ending.FAILURE, message=message)
        if status is None:
            return Status(ending, wall=wall, cpu=cpu)
        code = self._exit_code(status)
        if code is None:
            return Status(Ending.FAILURE, message=f"the program's keeper ended ({status})")
        return Status(ending, code=code, wall=wall, cpu=cpu)

    def _wait(self) -> Ending:
        """Until the run is over or has to be ended."""
        child = os.pidfd_open(self._child)
        poll = select.poll()
        poll.register(child, select.POLLIN)
        poll.register(self._run.control, select.POLLIN)
        end = self._begin + self._run.limits.seconds
        while True:
            left = min(end - time.monotonic(), TICK_SECONDS)
            ready = {descriptor for descriptor, _ in poll.poll(max(0.0, left) * 1000)}
            if child in ready:
                os.close(child)
                return Ending.EXIT
            if self._run.control in ready:
                return Ending.CANCELLED
            if time.monotonic() >= end:
                return Ending.TIME
            if (excess := self._excess()) is not None:
                return excess

    def _excess(self) -> Ending | None:
        """Which limit is exceeded now."""
        limits = self._run.limits
        pids = processes.descendants(os.getpid())
        # In a pid namespace of ours the first is init; bubblewrap's two are a few hundred KiB.
        pids = [pid for pid in pids if pid != self._child or self._place.kind == "limits"]
        extra = 1 if self._place.kind == "bubblewrap" else 0
        used = processes.usage(pids)
        if used.threads > limits.processes + extra:
            return Ending.PROCESSES
        most = limits.memory_mib * 2**20
        if used.memory > most and processes.shared_memory(pids) > most:
            return Ending.MEMORY
        self._ticks += 1
        if self._run.folder and self._ticks % FOLDER_TICKS == 0:
            size, count = folder_size(self._run.folder, jail.BOX_FILES)
            if size > limits.file_mib * 2**20 or count > jail.BOX_FILES:
                return Ending.FILES
        return None

    def _exit_code(self, status: int) -> int | None:
        """The main process's exit status, or minus its signal; None when its keeper failed."""
        if self._place.kind == "limits":
            return os.waitstatus_to_exitcode(status)
        report = os.read(self._report, 65536).decode(errors="replace")
        if self._place.kind == "namespaces":
            return os.waitstatus_to_exitcode(int(report)) if report else None
        if "exit-code" not in report:  # bubblewrap writes it when the program has ended
            return None
        code = os.waitstatus_to_exitcode(status)
        return 128 - code if code > 128 else code


def _become_init(run: Run, place: Place, report: int, errors: int) -> None:
    """Process 1 of a pid namespace: mount, start the program, reap, report, end.

    When it ends the kernel kills everything else in the namespace.
    """
    try:
        linux.die_with_parent()
        if _unread(report):  # the supervisor died before the line above
            return
        linux.hide_from_peers()
        linux.unshare(linux.CLONE_NEWNS)
        jail.fill(place.root, run.limits.file_mib, place.owner, run.files)
        jail.enter(place.root)
        program = os.fork()
        if program == 0:
            arguments = python_command(place.layout.interpreter, f"{jail.CODE}/{run.main}")
            most = place.most_tasks(run.limits)
            command = Command(
                arguments=arguments,
                environment=jail.environment(place.layout.interpreter),
                folder=jail.BOX,
                descriptors=run.descriptors,
                owner=place.owner,
                most_tasks=most,
                parent=INIT_PID,
                shared_pids=False,
                confined=True,
            )
            become(command, run.limits, errors)
    except BaseException as error:
        os.write(errors, f"{type(error).__name__}: {error}".encode()[:2000])
        return
    for descriptor in (errors, run.control, *run.descriptors):
        os.close(descriptor)
    while (ended := os.wait())[0] != program:
        pass
    os.write(report, str(ended[1]).encode())


def _become_program(run: Run, place: Place, parent: int, report: int, errors: int) -> None:
    """The program itself, or bubblewrap that runs it."""
    python = python_command(place.layout.interpreter, f"{run.folder}{jail.CODE}/{run.main}")
    descriptors = run.descriptors
    wrapped = place.kind == "bubblewrap"
    if wrapped:
        arguments, further = bubblewrap.command_line(
            place, run.limits, run.files, len(descriptors), report
        )
        python, descriptors = [*arguments, *python], [*descriptors, *further]
    box = run.folder + jail.BOX
    command = Command(
        arguments=python,
        environment=jail.environment(place.layout.interpreter, box),
        folder=None if wrapped else box,
        descriptors=descriptors,
        owner=place.owner,
        most_tasks=place.most_tasks(run.limits),
        parent=parent,
        shared_pids=not wrapped,
        confined=not wrapped,
    )
    become(command, run.limits, errors)


def python_command(interpreter: str, file: str) -> list[str]:
    """How a program is run: as `python3 FILE`, without the user's own packages."""
    return [interpreter, "-s", "-B", file]


def folder_size(folder: str, most: int) -> tuple[int, int]:
    """Bytes that a folder's files take on the disk, and their count; stops counting at `most`."""
    size = count = 0
    waiting = [folder]
    while waiting and count <= most:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    count += 1
                    size += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except OSError:  # gone, or closed to us by the program
            continue
    return size, count


def _make_folders(run: Run, place: Place) -> None:
    """The code and box folders of a run that has no jail."""
    if not run.folder:
        return
    box, code = run.folder + jail.BOX, run.folder + jail.CODE
    for folder, mode in ((run.folder, 0o711), (code, 0o755), (box, 0o700)):
        os.mkdir(folder)
        os.chmod(folder, mode)
    jail.write_files(code, run.files)
    if place.owner is not None:
        os.chown(box, *place.owner)


def _remove(folder: str) -> None:
    """Delete a folder, also where the program has taken away our rights to parts of it."""
    for inner, folders, _ in os.walk(folder):
        for name in folders:  # before the walk goes into them
            if not os.path.islink(f"{inner}/{name}"):
                with contextlib.suppress(OSError):
                    os.chmod(f"{inner}/{name}", 0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _unread(descriptor: int) -> bool:
    """Whether a pipe's reading end is closed."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return bool(poll.poll(0))
