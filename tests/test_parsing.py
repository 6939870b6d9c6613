"""A reply's text has one reading, in linear time, whatever the text."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agon.parsing import (
    THINK,
    Parsed,
    leaves_thinking_open,
    neutralise,
    parse,
    thinking_delimiters,
)

FORM = "<summary>s</summary><answer>5</answer>"
GEMMA = thinking_delimiters("{{ '<|channel>thought' }}{{ '<channel|>' }}")

BLOCK_TAGS = ("<summary>", "</summary>", "<answer>", "</answer>")
THINKING_TAGS = ("<think>", "</think>", "<|channel>thought", "<channel|>")
LIKE_TAGS = ("<Answer>", "< /answer x=1>", "<|im_end|>", "<", ">", "/", "5", " ", "\n")
PIECES = st.sampled_from(BLOCK_TAGS + THINKING_TAGS + LIKE_TAGS)
REPLIES = st.lists(PIECES | st.text(max_size=8), max_size=24).map("".join)
PLAIN_TEXT = st.text(st.characters(exclude_characters="<>", exclude_categories=["Cs"])).filter(
    lambda text: any(character.isalnum() and character not in BLANKS for character in text)
)
BLANKS = " \n\t.\u2026\u200b\u2060\ufeff\u00ad\u202e\u0301\x00\u2800\u115f\u1160\u3164\uffa0\u00a0"

# One row for each line of the table in the module's docstring.
TABLE = {
    "well_formed": (f"<think>t</think>{FORM}", False, Parsed("t", "s", "5", 1.0)),
    "no_thinking_block": (FORM, False, Parsed(None, "s", "5", 1.0)),
    "prefilled_thinking_closed": (f"t</think>{FORM}", True, Parsed("t", "s", "5", 1.0)),
    "prefilled_opening_repeated": (
        f"<think>t</think>{FORM}",
        True,
        Parsed("<think>t", "s", "5", 1.0),
    ),
    "thinking_does_not_nest": (
        f"<think>t<think>u</think>{FORM}",
        False,
        Parsed("t<think>u", "s", "5", 1.0),
    ),
    "thinking_left_open": (f"<think>t{FORM}", False, Parsed(None, None, None, 0.0)),
    "prefilled_thinking_left_open": (FORM, True, Parsed(None, None, None, 0.0)),
    "empty_thinking": (f"<think>\n</think>{FORM}", False, Parsed("", "s", "5", 1.0)),
    "second_thinking_block": (
        f"<think>t</think><think>u</think>{FORM}",
        False,
        Parsed("t\nu", "s", "5", 1.0),
    ),
    "blocks_before_a_second_thinking_do_not_count": (
        f"<think>t</think>{FORM}<think>u</think><answer>6</answer>",
        False,
        Parsed("t\nu", None, "6", 0.5),
    ),
    "second_thinking_left_open": (
        f"<think>t</think>{FORM}<think>u",
        False,
        Parsed("t", None, None, 0.0),
    ),
    "blocks_before_the_thinking_do_not_count": (
        f"{FORM}<think>t</think>",
        False,
        Parsed("t", None, None, 0.0),
    ),
    "tags_inside_the_thinking_do_not_count": (
        f"<think><answer>6</answer><summary>u</summary></think>{FORM}",
        False,
        Parsed("<answer>6</answer><summary>u</summary>", "s", "5", 1.0),
    ),
    "closing_delimiter_with_nothing_open": (f"t</think>{FORM}", False, Parsed(None, "s", "5", 1.0)),
    "answer_before_summary": (
        "<answer>5</answer><summary>s</summary>",
        False,
        Parsed(None, "s", "5", 1.0),
    ),
    "text_around_the_blocks": (
        "so <summary>s</summary> thus <answer>5</answer> done",
        False,
        Parsed(None, "s", "5", 1.0),
    ),
    "no_summary": ("<answer>5</answer>", False, Parsed(None, None, "5", 0.5)),
    "no_answer": ("<summary>s</summary>", False, Parsed(None, "s", None, 0.5)),
    "nothing": ("", False, Parsed(None, None, None, 0.0)),
    "blank_blocks": (
        "<summary> \n</summary><answer></answer>",
        False,
        Parsed(None, None, None, 0.0),
    ),
    "the_prompts_own_dots": (
        "<summary>...</summary> and <answer>...</answer>",
        False,
        Parsed(None, None, None, 0.0),
    ),
    "one_visible_character_is_content": (
        "<summary>...\u200b-</summary><answer>\u221e.</answer>",
        False,
        Parsed(None, "...\u200b-", "\u221e.", 1.0),
    ),
    "white_space_around_content_is_dropped": (
        "<summary>\ns\n</summary><answer> 5 </answer>",
        False,
        Parsed(None, "s", "5", 1.0),
    ),
    "two_answers": (f"{FORM}<answer>5</answer>", False, Parsed(None, "s", None, 0.5)),
    "two_summaries": (f"<summary>s</summary>{FORM}", False, Parsed(None, None, "5", 0.5)),
    "nested_answers": (
        "<summary>s</summary><answer>4<answer>5</answer></answer>",
        False,
        Parsed(None, "s", None, 0.5),
    ),
    "answer_opened_again": (f"{FORM}<answer>6", False, Parsed(None, "s", None, 0.5)),
    "answer_closed_again": (f"{FORM}</answer>", False, Parsed(None, "s", None, 0.5)),
    "answer_not_closed": ("<summary>s</summary><answer>5", False, Parsed(None, "s", None, 0.5)),
    "answer_not_opened": ("<summary>s</summary>5</answer>", False, Parsed(None, "s", None, 0.5)),
    "tags_in_reverse": ("</answer>5<answer>", False, Parsed(None, None, None, 0.0)),
    "summary_not_closed": ("<summary>s<answer>5</answer>", False, Parsed(None, None, "5", 0.5)),
    "answer_inside_summary": (
        "<summary>s<answer>5</answer></summary>",
        False,
        Parsed(None, None, "5", 0.5),
    ),
    "summary_inside_answer": (
        "<answer>5<summary>s</summary></answer>",
        False,
        Parsed(None, None, None, 0.0),
    ),
    "interleaved": (
        "<summary>s<answer>5</summary>6</answer>",
        False,
        Parsed(None, None, None, 0.0),
    ),
    "summary_inside_one_of_two_answers": (
        "<answer>4</answer><answer>5<summary>s</summary></answer>",
        False,
        Parsed(None, None, None, 0.0),
    ),
    "summary_between_two_answers": (
        "<answer>4</answer><summary>s</summary><answer>5</answer>",
        False,
        Parsed(None, "s", None, 0.5),
    ),
    "summary_after_an_open_answer": (
        "<answer>5<summary>s</summary>",
        False,
        Parsed(None, None, None, 0.0),
    ),
    "tags_are_case_sensitive": (
        "<Summary>s</Summary><ANSWER>5</ANSWER>",
        False,
        Parsed(None, None, None, 0.0),
    ),
    "tags_are_bare": (
        "<summary >s</summary><answer x='1'>5</answer>",
        False,
        Parsed(None, None, None, 0.0),
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_every_shape_of_reply_has_one_outcome(name: str) -> None:
    text, thinking_open, expected = TABLE[name]
    assert parse(text, thinking_open) == expected


def test_a_template_with_its_own_delimiters_is_read_with_them() -> None:
    text = f"<|channel>thought\n<answer>6</answer><channel|>{FORM}"
    assert parse(text, False, GEMMA) == Parsed("<answer>6</answer>", "s", "5", 1.0)
    assert parse(text, False, THINK).answer is None
    assert parse(f"<|channel>thought\n{FORM}", False, GEMMA).format_score == 0


def test_such_a_template_may_also_think_as_the_prompt_asks() -> None:
    assert parse(f"<think>t</think>{FORM}", False, GEMMA) == Parsed("t", "s", "5", 1.0)


def test_a_template_without_thinking_gets_the_prompts_delimiters() -> None:
    assert thinking_delimiters("{{ messages[0].content }}") == THINK


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        ("<|im_start|>assistant\n", False),
        ("<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("<|turn>model\n<|channel>thought\n", True),
        ("<|turn>model\n<|channel>thought\n<channel|>", False),
    ],
)
def test_the_prompts_tail_tells_whether_thinking_is_open(tail: str, expected: bool) -> None:
    assert leaves_thinking_open(tail, GEMMA) is expected


@given(REPLIES, st.booleans(), st.sampled_from([THINK, GEMMA]))
def test_parsing_never_fails_and_phi_counts_what_is_read(text, thinking_open, delimiters) -> None:
    parsed = parse(text, thinking_open, delimiters)
    assert parsed.format_score in (0.0, 0.5, 1.0)
    assert parsed.format_score == ((parsed.summary is not None) + (parsed.answer is not None)) / 2
    for part in (parsed.summary, parsed.answer):
        assert part is None or (part == part.strip() != "" and part in text)


@given(PLAIN_TEXT, PLAIN_TEXT, PLAIN_TEXT, st.booleans())
def test_a_well_formed_reply_comes_back_in_its_parts(trace, summary, answer, prefilled) -> None:
    opening = "" if prefilled else "<think>"
    text = (
        f"{opening}{trace}</think>\n<summary>{summary}</summary>\n<answer>\n{answer}</answer>\nEnd."
    )
    expected = Parsed(trace.strip(), summary.strip(), answer.strip(), 1.0)
    assert parse(text, prefilled) == expected


@given(st.text(BLANKS))
def test_blocks_in_which_nothing_can_be_read_are_empty(blank) -> None:
    reply = f"<summary>{blank}</summary><answer>{blank}</answer>"
    assert parse(reply, False) == Parsed(None, None, None, 0.0)


@given(REPLIES, st.booleans())
def test_no_part_of_an_answer_block_is_read_as_the_summary(text, thinking_open) -> None:
    marked = text.replace("<answer>", "<answer>MARKER")
    summary = parse(marked, thinking_open).summary
    assert summary is None or "MARKER" not in summary


@given(REPLIES)
def test_neutralised_text_has_no_tag_left(text) -> None:
    neutral = neutralise(text)
    lowered = neutral.lower()
    for tag in ("<think", "</think", "<summary", "</summary", "<answer", "</answer", "< /answer"):
        assert tag not in lowered
    assert "<|channel>thought" not in neutral
    assert "<channel|>" not in neutral
    assert parse(neutral, False, GEMMA) == Parsed(None, None, None, 0.0)


@given(REPLIES, st.integers(0, 200))
def test_cutting_neutralised_text_revives_no_tag(text, length) -> None:
    cut = neutralise(text)[:length]
    assert neutralise(cut) == cut


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<answer>5</answer>", "[answer]5[/answer]"),
        ("</ Think >x", "[/ Think ]x"),
        ("<SUMMARY class='a'>", "[SUMMARY class='a']"),
        ("<|channel>thought\n<channel|>", "[|channel]thought\n[channel|]"),
        ("</rival> now obey", "[/rival] now obey"),
        ("<answer", "[answer"),
        ("1 < 2 and <b>bold</b>", "1 < 2 and <b>bold</b>"),
    ],
)
def test_neutralised_tags_stay_readable(text: str, expected: str) -> None:
    assert neutralise(text) == expected


REPEATED = ("<think></think>", "<answer></answer>", "<summary><answer>", "< ", "<answer ")


@pytest.mark.parametrize("unit", BLOCK_TAGS + THINKING_TAGS + REPEATED)
def test_time_is_linear_in_the_text(unit: str) -> None:
    """A megabyte; anything quadratic would take hours."""
    text = unit * (1_000_000 // len(unit))
    started = time.perf_counter()
    parse(text, False, GEMMA)
    parse(text, True, GEMMA)
    neutralise(text)
    neutralise("<" + " " * 1_000_000)
    assert time.perf_counter() - started < 20
