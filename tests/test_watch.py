"""The watch warns at half of the window, stops at its end, and forgets at the first good step."""

from __future__ import annotations

import pytest

from agon.config import StopConfig
from agon.errors import NothingToLearn
from agon.watch import ENOUGH_FAILURES, UNSCORED_SHARE, Watch

GOOD = {
    "truncated": 0.1,
    "flat_correctness": 0.5,
    "unscored": 0.0,
    "length": 20.0,
    "answers": 10.0,
    "failures": 0.0,
}
CUT = GOOD | {"truncated": 0.95}
LEVEL = GOOD | {"flat_correctness": 1.0}
LOST = GOOD | {"unscored": 0.2}

Role = dict[str, float]


def figures(draft: Role, challenge: Role | None = None) -> dict[str, float]:
    """A step's figures by role; without a challenge there was no second stage."""
    named = {f"draft.{key}": value for key, value in draft.items()}
    return named | {f"challenge.{key}": value for key, value in (challenge or {}).items()}


def watch_of(window: int = 6) -> Watch:
    return Watch(StopConfig(window=window))


@pytest.mark.parametrize(
    ("step", "what"),
    [
        (figures(CUT), "sampling.max_new_tokens"),
        (figures(CUT, GOOD), "sampling.max_new_tokens"),
        (figures(GOOD, CUT), "sampling.max_new_tokens"),
        (figures(LEVEL), "all right or all wrong"),
        (figures(LEVEL, LEVEL), "all right or all wrong"),
    ],
)
def test_a_hopeless_state_warns_at_half_and_stops_at_the_window(step, what: str) -> None:
    watch = watch_of(6)
    said = [watch.observe(step) for _ in range(5)]
    assert [len(warnings) for warnings in said] == [0, 0, 1, 0, 0]
    assert what in said[2][0]
    assert "in 3 steps in a row" in said[2][0]
    assert "stops after 6" in said[2][0]
    with pytest.raises(NothingToLearn, match=r"in 6 steps in a row \(stop.window = 6\)") as stopped:
        watch.observe(step)
    assert what in str(stopped.value)


def test_one_role_with_signal_is_enough_to_go_on() -> None:
    watch = watch_of(2)
    for _ in range(10):
        assert watch.observe(figures(LEVEL, GOOD)) == []
        assert watch.observe(figures(GOOD, LEVEL)) == []


def test_a_run_that_learns_hears_nothing() -> None:
    watch = watch_of(1)
    assert [watch.observe(figures(GOOD, GOOD)) for _ in range(20)] == [[]] * 20
    assert set(watch.counters().values()) == {0}


@pytest.mark.parametrize("bad", [CUT, LEVEL])
def test_one_good_step_starts_the_count_again(bad: Role) -> None:
    watch = watch_of(4)
    for _ in range(5):
        for _ in range(3):
            watch.observe(figures(bad))
        watch.observe(figures(GOOD))
    assert set(watch.counters().values()) == {0}


def test_truncated_and_flat_steps_are_counted_apart() -> None:
    watch = watch_of(3)
    for step in (CUT, LEVEL, CUT, LEVEL, CUT, LEVEL):
        watch.observe(figures(step))
    assert (watch.truncated, watch.flat, watch.unscored) == (0, 1, 0)


def test_the_truncated_share_is_a_threshold_that_counts_itself() -> None:
    watch = Watch(StopConfig(window=9, truncated_share=0.5))
    watch.observe(figures(GOOD | {"truncated": 0.5}))
    assert watch.truncated == 1
    watch.observe(figures(GOOD | {"truncated": 0.499}))
    assert watch.truncated == 0


def test_a_window_of_one_stops_at_once() -> None:
    with pytest.raises(NothingToLearn):
        watch_of(1).observe(figures(LEVEL))


@pytest.mark.parametrize("interrupted_after", range(6))
def test_a_restored_watch_continues_where_it_was(interrupted_after: int) -> None:
    steps = [figures(LEVEL | {"unscored": 0.2})] * 6
    uninterrupted, said = watch_of(20), []
    for step in steps:
        said.append(uninterrupted.observe(step))
    first, second = watch_of(20), watch_of(20)
    heard = [first.observe(step) for step in steps[:interrupted_after]]
    second.restore(first.counters())
    heard += [second.observe(step) for step in steps[interrupted_after:]]
    assert heard == said
    assert second.counters() == uninterrupted.counters()


def test_restoring_from_nothing_starts_at_zero() -> None:
    watch = watch_of()
    watch.observe(figures(CUT | LEVEL))
    watch.restore({})
    assert set(watch.counters().values()) == {0}


@pytest.mark.parametrize("step", [figures(LOST), figures(LOST, GOOD), figures(GOOD, LOST)])
def test_a_failing_judge_is_said_at_once_and_again_at_half(step) -> None:
    watch = watch_of(8)
    said = [watch.observe(step) for _ in range(12)]
    assert [place for place, warnings in enumerate(said) if warnings] == [0, 3]
    assert "the judge failed" in said[0][0]
    assert "20%" in said[0][0]


def test_a_failing_judge_alone_never_stops_a_run() -> None:
    watch = watch_of(2)
    for _ in range(10):
        watch.observe(figures(LOST))
    assert watch.unscored == 10


def test_a_few_unscored_replies_are_no_alarm() -> None:
    assert watch_of().observe(figures(GOOD | {"unscored": UNSCORED_SHARE})) == []


def test_the_alarm_shows_the_roles_apart() -> None:
    said = watch_of().observe(figures(GOOD, LOST))
    assert "draft 0%, challenge 20%" in said[0]


def judged(answers: int, failures: int) -> dict[str, float]:
    return GOOD | {"answers": float(answers), "failures": float(failures)}


@pytest.mark.parametrize("role", ["draft", "challenge"])
def test_a_judge_that_fails_on_half_of_a_roles_answers_stops_at_once(role: str) -> None:
    broken = figures(GOOD, GOOD) | {f"{role}.failures": 5.0}
    with pytest.raises(NothingToLearn, match=r"50% .*stop\.unscored_share = 0\.5"):
        watch_of().observe(broken)


def test_replies_without_an_answer_hide_no_failing_judge() -> None:
    """Four of a hundred replies had an answer, and the judge failed on each: 4 % are unscored."""
    with pytest.raises(NothingToLearn, match="100%"):
        watch_of().observe(figures(judged(4, 4) | {"unscored": 0.04}, judged(0, 0)))


def test_a_judge_that_fails_now_and_then_stops_nothing() -> None:
    watch = watch_of(3)
    for _ in range(30):
        watch.observe(figures(judged(100, 49)))
        watch.observe(figures(judged(1, 1)))  # a share of one, of too few to go by


def test_where_answers_are_few_failures_count_together() -> None:
    watch = watch_of()
    for _ in range(ENOUGH_FAILURES - 1):
        watch.observe(figures(judged(1, 1)))
        watch.observe(figures(judged(0, 0)))  # says nothing about the judge
    restored = watch_of()
    restored.restore(watch.counters())
    with pytest.raises(NothingToLearn, match="the judge failed"):
        restored.observe(figures(judged(1, 1)))
