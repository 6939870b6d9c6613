"""Generated tasks: splits, their own scorers, and answers that a scorer would run."""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from agon.config import TaskConfig, VerifierConfig
from agon.errors import ConfigError, DataError
from agon.recipes import build_config
from agon.records import Outcome, Problem
from agon.tasks import TaskData, load_task
from agon.tasks.splits import Split
from agon.verifiers import PooledJudge, generated

pytest.importorskip("reasoning_gym", reason="the extra reasoning-gym is not installed")

SOME = ["chain_sum", "countdown", "n_queens", "polynomial_multiplication"]
BROKEN = {"game_of_life_halting"}
"""Data sets of reasoning-gym 0.1.25 whose scorer takes anything."""

NEEDS_OPTIONS = {"composite"}
PARTS = [
    {"name": name, "weight": 1.0, "config": {}}
    for name in ("chain_sum", "polynomial_multiplication")
]
ONE_DIGIT = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def load(dataset: str, **more: Any) -> TaskData:
    return cached_load(dataset, json.dumps(more))


@cache
def cached_load(dataset: str, more: str) -> TaskData:
    """Each generation starts a process, which takes seconds."""
    sizes = {"train_problems": 6, "dev_problems": 3, "test_problems": 2}
    return load_task(TaskConfig(name="reasoning_gym", dataset=dataset, **sizes | json.loads(more)))


def problems(data: TaskData) -> list[Problem]:
    return [problem for split in Split for problem in data.problems[split]]


def own_answer(problem: Problem) -> str:
    answer: str = json.loads(problem.gold)["answer"]
    return answer


@pytest.fixture(scope="module")
def judge() -> Any:
    with PooledJudge(VerifierConfig(workers=1, seconds=20)) as judge:
        yield judge


@pytest.mark.parametrize("dataset", SOME)
def test_splits_are_seeded_and_share_no_question(dataset: str) -> None:
    data = load(dataset)
    assert [len(data.problems[split]) for split in Split] == [6, 3, 2]
    assert len({problem.question for problem in problems(data)}) == 11
    assert problems(load(dataset, generator_seed=1)) != problems(data)


def test_another_process_generates_the_same() -> None:
    """This data set walks over sets of texts."""
    first = problems(load("polynomial_multiplication"))
    assert problems(cached_load.__wrapped__("polynomial_multiplication", "{}")) == first


def test_more_training_problems_leave_dev_and_test(judge: PooledJudge) -> None:
    few, many = load("chain_sum"), load("chain_sum", train_problems=40)
    for split in (Split.DEV, Split.TEST):
        questions = [[p.question for p in data.problems[split]] for data in (few, many)]
        assert questions[0] == questions[1]
    assert few.problems[Split.TRAIN] != many.problems[Split.TRAIN]


@pytest.mark.parametrize("dataset", SOME)
def test_its_own_answer_is_right_and_another_is_not(dataset: str, judge: PooledJudge) -> None:
    asked = problems(load(dataset))[:3]
    assert all(verdict.correct for verdict in judge.judge_golds(asked))
    assert all(v.correct for v in judge.judge([(p, own_answer(p)) for p in asked]))
    wrong = judge.judge([(p, "nonsense") for p in asked])
    assert all(verdict.outcome is Outcome.WRONG for verdict in wrong)


def test_a_generator_that_prints_while_it_works_is_read() -> None:
    assert len(problems(load("acre", train_problems=2, dev_problems=1, test_problems=1))) == 4


def test_another_right_answer_is_right(judge: PooledJudge) -> None:
    """The scorer judges and not the text: a countdown expression may be turned around."""
    (problem,) = problems(load("countdown"))[:1]
    (verdict,) = judge.judge([(problem, f"({own_answer(problem)})*1/1")])
    assert verdict.outcome is Outcome.WRONG  # it uses a 1 that is not there
    (verdict,) = judge.judge([(problem, f"({own_answer(problem)})")])
    assert verdict.correct
    assert "scored 1 by countdown" in verdict.reason


