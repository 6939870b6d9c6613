"""The benchmarks of speed and memory: their parts, and one small run of each.

What they time is not tested: a test that a slow machine could fail would say nothing.
"""

from __future__ import annotations

import json
import mmap
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import models
from agon.assets import model_folder
from agon.engines.base import Sampling
from agon.engines.torch_engine import TorchEngine
from agon.records import Prompt

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
EMBEDDED = model_folder("embedded")


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The benchmarks' folder is where their modules find each other."""
    if not BENCHMARKS.is_dir():
        pytest.skip("the benchmarks are not part of this copy")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield
    for name in ("common", "workloads", "floor", "sampling", "update", "step", "growth", "gpu"):
        sys.modules.pop(name, None)


def run(name: str, folder: Path, *options: str) -> tuple[dict[str, Any], str]:
    """A benchmark's `--quick` run: its JSON file and what it printed."""
    out = folder / f"{name}.json"
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), "--quick", "--json", str(out)]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    report: dict[str, Any] = json.loads(out.read_text())
    return report, done.stdout


def test_lengths_and_flat_groups_hang_on_the_seed_and_stay_in_their_bounds() -> None:
    import workloads

    words = workloads.Vocabulary.of(EMBEDDED)

    def draw(key: str) -> Any:
        return workloads.rollouts(6, 4, 30, (5, 17), 3, words, key)

    one = draw("x")
    assert draw("x") == one
    assert draw("y").completions != one.completions
    assert {len(ids) for ids in one.completions} <= set(range(5, 18))
    assert len({len(ids) for ids in one.completions}) > 5
    assert all(25 <= len(ids) <= 35 for ids in one.prompts)
    groups = [one.rewards[start : start + 4] for start in range(0, 24, 4)]
    assert sum(len(set(group)) == 1 for group in groups) == 3
    assert all(one.prompts[start] == one.prompts[start + 3] for start in range(0, 24, 4))
    assert all(ids.count(words.end) == 1 and ids[-1] == words.end for ids in one.completions)


def test_the_floor_replays_the_tokens_that_the_engine_ran() -> None:
    """Prefills count their padded tokens once a prompt, steps one token a live row."""
    from floor import Floor, recorded

    policies = models.tiny_policies()
    engine = TorchEngine(policies, (), models.PAD, slots=3, context_limit=40)
    prompts = [Prompt("", ids, thinking_open=False) for ids in ((5, 6, 7),) * 4]
    limits, shapes = [1, 2, 5, 3], []
    with recorded(engine, shapes):
        engine.generate(prompts, "a", Sampling(5), list("abcd"), limits=limits)
    assert shapes[0] == (3, 1)
    steps = [shape for shape in shapes if shape[0] == shape[1]]
    assert sum(rows for _, rows in steps) == sum(limits) - len(limits)
    assert "forward" not in vars(engine)
    base = models.tiny_base()
    for transposed in (False, True):
        Floor(base).replay(shapes, transposed)


def test_rows_of_transformers_generate_end_exactly_where_told() -> None:
    from peers.forced import force_lengths

    model: Any = models.tiny_base().eval()
    asked: list[int] = []

    def next_lengths(rows: int) -> list[int]:
        asked.append(rows)
        return [1, 4, 9, 6]

    force_lengths(model, [1], next_lengths)
    ids_BT = torch.tensor([[5, 6, 7], [8, 9, 10]])
    tokens_BT = model.generate(
        input_ids=ids_BT, attention_mask=torch.ones_like(ids_BT), do_sample=True, top_k=0,
        max_new_tokens=12, num_return_sequences=2, eos_token_id=1, pad_token_id=models.PAD,
    )  # fmt: skip
    made = [row[3:].tolist() for row in tokens_BT]
    assert asked == [4]
    assert [row.index(1) + 1 for row in made] == [1, 4, 9, 6]


def test_slopes_are_one_for_proportion_and_absent_where_nothing_rises() -> None:
    import growth

    assert growth.slopes([1, 2, 4], [3, 6, 24]) == [None, pytest.approx(1), pytest.approx(2)]
    assert growth.slopes([1, 2], [0, 5]) == [None, None]


def test_ratios_are_taken_repeat_by_repeat() -> None:
    import common

    assert common.ratios([2.0, 30.0], [1.0, 10.0]) == [2.0, 3.0]
    assert common.spread([3.0, 1.0, 2.0], ".1f") == "2.0 [1.0, 3.0]"
    assert common.spread([3.0], ".0f") == "3"


