"""The loop: which problems, who plays, what is logged, and what changes nothing."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import models
from agon.preflight import read_language
from agon.recipes import load_recipe
from agon.records import Problem
from agon.trainer import batch_of, dev_systems
from agon.workshop import open_workshop
from fakes import make_config, make_problems
from test_resume import (
    RECIPE,
    STEPS,
    TINY,
    Ended,
    agon,
    checkpoints,
    metrics,
    rounds,
    settings,
    weights,
)

Row = dict[str, Any]
Train = Callable[..., Path]


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Trains a tiny run with more settings; equal settings share one run."""
    done: dict[str, Path] = {}

    def run(options: list[str]) -> Path:
        key = " ".join(options)
        if key not in done:
            folder = tmp_path_factory.mktemp("run")
            ended = begin(folder, options)
            assert ended.status == 0, ended.err
            done[key] = folder / "run"
        return done[key]

    return run


def begin(folder: Path, options: list[str]) -> Ended:
    return agon(folder, "train", RECIPE, *TINY, *options, "--run-dir", folder / "run")


def rows_of(run: Path) -> list[Row]:
    """The lines of rounds.jsonl."""
    return [json.loads(line) for line in rounds(run).decode().splitlines()]


# Which problems


def schedule(count: int, size: int, steps: int, **more: Any) -> list[list[str]]:
    """Ids of the problems of each step."""
    config = make_config({"training.problems_per_step": size, **more})
    problems = make_problems(count)
    return [[p.id for p in batch_of(step, problems, config)] for step in range(steps)]


@pytest.mark.parametrize(("count", "size"), [(12, 3), (12, 12), (12, 1), (6, 2)])
def test_a_pass_takes_each_problem_exactly_once(count: int, size: int) -> None:
    length = count // size
    steps = schedule(count, size, 4 * length)
    for start in range(0, len(steps), length):
        seen = itertools.chain(*steps[start : start + length])
        assert sorted(seen) == sorted(problem.id for problem in make_problems(count))


def test_each_pass_has_another_order() -> None:
    steps = schedule(24, 4, 5 * 6)
    passes = [tuple(itertools.chain(*steps[n : n + 6])) for n in range(0, 30, 6)]
    assert len(set(passes)) == 5