@pytest.mark.parametrize(
    "answer",
    [
        "__import__('os').system('touch {marker}')",
        "().__class__.__bases__[0].__subclasses__()",
        "[open('{marker}', 'w')]",
        "exec('1')",
        "(lambda: 1)()",
        "9**9**9**9",
        "x.__class__",
        "'a'.format",
        "f'{1}'",
    ],
)
@pytest.mark.parametrize("dataset", ["countdown", "n_queens", "polynomial_multiplication"])
def test_no_answer_is_run(dataset: str, answer: str, tmp_path: Path, judge: PooledJudge) -> None:
    marker = tmp_path / "marker"
    (problem,) = problems(load(dataset))[:1]
    (verdict,) = judge.judge([(problem, answer.replace("{marker}", str(marker)))])
    assert verdict.outcome is Outcome.WRONG
    assert "may not stand" in verdict.reason or "bound" in verdict.reason
    assert not marker.exists()


def test_a_scorer_that_runs_answers_is_found_by_its_source() -> None:
    import reasoning_gym

    from agon.verifiers.generated_worker import runs_answers

    for name, runs in (("countdown", True), ("n_queens", True), ("chain_sum", False)):
        assert runs_answers(type(reasoning_gym.create_dataset(name, seed=0, size=1))) is runs


def test_the_scorers_that_run_answers_are_these() -> None:
    """All of them in reasoning-gym 0.1.25, by reading their source.

    codeio and basic_arithmetic run programs of their own while they generate, and no answer;
    propositional_logic has a parser that shares a name with sympy's.
    """
    from reasoning_gym.factory import DATASETS

    from agon.verifiers.generated_worker import runs_answers

    assert {name for name, (kind, _) in DATASETS.items() if runs_answers(kind)} == {
        *("binary_matrix", "bitwise_arithmetic", "countdown", "intermediate_integration"),
        *("n_queens", "number_sorting", "polynomial_multiplication", "puzzle24"),
        *("simple_integration", "spiral_matrix", "string_insertion"),
    }


def library(**names: Any) -> dict[str, Any]:
    """What stands at the top of a module of the library."""
    return {"__name__": "reasoning_gym.made_up", **names}


@pytest.mark.parametrize(
    ("body", "runs"),
    [
        ("return float(answer == entry)", False),
        ("return eval(answer)", True),
        ("return [eval(part) for part in answer]", True),
        ("return self.helper(answer)", True),
        ("return self.prop", True),
        ("return beside(answer)", True),
        ("return TABLE['x'](answer)", True),
        ("return sp.simplify(answer)", True),
        ("from sympy import simplify\n  return simplify(answer)", True),
    ],
)
def test_a_scorer_is_followed_into_what_it_calls(body: str, runs: bool) -> None:
    from agon.verifiers.generated_worker import runs_answers

    sympy = pytest.importorskip("sympy")
    names = library(sp=sympy)
    exec("def beside(answer):\n  return exec(answer)\nTABLE = {'x': beside}", names)
    exec(
        "class Made:\n"
        " def unused(self, answer):\n  return eval(answer)\n"
        " def helper(self, answer):\n  return eval(answer)\n"
        " @property\n"
        " def prop(self):\n  return eval(self.x)\n"
        f" def score_answer(self, answer, entry):\n  {body}\n",
        names,
    )
    assert runs_answers(names["Made"]) is runs


def test_a_composite_data_set_is_scored_by_its_parts(judge: PooledJudge) -> None:
    asked = problems(load("composite", dataset_options={"datasets": PARTS}))
    assert all(verdict.correct for verdict in judge.judge_golds(asked))
    verdicts = judge.judge([(problem, "exec('1')") for problem in asked])
    assert {verdict.outcome for verdict in verdicts} == {Outcome.WRONG}
    reasons = {verdict.reason for verdict in verdicts}
    # Those of one part are scored, those of the other never reach their scorer.
    assert any("may not stand" in reason for reason in reasons)
    assert any("scored" in reason for reason in reasons)


@pytest.mark.parametrize("answer", ["nan", "n a n", "(NaN)", "nan+0i", "inf", "1e999"])
def test_an_answer_without_a_finite_number_is_near_nothing(answer: str, judge: PooledJudge) -> None:
    """Its scorer's `min(1, exp(-distance))` is full where the distance is not a number."""
    (problem,) = problems(load("complex_arithmetic"))[:1]
    (verdict,) = judge.judge([(problem, answer)])
    assert verdict.outcome is Outcome.WRONG


