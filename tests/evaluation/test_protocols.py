"""Systems are paired: by drafts, by keys, whatever else runs and in whatever order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from agon.engines.base import Sampling
from agon.evaluation.protocols import Attempt, System, evaluate, standard_systems
from agon.preflight import Language, read_language
from agon.recipes import load_recipe
from agon.records import Outcome, Problem, Role
from agon.rounds import Table
from agon.tasks.countdown import enumerate_problems
from agon.tasks.splits import Split
from agon.workshop import Workshop, open_workshop
from fakes import UNJUDGED, ScriptedEngine, make_problems, make_table, written

SAMPLING = Sampling(48, 1.0)
ALL = standard_systems(2)


def system(name: str) -> System:
    return System(tuple(name.split("->")))


def play(table: Table, systems: Sequence[System], problems=None, samples: int = 2, seed: int = 0):
    """Every system's attempts on three problems."""
    return evaluate(systems, problems or make_problems(3), samples, seed, SAMPLING, table)


def scripted(policy: str, key: str) -> str:
    """Says who wrote it, for which key; the answer is gold for the first problem."""
    *_, role, problem, _sample = key.split("/")
    answer = "g0" if problem == "p0" else f"answer of {policy}"
    return written(answer, summary=f"{role} by {policy} for {key}")


def engine_of(table: Table) -> ScriptedEngine:
    assert isinstance(table.engine, ScriptedEngine)
    return table.engine


def test_the_standard_systems_are_base_adapters_cascades_and_self_cascades() -> None:
    names = [system.name for system in ALL]
    assert names == ["base", "base->base", "a", "b", "a->b", "b->a", "a->a", "b->b"]
    assert [s.name for s in standard_systems(1)] == ["base", "base->base", "a", "a->a"]


def test_each_policy_drafts_once_for_all_systems_that_begin_with_it() -> None:
    table = make_table(scripted)
    play(table, ALL)
    calls = [(call.policy, call.keys[0].split("/")[2]) for call in engine_of(table).calls]
    drafts = [policy for policy, role in calls if role == Role.DRAFT]
    assert drafts == ["base", "a", "b"]
    challenges = [policy for policy, role in calls if role == Role.CHALLENGE]
    assert challenges == ["base", "b", "a", "a", "b"]


def test_the_keys_are_those_of_the_stage_alone_for_every_system() -> None:
    table = make_table(scripted)
    play(table, ALL, seed=7)
    for call in engine_of(table).calls:
        role = call.keys[0].split("/")[2]
        assert call.keys == tuple(f"eval/7/{role}/p{p}/{n}" for p in range(3) for n in range(2))


def test_evaluations_never_sample_with_a_training_key() -> None:
    table = make_table(scripted)
    play(table, ALL)
    keys = [key for call in engine_of(table).calls for key in call.keys]
    assert not any(key.startswith("train/") for key in keys)


@pytest.mark.parametrize("name", ["a->b", "b->a", "a->a", "base->base"])
def test_a_challenge_reads_its_own_drafts_summary_and_nothing_else(name: str) -> None:
    table = make_table(scripted)
    first, second = name.split("->")
    play(table, [system(name)])
    drafts, challenges = engine_of(table).calls
    assert (drafts.policy, challenges.policy) == (first, second)
    for key, prompt, text in zip(drafts.keys, challenges.prompts, drafts.texts, strict=True):
        assert prompt.text.endswith(f"rival draft by {first} for {key}")
        answer = text.partition("<answer>")[2].partition("</answer>")[0]
        assert answer not in prompt.text
        assert "hm" not in prompt.text  # the thinking
        assert "<answer>" not in prompt.text


def test_a_draft_without_a_summary_is_shown_as_such_and_its_answer_is_not() -> None:
    table = make_table(lambda policy, key: written("secret", summary=None))
    play(table, [system("a->b")])
    _, challenges = engine_of(table).calls
    for prompt in challenges.prompts:
        assert prompt.text.endswith("rival (none)")
        assert "secret" not in prompt.text


