"""Cells are run once, survive kills, and leave a file that stands for itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agon.cli import app
from agon.experiments.cell import curves, kept_rounds
from agon.experiments.results import Result, read_result, read_results
from agon.experiments.runner import Plan, duration, locked
from agon.experiments.spec import Cell
from agon.recipes import load_recipe
from agon.runs import RunFolder

SPEC = """
name = "tiny"
recipe = "countdown-agon"
seeds = [1, 2]
[settings]
"training.steps" = 3
"training.problems_per_step" = 2
"training.threads" = 1
"sampling.group_size" = 2
"sampling.max_new_tokens" = 24
"evaluation.every" = 2
"evaluation.problems" = 4
[evaluation]
dev_problems = 6
test_problems = 5
samples = 2
snapshots = 1
snapshot_problems = 4
rounds = 2
[arms.base]
about = "untrained"
reported = "base"
train = false
[arms.agon]
about = "the pair"
reported = "cascade"
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(SPEC)
    return path


def command(spec: Path, *words: str) -> list[str]:
    folders = ("--results", str(spec.parent / "results"), "--runs", str(spec.parent / "runs"))
    return [sys.executable, "-m", "agon", "experiment", *words[:1], str(spec), *words[1:], *folders]


def run(spec: Path, *words: str) -> str:
    done = subprocess.run(command(spec, *words), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def without_times(result: Result) -> dict[str, Any]:
    """What two equal runs must agree on."""
    data = json.loads(json.dumps(result.data))
    del data["evaluation_and_rest_seconds"]
    data["curves"] = {
        name: values
        for name, values in data.get("curves", {}).items()
        if not name.startswith(("time.", "memory."))
    }
    return data


def test_a_matrix_runs_once_and_its_files_stand_for_themselves(spec: Path) -> None:
    printed = run(spec, "run", "--seed", "2", "--jobs", "2")
    assert "0 of 2 cells are done already" in printed
    agon, base = read_results(spec.parent / "results")
    assert [result.cell.name for result in (agon, base)] == ["agon--seed2", "base--seed2"]
    assert base.systems("test") == ["base", "base->base"]
    assert {"a", "b", "a->b", "b->a/shuffled", "a->b/filler"} <= set(agon.systems("test"))
    assert agon.system("test", "a->b").outcomes_PK.shape == (5, 2)
    assert agon.system("dev", "b").outcomes_PK.shape == (6, 2)
    drafts, single = agon.system("test", "a->b").drafts_PK, agon.system("test", "a").outcomes_PK
    assert drafts is not None
    assert (drafts == single).all()  # every system shares its first policy's drafts
    assert agon.data["chosen"]["cascade"] == agon.reported("cascade")
    assert agon.data["test_readings"] == 1
    assert [shot["step"] for shot in agon.data["snapshots"]] == [0, 3]
    start, end = agon.data["snapshots"]
    assert start["kl"]["base||a"] == pytest.approx(0, abs=1e-6)
    assert end["kl"]["base||a"] > 0
    assert agon.data["steps"] == 3
    assert agon.data["rollouts"] == 3 * 2 * 2 * 2
    assert agon.data["curves"]["step"] == [0, 1, 2, 3]
    assert {row["step"] for row in agon.data["rounds"]} == {0, 2}
    assert len(agon.data["rounds"]) == 4
    assert agon.data["config"]["seeds"]["sampling"] == 2
    # The base is the same whichever arm evaluates it: arms are paired.
    for split in ("dev", "test"):
        ours, theirs = (
            result.data["evaluations"][split]["systems"]["base"] for result in (agon, base)
        )
        assert ours == theirs
    before = {path: path.stat().st_mtime_ns for path in (spec.parent / "results").iterdir()}
    assert "2 of 2 cells are done already" in run(spec, "run", "--seed", "2")
    assert before == {path: path.stat().st_mtime_ns for path in (spec.parent / "results").iterdir()}


@pytest.mark.slow
def test_a_cell_that_is_killed_at_any_time_ends_with_the_same_file(spec: Path) -> None:
    """Killed while it trains and again while it evaluates; only the times may differ."""
    run(spec, "cell", "agon", "1")
    target = spec.parent / "results" / "agon--seed1.json"
    whole = without_times(read_result(target))
    target.rename(target.with_suffix(".whole"))
    other = spec.parent / "other"
    run_folder = RunFolder(other / "agon--seed1")
    words = [*command(spec, "cell", "agon", "1")[:-1], str(other)]
    for sign in (run_folder.checkpoints / "step-3", run_folder.path / "test-readings"):
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        while not sign.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    again = without_times(read_result(target))
    readings = again.pop("test_readings")
    assert whole.pop("test_readings") == 1
    assert readings >= 2  # the reading that was cut short is counted
    assert again == whole


def test_a_cell_that_another_process_holds_is_left_alone(tmp_path: Path) -> None:
    with locked(tmp_path / "cell") as first, locked(tmp_path / "cell") as second:
        assert first
        assert not second
    with locked(tmp_path / "cell") as later:
        assert later


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from agon.experiments.runner import locked\n"
        "with locked(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, env=os.environ
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    with locked(tmp_path) as ours:
        assert not ours
    process.kill()
    process.wait()
    with locked(tmp_path) as ours:
        assert ours


def test_the_time_left_counts_waiting_and_running_cells_over_the_jobs() -> None:
    plan = Plan([Cell("x", seed) for seed in range(6)], jobs=2)
    assert plan.left([]) is None
    plan.seconds = [100.0, 140.0]
    assert plan.left([20.0, 200.0]) == pytest.approx((6 * 120 + 100) / 2)
    plan.waiting.clear()
    assert plan.left([60.0]) == pytest.approx(60)
    assert duration(20) == "less than a minute"
    assert duration(7_000) == "117 min"
    assert duration(9_000) == "2 h 30 min"


def test_curves_have_one_value_a_step_and_gaps_where_there_is_none() -> None:
    rows = [{"step": 0, "x": 1 / 3, "policies.draft": "a"}, {"step": 1, "y": 2.0}]
    assert curves(rows) == {
        "step": [0, 1], "x": [0.33333, None], "policies.draft": ["a", None], "y": [None, 2.0],
    }  # fmt: skip


def test_kept_rounds_are_one_problem_of_evenly_spread_steps_with_the_last(tmp_path: Path) -> None:
    folder, config = RunFolder(tmp_path), load_recipe("countdown-agon")
    rows = [
        {"step": step, "problem": problem, "sample": sample}
        for step in range(9)
        for problem in ("p", "q")
        for sample in range(2)
    ]
    folder.rounds(config.logging).write_text("".join(json.dumps(row) + "\n" for row in rows))
    kept = kept_rounds(folder, config, 3)
    assert [(row["step"], row["problem"]) for row in kept] == [
        (step, "p") for step in (0, 4, 8) for _ in range(2)
    ]
    assert kept_rounds(folder, config, 0) == []


def test_the_plan_is_shown_without_running(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        app(["experiment", "run", str(spec), "--dry-run"], standalone_mode=True)
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert shown.count("to do") == 4
    assert not (spec.parent / "results").exists()