@pytest.mark.parametrize(
    ("own", "answer", "found"),
    [
        ("nan", "nan", False),  # a word, where no number is asked for
        ("abc", "banana", False),
        ("5 days", "in fact 5 days", False),
        ("1 information", "2 informations", False),
        ("3", "2e3", False),
        ("3 nan", "nan 3", False),
        (None, "nan", False),
        ("3", "-Infinity", True),
    ],
)
def test_only_what_stands_for_a_number_is_looked_at(
    own: str | None, answer: str, found: bool
) -> None:
    assert generated.not_finite(own, answer) is found


def test_json_answers_of_another_spacing_reach_their_scorer(judge: PooledJudge) -> None:
    asked = [p for p in problems(load("codeio")) if ": " in own_answer(p)][:2]
    assert asked
    spaced = [(p, json.dumps(json.loads(own_answer(p)), indent=1)) for p in asked]
    assert all(verdict.correct for verdict in judge.judge(spaced))


def test_a_scorer_that_takes_nonsense_has_no_usable_golds(judge: PooledJudge) -> None:
    verdicts = judge.judge_golds(problems(load("game_of_life_halting"))[:2])
    assert {v.outcome for v in verdicts} == {Outcome.WRONG}
    assert "takes 'nonsense'" in verdicts[0].reason


def test_a_scorer_that_stumbles_over_an_answer_calls_it_wrong(judge: PooledJudge) -> None:
    (problem,) = problems(load("prime_factorization"))[:1]
    (verdict,) = judge.judge([(problem, "two times two")])
    assert verdict.outcome is Outcome.WRONG


@pytest.mark.parametrize("answer", ["nan", "nanj", "1+nanj", "NaN", "inf", "-infj", "infinity"])
def test_what_is_no_finite_number_is_near_none(answer: str, judge: PooledJudge) -> None:
    """This scorer measures a distance, and gives nan the full score."""
    (problem,) = problems(load("complex_arithmetic"))[:1]
    (verdict,) = judge.judge([(problem, answer)])
    assert verdict.outcome is Outcome.WRONG


def test_another_version_of_the_generator_is_noticed(judge: PooledJudge) -> None:
    (problem,) = problems(load("chain_sum"))[:1]
    fields = json.loads(problem.gold) | {"answer": "another"}
    moved = Problem("m", "?", json.dumps(fields), "generated")
    (verdict,) = judge.judge([(moved, "12")])
    assert verdict.outcome is Outcome.UNSCORED
    assert "another version" in verdict.detail


def test_errors_name_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"task\.dataset: .*did you mean leg_counting"):
        load("leg_countin")
    with pytest.raises(ConfigError, match=r"task\.dataset_options"):
        load("leg_counting", dataset_options={"wings": 3})
    with pytest.raises(DataError, match=r"task\.dev_problems"):
        load("chain_sum", dev_problems=600, dataset_options=ONE_DIGIT)
    with pytest.raises(ConfigError, match=r"task\.dataset"):
        build_config({}, ["task.name=reasoning_gym"])
    named = ["task.name=reasoning_gym", "task.dataset=time_intervals"]
    with pytest.raises(ConfigError, match=r"task\.dataset_options\.min_date"):
        build_config({}, [*named, "task.dataset_options={min_date = 2020-01-01}"])
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    cached_load.cache_clear()
    with pytest.raises(ConfigError, match=r"pip install 'agon-rl\[reasoning-gym\]'"):
        load("leg_counting")


def test_a_gold_that_names_no_entry_is_none() -> None:
    for gold in ("", "12", "{}", '{"dataset": "x"}'):
        verdict = generated.verify_gold_quickly(gold)
        assert verdict is not None
        assert verdict.outcome is Outcome.WRONG


@pytest.mark.slow
def test_every_data_set_generates_and_takes_its_own_answers(judge: PooledJudge) -> None:
    from reasoning_gym.factory import DATASETS

    failing = set()
    for dataset in sorted(set(DATASETS) - NEEDS_OPTIONS):
        verdicts = judge.judge_golds(problems(load(dataset, train_problems=2)))
        if not all(verdict.correct for verdict in verdicts):
            failing.add(dataset)
    assert failing == BROKEN