def test_outcomes_of_both_stages_are_kept_apart() -> None:
    def script(policy: str, key: str) -> str:
        problem = key.split("/")[3]
        right = f"g{problem[1:]}"
        by_policy = {
            "a": right if problem == "p0" else "no",
            "b": right if problem == "p1" else "no",
        }
        return written(UNJUDGED if (policy, problem) == ("a", "p2") else by_policy[policy])

    results = play(make_table(script), [system("a"), system("a->b")], samples=1)
    assert [attempt.draft_outcome for attempt in results["a"]] == [None] * 3
    assert [attempt.outcome for attempt in results["a"]] == [
        attempt.draft_outcome for attempt in results["a->b"]
    ]
    assert [(attempt.draft_outcome, attempt.outcome) for attempt in results["a->b"]] == [
        (Outcome.RIGHT, Outcome.WRONG),
        (Outcome.WRONG, Outcome.RIGHT),
        (Outcome.UNSCORED, Outcome.WRONG),
    ]


def test_tokens_of_every_stage_are_counted_written_and_read() -> None:
    table = make_table(scripted)
    results = play(table, [system("a->b")])
    drafts, challenges = engine_of(table).calls
    for index, attempt in enumerate(results["a->b"]):
        stages = (drafts, challenges)
        assert attempt.generated == tuple(len(call.texts[index].encode()) for call in stages)
        assert attempt.prompt == tuple(len(call.prompts[index].token_ids) for call in stages)


def test_progress_counts_every_stage_once() -> None:
    said: list[tuple[str, int, int]] = []
    evaluate(
        [system("a"), system("a->b")],
        make_problems(2),
        1,
        0,
        SAMPLING,
        make_table(scripted),
        lambda *stage: said.append(stage),
    )
    assert said == [("a", 1, 2), ("a->b", 2, 2)]


# On the real engine, where keys must mean what they say


@pytest.fixture(scope="module")
def language() -> Language:
    return read_language(load_recipe("countdown-agon"))


@pytest.fixture(scope="module")
def workshop(language: Language) -> Iterator[Workshop]:
    """The embedded model with a `b` that is well away from the base, five rows at a time."""
    changes = ["training.device=cpu", "adapters.start_scale=0.05", "sampling.slots=5"]
    opened = open_workshop(load_recipe("countdown-agon", changes), language)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def problems() -> list[Problem]:
    return [problem for problem, _ in zip(enumerate_problems(Split.DEV), range(6), strict=False)]


@pytest.fixture(scope="module")
def results(workshop: Workshop, problems: list[Problem]) -> dict[str, list[Attempt]]:
    return play(workshop.table, ALL, problems)


@pytest.mark.parametrize("chosen", [["a->b"], ["b->b", "b"], ["b->a", "base", "a"]])
def test_results_do_not_hang_on_which_other_systems_run(
    workshop: Workshop, problems: list[Problem], results, chosen: list[str]
) -> None:
    again = play(workshop.table, [system(name) for name in chosen], problems)
    assert again == {name: results[name] for name in chosen}


def test_results_do_not_hang_on_the_order_or_the_number_of_problems(
    workshop: Workshop, problems: list[Problem], results
) -> None:
    [few] = play(workshop.table, [system("a->b")], [problems[4], problems[1]]).values()
    by_id = {(attempt.problem, attempt.sample): attempt for attempt in results["a->b"]}
    assert few == [by_id[problems[p].id, n] for p in (4, 1) for n in range(2)]


def test_more_samples_leave_the_first_ones_as_they_are(workshop, problems, results) -> None:
    [one] = play(workshop.table, [system("b->a")], problems, samples=1).values()
    assert one == [attempt for attempt in results["b->a"] if attempt.sample == 0]


def test_equal_policies_get_equal_results_and_another_seed_other_ones(
    workshop: Workshop, problems: list[Problem], results
) -> None:
    # `a` starts as the base
    assert results["a"] == results["base"]
    assert results["a->a"] == results["base->base"]
    assert results["b"] != results["a"]
    [other] = play(workshop.table, [system("a")], problems, seed=1).values()
    assert other != results["a"]


def test_systems_that_begin_alike_share_their_drafts(results) -> None:
    for name in ("a->b", "a->a"):
        for alone, cascade in zip(results["a"], results[name], strict=True):
            assert cascade.generated[0] == alone.generated[0]
            assert cascade.prompt[0] == alone.prompt[0]
            assert cascade.draft_outcome is alone.outcome
            assert (cascade.problem, cascade.sample) == (alone.problem, alone.sample)
