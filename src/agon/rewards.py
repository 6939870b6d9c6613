"""The reward equations and the group-relative advantage: pure functions on plain numbers.

With c the verdict (1 right, 0 wrong), phi the format score, a the rival draft and b a challenge:

    draft        R(a) = 2 c(a)                            + lambda phi(a)
    correctness  R(b) = 2 c(b)                            + lambda phi(b)
    conversion   R(b) = 2 c(b) + c(b) (1 - c(a))          + lambda phi(b)
    margin       R(b) = 2 c(b) + c(b) - c(a)              + lambda phi(b)
    tiebreak     adds gamma where a and b are right and b is strictly shorter
    length       any R loses kappa * tokens / limit

Why the conversion and not the margin: -c(a) does not depend on what the challenger does, so
without division by the group's deviation its expected policy gradient is zero
(tests/test_reward_algebra.py enumerates it). The product does depend on it.

This module decides no verdict and samples nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from agon.config import RewardConfig
from agon.records import Draft, Reply, Reward, Verdict

ADVANTAGE_EPSILON = 1e-4
"""Added to the standard deviation, as TRL does; keeps near-flat groups finite."""


def draft_reward(reply: Reply, verdict: Verdict, config: RewardConfig, limit: int) -> Reward | None:
    """R(a), or None when the draft is unscored.

    Args:
        reply: The draft as parsed.
        verdict: What the verifier said of its answer.
        config: Weights.
        limit: Completion limit in tokens.
    """
    if not verdict.scored:
        return None
    return Reward(
        correctness=2.0 * verdict.correct,
        format=config.format_weight * reply.format_score,
        length=-config.length_penalty * reply.length / limit,
    )


def challenge_reward(
    reply: Reply, verdict: Verdict, rival: Draft, config: RewardConfig, limit: int
) -> Reward | None:
    """R(b) against a rival draft, or None when it is unscored.

    An unscored rival leaves only plain correctness without a tiebreak defined.
    """
    own = draft_reward(reply, verdict, config, limit)
    needs_rival = config.credit != "correctness" or config.tiebreak > 0
    if own is None or (needs_rival and not rival.verdict.scored):
        return None
    c_b, c_a = verdict.correct, rival.verdict.correct
    shorter = reply.length < rival.reply.length
    return Reward(
        correctness=own.correctness,
        rivalry=float(rivalry(config.credit, c_b, c_a)),
        tiebreak=config.tiebreak * (c_b * c_a * shorter),
        format=own.format,
        length=own.length,
    )


def rivalry(credit: str, c_b: int, c_a: int) -> int:
    """What competing adds to 2c(b): nothing, the conversion bonus, or the margin's share."""
    if credit == "conversion":
        return c_b * (1 - c_a)
    if credit == "margin":
        return c_b - c_a
    return 0


def group_advantages(rewards_N: Sequence[float | None], scale: bool) -> list[float]:
    """Advantages within the rollouts of one problem and one role.

    (R - mean) / (std + 1e-4) with the sample deviation (N - 1); without `scale` just R - mean.
    Source: Shao et al. 2024 (GRPO), as TRL computes it.

    Args:
        rewards_N: Total rewards; None marks an unscored rollout.
        scale: Whether to divide by the deviation.

    Returns:
        One advantage each. Unscored rollouts get 0 and do not touch the others' baseline; equal
        rewards, and groups with fewer than two scored rollouts, give exact zeros.
    """
    scored = [reward for reward in rewards_N if reward is not None]
    if len(scored) < 2 or min(scored) == max(scored):
        return [0.0] * len(rewards_N)
    mean = math.fsum(scored) / len(scored)
    deviation = math.sqrt(math.fsum((r - mean) ** 2 for r in scored) / (len(scored) - 1))
    divisor = deviation + ADVANTAGE_EPSILON if scale else 1.0
    return [0.0 if reward is None else (reward - mean) / divisor for reward in rewards_N]
