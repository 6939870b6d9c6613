"""What a chat of several turns becomes, and which direction is called `agon`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agon.runs import RunFolder
from agon.serving.errors import ApiError
from agon.serving.models import choose_direction, served_models
from agon.serving.question import question_of
from agon.serving.schema import Message


def chat(*turns: tuple[str, str]) -> list[Message]:
    return [Message.model_validate({"role": role, "content": text}) for role, text in turns]


def test_one_user_message_is_the_problem_exactly() -> None:
    assert question_of(chat(("user", " What is\n2 + 2? "))) == " What is\n2 + 2? "


def test_what_stands_before_the_last_turn_is_written_in_front_of_it() -> None:
    messages = chat(("system", "Be brief."), ("developer", "In English."), ("user", "2 + 2?"))
    assert question_of(messages) == "Be brief.\n\nIn English.\n\n2 + 2?"
    messages = chat(("system", "S"), ("user", "A"), ("assistant", "B"), ("user", "C"))
    assert question_of(messages) == "S\n\nUser: A\n\nAssistant: B\n\nUser: C"


def test_empty_earlier_turns_are_left_out() -> None:
    messages = chat(("system", ""), ("user", "C"))
    assert question_of(messages) == "C"
    reply = Message.model_validate({"role": "assistant", "content": None, "reasoning": "x"})
    assert question_of([reply, *chat(("user", "C"))]) == "User: C"


def test_a_chat_that_ends_with_another_role_is_refused() -> None:
    with pytest.raises(ApiError, match="expected 'user'"):
        question_of(chat(("user", "A"), ("assistant", "B")))


def evaluated(folder: Path, **rates: float) -> RunFolder:
    run = RunFolder(folder)
    run.evaluations.mkdir(parents=True)
    systems = {name.replace("_", "->"): {"pass_1": r, "problems": 50} for name, r in rates.items()}
    (run.evaluations / "dev.json").write_text(json.dumps({"step": 4, "systems": systems}))
    return run


def test_the_better_direction_on_dev_is_agon(tmp_path: Path) -> None:
    run = evaluated(tmp_path / "x", a_b=0.2, b_a=0.3)
    stages, why = choose_direction(run, 2, 4)
    assert stages == ("b", "a")
    assert "50 dev problems" in why
    assert "evaluated at step 4, served from step 9" in choose_direction(run, 2, 9)[1]
    assert choose_direction(evaluated(tmp_path / "y", a_b=0.3, b_a=0.3), 2, 4)[0] == ("a", "b")


def test_without_a_dev_evaluation_it_is_a_then_b_and_says_so(tmp_path: Path) -> None:
    for run in (None, RunFolder(tmp_path / "none"), evaluated(tmp_path / "half", a_b=0.3)):
        stages, why = choose_direction(run, 2, 4)
        assert stages == ("a", "b")
        assert "a->b, since" in why


def test_the_test_split_chooses_nothing(tmp_path: Path) -> None:
    run = evaluated(tmp_path / "x", a_b=0.1, b_a=0.9)
    (run.evaluations / "dev.json").rename(run.evaluations / "test.json")
    assert choose_direction(run, 2, 4)[0] == ("a", "b")


def test_one_policy_reads_its_own_summary() -> None:
    models = served_models(1, choose_direction(None, 1, 4))
    assert {name: model.system for name, model in models.items()} == {
        "agon": "a->a",
        "agon-a-a": "a->a",
        "a": "a",
        "base": "base",
    }
