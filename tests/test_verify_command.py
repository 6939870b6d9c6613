"""`agon verify` and `agon audit`: what they say, count and write, and their exit status."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import agon.cli
from agon.commands.claims import find_answer
from agon.commands.verdicts import shown
from test_resume import Ended

Said = Callable[..., Ended]
COUNTDOWN = ("--gold", "22 from 3,5,7", "--verifier", "countdown")


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Said:
    """Runs `agon` in this process."""

    def run(*arguments: str | Path) -> Ended:
        monkeypatch.setattr(sys, "argv", ["agon", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            agon.cli.main()
        output = capsys.readouterr()
        return Ended(int(ended.value.code or 0), output.out, output.err)

    return run


def write_rows(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


# One verdict


@pytest.mark.parametrize(
    ("arguments", "status", "outcome"),
    [
        (("--gold", "3", "--pred", "3.0"), 0, "right"),
        (("--gold", "3", "--pred", "-3"), 1, "wrong"),
        (("--gold", r"\frac{1}{2}", "--pred", "0.5"), 0, "right"),
        (("--gold", "", "--pred", "5"), 2, "unscored"),
        ((*COUNTDOWN, "--pred", "5*3+7"), 0, "right"),
        ((*COUNTDOWN, "--pred", "5*3+8"), 1, "wrong"),
    ],
)
def test_the_exit_status_is_the_verdict(
    say: Said, arguments: tuple[str, ...], status: int, outcome: str
) -> None:
    for form in ((), ("--json",)):
        ended = say("verify", *arguments, *form)
        assert ended.status == status
        assert ended.err == ""
    assert json.loads(ended.out)["outcome"] == outcome
    assert say("verify", *arguments).out.startswith(f"verdict    {outcome}\n")


def test_an_explanation_names_rule_gold_answer_and_how_it_was_found(say: Said) -> None:
    reply = "<think>3</think><summary>s</summary><answer>5*3+7</answer>"
    lines = say("verify", *COUNTDOWN, "--pred", reply, "--kind", "reply").out.splitlines()
    assert lines == [
        "verdict    right",
        "rule       reaches the target",
        "gold       22 from 3,5,7",
        "answer     5*3+7",
        "found by   a single closed answer block after the thinking",
    ]


def test_the_detail_is_shown_line_by_line(say: Said) -> None:
    pair = ("--gold", r"\frac{1}{2}", "--pred", "0.5")
    detail = json.loads(say("verify", *pair, "--json").out)["detail"]
    shown_lines = say("verify", *pair).out.splitlines()[5:]
    assert [line[11:] for line in shown_lines] == detail.splitlines()


def test_what_a_terminal_would_obey_is_shown_and_not_obeyed(say: Said) -> None:
    ended = say("verify", *COUNTDOWN, "--pred", "\x1b[31m5*3+7\x07\u202e :smile: [bold]")
    assert "\x1b" not in ended.out
    assert "\x07" not in ended.out
    assert r"\x1b[31m5*3+7\x07\u202e :smile: [bold]" in ended.out


def test_a_long_text_is_cut_for_people_and_whole_for_machines(say: Said) -> None:
    long = "5*3+7+" * 1000 + "0"
    assert "(6001 characters)" in say("verify", *COUNTDOWN, "--pred", long).out
    assert json.loads(say("verify", *COUNTDOWN, "--pred", long, "--json").out)["answer"] == long
    assert len(shown("\x00" * 10_000)) < 1000


@pytest.mark.parametrize(
    ("text", "thinking_open", "answer"),
    [
        ("<answer>5</answer>", False, "5"),
        ("<answer>4</answer></think><answer>5</answer>", True, "5"),
        ("<answer>4</answer></think><answer>5</answer>", False, None),
        ("<think><answer>5</answer>", False, None),
        ("the answer is 5", False, None),
        ("<answer>4</answer><answer>5</answer>", False, None),
    ],
)
def test_a_reply_is_read_as_training_reads_it(
    text: str, thinking_open: bool, answer: str | None
) -> None:
    assert find_answer(text, "reply", thinking_open)[0] == answer


def test_running_text_is_searched_for_what_it_claims(say: Said) -> None:
    text = r"First I get \boxed{41}. Checking again, the answer is \boxed{42}."
    ended = say("verify", "--gold", "42", "--pred", text, "--kind", "completion", "--json")
    fields = json.loads(ended.out)
    assert (ended.status, fields["answer"]) == (0, "42")
    assert fields["extraction"] != "the text itself"


@pytest.mark.parametrize("kind", ["completion", "reply"])
def test_a_text_that_claims_nothing_is_wrong_and_says_why(say: Said, kind: str) -> None:
    ended = say("verify", "--gold", "42", "--pred", "I cannot tell.", "--kind", kind)
    assert ended.status == 1
    assert "rule       no answer was found: " in ended.out
    assert "answer     none" in ended.out


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ((), ("--gold", "--pred", "FILE")),
        (("--gold", "3"), ("--gold", "--pred", "FILE")),
        (("--pred", "3"), ("--gold", "--pred", "FILE")),
        (("rows.jsonl", "--gold", "3", "--pred", "3"), ("--gold", "--pred", "FILE")),
        (("--gold", "3", "--pred", "3", "--out", "x"), ("--out",)),
        (("--gold", "3", "--pred", "3", "--kind", "essay"), ("--kind", "essay", "completion")),
        (("--gold", "3", "--pred", "3", "--verifier", "nobody"), ("nobody", "countdown", "math")),
        (("--gold", "3", "--pred", "3", "--seconds", "-1"), ("verifier.seconds", "-1")),
        (("--gold", "3", "--pred", "3", "--memory-mib", "1"), ("verifier.memory_mib", "128")),
        (("--gold", "3", "--pred", "3", "--set", "verifier.second=1"), ("verifier.seconds?",)),
        (("no-such.jsonl",), ("no-such.jsonl", "standard input")),
    ],
)
def test_what_cannot_be_used_is_said_in_one_sentence_with_status_2(
    say: Said, arguments: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    ended = say("verify", *arguments)
    assert ended.status == 2
    assert ended.err.startswith("agon: ")
    assert "Traceback" not in ended.err
    for part in parts:
        assert part in ended.err


# A file


ROWS = (
    {"id": "a", "gold": "3", "pred": "3", "equal": True},
    {"id": "b", "gold": 3, "pred": 4.5, "equal": False, "note": "numbers are answers too"},
    {"gold": "22 from 3,5,7", "pred": "5*3+7", "verifier": "countdown"},
    {"gold": "7", "pred": "<think></think><answer>7</answer>", "pred_kind": "reply"},
    {"gold": "7", "pred": None},
    {"id": 9, "gold": "7", "pred": ""},
)


def test_a_file_gives_one_line_a_row_in_order_and_a_summary_beside(
    say: Said, tmp_path: Path
) -> None:
    ended = say("verify", write_rows(tmp_path / "rows.jsonl", *ROWS))
    rows = read_rows(ended.out)
    assert [row["id"] for row in rows] == ["a", "b", "3", "4", "5", "9"]
    assert [row["outcome"] for row in rows] == ["right", "wrong", "right", "right"] + ["wrong"] * 2
    assert [row["answer"] for row in rows] == ["3", "4.5", "5*3+7", "7", None, ""]
    assert [row.get("agrees") for row in rows] == [True, True, None, None, None, None]
    assert ended.err.startswith("6 rows: 3 right, 3 wrong, 0 unscored\n")
    assert "2 of 2 verdicts are the expected ones\n" in ended.err
    assert ended.status == 0


def test_standard_input_is_a_file_too(say: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"gold": "1", "pred": "1"}\n\n'))
    assert [row["outcome"] for row in read_rows(say("verify", "-").out)] == ["right"]


def test_with_out_the_rows_go_there_and_the_summary_to_standard_output(
    say: Said, tmp_path: Path
) -> None:
    file = write_rows(tmp_path / "rows.jsonl", *ROWS)
    beside = say("verify", file)
    ended = say("verify", file, "--out", tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").read_text() == beside.out
    assert (ended.out, ended.err) == (beside.err, "")
    counts = json.loads(say("verify", file, "--out", tmp_path / "out.jsonl", "--json").out)
    assert counts["outcomes"] == {"right": 3, "wrong": 3, "unscored": 0}
    assert sum(reason["count"] for reason in counts["reasons"]) == counts["rows"] == 6
    assert {path.name for path in tmp_path.iterdir()} == {"rows.jsonl", "out.jsonl"}


def test_every_disagreement_is_listed_and_changes_the_status(say: Said, tmp_path: Path) -> None:
    rows = [
        {"id": "accepted", "gold": "3", "pred": "3", "equal": False},
        {"id": "rejected", "gold": "3", "pred": "4", "equal": True},
        {"id": "unread", "gold": "", "pred": "4", "equal": False},
        {"id": "fine", "gold": "5", "pred": "5", "equal": True},
    ]
    ended = say("verify", write_rows(tmp_path / "rows.jsonl", *rows), "--out", tmp_path / "out")
    assert ended.status == 1
    assert "1 of 4 verdicts are the expected ones" in ended.out
    assert "1 false accept, 1 false reject, 1 unscored" in ended.out
    for name in ("accepted: false accept", "rejected: false reject", "unread: unscored"):
        assert f"\n  {name} (" in ended.out
    assert "fine" not in ended.out


def test_a_row_that_cannot_be_scored_changes_the_status(say: Said, tmp_path: Path) -> None:
    assert say("verify", write_rows(tmp_path / "r.jsonl", {"gold": "", "pred": "1"})).status == 1


GOOD = {"gold": "3", "pred": "3"}


@pytest.mark.parametrize(
    ("row", "parts"),
    [
        ({"pred": "3"}, ("row 2", "field 'gold'", "missing", "pred")),
        ({"gold": "3"}, ("row 2", "field 'pred'", "missing")),
        ({"gold": None, "pred": "3"}, ("row 2", "field 'gold'", "null")),
        ({"gold": ["3"], "pred": "3"}, ("row 2", "field 'gold'", "list")),
        ({"gold": "3", "pred": True}, ("row 2", "field 'pred'", "bool")),
        (GOOD | {"pred_kind": "essay"}, ("row 2", "field 'pred_kind'", "essay", "completion")),
        (GOOD | {"verifier": 3}, ("row 2", "field 'verifier'", "int")),
        (GOOD | {"equal": "yes"}, ("row 2", "field 'equal'", "true or false")),
        ([1], ("row 2", "list", "object")),
        (GOOD | {"verifier": "nobody"}, ("nobody", "countdown")),
    ],
)
def test_a_faulty_row_is_named_with_field_and_remedy_and_leaves_no_file(
    say: Said, tmp_path: Path, row: Any, parts: tuple[str, ...]
) -> None:
    file = write_rows(tmp_path / "rows.jsonl", GOOD, row)
    ended = say("verify", file, "--out", tmp_path / "out.jsonl")
    assert ended.status == 2
    assert ended.err.startswith("agon: ")
    for part in parts:
        assert part in ended.err
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"", ("no rows",)),
        (b"{\n", ("row 1", "not a JSON object", "Mend or remove")),
        (b"[" * 100_000, ("row 1", "not a JSON object")),
        (b'{"gold": "\xff"}\n', ("UTF-8",)),
    ],
)
def test_a_file_of_another_kind_is_named(
    say: Said, tmp_path: Path, content: bytes, parts: tuple[str, ...]
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(content)
    ended = say("verify", file)
    assert ended.status == 2
    for part in parts:
        assert part in ended.err


def test_a_folder_that_is_not_there_is_said_before_anything_is_judged(
    say: Said, tmp_path: Path
) -> None:
    file = write_rows(tmp_path / "rows.jsonl", GOOD)
    ended = say("verify", file, "--out", tmp_path / "nowhere" / "out.jsonl")
    assert ended.status == 2
    assert "--out" in ended.err
    assert ended.out == ""


# A data set


def math500(folder: Path, *answers: str) -> Path:
    rows = [
        {"problem": f"Question {number}?", "answer": answer, "unique_id": f"u{number}"}
        for number, answer in enumerate(answers)
    ]
    return write_rows(folder / "test.jsonl", *rows)


def test_an_audit_counts_by_split_and_reason(say: Said, tmp_path: Path) -> None:
    math500(tmp_path, "2", "3", "Yes", r"\frac{1}{2}")
    ended = say("audit", "math500", "--path", tmp_path)
    assert ended.status == 0
    lines = ended.out.splitlines()
    whole = "4 gold answers: 4 verify against themselves, 0 do not, 0 could not be judged"
    assert f"test   {whole}" in lines
    assert f"all    {whole}" in lines
    counted = json.loads(say("audit", "math500", "--path", tmp_path, "--json").out)
    assert sum(reason["count"] for reason in counted["reasons"]) == 4
    assert counted["splits"] == {"test": {"right": 4, "wrong": 0, "unscored": 0}}


def test_an_audit_lists_the_answers_that_cannot_be_used(say: Said, tmp_path: Path) -> None:
    bad = "9" * 3000 + "^{2}"
    math500(tmp_path, "2", bad, bad, bad)
    out = tmp_path / "bad.jsonl"
    ended = say("audit", "math500", "--path", tmp_path, "--show", "2", "--out", out)
    assert ended.status == 1
    assert "1 verify against themselves, 3 do not" in ended.out
    assert ended.out.count("(test): 999") == 2
    assert "and 1 more" in ended.out
    rows = read_rows(out.read_text())
    assert [row["gold"] for row in rows] == [bad] * 3
    assert all(row["reason"] and row["outcome"] == "wrong" for row in rows)
    assert len({row["id"] for row in rows}) == 3


def test_an_audit_of_countdown_needs_no_data(say: Said) -> None:
    ended = say("audit", "countdown", "--json")
    assert ended.status == 0
    assert set(json.loads(ended.out)["splits"]) == {"train", "dev", "test"}


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("no-such-task",), ("no-such-task", "gsm8k")),
        (("gsm8k", "--path", "/no/such/folder"), ("task.path", "/no/such/folder")),
        (("gsm8k", "--set", "task.pth=x"), ("task.pth",)),
        (("gsm8k", "--set", "verifier.seconds=0"), ("verifier.seconds",)),
    ],
)
def test_an_audit_that_cannot_be_made_says_why(
    say: Said, arguments: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    ended = say("audit", *arguments)
    assert ended.status == 2
    assert "Traceback" not in ended.err
    for part in parts:
        assert part in ended.err


def test_settings_reach_the_task(say: Said, tmp_path: Path) -> None:
    answers = ["Yes", "no", *(str(number) for number in range(8))]
    rows = [
        {"question": f"Question {number}?", "final_answer": answer, "difficulty": 5}
        for number, answer in enumerate(answers)
    ]
    file = write_rows(tmp_path / "train.jsonl", *rows)
    held = ("--set", "task.dev_problems=1", "--set", "task.test_problems=1")
    counts = []
    for flag in ("true", "false"):
        drop = f"task.drop_binary={flag}"
        ended = say("audit", "deepmath", "--path", file, "--set", drop, *held, "--json")
        counts.append(sum(sum(c.values()) for c in json.loads(ended.out)["splits"].values()))
    assert counts == [8, 10]


VERIFIER = """
def same(gold, answer):
    if gold == "boom":
        raise ValueError("no such gold")
    return gold.casefold() == answer.casefold()
