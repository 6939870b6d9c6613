"""Every figure of a round made by hand, against numbers counted by hand."""

from __future__ import annotations

import math

import pytest

from agon.metrics import flat, mean, round_metrics, squeeze
from agon.records import Challenge, Draft, Reward, Round
from fakes import make_challenge, make_draft, make_problems, make_reply


def round_of(
    drafts_PN: list[list[Draft]], challenges_PN: list[list[Challenge]] | None = None
) -> Round:
    """A round of these groups; without challenges there is no second stage."""
    return Round(
        step=0,
        drafter="a",
        challenger=None if challenges_PN is None else "b",
        problems=tuple(make_problems(len(drafts_PN))),
        drafts_PN=tuple(map(tuple, drafts_PN)),
        challenges_PN=tuple(map(tuple, challenges_PN or [[] for _ in drafts_PN])),
    )


def by_hand() -> Round:
    """Two problems, three drafts each, every pair of verdicts, one unscored draft."""
    drafts = [
        [
            make_draft("right", make_reply(4, summary="so 1 2", answer="12", format_score=1.0)),
            make_draft("wrong", make_reply(8, summary="it is 7", answer="9", format_score=1.0)),
            make_draft("wrong", make_reply(12, summary=None, answer="3", truncated=True)),
        ],
        [
            make_draft("right", make_reply(6, summary="none", answer="5", format_score=1.0)),
            make_draft("unscored", make_reply(20, summary="5", answer="5", format_score=0.5)),
            make_draft("wrong", make_reply(10, summary="6 is it", answer=None)),
        ],
    ]
    challenges = [
        [
            make_challenge("wrong", 0, make_reply(2, answer="7")),  # regression
            make_challenge("right", 1, make_reply(4, answer="12")),  # conversion
            make_challenge("right", 2, make_reply(6, answer="12")),  # conversion, unseen
        ],
        [
            make_challenge("right", 0, make_reply(8, answer=" 5 ")),  # repeats the right answer
            make_challenge("right", 1, make_reply(10, answer="5"), paid=False),  # rival unscored
            make_challenge("wrong", 2, make_reply(12, answer=None)),
        ],
    ]
    return round_of(drafts, challenges)


EXPECTED = {
    "draft.pass": 2 / 5,
    "draft.format": 3.5 / 6,
    "draft.truncated": 1 / 6,
    "draft.unscored": 1 / 6,
    "draft.answers": 5,
    "draft.failures": 1,
    "draft.reward": 4 / 5,
    "draft.length": 60 / 6,
    "draft.length_right": 5.0,
    "draft.length_wrong": 10.0,
    "draft.prompt_length": len("solve"),
    "draft.entropy": 0.0,
    "draft.flat_reward": 0.0,
    "draft.flat_correctness": 0.0,
    "challenge.pass": 4 / 6,
    "challenge.format": 0.0,
    "challenge.truncated": 0.0,
    "challenge.unscored": 1 / 6,
    "challenge.answers": 5,
    "challenge.failures": 0,  # of the judge; an unscored rival is none
    "challenge.reward": 6 / 5,
    "challenge.length": 42 / 6,
    "challenge.length_right": 7.0,
    "challenge.length_wrong": 7.0,
    "challenge.prompt_length": len("solve it"),
    "challenge.entropy": 0.0,
    "challenge.flat_reward": 0.0,
    "challenge.flat_correctness": 0.0,
    # Five pairs have both verdicts: two right drafts, three wrong ones.
    "challenge.conversions": 2 / 5,
    "challenge.regressions": 1 / 5,
    "challenge.conversion_rate": 2 / 3,
    "challenge.regression_rate": 1 / 2,
    "challenge.conversions_unseen": 1 / 5,
    "exchange.usable": 5 / 6,
    # Right: "12" is in "so12", "5" not in "none". Wrong: "9" not in "itis7"; two do not count.
    "exchange.leak_right": 1 / 2,
    "exchange.leak_wrong": 0.0,
    # Right rivals' answers: 12 against 7, 5 against 5. Wrong ones': 9 against 12, 3 against 12.
    "exchange.repeat_right": 1 / 2,
    "exchange.repeat_wrong": 0.0,
}


def test_every_figure_of_a_round_is_the_one_counted_by_hand() -> None:
    assert round_metrics(by_hand()) == pytest.approx(EXPECTED, abs=1e-15)


