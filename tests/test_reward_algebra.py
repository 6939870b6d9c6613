"""What each credit does to the expected policy gradient, by exact enumeration.

The policy is a tabular softmax over a few actions, one row of logits for each prompt it can see.
Drafts are fixed. For a group of N challenges every joint outcome is enumerated, with the package's
own rewards and advantages, the baseline inside:

    g = sum over b in actions^N of  P(b)  sum_i A_i(b)  grad log pi(b_i | s_i)

Prompts are hidden (every challenge sees the same prompt) or visible (the prompt depends on the
rival's verdict). `python tests/test_reward_algebra.py` prints the tables of docs/algorithm.md.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest

from agon.config import RewardConfig
from agon.rewards import ADVANTAGE_EPSILON, challenge_reward, group_advantages
from fakes import VERDICTS, make_draft, make_reply

Action = tuple[str, float]
"""What one action earns: verdict and format score."""
Credit = Callable[[Action, str], float]
"""Reward of an action against a draft's verdict."""

TWO: tuple[Action, ...] = (("wrong", 0.0), ("right", 0.0))
THREE: tuple[Action, ...] = (("wrong", 0.0), ("right", 0.0), ("right", 1.0))
SIZES = (2, 3, 4)
PASSES = (0.1, 0.3, 0.5, 0.7, 0.9)
RIGHT_DRAFTS = (1, 2, 4, 6, 7)

MARGIN_SHIFT = {
    # pass p: change of the gradient by -c(a) in per cent, for 1, 2, 4, 6 and 7 right drafts of 8
    0.1: (-3.4, -6.2, -8.4, -6.6, -4.0),
    0.3: (-2.6, -4.5, -6.0, -4.7, -2.8),
    0.5: (-2.4, -4.0, -5.3, -4.0, -2.4),
    0.7: (-2.8, -4.7, -6.0, -4.5, -2.6),
    0.9: (-4.0, -6.6, -8.4, -6.2, -3.4),
}
BY_RIVAL = {
    # (credit, pass p): gradient against (wrong, right) rivals, for 1, 4 and 7 right drafts of 8
    ("conversion", 0.1): ((1.01, 0.89), (1.05, 0.93), (1.10, 0.98)),
    ("conversion", 0.5): ((1.03, 0.67), (1.16, 0.77), (1.36, 0.92)),
    ("conversion", 0.9): ((1.06, 0.27), (1.21, 0.59), (1.76, 0.82)),
    ("margin", 0.1): ((0.88, 1.59), (0.68, 1.15), (0.35, 1.05)),
    ("margin", 0.5): ((0.98, 0.94), (0.95, 0.95), (0.94, 0.98)),
    ("margin", 0.9): ((1.05, 0.35), (1.15, 0.68), (1.59, 0.88)),
}
"""Both tables stand in docs/algorithm.md, with std scaling and N = 8. The first has hidden prompts;
the second visible ones, and its unit is the gradient under plain correctness."""


def credit(name: str, format_weight: float = 0.0) -> Credit:
    """A credit of the package, as a function of action and draft."""
    config = RewardConfig(credit=name, format_weight=format_weight)

    @cache
    def reward(action: Action, draft: str) -> float:
        verdict, phi = action
        reply = make_reply(format_score=phi)
        paid = challenge_reward(reply, VERDICTS[verdict], make_draft(draft), config, 100)
        assert paid is not None
        return paid.total

    return reward


def thrice(format_weight: float = 0.0) -> Credit:
    """The margin without its term -c(a)."""
    margin = credit("margin", format_weight)
    return lambda action, draft: margin(action, draft) + (draft == "right")


def policy(logits_SK: Sequence[Sequence[float]]) -> np.ndarray:
    """Probabilities of each action under each prompt."""
    exponentials = np.exp(np.array(logits_SK, dtype=float))
    return exponentials / exponentials.sum(1, keepdims=True)


