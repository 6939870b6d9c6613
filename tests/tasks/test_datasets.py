"""Data sets as problems: real rows in the hub's schemas, and rows that cannot be used."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agon.config import TaskConfig, VerifierConfig
from agon.errors import DataError
from agon.records import Outcome, Problem, Verdict
from agon.tasks import TaskData, check_golds, gold_notes, load_task, rows
from agon.tasks.deepmath import is_binary
from agon.tasks.rows import HubSplit, read_hub
from agon.tasks.splits import Split, hash_fraction, normalise_question
from agon.verifiers import PooledJudge


def write(path: Path, content: Sequence[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(content)), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(list(content)), encoding="utf-8")
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in content), encoding="utf-8")
    return path


def gsm8k_row(number: int, gold: str = "1,234") -> dict[str, str]:
    return {"question": f"How many are {number}?", "answer": f"It is so.\n#### {gold}"}


def deepmath_row(number: int, **changes: Any) -> dict[str, Any]:
    row = {"question": f"Find {number}.", "final_answer": str(number), "difficulty": 5.0}
    return row | {"topic": "Algebra", "r1_solution_1": "long " * 100} | changes


def load(name: str, path: Path, **settings: Any) -> TaskData:
    settings = {"dev_problems": 3, "test_problems": 4} | settings
    return load_task(TaskConfig(name=name, path=str(path), **settings))  # type: ignore[arg-type]


def assert_disjoint(data: TaskData) -> None:
    questions = [
        normalise_question(problem.question)
        for problems in data.problems.values()
        for problem in problems
    ]
    assert len(questions) == len(set(questions))


def sizes(data: TaskData) -> dict[str, int]:
    return {str(split): len(problems) for split, problems in data.problems.items()}


def test_gsm8k_has_dev_held_out_of_train_and_the_hubs_test(shared_data: Path) -> None:
    data = load("gsm8k", shared_data / "gsm8k", dev_problems=300)
    assert sizes(data) == {"train": 7173, "dev": 300, "test": 1319}
    assert data.notes == ()
    assert_disjoint(data)
    highest = max(hash_fraction(problem.question) for problem in data.problems[Split.DEV])
    assert all(hash_fraction(problem.question) > highest for problem in data.problems[Split.TRAIN])
    with PooledJudge(VerifierConfig(workers=1)) as judge:
        everything = [problem for problems in data.problems.values() for problem in problems]
        kept, dropped = check_golds(everything, judge)
    assert len(kept) == 7473 + 1319
    assert dropped == ()


def test_gsm8k_golds_stand_after_the_mark_without_commas(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", [gsm8k_row(number) for number in range(9)])
    write(tmp_path / "test.jsonl", [gsm8k_row(100, "-5")])
    data = load("gsm8k", tmp_path)
    assert {problem.gold for problem in data.problems[Split.TRAIN]} == {"1234"}
    assert [problem.gold for problem in data.problems[Split.TEST]] == ["-5"]


def test_a_question_of_both_gsm8k_splits_stays_in_test_alone(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", [gsm8k_row(number) for number in range(9)])
    write(tmp_path / "test.jsonl", [gsm8k_row(4), gsm8k_row(100)])
    data = load("gsm8k", tmp_path)
    assert sizes(data) == {"train": 5, "dev": 3, "test": 2}
    assert_disjoint(data)
    assert any("stay there" in note for note in data.notes)


def test_math500_is_test_alone(shared_data: Path) -> None:
    data = load("math500", shared_data / "math500")
    assert sizes(data) == {"train": 0, "dev": 0, "test": 500}
    assert load("math500", shared_data / "math500" / "test.jsonl") == data
    assert data.problems[Split.TEST][0].gold == r"\left( 3, \frac{\pi}{2} \right)"


def test_deepmath_holds_out_exact_counts_of_the_filtered_problems(shared_data: Path) -> None:
    path = shared_data / "deepmath" / "deepmath_5k_sample.jsonl"
    data = load("deepmath", path, min_difficulty=5, dev_problems=300, test_problems=300)
    assert sizes(data) == {"train": 2790, "dev": 300, "test": 300}
    assert_disjoint(data)
    assert len(data.notes) == 3
    assert not any(is_binary(p.gold) for problems in data.problems.values() for p in problems)
    lines = path.read_text(encoding="utf-8").splitlines()
    difficulty = {
        normalise_question(row["question"]): row["difficulty"] for row in map(json.loads, lines)
    }
    for problem in data.problems[Split.TEST]:
        assert difficulty[normalise_question(problem.question)] >= 5


def test_deepmath_reads_the_hubs_seven_columns(shared_data: Path) -> None:
    path = shared_data / "deepmath" / "hub_schema_24.jsonl"
    data = load("deepmath", path, drop_binary=False, dev_problems=5, test_problems=5)
    assert sizes(data) == {"train": 14, "dev": 5, "test": 5}


def test_deepmath_filters_by_difficulty_at_both_ends(tmp_path: Path) -> None:
    rows = [deepmath_row(number, difficulty=number / 2) for number in range(40)]
    path = write(tmp_path / "all.jsonl", rows)
    data = load("deepmath", path, min_difficulty=5, max_difficulty=10)
    golds = sorted(int(p.gold) for problems in data.problems.values() for p in problems)
    assert golds == list(range(10, 21))


def test_deepmath_finds_a_conflict_even_where_a_filter_would_hide_it(tmp_path: Path) -> None:
    rows = [deepmath_row(number) for number in range(10)]
    path = write(tmp_path / "all.jsonl", [*rows, deepmath_row(3, final_answer="Yes")])
    data = load("deepmath", path)
    assert sum(sizes(data).values()) == 9
    assert any("different gold answers" in note for note in data.notes)


@pytest.mark.parametrize(
    "gold", ["Yes", "no", "TRUE", "False.", r"\text{Yes}", r"$\text{No}.$", r"\boxed{\text{yes}}"]
)
def test_binary_answers_are_known_in_every_dress(gold: str) -> None:
    assert is_binary(gold)


@pytest.mark.parametrize("gold", ["0", "n", r"\text{not}", "Yes, 5", "Correct", "y", "true north"])
def test_other_answers_are_not_binary(gold: str) -> None:
    assert not is_binary(gold)


@pytest.mark.parametrize("name", ["all.json", "all.parquet", "data/train-00000-of-00001.parquet"])
def test_every_format_gives_the_same_problems(tmp_path: Path, name: str) -> None:
    rows = [deepmath_row(number) for number in range(12)]
    expected = load("deepmath", write(tmp_path / "lines.jsonl", rows)).problems
    file = write(tmp_path / "folder" / name, rows)
    path = file if name.startswith("all") else tmp_path / "folder"
    assert load("deepmath", path).problems == expected


def test_countdown_is_generated_and_its_golds_are_exact() -> None:
    data = load_task(TaskConfig(name="countdown"))
    assert sizes(data) == {"train": 9511, "dev": 1208, "test": 1208}
    with PooledJudge(VerifierConfig()) as judge:
        kept, dropped = check_golds(data.problems[Split.DEV], judge)
    assert kept == data.problems[Split.DEV]
    assert dropped == ()


@pytest.mark.parametrize(
    ("task", "row", "fragments"),
    [
        ("gsm8k", {"question": "Q?"}, ["answer", "missing", "question"]),
        ("gsm8k", {"question": "Q?", "answer": "no mark"}, ["answer", "####"]),
        ("gsm8k", {"question": "Q?", "answer": "x #### "}, ["answer", "####"]),
        ("gsm8k", {"question": " ", "answer": "#### 1"}, ["question", "empty"]),
        ("gsm8k", {"question": "a \ud800", "answer": "#### 1"}, ["question", "surrogate"]),
        ("gsm8k", {"question": 5, "answer": "#### 1"}, ["question", "int", "text"]),
        ("math500", {"problem": "P", "solution": "S"}, ["answer", "missing"]),
        ("math500", {"question": "P", "answer": "1"}, ["problem", "missing"]),
        ("deepmath", deepmath_row(1, final_answer=None), ["final_answer", "NoneType"]),
        ("deepmath", deepmath_row(1, final_answer=7), ["final_answer", "int", "text"]),
        ("deepmath", deepmath_row(1, difficulty="8"), ["difficulty", "str", "number"]),
        ("deepmath", deepmath_row(1, difficulty=float("nan")), ["difficulty", "finite"]),
        ("deepmath", {"question": "Q", "final_answer": "1"}, ["difficulty", "missing"]),
        ("deepmath", ["a list"], ["list", "object"]),
    ],
)
def test_an_unusable_row_is_named_with_file_number_field_and_remedy(
    tmp_path: Path, task: str, row: Any, fragments: list[str]
) -> None:
    good = {"gsm8k": gsm8k_row(0), "deepmath": deepmath_row(0)}
    good["math500"] = {"problem": "P0", "answer": "1"}
    for name in ("train", "test"):
        write(tmp_path / f"{name}.jsonl", [good[task], row])
    with pytest.raises(DataError) as caught:
        load(task, tmp_path, min_difficulty=1)
    message = str(caught.value)
    assert f"{tmp_path}" in message
    assert "row 2" in message
    assert "Mend or remove the row" in message
    assert all(fragment in message for fragment in fragments), message


@pytest.mark.parametrize(
    ("name", "content", "fragment"),
    [
        ("x.jsonl", b'{"question": "Q", "final_answer": "1"}\n{"question"', "row 2"),
        ("x.jsonl", b"\xff\xfe", "cannot be read"),
        ("x.json", b'{"question": "Q"}', "expected a list"),
        ("x.json", b"[", "cannot be read"),
        ("x.parquet", b"no parquet", "cannot be read"),
        ("x.csv", b"question,final_answer", "no known format"),
        ("x.jsonl", b"", "too few"),
    ],
)
def test_an_unreadable_file_is_named(
    tmp_path: Path, name: str, content: bytes, fragment: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=fragment):
        load("deepmath", tmp_path / name)


def test_a_missing_path_names_the_setting_and_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"task\.path.*does not exist.*Give"):
        load("deepmath", tmp_path / "nothing")
    with pytest.raises(DataError, match=r"no file of the test split"):
        load("gsm8k", tmp_path)
    single = write(tmp_path / "train.jsonl", [gsm8k_row(1)])
    with pytest.raises(DataError, match="Give a folder"):
        load("gsm8k", single)


@pytest.mark.parametrize("name", ["gsm8k", "math500", "deepmath"])
def test_an_unreachable_hub_is_said_at_once_with_the_remedy(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    begin = time.monotonic()
    with pytest.raises(DataError, match=r"not reachable.*task\.path"):
        load_task(TaskConfig(name=name))  # type: ignore[arg-type]
    assert time.monotonic() - begin < 8


def test_hub_rows_are_streamed_with_the_needed_columns_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A folder laid out as the hub's repository goes the same way through `datasets`.
    monkeypatch.setattr(rows, "_probe_hub", lambda hub: None)
    content = [deepmath_row(number) for number in range(5)]
    write(tmp_path / "data" / "train-00000-of-00001.parquet", content)
    hub = HubSplit(str(tmp_path), None, "train", stream=True)
    found = list(read_hub(hub, ("question", "final_answer", "difficulty")))
    assert [row.number for row in found] == [1, 2, 3, 4, 5]
    assert all(set(row.fields) == {"question", "final_answer", "difficulty"} for row in found)
    assert found[2].text("question") == "Find 2."


def test_hub_rows_of_json_lines_are_read_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    monkeypatch.setattr(rows, "_probe_hub", lambda hub: None)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    write(tmp_path / "repository" / "test.jsonl", [{"problem": "P", "answer": "1"}])
    hub = HubSplit(str(tmp_path / "repository"), None, "test")
    assert [row.text("answer") for row in read_hub(hub, ("problem", "answer"))] == ["1"]


def test_loading_countdown_and_local_rows_does_not_import_datasets(tmp_path: Path) -> None:
    path = write(tmp_path / "all.jsonl", [deepmath_row(number) for number in range(9)])
    code = (
        "import sys; from agon.config import TaskConfig; from agon.tasks import load_task; "
        "load_task(TaskConfig()); load_task(TaskConfig(name='deepmath', path=sys.argv[1], "
        "dev_problems=1, test_problems=1)); "
        "sys.exit(bool({'datasets', 'torch', 'pyarrow'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == 0


class FixedJudge:
    """A judge of golds that finds what it is told to find."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self._outcomes = outcomes

    def judge_golds(self, problems: Sequence[Problem]) -> list[Verdict]:
        return [Verdict(outcome, "told so") for outcome in self._outcomes]


def test_golds_that_fail_are_dropped_and_failures_of_the_judge_are_told_apart() -> None:
    problems = [Problem(f"p{number}", "?", str(number), "math") for number in range(3)]
    outcomes = [Outcome.WRONG, Outcome.RIGHT, Outcome.UNSCORED]
    kept, dropped = check_golds(problems, FixedJudge(outcomes))
    assert kept == (problems[1],)
    assert [problem for problem, _ in dropped] == [problems[0], problems[2]]
    notes = gold_notes(dropped)
    assert len(notes) == 2
    assert "does not verify" in notes[0]
    assert "judge failed" in notes[1]


def test_golds_that_cannot_be_read_are_dropped_by_the_real_judge(tmp_path: Path) -> None:
    problems = [Problem(gold, "?", gold, "math") for gold in (r"\frac{1}{3}", r"\frac{1", "12")]
    with PooledJudge(VerifierConfig(workers=1)) as judge:
        kept, dropped = check_golds(problems, judge)
    assert [problem.gold for problem in kept] == [r"\frac{1}{3}", "12"]
    assert [problem.gold for problem, _ in dropped] == [r"\frac{1"]
