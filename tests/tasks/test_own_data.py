"""A user's own data file: rows, splits, errors, and a run from the README's own words."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agon.config import TaskConfig
from agon.errors import ConfigError, DataError
from agon.recipes import build_config
from agon.tasks import load_task
from agon.tasks.splits import Split

README = (Path(__file__).parents[2] / "README.md").read_text()


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rows(*names: str) -> list[dict[str, Any]]:
    return [{"question": f"what is {name}?", "answer": name} for name in names]


def load(path: Path, **more: Any) -> dict[Split, set[str]]:
    data = load_task(TaskConfig(name="jsonl", path=str(path), **more))
    return {split: {p.question for p in members} for split, members in data.problems.items()}


def test_dev_and_test_are_held_out_of_one_file(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.jsonl", rows(*map(str, range(30))))
    parts = load(path, dev_problems=4, test_problems=5)
    assert {split: len(part) for split, part in parts.items()} == {
        Split.TRAIN: 21,
        Split.DEV: 4,
        Split.TEST: 5,
    }
    assert len(set.union(*parts.values())) == 30


@pytest.mark.parametrize("dev", ["dev", "valid", "validation-00000-of-00001"])
def test_a_folder_keeps_its_splits_and_later_ones_give_way(tmp_path: Path, dev: str) -> None:
    write(tmp_path / "train.jsonl", rows("a", "b", "c", "d"))
    write(tmp_path / f"{dev}.jsonl", rows("c", "e"))
    write(tmp_path / "test.jsonl", rows("d", "e", "f"))
    parts = load(tmp_path)
    assert parts == {
        Split.TRAIN: {"what is a?", "what is b?"},
        Split.DEV: {"what is c?"},
        Split.TEST: {"what is d?", "what is e?", "what is f?"},
    }


def test_a_folder_may_do_without_dev_and_test(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", rows(*"abcdefgh"))
    parts = load(tmp_path, dev_problems=2)
    assert {split: len(part) for split, part in parts.items()} == {
        Split.TRAIN: 6,
        Split.DEV: 2,
        Split.TEST: 0,
    }


def test_only_data_files_of_the_folder_are_splits(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", rows(*"abcdefgh"))
    (tmp_path / "test.py").write_text("")
    (tmp_path / "dev").mkdir()
    (tmp_path / "deep" / "deeper").mkdir(parents=True)
    write(tmp_path / "deep" / "deeper" / "test.jsonl", rows("x"))
    assert load(tmp_path, dev_problems=2)[Split.TEST] == set()


def test_a_split_in_an_unknown_format_is_not_passed_over(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", rows(*"abcdefgh"))
    (tmp_path / "valid.csv").write_text("question,answer\n")
    with pytest.raises(DataError, match=r"valid\.csv looks like the dev split") as error:
        load(tmp_path, dev_problems=2)
    assert "(?:" not in str(error.value)


def test_numbers_and_truth_values_are_answers(tmp_path: Path) -> None:
    answers = [14, 0.5, True, False, "14", -3]
    path = write(
        tmp_path / "mine.jsonl",
        [{"q": f"question {n}", "a": answer} for n, answer in enumerate(answers)],
    )
    config = TaskConfig(
        name="jsonl",
        path=str(path),
        question_field="q",
        answer_field="a",
        dev_problems=1,
        test_problems=1,
    )
    golds = {p.question: p.gold for part in load_task(config).problems.values() for p in part}
    assert list(map(golds.get, (f"question {n}" for n in range(6)))) == [
        *("14", "0.5", "true", "false", "14", "-3")
    ]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"question": "x"}, "field 'answer': missing; the row has the columns question"),
        ({"question": "x", "answer": None}, "field 'answer': got NoneType, expected text"),
        ({"question": "x", "answer": " "}, "field 'answer': empty"),
        ({"question": 3, "answer": "x"}, "field 'question': got int, expected text"),
        ({"question": "x", "answer": [1]}, "field 'answer': got list, expected text"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, row: dict[str, Any], words: str) -> None:
    path = write(tmp_path / "mine.jsonl", [*rows("a", "b"), row])
    with pytest.raises(DataError, match="row 3") as error:
        load(path)
    assert words in str(error.value)
    assert str(path) in str(error.value)


def test_too_few_rows_name_the_remedy(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.jsonl", rows("a", "b", "c"))
    with pytest.raises(DataError, match=r"3 usable problems.*task\.dev_problems"):
        load(path, dev_problems=2, test_problems=1)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["task.name=jsonl"], "needs task.path"),
        (["task.name=gsm8k", "task.verifier=text"], "task.verifier has no meaning"),
        (["task.name=jsonl", "task.path=x", "task.verifier=maths"], "package.module:function"),
        (["task.name=jsonl", "task.path=x", "task.verifier=a b:c"], "package.module:function"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build_config({}, settings)


def readme_example(folder: Path) -> list[str]:
    """Write the README's data and verifier; the command that it shows."""
    section = README.split("## Your own data and verifier")[1].split("\n## ")[0]
    (folder / "legs.jsonl").write_text(re.findall(r"```jsonl\n(.*?)```", section, re.DOTALL)[0])
    (folder / "my_verifier.py").write_text(re.findall(r"```py\n(.*?)```", section, re.DOTALL)[0])
    (command,) = re.findall(r"^agon (train .*)$", section, re.MULTILINE)
    return shlex.split(command)


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`agon` as its console script runs: without the current directory on the path."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "agon", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        check=False,
    )


def test_the_readme_example_trains(tmp_path: Path) -> None:
    command = readme_example(tmp_path)
    done = run(tmp_path, *command, "--run-dir", "run", "--set", "sampling.group_size=2")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()
    assert len(lines) == 4
    reasons = {json.loads(line)["draft"]["reason"] for line in lines}
    assert reasons <= {"my_verifier:verify says so", "no single closed answer block"}


def test_a_verifier_that_always_fails_stops_the_first_step(tmp_path: Path) -> None:
    command = readme_example(tmp_path)
    (tmp_path / "my_verifier.py").write_text(
        "def verify(gold, answer):\n"
        "    if gold == answer:\n"
        "        return True\n"
        "    raise RuntimeError('my mistake')\n"
    )
    more = ["--run-dir", "run", "--set", "evaluation.every=0"]
    done = run(tmp_path, *command, *more, "--set", "sampling.group_size=8")
    assert done.returncode == 1
    assert "stop.unscored_share" in done.stderr
    assert done.stdout.count("RuntimeError: my mistake") == 1
    assert (tmp_path / "run" / "checkpoints" / "step-000001").is_dir()