def with_pass(p: float, prompts: int = 1) -> np.ndarray:
    """A policy over wrong and right that is right with probability p under every prompt."""
    return np.array([[1 - p, p]] * prompts)


def expected_gradient(
    reward: Credit,
    drafts_N: Sequence[str],
    policy_SK: np.ndarray,
    actions: Sequence[Action],
    *,
    visible: bool,
    scale: bool,
) -> np.ndarray:
    """The exact expected policy gradient with respect to the logits, S x K."""
    prompts_N = [int(visible and draft == "right") for draft in drafts_N]
    size, count = len(drafts_N), len(actions)
    scores = np.eye(count)[None] - policy_SK[:, None]  # grad log pi(action) by prompt and action
    gradient = np.zeros_like(policy_SK)
    for taken in itertools.product(range(count), repeat=size):
        rewards = [reward(actions[k], draft) for k, draft in zip(taken, drafts_N, strict=True)]
        chance = math.prod(policy_SK[s, k] for s, k in zip(prompts_N, taken, strict=True))
        for s, k, advantage in zip(prompts_N, taken, group_advantages(rewards, scale), strict=True):
            gradient[s] += chance * advantage * scores[s, k]
    return gradient


def pattern(right: int, size: int) -> list[str]:
    """Verdicts of a group's drafts, the right ones first."""
    return ["right"] * right + ["wrong"] * (size - right)


def mixed_groups() -> list[list[str]]:
    """Every group of two to four drafts with both verdicts in it, up to order."""
    return [pattern(right, size) for size in SIZES for right in range(1, size)]


def relative(changed: np.ndarray, reference: np.ndarray) -> float:
    """Size of the change relative to the reference."""
    return float(np.linalg.norm(changed - reference) / np.linalg.norm(reference))


def margin_shift(p: float, right: int, size: int = 8) -> float:
    """Relative change of the gradient of pass by the margin's -c(a), with scaling, hidden prompts.

    Signed: positive where the gradient grows. With one prompt and two actions both gradients lie
    on one line, so this number is all there is.
    """
    drafts, chances = pattern(right, size), with_pass(p)
    margin, without = (
        expected_gradient(reward, drafts, chances, TWO, visible=False, scale=True)[0, 1]
        for reward in (credit("margin"), thrice())
    )
    return float(margin / without - 1)


def gradient_by_rival(name: str, p: float, right: int, size: int = 8) -> tuple[float, float]:
    """Gradient per challenge on the logit of `right`, against wrong and right rivals apart.

    Visible prompts, the same pass probability against both, with scaling; in units of the gradient
    per challenge under plain correctness.
    """
    drafts, chances = pattern(right, size), with_pass(p, 2)
    changed, plain = (
        expected_gradient(credit(c), drafts, chances, TWO, visible=True, scale=True)[:, 1]
        for c in (name, "correctness")
    )
    return float(changed[0] / plain[0]), float(changed[1] / plain[1])


POLICIES = {
    "even": ([[0.0, 0.0], [0.0, 0.0]], TWO),
    "weak": ([[0.7, -1.1], [1.3, -0.4]], TWO),
    "strong": ([[-0.9, 1.6], [-0.2, 0.8]], TWO),
    "three actions": ([[0.4, -0.7, 0.1], [-0.3, 0.9, -1.2]], THREE),
}
EACH_POLICY = pytest.mark.parametrize(("logits", "actions"), POLICIES.values(), ids=POLICIES)
EACH_PROMPT = pytest.mark.parametrize("visible", [False, True], ids=["hidden", "visible"])


@EACH_POLICY
@EACH_PROMPT
def test_without_scaling_the_margins_term_leaves_the_expected_gradient_as_it_is(
    logits, actions, visible
) -> None:
    chances = policy(logits)
    margin, without = credit("margin", 0.5), thrice(0.5)
    for size in SIZES:
        for drafts in itertools.product(("wrong", "right"), repeat=size):
            changed, reference = (
                expected_gradient(r, drafts, chances, actions, visible=visible, scale=False)
                for r in (margin, without)
            )
            assert np.abs(changed - reference).max() < 1e-13
            assert np.linalg.norm(reference) > 0.1


