"""What a program in the sandbox can see, do and take; each property in every kind of isolation."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agon.sandbox import Ending, Limits, Result, Sandbox, SandboxError, processes, seccomp

LIMITS = Limits(seconds=20.0, memory_mib=256, processes=16, output_kib=256, file_mib=8)
SHORT = Limits(seconds=0.6, memory_mib=256, processes=16, output_kib=256, file_mib=8)


def run(sandbox: Sandbox, program: str, stdin: bytes = b"", limits: Limits = LIMITS) -> Result:
    return sandbox.run(program.encode(), stdin, limits)


def printed(sandbox: Sandbox, program: str, stdin: bytes = b"") -> str:
    result = run(sandbox, program, stdin)
    assert (result.status.ending, result.status.code) == (Ending.EXIT, 0), result
    return result.output.decode().strip()


def until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def command_lines() -> list[bytes]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(entry.read_bytes())
    return found


def walled(sandbox: Sandbox) -> None:
    if sandbox.kind == "limits":
        pytest.skip("limits alone hide no part of the machine")


# What a program has


def test_a_program_reads_its_input_and_its_output_and_exit_status_are_known(
    sandbox: Sandbox,
) -> None:
    program = "import sys; print(input()[::-1]); print('e', file=sys.stderr); sys.exit(5)"
    result = run(sandbox, program, "αβγ\n".encode())
    assert result.output.decode() == "γβα\n"
    assert result.error_tail == b"e\n"
    assert (result.status.ending, result.status.code) == (Ending.EXIT, 5)


def test_ten_megabytes_of_input_arrive_whole(sandbox: Sandbox) -> None:
    assert printed(sandbox, "import sys; print(len(sys.stdin.read()))", b"x" * 10**7) == "10000000"


def test_ten_megabytes_that_nobody_reads_block_nothing(sandbox: Sandbox) -> None:
    assert printed(sandbox, "print(7)", b"x" * 10**7) == "7"


def test_the_input_cannot_be_written(sandbox: Sandbox) -> None:
    program = "import os\ntry: os.write(0, b'x')\nexcept OSError: print('refused')"
    assert printed(sandbox, program, b"abc") == "refused"


def test_every_run_begins_in_a_new_empty_folder_that_is_its_home(sandbox: Sandbox) -> None:
    program = (
        "import os, tempfile\n"
        "here = os.getcwd()\n"
        "assert os.environ['HOME'] == os.environ['TMPDIR'] == tempfile.gettempdir() == here\n"
        "print(os.listdir('.'))\n"
        "open('left', 'w').write('x'); os.mkdir('closed'); os.chmod('closed', 0)"
    )
    assert [printed(sandbox, program) for _ in range(2)] == ["[]", "[]"]


def test_the_environment_is_fixed_whatever_stands_in_ours(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "planted")
    program = "import os; print(sorted(os.environ)); print('planted' in str(os.environ))"
    text = printed(sandbox, program)
    assert text.endswith("False")
    assert "'HOME', 'LANG'" in text
    assert "PYTHONPATH" not in text


def test_all_descriptors_but_the_three_are_closed(sandbox: Sandbox) -> None:
    program = (
        "import os\n"
        "for number in range(3, 256):\n"
        "    try: os.fstat(number)\n"
        "    except OSError: continue\n"
        "    print(number)"
    )
    assert printed(sandbox, program) == ""


def test_the_same_program_hashes_alike_each_time(sandbox: Sandbox) -> None:
    assert len({printed(sandbox, "print(hash('agon'))") for _ in range(3)}) == 1


# What it may take


@pytest.mark.parametrize(
    "program",
    [
        "while True: pass",
        "import time; time.sleep(600)",
        "import os, signal\n"
        "for n in range(1, 64):\n"
        "    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\n"
        "while True: signal.pause()",
        "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    ],
    ids=["busy", "asleep", "deaf", "stopped"],
)
def test_wall_time_ends_a_program_whatever_it_does(sandbox: Sandbox, program: str) -> None:
    status = run(sandbox, program, limits=SHORT).status
    assert status.ending is Ending.TIME
    assert status.wall >= SHORT.seconds


def test_cpu_time_tells_a_busy_program_from_a_sleeping_one(sandbox: Sandbox) -> None:
    busy = run(sandbox, "while True: pass", limits=SHORT).status
    idle = run(sandbox, "import time; time.sleep(600)", limits=SHORT).status
    assert busy.cpu > 2 * idle.cpu


def test_one_process_cannot_take_more_memory_than_allowed(sandbox: Sandbox) -> None:
    result = run(sandbox, "x = bytearray(400 << 20); print(len(x))")
    assert b"MemoryError" in result.error_tail
    assert result.status.code == 1


def test_the_memory_of_all_processes_counts_together(sandbox: Sandbox) -> None:
    program = (
        "import os, time\n"
        "for _ in range(5):\n"
        "    if os.fork() == 0:\n"
        "        x = b'x' * (100 << 20)\n"  # each within the limit, five beyond it
        "        time.sleep(60)\n"
        "        os._exit(0)\n"
        "time.sleep(60)"
    )
    assert run(sandbox, program).status.ending is Ending.MEMORY


def test_memory_that_processes_share_counts_once(sandbox: Sandbox) -> None:
    program = (
        "import os, time\n"
        "x = b'x' * (100 << 20)\n"
        "children = []\n"
        "for _ in range(5):\n"
        "    children.append(os.fork())\n"
        "    if children[-1] == 0:\n"
        "        time.sleep(0.3)\n"
        "        os._exit(0)\n"
        "for child in children: os.waitpid(child, 0)\n"
        "print(len(x))"
    )
    assert printed(sandbox, program) == str(100 << 20)


def test_a_flood_of_processes_is_stopped(sandbox: Sandbox) -> None:
    result = run(sandbox, "import os, time\nfor _ in range(9): os.fork()\ntime.sleep(30)")
    refused = result.status.ending is Ending.EXIT and result.status.code == 1
    assert refused or result.status.ending is Ending.PROCESSES


def test_threads_count_as_processes(sandbox: Sandbox) -> None:
    program = (
        "import threading, time\n"
        "threading.stack_size(1 << 16)\n"
        "for _ in range(100): threading.Thread(target=time.sleep, args=(30,)).start()"
    )
    result = run(sandbox, program)
    refused = b"can't start new thread" in result.error_tail
    assert refused or result.status.ending is Ending.PROCESSES


def test_a_program_may_use_some_processes_and_threads(sandbox: Sandbox) -> None:
    program = (
        "import subprocess, sys, threading\n"
        "threads = [threading.Thread(target=lambda: None) for _ in range(4)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "child = [sys.executable, '-S', '-c', 'print(6 * 7)']\n"
        "print(subprocess.run(child, capture_output=True, text=True).stdout)"
    )
    assert printed(sandbox, program) == "42"


def test_output_beyond_its_limit_ends_the_program_and_is_not_kept(sandbox: Sandbox) -> None:
    result = run(sandbox, "while True: print('x' * 1000)")
    assert result.status.ending is Ending.OUTPUT
    assert len(result.output) < 2 * LIMITS.output_kib * 1024


def test_errors_are_drained_and_only_their_end_is_kept(sandbox: Sandbox) -> None:
    program = "import sys\nfor n in range(200_000): print('warning', n, file=sys.stderr)\nprint(7)"
    result = run(sandbox, program)
    assert result.output == b"7\n"
    assert result.error_tail.endswith(b"warning 199999\n")
    assert len(result.error_tail) <= 4096


@pytest.mark.parametrize("files", [1, 40])
def test_the_folder_holds_no_more_than_allowed(sandbox: Sandbox, files: int) -> None:
    each = 40 // files
    program = (
        "import time\n"
        f"for n in range({files}):\n"
        "    with open(f'file{n}', 'wb', buffering=0) as file:\n"
        f"        for _ in range({each}): assert file.write(b'x' * (1 << 20)) == 1 << 20\n"
        "time.sleep(5)"
    )
    status = run(sandbox, program).status
    assert status.ending is Ending.FILES or (status.ending is Ending.EXIT and status.code == 1)


# What it cannot do


def test_a_signal_to_everyone_and_to_its_group_reaches_nobody_else(sandbox: Sandbox) -> None:
    program = (
        "import os, signal\n"
        "for target in (-1, 0, 1, os.getppid()):\n"
        "    try: os.kill(target, signal.SIGKILL)\n"
        "    except OSError: pass\n"
        "print('still here')"
    )
    status = run(sandbox, program).status
    assert status.ending is Ending.EXIT  # a supervisor that died of it would send no status
    assert printed(sandbox, "print(7)") == "7"


def test_it_cannot_signal_a_process_of_ours(sandbox: Sandbox) -> None:
    with subprocess.Popen(["sleep", "600"]) as victim:
        try:
            program = f"import os\ntry: os.kill({victim.pid}, 9)\nexcept OSError: print('refused')"
            assert printed(sandbox, program) == "refused"
            assert victim.poll() is None
        finally:
            victim.kill()


def test_it_has_no_privilege_and_can_gain_none(sandbox: Sandbox) -> None:
    program = (
        "import ctypes, os\n"
        "prctl = ctypes.CDLL(None).prctl\n"
        "print(os.getuid() != 0, os.geteuid() != 0, os.getgroups() in ([], [os.getgid()]))\n"
        "print('no new privileges', prctl(39, 0, 0, 0, 0))\n"
        "print('filter', prctl(21, 0, 0, 0, 0))\n"
        "print('bounding set', [c for c in range(40) if prctl(23, c, 0, 0, 0) == 1])\n"
    )
    lines = printed(sandbox, program).splitlines()
    assert lines[1:3] == ["no new privileges 1", "filter 2"]
    if os.geteuid() == 0:
        assert lines[0] == "True True True"
        assert lines[3] == "bounding set []"


REFUSED_CALLS = (
    "libc.ptrace(0, 0, 0, 0)",
    "libc.mount(b'none', b'/tmp', b'tmpfs', 0, 0)",
    "libc.umount2(b'/', 2)",
    "libc.unshare(0x10000000)",
    "libc.setns(0, 0)",
    "libc.chroot(b'.')",
    "libc.personality(0x0040000)",
    "libc.memfd_create(b'hoard', 0)",
    "libc.shmget(0, 4096, 0o1600)",
    "libc.socket(2, 1, 0)",
    "libc.socket(10, 1, 0)",
    "libc.socket(16, 3, 0)",
    "libc.prlimit(1, 7, 0, 0)",
    "libc.process_vm_readv(1, 0, 0, 0, 0, 0)",
    "libc.syscall(number['bpf'], 0, 0, 0)",
    "libc.syscall(number['keyctl'], 0, 0, 0)",
    "libc.syscall(number['perf_event_open'], 0, 0, 0, 0, 0)",
    "libc.syscall(number['io_uring_setup'], 1, 0)",
    "libc.syscall(number['userfaultfd'], 0)",
    "libc.syscall(number['clone'], 0x10000000 | 17, 0, 0, 0, 0)",
)


def test_calls_that_reach_out_are_refused(sandbox: Sandbox) -> None:
    column = 0 if os.uname().machine == "x86_64" else 1
    numbers = {name: seccomp.KERNEL[name][column] for name in seccomp.KERNEL} | {
        "clone": (56, 220)[column]
    }
    program = (
        f"import ctypes, errno\nlibc = ctypes.CDLL(None, use_errno=True)\nnumber = {numbers}\n"
        f"for call in {REFUSED_CALLS}:\n"
        "    ctypes.set_errno(0)\n"
        "    answer = eval(call), errno.errorcode.get(ctypes.get_errno())\n"
        "    if answer != (-1, 'EPERM'): print(call, answer)"
    )
    assert printed(sandbox, program) == ""


def test_the_filter_lets_processes_be_made_where_the_newer_call_is_tried_first(
    sandbox: Sandbox,
) -> None:
    program = (
        "import ctypes, errno\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "print(libc.syscall(435, 0, 0), errno.errorcode[ctypes.get_errno()])"
    )
    assert printed(sandbox, program) == "-1 ENOSYS"


def test_nothing_but_the_folder_can_be_written(sandbox: Sandbox) -> None:
    program = (
        "import os\n"
        "for folder in ('/', '/usr', '/etc', '/dev', '/usr/lib', '/bin', __file__ + '/..'):\n"
        "    try: open(os.path.join(os.path.realpath(folder), 'new'), 'w')\n"
        "    except OSError: continue\n"
        "    print(folder)"
    )
    if sandbox.kind == "limits" and os.geteuid() != 0:
        program = program.replace(", __file__ + '/..'", "")
    assert printed(sandbox, program) == ""


def test_the_rest_of_the_machine_is_not_there(sandbox: Sandbox, tmp_path: Path) -> None:
    walled(sandbox)
    secret = tmp_path / "expected_output.txt"
    secret.write_text("7")
    home = Path.home()
    paths = ["/proc", "/sys", "/home", "/var", "/run", "/etc/shadow", "/etc/hostname", "/boot"]
    paths += [
        str(secret),
        str(home / ".ssh"),
        str(Path(__file__).resolve()),
        "/dev/sda",
        "/dev/mem",
    ]
    program = f"import os; print([path for path in {paths} if os.path.exists(path)])"
    assert printed(sandbox, program) == "[]"


def test_the_old_root_is_gone(sandbox: Sandbox) -> None:
    walled(sandbox)
    program = "import os; print(os.listdir('/old') if os.path.exists('/old') else [])"
    assert printed(sandbox, program) == "[]"


def test_only_the_standard_library_can_be_imported(sandbox: Sandbox) -> None:
    walled(sandbox)
    program = (
        "import importlib.util, json, sqlite3, decimal\n"
        "print([n for n in ('pip', 'agon', 'pytest', 'numpy') if importlib.util.find_spec(n)])"
    )
    assert printed(sandbox, program) == "[]"


# What it leaves behind


@pytest.mark.parametrize(
    "ending", ["pass", "import time; time.sleep(600)", "os.kill(os.getpid(), 9)"]
)
def test_the_last_grandchild_is_gone_when_the_result_is_there(
    sandbox: Sandbox, ending: str
) -> None:
    mark = f"{os.getpid()}.0625"
    program = (
        "import os, subprocess\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        f"        subprocess.Popen(['sleep', '{mark}'])\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "print('begun', flush=True)\n"
        f"{ending}"
    )
    result = run(sandbox, program, limits=Limits(seconds=1.0, memory_mib=256))
    assert result.output == b"begun\n"
    assert not [line for line in command_lines() if mark.encode() in line]
    assert until(lambda: processes.descendants(sandbox.launcher) == [])


def test_a_child_that_holds_the_output_does_not_delay_the_result(sandbox: Sandbox) -> None:
    program = "import os, time\nif os.fork() == 0: time.sleep(300)\nprint(8)"
    result = run(sandbox, program, limits=Limits(seconds=60.0))
    assert result.output == b"8\n"
    assert result.status.wall < 30


def test_output_after_the_main_process_has_ended_does_not_count(sandbox: Sandbox) -> None:
    program = "import os, time\nif os.fork() == 0:\n    time.sleep(1)\n    print(7, flush=True)"
    assert run(sandbox, program).output == b""


def test_many_runs_leave_no_descriptor_process_or_folder(sandbox: Sandbox) -> None:
    def state() -> tuple[int, int, list[str]]:
        folders = [str(path) for path in Path("/tmp").glob("agon-sandbox-*/*")]
        theirs = 0
        with contextlib.suppress(PermissionError):  # a launcher that hides from its own uid
            theirs = len(list(Path(f"/proc/{sandbox.launcher}/fd").iterdir()))
        return len(list(Path("/proc/self/fd").iterdir())), theirs, folders

    printed(sandbox, "print(1)")
    before = state()
    for _ in range(30):
        printed(sandbox, "open('f', 'w').write('x')")
    assert state() == before
    assert until(lambda: processes.descendants(sandbox.launcher) == [])


def test_when_our_process_is_killed_everything_ends(sandbox: Sandbox) -> None:
    mark = f"{os.getpid()}.03125"
    inner = (
        "import subprocess, time\n"
        f"subprocess.Popen(['sleep', '{mark}'], start_new_session=True)\ntime.sleep(600)"
    )
    outer = (
        "import sys\nfrom agon.sandbox import Limits, Sandbox\n"
        f"sandbox = Sandbox({sandbox.kind!r})\nprint(sandbox.launcher, flush=True)\n"
        f"sandbox.run({inner.encode()!r}, b'', Limits(seconds=600.0))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", outer]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        launcher = int(process.stdout.readline())
        assert until(lambda: any(mark.encode() in line for line in command_lines()))
        process.kill()
    assert until(lambda: not any(mark.encode() in line for line in command_lines()))
    assert until(lambda: not Path(f"/proc/{launcher}").exists())


def test_closing_ends_the_launcher_and_removes_its_folder(sandbox: Sandbox) -> None:
    folders = set(Path("/tmp").glob("agon-sandbox-*"))
    with Sandbox(sandbox.kind) as other:
        assert other.run(b"print(1)", b"", LIMITS).output == b"1\n"
        launcher = other.launcher
    assert not Path(f"/proc/{launcher}").exists()
    assert set(Path("/tmp").glob("agon-sandbox-*")) == folders


def test_a_launcher_that_is_gone_is_an_error_and_not_a_verdict(sandbox: Sandbox) -> None:
    with Sandbox(sandbox.kind) as other:
        os.kill(other.launcher, signal.SIGKILL)
        with pytest.raises(SandboxError):
            other.run(b"print(1)", b"", LIMITS)


def test_a_supervisor_that_is_killed_is_an_error_and_closing_ends_what_it_left(
    sandbox: Sandbox,
) -> None:
    seen: list[int] = []

    def kill(launcher: int) -> None:
        assert until(lambda: len(processes.descendants(launcher)) > 1)
        seen.extend(processes.descendants(launcher))
        os.kill(seen[0], signal.SIGKILL)

    with Sandbox(sandbox.kind) as other:
        thread = threading.Thread(target=kill, args=(other.launcher,))
        thread.start()
        with pytest.raises(SandboxError):
            run(other, "import time; time.sleep(600)")
        thread.join()
    assert len(seen) > 1
    assert until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in seen))
