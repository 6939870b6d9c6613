"""Log files without a seam, files that are old or new and never half, and rounds for people."""

from __future__ import annotations

import gzip
import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest

from agon.config import Config, LoggingConfig
from agon.errors import CheckpointError, ConfigError
from agon.records import Reward, Round
from agon.runs import LogFile, RunFolder, default_run_name, round_rows, write_atomically
from fakes import make_challenge, make_config, make_draft, make_problems, make_reply

EACH_KIND = pytest.mark.parametrize("name", ["rounds.jsonl", "rounds.jsonl.gz"])


def read(path: Path) -> list[Any]:
    """All rows of a log, plain or compressed."""
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    return [json.loads(line) for line in text.splitlines()]


def write_steps(path: Path, steps: range, size: int | None = None) -> list[int]:
    """Append two rows a step; the file's size after each."""
    log = LogFile(path, size)
    sizes = []
    for step in steps:
        log.append([{"step": step, "text": "é" * step}, {"step": step, "row": 2}])
        sizes.append(log.sync())
    log.close()
    return sizes


@EACH_KIND
def test_a_log_is_appended_to(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    first = write_steps(path, range(2))
    second = write_steps(path, range(2, 4))
    assert [row["step"] for row in read(path)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert first[-1] < second[0] < second[-1] == path.stat().st_size


@EACH_KIND
@pytest.mark.parametrize("kept", range(4))
def test_a_resumed_log_is_the_uninterrupted_one_to_the_byte(tmp_path, name, kept: int) -> None:
    whole, resumed = tmp_path / name, tmp_path / f"again-{name}"
    write_steps(whole, range(5))
    sizes = [0, *write_steps(resumed, range(4))]
    write_steps(resumed, range(kept, 5), size=sizes[kept])
    assert resumed.read_bytes() == whole.read_bytes()


@EACH_KIND
def test_a_log_cut_at_a_steps_end_is_readable(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    sizes = write_steps(path, range(4))
    with path.open("ab") as file:
        file.write(b"half a li")  # what a kill may leave
    log = LogFile(path, sizes[1])
    assert [row["step"] for row in read(path)] == [0, 0, 1, 1]
    log.close()


@EACH_KIND
def test_the_size_after_a_cut_is_the_cut_size_before_anything_is_appended(tmp_path, name) -> None:
    path = tmp_path / name
    sizes = write_steps(path, range(4))
    for size in (sizes[1], 0):
        log = LogFile(path, size)
        assert log.sync() == size == path.stat().st_size
        log.close()


@EACH_KIND
def test_a_log_shorter_than_its_checkpoint_is_refused_and_left_alone(tmp_path, name) -> None:
    path = tmp_path / name
    size = write_steps(path, range(2))[-1]
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match=rf"has {size} bytes.* at {size + 1}.*restore it"):
        LogFile(path, size + 1)
    assert path.read_bytes() == before


@EACH_KIND
def test_a_step_without_rows_leaves_no_byte(tmp_path: Path, name: str) -> None:
    log = LogFile(tmp_path / name)
    log.append([])
    log.append(iter(()))
    assert log.sync() == 0
    log.close()


@EACH_KIND
def test_text_of_every_kind_comes_back(tmp_path: Path, name: str) -> None:
    texts = ["é漢\U0001f600", "a\nb\r\n\u2028\x85c", '"\\', "\x00\x1f", "\ud800 alone"]
    log = LogFile(tmp_path / name)
    log.append({"text": text} for text in texts)
    log.close()
    data = (tmp_path / name).read_bytes()
    lines = (gzip.decompress(data) if name.endswith("gz") else data).decode().split("\n")
    assert [json.loads(line)["text"] for line in lines[:-1]] == texts


def test_the_rows_of_a_step_are_one_gzip_member_with_no_time_in_it(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl.gz"
    sizes = [0, *write_steps(path, range(3))]
    data = path.read_bytes()
    for step, (start, end) in enumerate(itertools.pairwise(sizes)):
        rows = gzip.decompress(data[start:end]).decode().splitlines()
        assert [json.loads(row)["step"] for row in rows] == [step, step]
        assert data[start + 4 : start + 8] == bytes(4)


def test_a_log_on_a_full_disk_says_so() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    log = LogFile(full)
    with pytest.raises(OSError, match="space"):
        log.append([{"step": 0}])
    log.close()


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch, broken: str) -> None:
    path = tmp_path / "config.json"
    write_atomically(path, "old")

    def fail(*_: object) -> None:
        raise OSError("the power is gone")

    with monkeypatch.context() as patch:
        patch.setattr(*{"fsync": (os, "fsync"), "replace": (Path, "replace")}[broken], fail)
        with pytest.raises(OSError, match="power"):
            write_atomically(path, "new and longer")
        assert path.read_text() == "old"
    write_atomically(path, "new")
    assert path.read_text() == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["config.json"]


def test_a_failed_first_write_leaves_no_file_under_the_name(tmp_path, monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("the power is gone")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="power"):
        write_atomically(tmp_path / "config.json", "new")
    assert not (tmp_path / "config.json").exists()


def test_a_folder_with_a_run_is_not_made_again(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create()
    folder.create()
    folder.config.write_text("{}")
    with pytest.raises(ConfigError, match=r"holds a run already.*--resume"):
        folder.create()


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--run-dir .* cannot be made"):
        RunFolder(tmp_path / "file" / "run").create()


def test_a_runs_configuration_is_read_back(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with pytest.raises(CheckpointError, match="is no run folder"):
        folder.read_config()
    config = make_config({"training.steps": 3, "game.rotate": False})
    write_atomically(folder.config, config.model_dump_json())
    assert folder.read_config() == config
    for text in ("{", '{"trainin": {}}'):
        folder.config.write_text(text)
        with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
            folder.read_config()


def test_rounds_are_compressed_by_name(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.rounds(Config().logging).name == "rounds.jsonl"
    assert folder.rounds(LoggingConfig(compress=True)).name == "rounds.jsonl.gz"


def test_a_default_name_is_the_recipes_and_the_time() -> None:
    stem, date, time = default_run_name("countdown-agon").rsplit("-", 2)
    assert (stem, len(date), len(time)) == ("countdown-agon", 8, 6)


def played(step: int = 0, problems: int = 2) -> Round:
    """A round whose every figure can be told from every other."""
    terms = Reward(correctness=2.0, rivalry=1.0, tiebreak=0.5, format=0.25, length=-0.125)
    draft = make_draft("wrong", make_reply(7, summary="long recap", answer="9"), advantage=-0.5)
    lost = make_draft("unscored", make_reply(3, summary=None, answer=None))
    challenge = make_challenge("right", 0, make_reply(5, policy="b"), terms, shown="long")
    unseen = make_challenge("wrong", 0, make_reply(6, truncated=True), shown=None, paid=False)
    return Round(
        step=step,
        drafter="a",
        challenger="b",
        problems=tuple(make_problems(problems)),
        drafts_PN=((draft, lost),) * problems,
        challenges_PN=((challenge, unseen),) * problems,
    )


def test_a_row_holds_both_texts_the_summary_passed_on_and_each_reward_term() -> None:
    row = round_rows(played())[0]
    assert row == {
        "step": 0,
        "problem": "p0",
        "question": "question 0",
        "gold": "g0",
        "sample": 0,
        "draft": {
            "policy": "a",
            "version": 3,
            "text": "text",
            "summary": "long recap",
            "answer": "9",
            "format_score": 0.0,
            "tokens": 7,
            "prompt_tokens": 5,
            "truncated": False,
            "outcome": "wrong",
            "reason": "different",
            "reward": dict.fromkeys(
                ("correctness", "rivalry", "tiebreak", "format", "length"), 0.0
            ),
            "total_reward": 0.0,
            "advantage": -0.5,
        },
        "challenge": {
            "policy": "b",
            "version": 3,
            "text": "text",
            "summary": "recap",
            "answer": "4",
            "format_score": 0.0,
            "tokens": 5,
            "prompt_tokens": 8,
            "truncated": False,
            "outcome": "right",
            "reason": "equal",
            "reward": {
                "correctness": 2.0,
                "rivalry": 1.0,
                "tiebreak": 0.5,
                "format": 0.25,
                "length": -0.125,
            },
            "total_reward": 3.625,
            "advantage": 0.0,
            "shown": "long",
            "rival_sample": 0,
        },
    }


def test_an_unscored_rollout_has_no_reward_in_its_row() -> None:
    row = round_rows(played())[1]
    assert (row["draft"]["outcome"], row["draft"]["reward"]) == ("unscored", None)
    assert (row["challenge"]["outcome"], row["challenge"]["total_reward"]) == ("wrong", None)
    assert (row["challenge"]["shown"], row["challenge"]["truncated"]) == (None, True)


def test_there_is_a_row_for_every_pair() -> None:
    rows = round_rows(played(problems=3))
    assert [(row["problem"], row["sample"]) for row in rows] == [
        (f"p{p}", n) for p in range(3) for n in range(2)
    ]


def test_without_a_second_stage_a_row_has_a_draft_alone() -> None:
    full = played()
    alone = Round(0, "a", None, full.problems, full.drafts_PN, ((), ()))
    assert all("challenge" not in row for row in round_rows(alone))
    assert [row["draft"] for row in round_rows(alone)] == [r["draft"] for r in round_rows(full)]


@pytest.mark.parametrize("step", range(4))
def test_sampled_rows_are_one_problems_and_every_problem_has_its_turn(step: int) -> None:
    rows = round_rows(played(step, problems=3), "sampled")
    assert {row["problem"] for row in rows} == {f"p{step % 3}"}
    assert len(rows) == 2


def test_no_rows_are_written_when_none_are_asked_for() -> None:
    assert round_rows(played(), "none") == []


def test_rows_are_json() -> None:
    rows = round_rows(played())
    assert json.loads(json.dumps(rows)) == rows