@EACH_POLICY
@EACH_PROMPT
def test_with_scaling_the_margins_term_acts_through_the_deviation(logits, actions, visible) -> None:
    chances = policy(logits)
    for drafts in (group for group in mixed_groups() if len(group) > 2):
        changed, reference = (
            expected_gradient(r, drafts, chances, actions, visible=visible, scale=True)
            for r in (credit("margin"), thrice())
        )
        assert relative(changed, reference) > 0.01


@EACH_POLICY
def test_a_hidden_pair_knows_only_the_sign_and_loses_the_margins_term_to_epsilon(
    logits, actions
) -> None:
    """At N = 2 a pair that is not flat has advantages of +-1 / sqrt(2) whatever its rewards.

    -c(a) then decides the sign of pairs of equal verdicts alone, and these cancel.
    """
    changed, reference = (
        expected_gradient(r, pattern(1, 2), policy(logits), actions, visible=False, scale=True)
        for r in (credit("margin"), thrice())
    )
    assert 0 < relative(changed, reference) < ADVANTAGE_EPSILON


@EACH_POLICY
@EACH_PROMPT
def test_with_scaling_the_margins_term_is_nothing_where_all_drafts_are_alike(
    logits, actions, visible
) -> None:
    for size in SIZES:
        for right in (0, size):
            changed, reference = (
                expected_gradient(
                    r, pattern(right, size), policy(logits), actions, visible=visible, scale=True
                )
                for r in (credit("margin"), thrice())
            )
            assert np.abs(changed - reference).max() < 1e-12


@pytest.mark.parametrize("p", PASSES)
def test_the_margins_shift_is_the_documented_one(p: float) -> None:
    shifts = [100 * margin_shift(p, right) for right in RIGHT_DRAFTS]
    assert shifts == pytest.approx(MARGIN_SHIFT[p], abs=0.0501)


@pytest.mark.parametrize(("name", "p"), BY_RIVAL)
def test_the_weight_of_wrong_and_right_rivals_is_the_documented_one(name: str, p: float) -> None:
    for right, documented in zip((1, 4, 7), BY_RIVAL[name, p], strict=True):
        assert gradient_by_rival(name, p, right) == pytest.approx(documented, abs=0.00501)


@EACH_POLICY
def test_without_scaling_the_conversion_pays_half_as_much_again_against_wrong_rivals(
    logits, actions
) -> None:
    """g_i = (1 - 1/N) (3 - c(a_i)) grad p(s_i): 3/2 of plain correctness, or just that."""
    for drafts in mixed_groups():
        conversion, plain = (
            expected_gradient(credit(c), drafts, policy(logits), actions, visible=True, scale=False)
            for c in ("conversion", "correctness")
        )
        against_wrong, against_right = conversion
        assert against_wrong == pytest.approx(1.5 * plain[0], abs=1e-13)
        assert against_right == pytest.approx(plain[1], abs=1e-13)
        assert relative(conversion, plain) > 0.05


@EACH_POLICY
def test_with_scaling_the_conversion_moves_the_gradient_towards_wrong_rivals(
    logits, actions
) -> None:
    for drafts in mixed_groups():
        conversion, plain = (
            expected_gradient(credit(c), drafts, policy(logits), actions, visible=True, scale=True)
            for c in ("conversion", "correctness")
        )
        sizes, plain_sizes = np.linalg.norm(conversion, axis=1), np.linalg.norm(plain, axis=1)
        assert sizes[0] / plain_sizes[0] > 1.02 * sizes[1] / plain_sizes[1]


