"""Splits: exact, disjoint, and stable in the ways that are promised."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agon.errors import DataError
from agon.records import Problem
from agon.tasks.countdown import enumerate_problems, read_question
from agon.tasks.selection import hold_out, without_conflicts
from agon.tasks.splits import Split, hash_fraction, normalise_question, split_of, stable_id

DEV, TEST = 20, 30


def problem(question: str, gold: str = "1") -> Problem:
    return Problem(stable_id("t", question), question, gold, "math")


def problems(count: int, start: int = 0) -> list[Problem]:
    return [problem(f"Question {number}?") for number in range(start, start + count)]


def split_by_id(splits: dict[Split, tuple[Problem, ...]]) -> dict[str, Split]:
    return {item.id: split for split, items in splits.items() for item in items}


def test_normalisation_ignores_case_white_space_and_unicode_form() -> None:
    assert normalise_question("  What\n is \uff12 \ufb01?") == normalise_question("what is 2 FI?")
    assert normalise_question("x = 1") != normalise_question("x = 2")


@settings(max_examples=200)
@given(st.text(st.characters(codec="latin-1")))
def test_a_question_and_its_normal_form_share_id_and_split(question: str) -> None:
    normal = normalise_question(question)
    assert normalise_question(normal) == normal
    assert stable_id("t", question) == stable_id("t", normal)
    assert split_of(question) is split_of(normal)
    assert 0 <= hash_fraction(question) < 1


def test_split_shares_are_those_asked_for() -> None:
    splits = [split_of(f"question {number}", dev=0.1, test=0.2) for number in range(20_000)]
    assert abs(splits.count(Split.TEST) / 20_000 - 0.2) < 0.01
    assert abs(splits.count(Split.DEV) / 20_000 - 0.1) < 0.01


def test_countdown_splits_are_disjoint_whatever_the_order_of_the_numbers() -> None:
    seen: dict[object, Split] = {}
    for split in Split:
        for item in enumerate_problems(split):
            key = read_question(item.question)
            assert seen.setdefault(key, split) is split
            assert item.gold == f"{key[1]} from {','.join(map(str, key[0]))}"
    assert len(seen) == 9511 + 1208 + 1208


def test_held_out_counts_are_exact_and_nothing_is_lost() -> None:
    items = problems(500)
    splits = hold_out(items, dev=DEV, test=TEST)
    assert {split: len(some) for split, some in splits.items()} == {
        Split.TRAIN: 450,
        Split.DEV: DEV,
        Split.TEST: TEST,
    }
    assert set(split_by_id(splits)) == {item.id for item in items}


def test_splits_keep_the_order_of_the_data_set() -> None:
    items = problems(500)
    for some in hold_out(items, dev=DEV, test=TEST).values():
        positions = [items.index(item) for item in some]
        assert positions == sorted(positions)


def test_the_order_of_the_rows_changes_no_split() -> None:
    items = problems(500)
    shuffled = random.Random(0).sample(items, len(items))
    splits = split_by_id(hold_out(items, dev=DEV, test=TEST))
    assert split_by_id(hold_out(shuffled, dev=DEV, test=TEST)) == splits


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 60), st.integers(0, 10_000))
def test_added_rows_move_problems_outwards_alone_and_few(added: int, start: int) -> None:
    before = split_by_id(hold_out(problems(300), dev=DEV, test=TEST))
    more = problems(300) + problems(added, start=1_000 + start)
    after = split_by_id(hold_out(more, dev=DEV, test=TEST))
    order = [Split.TEST, Split.DEV, Split.TRAIN]
    moved = [name for name in before if before[name] is not after[name]]
    assert all(order.index(after[name]) > order.index(before[name]) for name in moved)
    # So no training problem is ever held out later, and each new row moves at most two.
    assert all(before[name] is not Split.TRAIN for name in moved)
    assert len(moved) <= 2 * added


def test_a_row_beyond_the_held_out_hashes_moves_nothing() -> None:
    items = problems(300)
    boundary = sorted(hash_fraction(item.question) for item in items)[DEV + TEST - 1]
    extra = next(item for item in problems(1_000, 5_000) if hash_fraction(item.question) > boundary)
    splits = hold_out([extra, *items], dev=DEV, test=TEST)
    before = split_by_id(hold_out(items, dev=DEV, test=TEST))
    assert split_by_id(splits) == before | {extra.id: Split.TRAIN}


def test_too_few_problems_are_an_error_that_names_the_settings() -> None:
    with pytest.raises(DataError, match=r"task\.dev_problems"):
        hold_out(problems(DEV + TEST), dev=DEV, test=TEST)
    assert len(hold_out(problems(DEV + TEST + 1), dev=DEV, test=TEST)[Split.TRAIN]) == 1


def test_repeated_questions_are_merged_and_counted() -> None:
    kept, notes = without_conflicts([problem("A?"), problem("B?"), problem(" a? ")])
    assert [item.question for item in kept] == ["A?", "B?"]
    assert notes == ["1 of 3 rows repeat a question and were merged with it."]


def test_a_question_with_two_golds_is_dropped_altogether() -> None:
    items = [problem("A?", "1"), problem("B?", "1"), problem("a?", "2"), problem("A?", "1")]
    kept, notes = without_conflicts(items)
    assert [item.question for item in kept] == ["B?"]
    assert any("1 questions occur with different gold answers" in note for note in notes)
