"""What the command line refuses, in which words, before a model is loaded; and what it shows."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import agon.cli
from agon.config import leaves
from agon.recipes import RESUMABLE, load_recipe, sources_of
from test_resume import RECIPE, TINY, Ended, metrics, settings
from test_resume import agon as run_agon

Said = Callable[..., Ended]


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Said:
    """Runs `agon` in this process, wide enough that no table is folded; loads no model."""
    monkeypatch.setenv("COLUMNS", "240")

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a model is loaded")

    monkeypatch.setattr("agon.workshop.load_base", refuse)

    def run(*arguments: str | Path) -> Ended:
        monkeypatch.setattr(sys, "argv", ["agon", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            agon.cli.main()
        output = capsys.readouterr()
        return Ended(int(ended.value.code or 0), output.out, output.err)

    return run


def assert_refused(ended: Ended, *parts: str) -> None:
    """Status 2, and one message on stderr that holds the parts; no traceback."""
    assert ended.status == 2, ended
    assert "Traceback" not in ended.err + ended.out
    assert ended.err.startswith("agon: ")
    assert ended.err.count("agon: ") == 1
    assert not re.search(r"\n(?!  )\S", ended.err.rstrip("\n")), "lines that belong to no message"
    for part in parts:
        assert part in ended.err


# Recipes and overrides


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_without_a_recipe_train_says_what_to_give(say: Said) -> None:
    assert_refused(say("train"), "RECIPE is missing", "--resume RUN")


def test_a_missing_recipe_is_answered_with_the_known_ones(say: Said) -> None:
    assert_refused(say("train", "no-such.toml"), "RECIPE", "no-such.toml", "countdown-agon")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[game\npolicies = 2", ["is not valid TOML", "line 1"]),
        (
            "[sampling]\ngroup_sise = 8",
            ["sampling.group_sise", "did you mean sampling.group_size?"],
        ),
        ("[smapling]\ngroup_size = 8", ["smapling: there is no such setting"]),
        ("[sampling]\ngroup_size = 'eight'", ["sampling.group_size", "integer", "'eight'"]),
        ("[sampling]\ngroup_size = 1", ["sampling.group_size", "greater than or equal to 2", "1"]),
        (
            "[game]\nexchange = 'none'\n[reward]\ncredit = 'correctness'",
            ["game.policies = 2 needs a second stage", "set game.policies = 1"],
        ),
        (
            "[game]\npolicies = 1",
            ['reward.credit = "conversion" sets a policy against itself', '"correctness"'],
        ),
        ("[task]\nname = 'gsm9k'", ["task.name", "'gsm8k'", "'gsm9k'"]),
        ("[sources]\n'reward.credit' = 'rumour'", ["reward.credit", "rumour"]),
    ],
)
def test_a_recipe_that_cannot_be_used_names_file_field_and_remedy(
    say: Said, tmp_path: Path, text: str, parts: list[str]
) -> None:
    path = write(tmp_path, "mine.toml", text)
    assert_refused(say("train", path, "--run-dir", tmp_path / "run"), "mine.toml", *parts)
    assert not (tmp_path / "run").exists()


def test_all_wrong_fields_are_in_one_message(say: Said, tmp_path: Path) -> None:
    path = write(tmp_path, "mine.toml", "[sampling]\ngroup_size = 1\ntemperature = 0\nslot = 1")
    assert_refused(
        say("train", path), "sampling.group_size", "sampling.temperature", "sampling.slots?"
    )


@pytest.mark.parametrize("text", ["steps=3", "training.steps", "=3", "training.=3", ".steps=3"])
def test_a_malformed_override_is_answered_with_the_form(say: Said, text: str) -> None:
    assert_refused(say("train", RECIPE, "--set", text), "--set", text, "section.field=value")


def test_an_override_of_an_unknown_setting_suggests_the_close_one(say: Said) -> None:
    ended = say("train", RECIPE, "--set", "optimizer.learning_rat=1e-4")
    assert_refused(ended, "optimizer.learning_rat", "did you mean optimizer.learning_rate?")


# What is not there


def train(say: Said, tmp_path: Path, *overrides: str) -> Ended:
    options = [part for override in overrides for part in ("--set", override)]
    return say("train", RECIPE, *TINY, *options, "--run-dir", tmp_path / "run")


def test_a_missing_model_folder_is_named(say: Said, tmp_path: Path) -> None:
    for name in (str(tmp_path / "none"), str(tmp_path)):
        ended = train(say, tmp_path, f"model.name_or_path={name}")
        assert_refused(ended, "model.name_or_path", name, "Give a folder")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_missing_warm_start_is_named(say: Said, tmp_path: Path, name: str) -> None:
    ended = train(say, tmp_path, f"adapters.warm_{name}={tmp_path}/none")
    assert_refused(ended, f"adapters.warm_{name}", "adapter_config.json", "give a folder that PEFT")


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"r": 7}, ["has rank 7", "adapters.rank = 16", "set adapters.rank = 7"]),
        ({"lora_alpha": 5.0}, ["has alpha 5.0", "set adapters.alpha = 5.0"]),
        ({"peft_type": "IA3"}, ["IA3", "expected LORA"]),
        ({"use_rslora": True}, ["use_rslora", "plain LoRA"]),
    ],
)
def test_a_warm_start_that_does_not_fit_is_named_with_the_difference(
    say: Said, tmp_path: Path, changes: dict[str, Any], parts: list[str]
) -> None:
    config = {"peft_type": "LORA", "r": 16, "lora_alpha": 32.0} | changes
    write(tmp_path, "adapter_config.json", json.dumps(config))
    assert_refused(train(say, tmp_path, f"adapters.warm_a={tmp_path}"), "adapters.warm_a", *parts)


def gsm8k(folder: Path, last: str) -> str:
    """A small data set whose last row answers `last`."""
    rows = [{"question": f"What is {n} and 1?", "answer": f"So\n#### {n + 1}"} for n in range(20)]
    rows.append({"question": "What is 9 and 9?", "answer": last})
    for split in ("train", "test"):
        part = rows if split == "train" else [{"question": "What is 8 and 8?", "answer": "#### 16"}]
        write(folder, f"{split}.jsonl", "".join(json.dumps(row) + "\n" for row in part))
    return str(folder)


def on_gsm8k(say: Said, tmp_path: Path, path: str, *more: str) -> Ended:
    overrides = ("task.name=gsm8k", f"task.path={path}", "task.dev_problems=3", *more)
    return train(say, tmp_path, *overrides)


def test_missing_data_is_named(say: Said, tmp_path: Path) -> None:
    ended = on_gsm8k(say, tmp_path, f"{tmp_path}/none")
    assert_refused(ended, "task.path", f"{tmp_path}/none", "does not exist", "Give a .jsonl")


@pytest.mark.parametrize("answer", ["So it is 18", "So\n#### "])
def test_a_row_without_a_gold_answer_is_named(say: Said, tmp_path: Path, answer: str) -> None:
    ended = on_gsm8k(say, tmp_path, gsm8k(tmp_path, answer))
    assert_refused(ended, "train.jsonl, row 21, field 'answer'", "no gold answer", "Mend or remove")


def test_too_few_problems_for_a_step_are_counted(say: Said, tmp_path: Path) -> None:
    path = gsm8k(tmp_path, "#### 18")
    ended = on_gsm8k(say, tmp_path, path, "training.problems_per_step=19")
    assert_refused(
        ended, "training.problems_per_step = 19", "only 18 training problems", "lower it"
    )


def test_a_completion_limit_that_does_not_fit_is_answered_with_one_that_does(
    say: Said, tmp_path: Path
) -> None:
    ended = train(say, tmp_path, "sampling.max_new_tokens=5000")
    assert_refused(ended, "sampling.max_new_tokens = 5000 does not fit", "context is 512")
    [fits] = re.findall(r"Lower sampling.max_new_tokens to at most (\d+)", ended.err)
    ended = train(say, tmp_path, f"sampling.max_new_tokens={int(fits) + 1}")
    assert_refused(ended, "does not fit")
    ended = say("train", RECIPE, "--set", f"sampling.max_new_tokens={fits}", "--dry-run")
    assert ended.status == 0


def test_a_gpu_that_is_not_there_is_refused(say: Said, tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    ended = train(say, tmp_path, "training.device=cuda")
    assert_refused(ended, 'training.device = "cuda"', 'set training.device = "cpu" or "auto"')


def test_a_tracker_that_is_not_installed_is_refused_before_anything_is_made(
    say: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    ended = train(say, tmp_path, 'logging.trackers=["trackio"]')
    assert_refused(ended, "logging.trackers: trackio is not installed", "agon-rl[trackio]")
    assert not (tmp_path / "run").exists()


# Run folders


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps, as the command line makes it."""
    folder = tmp_path_factory.mktemp("trained")
    options = settings(training={"steps": 2})
    ended = run_agon(folder, "train", RECIPE, *TINY, *options, "--run-dir", folder / "run")
    assert ended.status == 0, ended.err
    return folder / "run"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of the run that a test may change."""
    return shutil.copytree(trained, tmp_path / "run")


@pytest.mark.parametrize(
    "command", [["eval"], ["solve", "make 22 from 4,7,6"], ["train", "--resume"]]
)
def test_a_folder_that_is_no_run_is_named(say: Said, tmp_path: Path, command: list[str]) -> None:
    name, *rest = command
    arguments = [name, *rest, tmp_path] if name == "train" else [name, tmp_path, *rest]
    assert_refused(say(*arguments), f"{tmp_path} is no run folder", "config.json", "--run-dir")


def test_a_second_run_into_a_run_folder_is_refused_and_changes_nothing(say, run: Path) -> None:
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    ended = say("train", RECIPE, *TINY, "--run-dir", run)
    assert_refused(ended, f"{run} holds a run already", f"agon train --resume {run}", "--run-dir")
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before


def test_a_run_folder_that_cannot_be_made_is_named(say: Said, tmp_path: Path) -> None:
    file = write(tmp_path, "file", "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agon.commands.train.open_workshop", _workshop_without_a_model)
        ended = say("train", RECIPE, *TINY, "--run-dir", file / "run")
    assert_refused(ended, f"--run-dir {file}/run cannot be made")


def _workshop_without_a_model(*_: object) -> Any:
    from types import SimpleNamespace

    return SimpleNamespace(device="cpu", follower=None, close=lambda: None)


@pytest.mark.parametrize("extra", [["countdown-agon"], ["--run-dir", "elsewhere"]])
def test_a_resumed_run_takes_neither_recipe_nor_folder(say: Said, run: Path, extra) -> None:
    assert_refused(say("train", *extra, "--resume", run), "--resume RUN", "no RECIPE or --run-dir")


@pytest.mark.parametrize(
    "override",
    ["training.steps=9", "seeds.data=1", "reward.credit=margin", "model.dtype=bfloat16"],
)
def test_a_changed_setting_is_refused_by_name_with_the_ones_that_may(say, run, override) -> None:
    ended = say("train", "--resume", run, "--set", override)
    assert_refused(ended, f"--set {override.partition('=')[0]}", *RESUMABLE)


def test_a_run_without_a_checkpoint_says_to_wait(say: Said, run: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    with pytest.MonkeyPatch.context() as patch:
        patch.undo()
        ended = run_agon(run.parent, "solve", run, "make 22 from 4,7,6")
    assert ended.status == 2
    assert ended.said == [f"agon: {run} has no checkpoint yet: let it train for a while"]


def test_a_damaged_configuration_of_a_run_is_named(say: Said, run: Path) -> None:
    write(run, "config.json", "{")
    assert_refused(say("eval", run), f"{run}/config.json cannot be read")


def test_a_warm_start_over_another_base_is_refused_with_both_fingerprints(
    run: Path, tmp_path: Path
) -> None:
    adapter = run / "checkpoints" / "step-000002" / "adapters" / "a"
    note = json.loads((adapter / "agon_adapter.json").read_text())
    write(adapter, "agon_adapter.json", json.dumps(note | {"base_fingerprint": "0123456789abcdef"}))
    options = settings(adapters={"warm_a": str(adapter)})
    ended = run_agon(tmp_path, "train", RECIPE, *TINY, *options, "--run-dir", tmp_path / "new")
    assert ended.status == 2
    [line] = ended.said
    for part in ("adapters.warm_a", "another base", "0123456789abcdef", note["base_fingerprint"]):
        assert part in line
    assert not (tmp_path / "new").exists()


def test_a_run_starts_from_the_adapters_of_another(run: Path, tmp_path: Path) -> None:
    adapters = run / "checkpoints" / "step-000002" / "adapters"
    warm = {"warm_a": str(adapters / "a"), "warm_b": str(adapters / "b")}
    options = settings(adapters=warm, training={"steps": 1}, optimizer={"learning_rate": 1e-12})
    ended = run_agon(tmp_path, "train", RECIPE, *TINY, *options, "--run-dir", tmp_path / "new")
    assert ended.status == 0, ended.err
    [first], last = metrics(tmp_path / "new"), metrics(run)[-1]
    for key in ("adapters.norm_a", "adapters.norm_b", "adapters.distance"):
        assert first[key] == pytest.approx(last[key], rel=1e-4)


# eval and solve


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--split", "train"], ["--split", "'train'", "expected dev or test"]),
        (["--samples", "0"], ["--samples", "at least 1"]),
        (["--problems", "0"], ["--problems", "at least 1"]),
        (["--task", "mmlu"], ["--task", "'mmlu'", "countdown, gsm8k, math500, deepmath"]),
        (["--task", "gsm8k", "--path", "/no/data"], ["'/no/data' does not exist"]),
        (["--task", "reasoning_gym"], ["task.dataset"]),
        (["--task", "jsonl"], ["needs task.path"]),
        (["--set", "task.datset=x"], ["task.datset", "did you mean task.dataset?"]),
        (["--set", "sampling.group_size=4"], ["--set", "changes only task"]),
    ],
)
def test_eval_refuses_what_it_cannot_do(say: Said, run: Path, arguments, parts) -> None:
    assert_refused(say("eval", run, *arguments), *parts)


def test_eval_refuses_a_result_file_that_it_could_not_count_before_it_evaluates(
    say: Said, run: Path
) -> None:
    (run / "evaluations").mkdir(exist_ok=True)
    write(run / "evaluations", "dev.json", "{half")
    assert_refused(say("eval", run), "dev.json", "is not an evaluation", "move it away")


def test_eval_refuses_a_split_that_the_task_does_not_have_before_it_loads_a_model(
    say: Said, run: Path, shared_data: Path
) -> None:
    data = ["--task", "math500", "--path", shared_data / "math500"]
    assert_refused(say("eval", run, *data), "--split dev", "math500", "only test")
    assert not (run / "evaluations").exists()


def test_a_run_is_evaluated_on_data_of_ones_own(run: Path, tmp_path: Path) -> None:
    rows = [{"q": f"make {n} from 4,7,6", "a": str(n)} for n in (17, 11, 13)]
    path = write(tmp_path, "mine.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    fields = ("question_field=q", "answer_field=a", "verifier=text", "dev_problems=1")
    changes = [
        word for field in (*fields, "test_problems=1") for word in ("--set", f"task.{field}")
    ]
    ended = run_agon(tmp_path, "eval", run, "--task", "jsonl", "--path", path, *changes)
    assert ended.status == 0, ended.err
    assert not (run / "evaluations" / "dev.json").exists()
    record = json.loads((run / "evaluations" / "jsonl-dev.json").read_text())
    assert all(len(attempts) == 1 for attempts in record["attempts"].values())


@pytest.mark.parametrize("problem", ["", "   "])
def test_an_empty_problem_is_refused(say: Said, run: Path, problem: str) -> None:
    assert_refused(say("solve", run, problem), "PROBLEM", "is empty", "give the problem's text")


@pytest.mark.parametrize("problem", ["What is 2+2?", "make 22 from 4,7", "make 22 of 4,7,6"])
def test_a_countdown_problem_of_another_form_is_answered_with_the_form(say, run, problem) -> None:
    assert_refused(say("solve", run, problem), "PROBLEM", problem, "'make 22 from 3,5,7'")


@pytest.mark.parametrize("order", ["c", "a->c", "a->b->a", "->", "a,b"])
def test_an_unknown_order_is_answered_with_the_policies(say: Said, run: Path, order: str) -> None:
    ended = say("solve", run, "make 22 from 4,7,6", "--order", order)
    assert_refused(ended, "--order", order, "joined by '->'", "base, a, b")


@pytest.fixture(scope="module")
def evaluated(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """A copy of the run, evaluated on eight dev problems with two samples."""
    folder = tmp_path_factory.mktemp("evaluated")
    run = shutil.copytree(trained, folder / "run")
    ended = run_agon(folder, "eval", run, "--problems", "8", "--samples", "2")
    assert ended.status == 0, ended.err
    return run, ended


SYSTEMS = ["base", "base->base", "a", "b", "a->b", "b->a", "a->a", "b->b"]


def test_eval_writes_a_record_for_every_system_problem_and_sample(evaluated) -> None:
    run, _ = evaluated
    record = json.loads((run / "evaluations" / "dev.json").read_text())
    assert record["step"] == 2
    assert record["readings"] == 1
    assert record["config"] == json.loads((run / "config.json").read_text())
    assert list(record["systems"]) == list(record["attempts"]) == SYSTEMS
    tried = [(attempt["problem"], attempt["sample"]) for attempt in record["attempts"]["base"]]
    assert len(set(tried)) == 16
    for system, attempts in record["attempts"].items():
        assert [(attempt["problem"], attempt["sample"]) for attempt in attempts] == tried
        stages = len(system.split("->"))
        assert {(len(a["generated"]), len(a["prompt"])) for a in attempts} == {(stages, stages)}
        figures = record["systems"][system]
        assert figures["passes"] == stages
        right = sum(attempt["outcome"] == "right" for attempt in attempts)
        assert figures["pass_1"] == pytest.approx(right / 16)
        assert figures["generated"] == pytest.approx(
            sum(sum(a["generated"]) for a in attempts) / 16
        )
        assert figures["prompt"] == pytest.approx(sum(sum(a["prompt"]) for a in attempts) / 16)
        # 2 steps of 2 problems with 4 drafts and 4 challenges; none for the untrained base
        assert figures["training_rollouts"] == (0 if "base" in system else 32)


def test_systems_that_begin_alike_share_their_drafts(evaluated) -> None:
    run, _ = evaluated
    attempts = json.loads((run / "evaluations" / "dev.json").read_text())["attempts"]
    for system in SYSTEMS:
        first, _, second = system.partition("->")
        if second:
            for one, two in zip(attempts[first], attempts[system], strict=True):
                assert two["draft_outcome"] == one["outcome"]
                assert two["generated"][0] == one["generated"][0]


def test_the_table_shows_what_every_system_costs(evaluated) -> None:
    run, ended = evaluated
    figures = json.loads((run / "evaluations" / "dev.json").read_text())["systems"]
    assert f"{run} after 2 steps, 8 dev problems" in ended.out.replace("\n", " ")
    for heading in ("passes", "pass@1", "written", "read", "rollouts"):
        assert heading in ended.out
    for system, figure in figures.items():
        [line] = re.findall(rf"^{re.escape(system)} +(\d.*)$", ended.out, re.MULTILINE)
        for value in (
            str(figure["passes"]),
            f"{100 * figure['pass_1']:.1f}",
            f"{figure['generated']:.0f}",
            f"{figure['prompt']:.0f}",
            str(figure["training_rollouts"]),
        ):
            assert re.search(rf"(?<!\d){re.escape(value)}(?!\d)", line), (system, value, line)
    assert f"written: {run}/evaluations/dev.json" in ended.out


def test_eval_again_gives_the_same_numbers_and_test_readings_are_counted(evaluated) -> None:
    run, _ = evaluated
    first = json.loads((run / "evaluations" / "dev.json").read_text())
    for split, reading in (("dev", 2), ("test", 1), ("test", 2)):
        options = ["--problems", "8", "--samples", "2"] if split == "dev" else ["--problems", "2"]
        ended = run_agon(run.parent, "eval", run, "--split", split, *options)
        assert ended.status == 0, ended.err
        record = json.loads((run / "evaluations" / f"{split}.json").read_text())
        assert record["readings"] == reading
        if split == "dev":
            assert record["attempts"] == first["attempts"]
            assert record["systems"] == first["systems"]
        told = "has been read 2 times" in ended.out.replace("\n", " ")
        assert told == ((split, reading) == ("test", 2))


def parts_of(out: str) -> dict[str, str]:
    """The parts of what `agon solve` prints, by heading."""
    headings = r"^(draft by \w+|passed on|challenge by \w+|answer)$"
    _, *pieces = re.split(headings, out, flags=re.MULTILINE)
    return {pieces[i]: pieces[i + 1].strip() for i in range(0, len(pieces), 2)}


def test_solve_shows_draft_summary_challenge_and_answer_the_same_for_a_seed(run: Path) -> None:
    outputs = {}
    for name, options in (("one", []), ("again", []), ("other", ["--seed", "1"])):
        ended = run_agon(run.parent, "solve", run, "make 22 from 4,7,6", *options)
        assert ended.status == 0, ended.err
        assert ended.said == []
        outputs[name] = ended.out
    assert outputs["one"] == outputs["again"] != outputs["other"]
    for out in outputs.values():
        parts = parts_of(out)
        assert list(parts) == ["draft by a", "passed on", "challenge by b", "answer"]
        summary = re.search(r"<summary>(.*?)</summary>", parts["draft by a"], re.DOTALL)
        expected = summary[1].strip() if summary else "no usable summary"
        assert "".join(parts["passed on"].split()) == "".join(expected.split())
        assert "<answer>" not in parts["passed on"]
        answer = re.search(r"<answer>(.*?)</answer>", parts["challenge by b"], re.DOTALL)
        assert parts["answer"].startswith(answer[1] if answer else "none")
        assert re.search(r"\(\d+ tokens in the last stage\)$", parts["answer"])


def test_solve_takes_another_order_and_a_temperature(run: Path) -> None:
    options = ["--order", "b->base", "--temperature", "0"]
    ended = run_agon(run.parent, "solve", run, "make 22 from 4,7,6", *options)
    assert ended.status == 0, ended.err
    assert list(parts_of(ended.out)) == ["draft by b", "passed on", "challenge by base", "answer"]
    alone = run_agon(run.parent, "solve", run, "make 22 from 4,7,6", "--order", "b", *options[2:])
    assert list(parts_of(alone.out)) == ["draft by b", "answer"]
    assert parts_of(alone.out)["draft by b"] == parts_of(ended.out)["draft by b"]


# --dry-run and --help


def test_a_dry_run_shows_every_setting_with_its_source_and_makes_nothing(
    say: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    overrides = ["training.problems_per_step=100", "optimizer.learning_rate=0.001"]
    options = [part for override in overrides for part in ("--set", override)]
    ended = say("train", RECIPE, *options, "--run-dir", "here", "--dry-run")
    assert ended.status == 0
    assert ended.err == ""
    config = load_recipe(RECIPE, overrides)
    sources = sources_of(config, overrides)
    shown = {}
    for line in ended.out.splitlines():
        cells = [cell.strip() for cell in line.split("│")]
        if len(cells) == 5:
            shown[cells[1]] = cells[2], cells[3]
    for name, value in leaves(config):
        text, source = shown[name]
        assert text == json.dumps(value).strip()
        assert source == sources[name]
    assert shown["optimizer.learning_rate"] == ("0.001", "command line")
    assert shown["sampling.group_size"][1] in ("recipe", "paper")
    assert not list(tmp_path.iterdir())


def test_a_dry_run_counts_problems_steps_rollouts_tokens_and_files(say: Said) -> None:
    from agon.tasks.countdown import enumerate_problems
    from agon.tasks.splits import Split

    ended = say(
        "train", RECIPE, "--set", "training.problems_per_step=100", "--run-dir", "here", "--dry-run"
    )
    counts = [len(list(enumerate_problems(split))) for split in Split]
    assert "problems: {} train, {} dev, {} test".format(*counts) in ended.out
    config = load_recipe(RECIPE)
    steps, rollouts = config.training.steps or 0, 2 * 100 * config.sampling.group_size
    assert f"steps: one pass is {counts[0] // 100}, this run {steps}" in ended.out
    assert f"rollouts: {rollouts} a step, {rollouts * steps} in all" in ended.out
    assert "context: 512 tokens; longest plain prompt" in ended.out
    files = (
        "config.json",
        "environment.json",
        "metrics.jsonl",
        "rounds.jsonl",
        "checkpoints/step-*",
    )
    for file in files:
        assert f"here/{file}" in ended.out


def test_a_dry_run_refuses_what_a_run_would(say: Said, tmp_path: Path) -> None:
    for override in ("sampling.max_new_tokens=5000", f"model.name_or_path={tmp_path}/none"):
        ended = say("train", RECIPE, "--set", override, "--dry-run")
        assert_refused(ended, override.partition("=")[0])


HEAVY = ("torch", "transformers", "peft", "accelerate", "datasets", "numpy", "scipy", "agon.config")


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["nonsense"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys, agon.cli\n"
        f"sys.argv = ['agon', *{arguments!r}]\n"
        "try:\n    agon.cli.main()\n"
        "except SystemExit as end:\n    status = end.code\n"
        f"print('LOADED', status, [name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    status = 2 if arguments == ["nonsense"] else 0
    assert f"LOADED {status} []" in done.stdout


def test_a_programs_errors_are_one_line_on_stderr_and_status_2(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "agon", "train", "--resume", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert_refused(Ended(done.returncode, done.stdout, done.stderr), "is no run folder")
    assert done.stdout == ""