@EACH_POLICY
def test_without_scaling_and_unseen_the_conversion_only_lengthens_the_step(logits, actions) -> None:
    """With one prompt the factors (3 - c(a_i)) average: the direction is plain correctness's."""
    for drafts in mixed_groups():
        conversion, plain = (
            expected_gradient(
                credit(c), drafts, policy(logits), actions, visible=False, scale=False
            )
            for c in ("conversion", "correctness")
        )
        factor = (3 - drafts.count("right") / len(drafts)) / 2
        assert conversion == pytest.approx(factor * plain, abs=1e-13)


@pytest.mark.parametrize(("rival", "factor"), [("wrong", 3), ("right", 2)])
@EACH_POLICY
@EACH_PROMPT
def test_against_like_rivals_the_conversion_only_scales_correctness(
    logits, actions, visible, rival, factor
) -> None:
    """Without scaling by factor / 2; with scaling not at all, up to the epsilon of the division.

    (kc - k mean) / (k s + eps) differs from (2c - 2 mean) / (2 s + eps) by less than eps / (2 s)
    of itself, and a group of N <= 4 that is not flat has s >= 1/2.
    """
    chances = policy(logits)
    for size in SIZES:
        drafts = [rival] * size
        for scale in (False, True):
            conversion, plain = (
                expected_gradient(credit(c), drafts, chances, actions, visible=visible, scale=scale)
                for c in ("conversion", "correctness")
            )
            if scale:
                assert conversion == pytest.approx(plain, rel=ADVANTAGE_EPSILON, abs=1e-13)
            else:
                assert conversion == pytest.approx(factor / 2 * plain, abs=1e-13)


@pytest.mark.parametrize("first", ["wrong", "right"])
def test_a_shared_draft_and_equal_format_give_the_advantages_of_plain_correctness(first) -> None:
    """Every group of eight with phi equal: bound eps / (2 s) with s >= sqrt(1/8)."""
    conversion, plain = credit("conversion", 0.5), credit("correctness", 0.5)
    for right in range(9):
        for phi in (0.0, 0.5, 1.0):
            group = [(verdict, phi) for verdict in pattern(right, 8)]
            advantages = group_advantages([conversion(b, first) for b in group], scale=True)
            expected = group_advantages([plain(b, first) for b in group], scale=True)
            bound = ADVANTAGE_EPSILON / (2 * math.sqrt(1 / 8))
            assert advantages == pytest.approx(expected, rel=bound, abs=0)


def test_a_shared_wrong_draft_lowers_the_weight_of_format() -> None:
    """R = 3c + lambda phi: format weighs lambda / 3 of correctness, not lambda / 2."""
    group = [("wrong", 0.0), ("wrong", 1.0), ("right", 0.0), ("right", 1.0)]
    for name, first, weight in [
        ("correctness", "wrong", 0.5 / 2),
        ("conversion", "right", 0.5 / 2),
        ("conversion", "wrong", 0.5 / 3),
    ]:
        advantages = group_advantages([credit(name, 0.5)(b, first) for b in group], scale=True)
        by_format = advantages[1] - advantages[0]
        by_correctness = advantages[2] - advantages[0]
        assert by_format / by_correctness == pytest.approx(weight, rel=1e-12)


def tables() -> str:
    """The tables of docs/algorithm.md."""
    lines = ["Change of the gradient by -c(a), hidden prompts; right drafts of 8:"]
    lines.append(f"| p | {' | '.join(map(str, RIGHT_DRAFTS))} |")
    for p in PASSES:
        cells = (f"{100 * margin_shift(p, right):+.1f} %" for right in RIGHT_DRAFTS)
        lines.append(f"| {p} | {' | '.join(cells)} |")
    lines.append("Gradient against wrong / right rivals, visible prompts; right drafts of 8:")
    lines.append(f"| credit | p | {' | '.join(map(str, RIGHT_DRAFTS))} |")
    for name, p in itertools.product(("conversion", "margin"), PASSES):
        pairs = (gradient_by_rival(name, p, right) for right in RIGHT_DRAFTS)
        cells = (f"{wrong:.2f} / {right:.2f}" for wrong, right in pairs)
        lines.append(f"| {name} | {p} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(tables())
