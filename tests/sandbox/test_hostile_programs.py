"""Programs that hang, flood, forge, spy and destroy: right verdicts, in time, nothing harmed.

The programs are data. What their notes ask for is planted: a victim process, victim files, a
secret in the environment, a listener, files with the answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agon.records import Outcome, Verdict
from agon.sandbox import Sandbox, processes
from agon.verifiers import code
from agon.verifiers.base import Contested
from agon.verifiers.programs import ProgramTests

SECONDS = 0.6
PATIENT_SECONDS = 20.0
"""Limit of programs that end by themselves: only a stalled machine gets there."""

ENDLESS = {
    "infinite_loop",
    "sleep_forever",
    "ignores_sigterm",
    "catastrophic_regex",
    "big_int_print",
    "deadlock_thread",
}
VISIBLE_WITHOUT_WALLS = {"search_answer_files"}
"""What `limits` cannot hold back: a program reads every file that its user can read."""


def rows(shared_data: Path) -> list[dict[str, Any]]:
    text = (shared_data / "hostile_programs.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def victims(sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Plants files in the harness's folder and in /tmp, and a secret; checks that all survive."""
    monkeypatch.setenv("SECRET_TOKEN", "planted")
    monkeypatch.chdir(tmp_path)
    names = ("victim_1.txt", "victim_ctypes.txt", "expected_output.txt")
    planted = [folder / name for folder in (tmp_path, Path("/tmp")) for name in names]
    for path in planted:
        path.write_text("7\n")
        path.chmod(0o644)
    yield
    missing = [path for path in planted if not path.exists()]
    forged = [f for f in (tmp_path, Path("/tmp"), Path.home()) if (f / "reward.txt").exists()]
    for path in planted:
        path.unlink(missing_ok=True)
    Path("/tmp/reward.txt").unlink(missing_ok=True)
    if sandbox.kind == "limits" and os.geteuid() != 0:  # the same user's files are not safe
        missing = [path for path in missing if path.parent != Path("/tmp")]
    assert not missing
    assert forged in ([], [Path("/tmp")])  # limits leaves /tmp open, and the judge reads no file


@pytest.fixture
def listener() -> Iterator[None]:
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with contextlib.suppress(OSError):  # without a listener the program must fail all the same
        server.bind(("127.0.0.1", 18765))
        server.listen()
    server.settimeout(0.1)
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError):
                connection, _ = server.accept()
                with connection:
                    connection.sendall(b"7\n")

    thread = threading.Thread(target=serve)
    thread.start()
    yield
    over.set()
    thread.join()
    server.close()


def judge(sandbox: Sandbox, row: dict[str, Any], stdin: str) -> Verdict:
    expected = row["expected_stdout"]
    if repeat := row.get("expected_stdout_repeat"):
        expected = repeat["unit"] * repeat["times"] + repeat["then"]
    if row.get("asserts"):
        tests = ProgramTests("asserts", asserts=tuple(row["asserts"]), names=("add",))
    else:
        tests = ProgramTests("stdio", stdio=((stdin, expected),))
    settings = code.Settings(
        isolation=sandbox.kind,
        seconds=SECONDS if row["name"] in ENDLESS else PATIENT_SECONDS,
        total_seconds=60.0,
        memory_mib=256,
        processes=64,
        output_kib=16_384,
        file_mib=64,
        pass_share=1.0,
    )
    try:
        return code.verify(settings.to_json(), tests.to_gold(), row["program"])
    except Contested as contested:
        return contested.verdict


def test_every_hostile_program_has_its_verdict_and_harms_nothing(
    sandbox: Sandbox,
    shared_data: Path,
    victims: None,
    listener: None,
) -> None:
    judged = {}
    late = []
    descriptors = len(os.listdir("/proc/self/fd"))
    for row in rows(shared_data):
        if sandbox.kind == "limits" and row["name"] in VISIBLE_WITHOUT_WALLS:
            continue
        with subprocess.Popen(["sleep", "600"]) as victim:
            begin = time.monotonic()
            verdict = judge(sandbox, row, row["stdin"].replace("{VICTIM_PID}", str(victim.pid)))
            seconds = time.monotonic() - begin
            alive = victim.poll() is None
            victim.kill()
        if row["name"] in ENDLESS and seconds > SECONDS + 10.0:
            late.append((row["name"], seconds))
        right = verdict.outcome is Outcome.RIGHT
        assert verdict.outcome is not Outcome.UNSCORED
        assert len(verdict.tests) == max(1, len(row.get("asserts", [])))
        judged[row["name"]] = alive and right == (row["must"] == "pass")
    assert [name for name, well in judged.items() if not well] == []
    assert len(judged) == 56 - (len(VISIBLE_WITHOUT_WALLS) if sandbox.kind == "limits" else 0)
    assert late == []
    own = code._sandbox(sandbox.kind)
    end = time.monotonic() + 10  # the last supervisor has reported and is about to end
    while processes.descendants(own.launcher) and time.monotonic() < end:
        time.sleep(0.01)
    assert processes.descendants(own.launcher) == []
    code._sandbox.cache_clear()
    own.close()
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert not list(Path("/tmp").glob("agon-sandbox-*/*/code/main.py"))


def test_without_walls_a_program_reads_what_its_user_can_read(
    sandbox: Sandbox, shared_data: Path, victims: None
) -> None:
    """The one row that `limits` gets wrong, so that the documentation stays true."""
    if sandbox.kind != "limits":
        pytest.skip("walls hold it back")
    [row] = [row for row in rows(shared_data) if row["name"] in VISIBLE_WITHOUT_WALLS]
    assert judge(sandbox, row, row["stdin"]).outcome is Outcome.RIGHT
    code._sandbox(sandbox.kind).close()
    code._sandbox.cache_clear()
