"""Figures of a round, role by role. `docs/metrics.md` explains each of them once.

All of them come from every rollout of the round, not from those that the update kept. Rates are
shares in 0..1, lengths are tokens, entropies nats. A figure without any case behind it is absent,
never 0. This module imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agon.records import Challenge, Draft, Outcome, Role, Round

Figures = dict[str, float]


def round_metrics(played: Round) -> Figures:
    """All figures of a round, named `draft.*`, `challenge.*` and `exchange.*`."""
    figures = {
        f"{Role.DRAFT}.{key}": value for key, value in role_metrics(played.drafts_PN).items()
    }
    if played.challenger is not None:
        figures |= {
            f"{Role.CHALLENGE}.{key}": value
            for key, value in role_metrics(played.challenges_PN).items()
        }
        figures |= {f"challenge.{key}": v for key, v in conversion_metrics(played).items()}
        figures |= {f"exchange.{key}": v for key, v in exchange_metrics(played).items()}
    return figures


def role_metrics(groups_PN: Sequence[Sequence[Draft | Challenge]]) -> Figures:
    """Pass, format, truncated, unscored and flat rates, lengths, entropy and reward of one role.

    `answers` and `failures` are counts: replies with an answer, and those of them that the judge
    failed on.
    """
    rollouts = [rollout for group in groups_PN for rollout in group]
    judged = [rollout for rollout in rollouts if rollout.verdict.scored]
    paid = [rollout.reward.total for rollout in rollouts if rollout.reward is not None]
    tokens = sum(rollout.reply.length for rollout in rollouts)
    entropy = sum(sum(rollout.reply.completion.entropies) for rollout in rollouts)
    return _present(
        {
            "pass": mean(rollout.verdict.correct for rollout in judged),
            "format": mean(rollout.reply.format_score for rollout in rollouts),
            "truncated": mean(rollout.reply.completion.truncated for rollout in rollouts),
            "unscored": mean(rollout.reward is None for rollout in rollouts),
            "answers": float(sum(rollout.reply.answer is not None for rollout in rollouts)),
            "failures": float(len(rollouts) - len(judged)),
            "reward": mean(paid),
            "length": mean(rollout.reply.length for rollout in rollouts),
            "length_right": mean(r.reply.length for r in judged if r.verdict.correct),
            "length_wrong": mean(r.reply.length for r in judged if not r.verdict.correct),
            "prompt_length": mean(len(rollout.prompt.token_ids) for rollout in rollouts),
            "entropy": entropy / tokens if tokens else None,
            "flat_reward": mean(flat(group, by_reward=True) for group in groups_PN),
            "flat_correctness": mean(flat(group, by_reward=False) for group in groups_PN),
        }
    )


def flat(group_N: Sequence[Draft | Challenge], *, by_reward: bool) -> bool:
    """Whether a group carries no signal: fewer than two scored rollouts, or all of them equal.

    Args:
        group_N: Rollouts of one problem and role.
        by_reward: Compare total rewards; otherwise correctness alone.
    """
    scored = [r for r in group_N if r.reward is not None]
    if by_reward:
        values = {r.reward.total for r in scored if r.reward is not None}
    else:
        values = {float(r.verdict.correct) for r in scored}
    return len(scored) < 2 or len(values) < 2


def conversion_metrics(played: Round) -> Figures:
    """Conversions and regressions over pairs in which both verdicts were reached.

    `conversions` and `regressions` are shares of all such pairs. `conversion_rate` is the share of
    wrong drafts that were converted, `regression_rate` of right drafts that were lost.
    `conversions_unseen` is the share of pairs converted against a draft without a usable summary.
    """
    pairs = [
        (drafts[challenge.rival], challenge)
        for drafts, challenges in zip(played.drafts_PN, played.challenges_PN, strict=True)
        for challenge in challenges
        if challenge.verdict.scored and drafts[challenge.rival].verdict.scored
    ]
    right = Outcome.RIGHT
    converted = [
        (draft, challenge)
        for draft, challenge in pairs
        if challenge.verdict.outcome is right and draft.verdict.outcome is not right
    ]
    wrong_drafts = [d for d, _ in pairs if d.verdict.outcome is not right]
    lost = [
        challenge.verdict.outcome is not right
        for draft, challenge in pairs
        if draft.verdict.outcome is right
    ]
    return _present(
        {
            "conversions": _share(len(converted), len(pairs)),
            "regressions": _share(sum(lost), len(pairs)),
            "conversion_rate": _share(len(converted), len(wrong_drafts)),
            "regression_rate": mean(lost),
            "conversions_unseen": _share(
                sum(draft.reply.summary is None for draft, _ in converted), len(pairs)
            ),
        }
    )


def exchange_metrics(played: Round) -> Figures:
    """What travels: usable summaries, summaries that hold the drafted answer, and repeats of it.

    `leak_*` is the share of usable summaries with an answer block whose text occurs in the
    summary, `repeat_*` the share of challenges whose answer is the rival's, each split by whether
    the rival was right or wrong. White space is ignored in both.
    """
    drafts = [draft for group in played.drafts_PN for draft in group]
    figures: dict[str, float | None] = {
        "usable": mean(draft.reply.summary is not None for draft in drafts)
    }
    for outcome in (Outcome.RIGHT, Outcome.WRONG):
        of_outcome = [draft for draft in drafts if draft.verdict.outcome is outcome]
        figures[f"leak_{outcome}"] = mean(
            squeeze(draft.reply.answer) in squeeze(draft.reply.summary)
            for draft in of_outcome
            if draft.reply.answer is not None and draft.reply.summary is not None
        )
        figures[f"repeat_{outcome}"] = mean(
            squeeze(challenge.reply.answer) == squeeze(group[challenge.rival].reply.answer)
            for group, challenges in zip(played.drafts_PN, played.challenges_PN, strict=True)
            for challenge in challenges
            if group[challenge.rival].verdict.outcome is outcome
            and group[challenge.rival].reply.answer is not None
        )
    return _present(figures)


def squeeze(text: str | None) -> str:
    """A text without white space; empty for None."""
    return "".join((text or "").split())


def mean(values: Iterable[float]) -> float | None:
    """The mean, or None of nothing."""
    listed = [float(value) for value in values]
    return sum(listed) / len(listed) if listed else None


def _share(count: int, of: int) -> float | None:
    return count / of if of else None


def _present(figures: dict[str, float | None]) -> Figures:
    return {key: value for key, value in figures.items() if value is not None}