def test_a_failing_arm_says_why(tmp_path: Path) -> None:
    from peers.protocol import Arm, ArmError

    (tmp_path / "stub_arm.py").write_text(
        "import os\n"
        "from peers.protocol import Channel, serve, settings_of\n"
        "channel = Channel()\n"
        "print('stray output')\n"
        "serve(channel, {'divide': lambda by: settings_of()['number'] / by,\n"
        "                'vanish': lambda: os._exit(3)})\n"
    )
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import stub_arm"
    # A package of this name would be found under the benchmarks' folder alone.
    launcher = tmp_path / "python"
    launcher.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$3"\n')
    launcher.chmod(0o755)
    with Arm("stub_arm", {"number": 6}, str(launcher)) as arm:
        assert arm.ask("divide", by=4) == 1.5
        with pytest.raises(ArmError, match="ZeroDivisionError"):
            arm.ask("divide", by=0)
        assert arm.ask("divide", by=3) == 2
        with pytest.raises(ArmError, match="ended during 'vanish'"):
            arm.ask("vanish")


def test_memory_peaks_belong_to_the_work_that_made_them() -> None:
    from peers import memory

    if memory._status("VmHWM") is None:
        pytest.skip("only Linux tells a process's resident memory")
    meter = memory.Meter()
    if memory.peak_mib() > memory.resident_mib() + 50:
        pytest.skip("this kernel does not set the mark back")
    # A mapping of its own: what the C library allocates may lie in memory that earlier tests left.
    with mmap.mmap(-1, 200 * 2**20) as taken:
        for page in range(0, len(taken), mmap.PAGESIZE):
            taken[page] = 1
    large = meter.read()
    small = memory.Meter().read()
    assert large["peak_mib"] - large["before_mib"] > 150
    assert small["peak_mib"] - small["before_mib"] < 100


@pytest.mark.slow
def test_the_sampling_benchmark_runs(tmp_path: Path) -> None:
    report, printed = run("sampling", tmp_path)
    measured = report["measured"]["1"]
    assert set(measured["seconds"]) >= {"generate", "Agon, base", "Agon, a", "Agon, a, unfolded"}
    errors = [error for error in measured["logprob_errors"].values() if error is not None]
    assert len(errors) == 3
    assert max(errors) < 1e-4
    assert "share of the floor" in printed


@pytest.mark.slow
def test_the_update_benchmark_computes_trl_s_gradients(tmp_path: Path) -> None:
    """In every workload, those with rows of zero advantage too, and with checkpointing."""
    pytest.importorskip("trl")
    report, _ = run("update", tmp_path, "--checkpointing", "off,on")
    assert [entry["workload"] for entry in report["measured"]] == ["a", "b", "c"] * 2
    for entry in report["measured"]:
        assert entry["gradient_differences"]["TRL"] < 1e-4
        assert entry["gradient_differences"]["Agon"] < 1e-4
        assert entry["steps"]["TRL"][0]["moved"] > 0
        rows = {name: steps[0].get("rows") for name, steps in entry["steps"].items()}
        assert rows == {"TRL": None, "plain": 16, "Agon": 8 if entry["workload"] == "c" else 16}


@pytest.mark.slow
def test_the_step_benchmark_trains_every_arm(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    report, _ = run("step", tmp_path)
    none, half = report["measured"]
    assert set(none["steps"]) >= {"Agon", "TRL x 2", "GRPO"}
    assert set(half["steps"]) == {"Agon", "TRL x 2"}
    for name, steps in none["steps"].items():
        moved = steps[0]["moved"]
        values = moved.values() if isinstance(moved, dict) else [moved]
        assert all(value != 0 for value in values), name


@pytest.mark.slow
def test_the_growth_benchmark_draws_what_it_prints(tmp_path: Path) -> None:
    report, printed = run("growth", tmp_path, "--out", str(tmp_path / "growth.png"))
    curves = report["measured"][0]["curves"]
    assert set(curves) == {"group", "length", "parameters", "problems"}
    assert all(len(curve["size"]) == 2 for curve in curves.values())
    assert "slope" in printed
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_gpu_script_runs_both_arms_on_whatever_is_there(tmp_path: Path) -> None:
    report, printed = run("gpu", tmp_path)
    assert set(report["measured"]) == {"two", "one"}
    assert all(step["update"] > 0 for steps in report["measured"].values() for step in steps)
    assert "of the peak" in printed


def test_the_gpu_script_refuses_to_measure_a_processor(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    import gpu

    with pytest.raises(SystemExit):
        gpu.read_arguments([])
    assert "there is no GPU here" in capsys.readouterr().err
