"""Text in pieces is the text in one piece; stop strings are found across pieces."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from agon.assets import EMBEDDED, model_folder
from agon.serving.text import StopFilter, TextStream

SMOLLM2 = Path(__file__).resolve().parents[2] / "models" / "smollm2-135m-instruct-dequantised"


def tokenizer_of(name: str) -> object:
    folder = Path(model_folder(EMBEDDED)) if name == "embedded" else SMOLLM2
    if not folder.is_dir():
        pytest.skip("SmolLM2 is not here: `make smollm2` builds it")
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("embedded", "<think>4+6=10*7=70</think><answer>7-4+6</answer>"),
        ("smollm2", " héllo  wörld 🎉 a,b\n\n<answer>½</answer> 日本語 "),
    ],
)
def test_pieces_join_to_the_decoded_whole(name: str, text: str) -> None:
    tokenizer: object = tokenizer_of(name)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]  # type: ignore[operator]
    for end in range(len(ids) + 1):
        stream = TextStream(tokenizer, (-1,))  # type: ignore[arg-type]
        pieces = [stream.push(token) for token in ids[:end]]
        whole = tokenizer.decode(ids[:end], clean_up_tokenization_spaces=False)  # type: ignore[attr-defined]
        assert "".join(pieces) + stream.rest() == whole
        assert stream.rest() == ""


def test_end_tokens_have_no_text() -> None:
    tokenizer: object = tokenizer_of("embedded")
    stream = TextStream(tokenizer, (3,))  # type: ignore[arg-type]
    assert stream.push(3) + stream.rest() == ""


@given(
    st.lists(st.text("ab<", max_size=4), max_size=12),
    st.lists(st.text("ab<", min_size=1, max_size=4), max_size=3),
)
def test_a_stop_string_cuts_where_it_first_stands_however_the_text_is_cut_up(
    pieces: list[str], stops: list[str]
) -> None:
    """Ends are decided as they come, so of overlapping stops the one that ends first cuts."""
    held, passed = StopFilter(stops), ""
    for piece in pieces:
        passed += held.push(piece)
    stopped = held.stopped
    passed += held.rest()
    whole = "".join(pieces)
    assert stopped == any(stop in whole for stop in stops)
    assert whole.startswith(passed)
    if stopped:
        assert not any(stop in passed for stop in stops)
        assert any(whole.startswith(stop, len(passed)) for stop in stops)
    else:
        assert passed == whole


def test_nothing_is_held_back_without_stop_strings() -> None:
    assert StopFilter([]).push("a<") == "a<"
