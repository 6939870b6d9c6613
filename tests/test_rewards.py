"""The reward table row by row, and what group-relative advantages keep and forget."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agon.config import RewardConfig
from agon.records import Outcome, Reward, Verdict
from agon.rewards import (
    ADVANTAGE_EPSILON,
    challenge_reward,
    draft_reward,
    group_advantages,
)
from fakes import make_draft, make_reply

LIMIT = 100
RIGHT, WRONG = Verdict(Outcome.RIGHT, ""), Verdict(Outcome.WRONG, "")
UNSCORED = Verdict(Outcome.UNSCORED, "")

REWARDS = st.floats(-10, 10, allow_subnormal=False).map(lambda value: round(value, 6))
GROUPS = st.lists(REWARDS, min_size=2, max_size=16)
WITH_UNSCORED = st.lists(st.none() | REWARDS, max_size=16)


def challenge_total(
    credit: str, b: Verdict, a: str, b_length: int = 10, a_length: int = 10, **settings: float
) -> float | None:
    """R(b) without format unless a weight is given; phi(b) = 1."""
    config = RewardConfig(credit=credit, **{"format_weight": 0.0, **settings})
    rival = make_draft(a, make_reply(a_length))
    reward = challenge_reward(make_reply(b_length, format_score=1.0), b, rival, config, LIMIT)
    return None if reward is None else reward.total


def test_the_core_imports_no_torch() -> None:
    modules = "rounds, agon.rewards, agon.metrics, agon.watch, agon.recipes, agon.runs, agon.config"
    program = f"import sys, agon.{modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(("verdict", "phi"), [(RIGHT, 1.0), (RIGHT, 0.5), (WRONG, 1.0), (WRONG, 0)])
def test_a_draft_earns_two_for_correctness_and_lambda_for_format(verdict, phi) -> None:
    reward = draft_reward(make_reply(format_score=phi), verdict, RewardConfig(), LIMIT)
    assert reward is not None
    assert (reward.correctness, reward.format) == (2.0 * (verdict is RIGHT), 0.5 * phi)
    assert reward.total == 2.0 * (verdict is RIGHT) + 0.5 * phi


@pytest.mark.parametrize(
    ("credit", "by_b_and_a"),
    [
        # R(b) by (c(b), c(a)): wrong/wrong, wrong/right, right/right, right/wrong
        ("correctness", (0.0, 0.0, 2.0, 2.0)),
        ("conversion", (0.0, 0.0, 2.0, 3.0)),
        ("margin", (0.0, -1.0, 2.0, 3.0)),
    ],
)
def test_a_challenge_is_paid_by_the_table(credit: str, by_b_and_a: tuple[float, ...]) -> None:
    cases = [(WRONG, "wrong"), (WRONG, "right"), (RIGHT, "right"), (RIGHT, "wrong")]
    assert tuple(challenge_total(credit, b, a) for b, a in cases) == by_b_and_a
    with_format = [challenge_total(credit, b, a, format_weight=0.5) for b, a in cases]
    assert with_format == [total + 0.5 for total in by_b_and_a]


def test_the_margin_is_three_times_the_challenge_less_the_draft() -> None:
    for b in (RIGHT, WRONG):
        for a in ("right", "wrong"):
            assert challenge_total("margin", b, a) == 3 * (b is RIGHT) - (a == "right")


@pytest.mark.parametrize(
    ("b", "a", "b_length", "a_length", "paid"),
    [
        (RIGHT, "right", 9, 10, 0.5),
        (RIGHT, "right", 10, 10, 0.0),
        (RIGHT, "right", 11, 10, 0.0),
        (RIGHT, "wrong", 9, 10, 0.0),
        (WRONG, "right", 9, 10, 0.0),
        (WRONG, "wrong", 9, 10, 0.0),
    ],
)
def test_the_tiebreak_is_paid_where_both_are_right_and_the_challenge_is_strictly_shorter(
    b, a, b_length, a_length, paid
) -> None:
    for credit in ("correctness", "conversion", "margin"):
        without = challenge_total(credit, b, a, b_length, a_length)
        total = challenge_total(credit, b, a, b_length, a_length, tiebreak=0.5)
        assert total is not None
        assert without is not None
        assert total - without == paid


def test_the_length_penalty_is_kappa_times_the_share_of_the_limit() -> None:
    config = RewardConfig(length_penalty=0.4, format_weight=0.0)
    for tokens, lost in [(0, 0.0), (25, 0.1), (100, 0.4)]:
        reply = make_reply(tokens)
        draft = draft_reward(reply, RIGHT, config, LIMIT)
        challenge = challenge_reward(reply, RIGHT, make_draft("wrong"), config, LIMIT)
        assert draft is not None
        assert challenge is not None
        assert draft.total == pytest.approx(2.0 - lost, abs=1e-15)
        assert challenge.total == pytest.approx(3.0 - lost, abs=1e-15)


def test_the_total_is_the_sum_of_the_terms() -> None:
    config = RewardConfig(credit="conversion", tiebreak=0.5, length_penalty=0.25)
    reply = make_reply(8, format_score=0.5)
    both_right = challenge_reward(reply, RIGHT, make_draft("right", make_reply(9)), config, 16)
    converted = challenge_reward(reply, RIGHT, make_draft("wrong", make_reply(9)), config, 16)
    assert both_right == Reward(2.0, 0.0, 0.5, 0.25, -0.125)
    assert converted == Reward(2.0, 1.0, 0.0, 0.25, -0.125)
    assert both_right.total == 2.625
    assert converted.total == 3.125


def test_an_unscored_reply_has_no_reward() -> None:
    assert draft_reward(make_reply(), UNSCORED, RewardConfig(), LIMIT) is None
    for credit in ("correctness", "conversion", "margin"):
        assert challenge_total(credit, UNSCORED, "right") is None


@pytest.mark.parametrize("b", [RIGHT, WRONG])
def test_an_unscored_draft_unscores_its_challenge_unless_correctness_alone_is_paid(b) -> None:
    assert challenge_total("conversion", b, "unscored") is None
    assert challenge_total("margin", b, "unscored") is None
    assert challenge_total("correctness", b, "unscored", tiebreak=0.5) is None
    assert challenge_total("correctness", b, "unscored") == 2.0 * (b is RIGHT)


@settings(deadline=None)
@given(st.floats(allow_nan=False), st.integers(0, 20), st.booleans())
def test_equal_rewards_give_exact_zeros(value: float, count: int, scale: bool) -> None:
    assert group_advantages([value] * count, scale) == [0.0] * count


@settings(deadline=None)
@given(st.floats(allow_nan=False), st.integers(0, 20), st.booleans())
def test_fewer_than_two_scored_rollouts_give_exact_zeros(value, place, scale) -> None:
    rewards: list[float | None] = [None] * (place + 1)
    assert group_advantages(rewards, scale) == [0.0] * len(rewards)
    rewards[place // 2] = value
    assert group_advantages(rewards, scale) == [0.0] * len(rewards)
    assert group_advantages([], scale) == []


def test_the_advantage_is_the_deviation_from_the_mean_over_the_sample_deviation() -> None:
    rewards = [0.0, 2.0, 2.0, 4.0]  # mean 2, squares 4 + 0 + 0 + 4 over N - 1 = 3
    divisor = math.sqrt(8 / 3) + 1e-4
    assert group_advantages(rewards, scale=False) == [-2.0, 0.0, 0.0, 2.0]
    assert group_advantages(rewards, scale=True) == [-2 / divisor, 0.0, 0.0, 2 / divisor]


@settings(deadline=None)
@given(GROUPS, st.booleans())
def test_advantages_sum_to_zero(rewards: list[float], scale: bool) -> None:
    advantages = group_advantages(rewards, scale)
    # Rounding of the mean, relative to what it is divided by.
    bound = 1e-13 * len(rewards) * (1 / ADVANTAGE_EPSILON if scale else 1)
    assert abs(math.fsum(advantages)) <= bound


@settings(deadline=None)
@given(WITH_UNSCORED, st.integers(-64, 64), st.booleans())
def test_adding_a_constant_to_all_rewards_changes_nothing(rewards, constant, scale) -> None:
    moved = [None if reward is None else reward + constant for reward in rewards]
    expected = group_advantages(rewards, scale)
    # A reward moved by 64 is rounded to 1e-14, which 1 / epsilon turns into at most 1e-9.
    assert group_advantages(moved, scale) == pytest.approx(expected, abs=1e-9)


@settings(deadline=None)
@given(GROUPS, st.floats(0.1, 10))
def test_scaling_makes_advantages_independent_of_the_rewards_unit(rewards, factor) -> None:
    """(kR - k mean) / (k s + eps) against (R - mean) / (s + eps).

    Their ratio is 1 + (k - 1) eps / (k s + eps), so they differ by at most |k - 1| eps / (k s).
    """
    mean = math.fsum(rewards) / len(rewards)
    squares = math.fsum((reward - mean) ** 2 for reward in rewards)
    deviation = math.sqrt(squares / (len(rewards) - 1))
    assume(deviation > 1e-3)
    scaled = group_advantages([factor * reward for reward in rewards], scale=True)
    expected = group_advantages(rewards, scale=True)
    bound = abs(factor - 1) * ADVANTAGE_EPSILON / (factor * deviation) + 1e-9
    assert scaled == pytest.approx(expected, rel=bound, abs=1e-9)


@settings(deadline=None)
@given(GROUPS, st.floats(0.1, 10))
def test_without_scaling_advantages_are_in_the_rewards_unit(rewards, factor) -> None:
    scaled = group_advantages([factor * reward for reward in rewards], scale=False)
    expected = [factor * advantage for advantage in group_advantages(rewards, scale=False)]
    assert scaled == pytest.approx(expected, abs=1e-11)


@settings(deadline=None)
@given(WITH_UNSCORED, st.booleans())
def test_unscored_rollouts_get_nothing_and_touch_nobody(rewards, scale) -> None:
    advantages = group_advantages(rewards, scale)
    assert len(advantages) == len(rewards)
    pairs = list(zip(rewards, advantages, strict=True))
    assert all(advantage == 0.0 for reward, advantage in pairs if reward is None)
    scored = [reward for reward in rewards if reward is not None]
    kept = [advantage for reward, advantage in pairs if reward is not None]
    assert kept == group_advantages(scored, scale)


@settings(deadline=None)
@given(GROUPS, st.booleans(), st.randoms())
def test_advantages_do_not_depend_on_the_order_in_the_group(rewards, scale, random) -> None:
    order = list(range(len(rewards)))
    random.shuffle(order)
    advantages = group_advantages(rewards, scale)
    shuffled = group_advantages([rewards[place] for place in order], scale)
    assert shuffled == [advantages[place] for place in order]


def test_a_nearly_flat_group_stays_finite() -> None:
    advantages = group_advantages([1.0, 1.0 + 1e-12], scale=True)
    assert all(abs(advantage) < 1e-7 for advantage in advantages)