"""


@pytest.fixture
def own_verifier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A verifier of the user's own in the current directory."""
    (tmp_path / "own_judges.py").write_text(VERIFIER)
    monkeypatch.chdir(tmp_path)
    return "own_judges:same"


def test_a_file_of_ones_own_is_audited_with_its_own_field_and_verifier(
    say: Said, tmp_path: Path, own_verifier: str
) -> None:
    golds = ["Paris", "Rome", "boom", "Oslo"]
    rows = [{"question": f"Capital {g}?", "solution": g} for g in golds]
    file = write_rows(tmp_path / "mine.jsonl", *rows)
    options = ("--answer-field", "solution", "--verifier", own_verifier)
    ended = say("audit", file, *options, "--out", tmp_path / "out.jsonl")
    assert ended.status == 1
    assert "file   4 gold answers: 3 verify against themselves, 0 do not, 1 could not" in ended.out
    [row] = read_rows((tmp_path / "out.jsonl").read_text())
    assert (row["gold"], row["outcome"]) == ("boom", "unscored")
    assert row["detail"].endswith("ValueError: no such gold\n")


def test_a_verifier_of_ones_own_explains_its_verdicts_and_its_errors(
    say: Said, own_verifier: str
) -> None:
    options = ("--verifier", own_verifier, "--gold")
    assert say("verify", *options, "Paris", "--pred", "PARIS").status == 0
    assert say("verify", *options, "Paris", "--pred", "Rome").status == 1
    ended = say("verify", *options, "boom", "--pred", "x")
    assert ended.status == 2
    assert "detail     Traceback (most recent call last):" in ended.out
    assert "           ValueError: no such gold" in ended.out


@pytest.mark.parametrize(("task", "rows"), [("gsm8k", 8792), ("math500", 500)])
def test_the_real_gold_answers_verify_against_themselves(
    say: Said, shared_data: Path, task: str, rows: int
) -> None:
    ended = say("audit", task, "--path", shared_data / task, "--json")
    assert ended.status == 0
    counts = json.loads(ended.out)
    assert sum(split["right"] for split in counts["splits"].values()) == rows
