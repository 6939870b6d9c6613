"""A matrix on a Ray cluster of this machine: the same files, and lost cells are run again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from test_running import SPEC, command, run, without_times

from agon.experiments.results import read_results

ray = pytest.importorskip("ray", reason="Ray is not installed")

pytestmark = pytest.mark.slow


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "ray" / "tiny.toml"
    path.parent.mkdir()
    path.write_text(SPEC)
    return path


@pytest.mark.timeout(600)
def test_a_killed_workers_cell_is_run_again_and_the_files_are_those_of_plain_runs(
    spec: Path, tmp_path: Path
) -> None:
    words = ("run", "--seed", "1", "--ray", "local")
    process = subprocess.Popen(
        command(spec, *words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    killed, lines = False, []
    for line in process.stdout:
        lines.append(line)
        begun = re.search(r"begins: agon--seed1 on .*process (\d+)", line)
        if begun and not killed:
            os.kill(int(begun[1]), signal.SIGKILL)
            killed = True
    printed = "".join(lines)
    assert process.wait() == 0, printed
    assert killed
    assert re.search(r"begins again: agon--seed1 .*attempt 2", printed), printed

    plain = tmp_path / "plain" / "tiny.toml"
    plain.parent.mkdir()
    plain.write_text(SPEC)
    run(plain, "run", "--seed", "1")
    found = read_results(spec.parent / "results")
    expected = read_results(plain.parent / "results")
    assert [r.cell for r in found] == [r.cell for r in expected]
    assert len(found) == 2
    for one, other in zip(found, expected, strict=True):
        ours, theirs = without_times(one), without_times(other)
        # A worker has threads of its own, which are written down and change nothing at one thread.
        del ours["environment"], theirs["environment"]
        assert ours == theirs
    again = run(spec, *words)
    assert "2 of 2 cells are done already" in again


def test_resources_that_no_machine_has_are_refused_before_anything_waits(spec: Path) -> None:
    done = subprocess.run(
        command(spec, "run", "--ray", "local", "--cpus", "100000"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "--cpus 100000, --gpus 0: no machine of the cluster has them" in done.stderr