@pytest.mark.parametrize("size", [2, 3, 5, 7, 10])
def test_no_step_has_a_problem_twice_and_the_remainder_of_a_pass_is_left_out(size: int) -> None:
    steps = schedule(10, size, 30)
    assert all(len(set(step)) == size for step in steps)
    once = steps[: 10 // size]
    assert max(Counter(itertools.chain(*once)).values()) == 1


def test_what_a_pass_leaves_out_changes_from_pass_to_pass() -> None:
    steps = schedule(10, 9, 40)
    assert {p.id for p in make_problems(10)} == set(itertools.chain(*steps))


def test_the_data_seed_alone_decides_the_order() -> None:
    assert schedule(20, 4, 9) == schedule(20, 4, 9, **{"seeds.sampling": 5, "seeds.init": 5})
    assert schedule(20, 4, 9) != schedule(20, 4, 9, **{"seeds.data": 1})


def test_a_step_is_a_function_of_its_number_alone() -> None:
    config = make_config({"training.problems_per_step": 3})
    problems: list[Problem] = make_problems(10)
    forward = [batch_of(step, problems, config) for step in range(9)]
    assert [batch_of(step, problems, config) for step in reversed(range(9))] == forward[::-1]


# What a run writes


def test_the_drafter_is_logged_and_the_seats_swap_at_every_step(train: Train) -> None:
    run = train([])
    seats = [(row["policies.draft"], row["policies.challenge"]) for row in metrics(run)]
    assert seats == [("a", "b"), ("b", "a")] * 2 + [("a", "b")]
    for row in rows_of(run):
        assert (row["draft"]["policy"], row["challenge"]["policy"]) == seats[row["step"]]


def test_every_rollout_is_logged_with_texts_summary_rewards_adapter_and_version(train) -> None:
    rows = rows_of(train([]))
    assert len(rows) == STEPS * 2 * 4
    assert len({(row["step"], row["problem"], row["sample"]) for row in rows}) == len(rows)
    for row in rows:
        draft, challenge = row["draft"], row["challenge"]
        for rollout in (draft, challenge):
            assert rollout["text"]
            assert rollout["version"] == row["step"]
            assert rollout["total_reward"] == pytest.approx(sum(rollout["reward"].values()))
            right = rollout["outcome"] == "right"
            assert rollout["reward"]["correctness"] == 2.0 * right
            assert rollout["reward"]["format"] == 0.5 * rollout["format_score"]
        assert challenge["shown"] == draft["summary"]
        assert challenge["rival_sample"] == row["sample"]
        converted = challenge["outcome"] == "right" and draft["outcome"] == "wrong"
        assert challenge["reward"]["rivalry"] == float(converted)
        assert draft["reward"]["rivalry"] == 0.0


def test_the_advantages_of_a_group_sum_to_zero(train: Train) -> None:
    sums: Counter[tuple[int, str, str]] = Counter()
    for row in rows_of(train([])):
        for role in ("draft", "challenge"):
            sums[row["step"], row["problem"], role] += row[role]["advantage"]
    assert len(sums) == STEPS * 2 * 2
    assert all(abs(value) < 1e-9 for value in sums.values())


def test_each_adapter_has_one_optimizer_step_a_step(train: Train) -> None:
    run = train([])
    state = json.loads((run / "checkpoints" / "step-000005" / "state.json").read_text())
    assert state["versions"] == {"a": STEPS, "b": STEPS}
    for name in ("a", "b"):
        moments = weights(run)[f"optimizer-{name}.safetensors"]
        counts = {value for key, value in moments.items() if key.endswith("|step")}
        [count] = counts
        assert count.endswith(b"\x00\x00\xa0\x40")  # 5.0 as a float32
        assert all(f"update.{name}.loss" in row for row in metrics(run))


# What changes what


def test_two_runs_of_one_configuration_are_equal_to_the_bit(train: Train) -> None:
    one, other = train([]), train(["--set", "seeds.data=0"])
    assert one != other
    assert metrics(one) == metrics(other)
    assert rounds(one) == rounds(other)
    assert weights(one) == weights(other)


def test_evaluating_changes_nothing_of_the_training(train: Train) -> None:
    silent, watched = train([]), train(settings(evaluation={"every": 1}))
    assert rounds(silent) == rounds(watched)
    assert weights(silent) == weights(watched)
    systems = [system.name for system in dev_systems(load_recipe(RECIPE))]
    for row in metrics(watched):
        assert [
            key.split(".")[1] for key in row if key.endswith(".pass") and "dev." in key
        ] == systems
    assert [row["step"] for row in metrics(watched)] == [*range(STEPS), STEPS]


def test_the_sampling_seed_changes_the_rollouts_and_not_the_problems(train: Train) -> None:
    one, other = rows_of(train([])), rows_of(train(settings(seeds={"sampling": 1})))
    where = ["step", "problem", "sample"]
    assert [[row[key] for key in where] for row in one] == [
        [row[key] for key in where] for row in other
    ]
    assert all(
        [row["draft"]["text"] for row in one if row["step"] == step]
        != [row["draft"]["text"] for row in other if row["step"] == step]
        for step in range(STEPS)
    )


def test_the_data_seed_changes_the_problems(train: Train) -> None:
    one, other = rows_of(train([])), rows_of(train(settings(seeds={"data": 1})))
    assert {row["problem"] for row in one} != {row["problem"] for row in other}


@pytest.mark.parametrize(
    ("seed", "moves"),
    [("data", False), ("sampling", False), ("evaluation", False), ("init", True)],
)
def test_only_the_init_seed_moves_the_initial_adapters(seed: str, moves: bool) -> None:
    starts = []
    for value in (0, 1):
        config = load_recipe(RECIPE, [f"seeds.{seed}={value}", "training.device=cpu"])
        workshop = open_workshop(config, read_language(config))
        policies = workshop.policies
        hashes = models.digests(policies)
        starts.append([hashes[name] for name in policies.names])
        workshop.close()
    assert [one != other for one, other in zip(*starts, strict=True)] == [moves, moves]


def test_fewer_logged_rounds_change_nothing_else(train: Train) -> None:
    full, sampled = train([]), train(settings(logging={"rounds": "sampled"}))
    assert weights(full) == weights(sampled)
    assert metrics(full) == metrics(sampled)
    logged = rounds(sampled).splitlines()
    assert len(logged) == STEPS * 4
    assert set(logged) < set(rounds(full).splitlines())


# Every arm of the design's table, from overrides of the pair's recipe

ALONE = {"game": {"policies": 1, "exchange": "none"}, "reward": {"credit": "correctness"}}
ARMS: dict[str, dict[str, dict[str, Any]]] = {
    "grpo": ALONE,
    "grpo-2n": ALONE | {"sampling": {"group_size": 8}},
    "self-refine": {"game": {"policies": 1}, "reward": {"credit": "correctness"}},
    "cooperative": {"reward": {"credit": "correctness"}},
    "agon": {},
    "margin": {"reward": {"credit": "margin"}},
    "tiebreak": {"reward": {"tiebreak": 0.5}},
    "fixed": {"game": {"rotate": False}},
    "hidden-shared": {"game": {"exchange": "hidden"}, "reward": {"rival": "shared"}},
    "hidden-paired": {"game": {"exchange": "hidden"}},
    "shuffled": {"game": {"exchange": "shuffled"}},
    "filler": {"game": {"exchange": "filler"}},
    "length-penalty": ALONE | {"reward": {"credit": "correctness", "length_penalty": 0.5}},
}


def paid(arm: str, draft: Row, challenge: Row, rival: Row) -> dict[str, float]:
    """A challenge's reward terms but format, by the design's equations."""
    right, beaten = challenge["outcome"] == "right", rival["outcome"] == "right"
    terms = {"correctness": 2.0 * right, "rivalry": 0.0, "tiebreak": 0.0}
    if arm == "margin":
        terms["rivalry"] = float(right) - float(beaten)
    elif arm not in ("cooperative", "self-refine"):
        terms["rivalry"] = float(right and not beaten)
    if arm == "tiebreak":
        terms["tiebreak"] = 0.5 * (right and beaten and challenge["tokens"] < rival["tokens"])
    return terms


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_trains_by_its_own_rules(arm: str, tmp_path: Path) -> None:
    ended = begin(tmp_path, [*settings(**ARMS[arm]), "--set", "training.steps=2"])
    assert ended.status == 0, ended.err
    run = tmp_path / "run"
    rows = rows_of(run)
    seats = {"fixed": ["ab", "ab"], "self-refine": ["aa", "aa"]}.get(arm, ["ab", "ba"])
    alone = arm in ("grpo", "grpo-2n", "length-penalty")
    group = 8 if arm == "grpo-2n" else 4
    assert len(rows) == 2 * 2 * group
    for start in range(0, len(rows), group):
        for row in rows[start : start + group]:
            draft = row["draft"]
            if alone:
                assert draft["policy"] == "a"
                assert "challenge" not in row
                kappa = 0.5 if arm == "length-penalty" else 0.0
                assert draft["reward"]["length"] == pytest.approx(-kappa * draft["tokens"] / 48)
                continue
            challenge = row["challenge"]
            assert draft["policy"] + challenge["policy"] == seats[row["step"]]
            assert_shown(arm, row, rows)
            rival = rows[start + challenge["rival_sample"]]["draft"]
            assert challenge["rival_sample"] == (0 if arm == "hidden-shared" else row["sample"])
            terms = {
                key: value
                for key, value in challenge["reward"].items()
                if key not in ("format", "length")
            }
            assert terms == paid(arm, draft, challenge, rival)
    trained = ["a"] if alone or arm == "self-refine" else ["a", "b"]
    assert all(all(f"update.{name}.loss" in row for name in trained) for row in metrics(run))
    adapters = {name.split("/")[1] for name in weights(run) if name.startswith("adapters/")}
    assert sorted(adapters) == trained


def assert_shown(arm: str, row: Row, rows: list[Row]) -> None:
    draft, challenge = row["draft"], row["challenge"]
    match arm:
        case "hidden-shared" | "hidden-paired":
            assert challenge["shown"] is None
            assert challenge["prompt_tokens"] == draft["prompt_tokens"]
        case "shuffled":
            [other] = [
                one["draft"]
                for one in rows
                if one["step"] == row["step"]
                and one["problem"] != row["problem"]
                and one["sample"] == row["sample"]
            ]
            assert challenge["shown"] == other["summary"]
        case "filler":
            assert (challenge["shown"] is None) == (draft["summary"] is None)
            assert challenge["shown"] is None or challenge["shown"] != draft["summary"]
        case _:
            assert challenge["shown"] == draft["summary"]


# Stopping, trackers


def test_a_limit_that_cuts_every_reply_warns_and_then_stops_by_name(tmp_path: Path) -> None:
    options = settings(sampling={"max_new_tokens": 3}, stop={"window": 4}, training={"steps": 9})
    ended = begin(tmp_path, options)
    assert ended.status == 1
    [line] = ended.said
    assert line.startswith("agon: ")
    assert "sampling.max_new_tokens" in line
    assert "4 steps in a row (stop.window = 4)" in line
    assert "warning: nearly all rollouts of a role hit sampling.max_new_tokens" in ended.out
    assert "training stops after 4" in ended.out
    run = tmp_path / "run"
    assert checkpoints(run) == ["step-000002", "step-000004"]
    assert len(metrics(run)) == 4


def test_a_tracker_gets_every_steps_figures(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    options = settings(logging={"trackers": ["tensorboard"]}, training={"steps": 2})
    ended = begin(tmp_path, options)
    assert ended.status == 0, ended.err
    run = tmp_path / "run"
    found = EventAccumulator(str(run / "agon")).Reload()
    for step, row in enumerate(metrics(run), start=1):
        numbers = {key: value for key, value in row.items() if isinstance(value, int | float)}
        assert set(numbers) <= set(found.Tags()["scalars"])
        for key, value in numbers.items():
            [logged] = [event.value for event in found.Scalars(key) if event.step == step]
            assert logged == pytest.approx(value, rel=1e-5)