def test_without_a_second_stage_there_are_draft_figures_alone() -> None:
    figures = round_metrics(round_of([list(group) for group in by_hand().drafts_PN]))
    assert figures == pytest.approx(
        {name: value for name, value in EXPECTED.items() if name.startswith("draft.")}, abs=1e-15
    )


def test_a_leaked_or_repeated_wrong_answer_is_counted_as_such() -> None:
    drafts = [[make_draft("wrong", make_reply(summary="it is 9", answer="9"))] * 2]
    challenges = [[make_challenge("wrong", n, make_reply(answer=a)) for n, a in enumerate("98")]]
    figures = round_metrics(round_of(drafts, challenges))
    assert (figures["exchange.leak_wrong"], figures["exchange.repeat_wrong"]) == (1.0, 0.5)
    assert "exchange.leak_right" not in figures
    assert "exchange.repeat_right" not in figures


def test_pairs_follow_the_rival_and_not_the_place() -> None:
    drafts = [[make_draft("wrong"), make_draft("right")]]
    challenges = [[make_challenge("right", 0), make_challenge("right", 0)]]
    figures = round_metrics(round_of(drafts, challenges))
    assert figures["challenge.conversions"] == 1.0
    assert "challenge.regression_rate" not in figures


def test_entropy_is_the_mean_over_tokens_and_not_over_rollouts() -> None:
    short = make_draft("right", make_reply(1, entropies=[4.0]))
    long = make_draft("wrong", make_reply(3, entropies=[0.0, 1.0, 1.0]))
    assert round_metrics(round_of([[short, long]]))["draft.entropy"] == 6 / 4


def test_rollouts_of_zero_advantage_are_in_the_figures() -> None:
    drafts = [[make_draft("wrong", make_reply(30), advantage=0.0)] * 2]
    drafts.append([make_draft("right", make_reply(10), advantage=1.0)] * 2)
    figures = round_metrics(round_of(drafts))
    assert (figures["draft.length"], figures["draft.pass"]) == (20.0, 0.5)


def test_a_figure_without_a_case_is_absent_and_never_zero() -> None:
    unscored = make_draft("unscored", make_reply(0, summary=None, answer=None))
    challenge = make_challenge("unscored", 0, make_reply(0, answer=None))
    figures = round_metrics(round_of([[unscored]], [[challenge]]))
    names = ("format", "truncated", "unscored", "length", "prompt_length", "flat_reward")
    names += ("answers", "failures")
    assert set(figures) == {
        *(f"{role}.{name}" for role in ("draft", "challenge") for name in names),
        "draft.flat_correctness",
        "challenge.flat_correctness",
        "exchange.usable",
    }
    assert figures["exchange.usable"] == 0.0
    assert figures["draft.unscored"] == 1.0


def test_every_figure_is_a_finite_number() -> None:
    assert all(math.isfinite(value) for value in round_metrics(by_hand()).values())


RIGHT_FORMED = Reward(correctness=2.0, format=0.5)


@pytest.mark.parametrize(
    ("group", "by_reward", "by_correctness"),
    [
        ([make_draft("right"), make_draft("wrong")], False, False),
        ([make_draft("right"), make_draft("right")], True, True),
        ([make_draft("right"), make_draft("right", reward=RIGHT_FORMED)], False, True),
        ([make_draft("wrong", reward=Reward(2.0)), make_draft("right")], True, False),
        ([make_draft("right"), make_draft("unscored")], True, True),
        ([make_draft("right"), make_draft("unscored"), make_draft("wrong")], False, False),
        ([make_draft("unscored")] * 3, True, True),
        ([make_challenge("right", 0), make_challenge("wrong", 0, paid=False)], True, True),
        ([], True, True),
    ],
)
def test_a_group_is_flat_when_its_scored_rollouts_are_alike_or_fewer_than_two(
    group, by_reward, by_correctness
) -> None:
    assert flat(group, by_reward=True) is by_reward
    assert flat(group, by_reward=False) is by_correctness


def test_flatness_is_a_share_of_groups() -> None:
    mixed = [make_draft("right"), make_draft("wrong")]
    formed = [make_draft("right"), make_draft("right", reward=RIGHT_FORMED)]
    level = [make_draft("wrong")] * 2
    figures = round_metrics(round_of([mixed, formed, level, level]))
    assert figures["draft.flat_reward"] == 0.5
    assert figures["draft.flat_correctness"] == 0.75


def test_small_helpers_have_limits() -> None:
    assert mean([]) is None
    assert mean([True, False]) == 0.5
    assert (squeeze(None), squeeze(" a \n b\t")) == ("", "ab")
