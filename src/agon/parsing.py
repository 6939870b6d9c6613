"""A reply's text -> thinking, summary, answer, format score; and rival text made harmless.

The form is a thinking block, then one `<summary>...</summary>` and one `<answer>...</answer>`.
Tags are case-sensitive and bare, exactly as the prompts ask for them: `<Answer>` and `<answer >`
are text. Thinking delimiters are `<think>` and `</think>`, and those of the chat template.

Every shape of reply has one outcome:

    reply                                        thinking   what counts after it
    no thinking block at all                     None       the whole text
    thinking closed                              its text   what follows its closing delimiter
    thinking prefilled by the template, closed   its text   what follows its closing delimiter
    opening delimiter inside open thinking,      text of    what follows the first closing
        a repeated prefilled one too             the trace  delimiter: thinking does not nest
    several thinking blocks                      all their  what follows the last one; a block
                                                 texts      before or between them does not count
    any thinking block left open                 the closed nothing: no summary, no answer, phi 0
                                                 ones' text
    closing delimiter with nothing open          as above   it is text

    after the thinking                           summary    answer
    one closed block of each, either order       read       read
    text before, between or after the blocks     ignored    ignored
    block missing or empty                       None       None
    opening or closing tag twice, or nested      None       None      (of that kind)
    opening tag without closing tag, or reverse  None       None      (of that kind)
    answer block inside the summary block        None       read
    summary block inside the answer block        None       None
    summary and answer blocks interleaved        None       None
    summary after an answer that is not closed   None       None

A block is empty when it holds nothing but white space, characters that do not show, and dots: the
prompts write `<summary>...</summary>`, and who only repeats that has said nothing.

phi is one half for each of the two that is read. A summary is never read when it touches an
answer block, since an answer block must not reach the rival. Time is linear in the text's length.

What this module does not do: judge the answer, cut the summary, or know of tokens.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from typing import NamedTuple

Delimiters = tuple[tuple[str, str], ...]
"""Pairs of opening and closing thinking delimiters."""

THINK: Delimiters = (("<think>", "</think>"),)
"""What the prompts ask for where a model has no thinking mode of its own."""

_OTHER_THINKING: Delimiters = (("<|channel>thought", "<channel|>"),)
"""Delimiters of other templates: Gemma 4."""

_BLOCK_TAG = re.compile(r"</?(?:summary|answer)>")

_TAG_LIKE = re.compile(
    r"<([\s/|\\]*(?:think|thought|reason|summary|answer|channel|rival)[^<>]*)(>?)", re.IGNORECASE
)
"""Anything that reads like a tag of the form, of a thinking delimiter, or of the challenge prompt's
frame around the rival's text: closed or not, in any case, with spaces and attributes."""

_SAYS_NOTHING = frozenset(".\u2026\u2800\u115f\u1160\u3164\uffa0")
"""Dots, and letters and symbols that are drawn as a blank: Braille, and Hangul fillers."""

_INVISIBLE = frozenset({"Cc", "Cf", "Mn"})
"""Unicode categories without a shape of their own: controls, formats, marks on other characters."""


class Parsed(NamedTuple):
    """A reply's parts; None where the module's table says that a part is not read."""

    thinking: str | None
    summary: str | None
    answer: str | None
    format_score: float


def thinking_delimiters(chat_template: str) -> Delimiters:
    """A model's thinking delimiters: the prompt's own, and the template's where they differ."""
    return THINK + tuple(pair for pair in _OTHER_THINKING if pair[1] in chat_template)


def leaves_thinking_open(tail: str, delimiters: Delimiters) -> bool:
    """Whether a generation prompt's tail opens a thinking block that it does not close."""
    opening, closing = _patterns(delimiters)
    last_opening = max((match.start() for match in opening.finditer(tail)), default=-1)
    last_closing = max((match.start() for match in closing.finditer(tail)), default=-1)
    return last_opening > last_closing


def parse(text: str, thinking_open: bool, delimiters: Delimiters = THINK) -> Parsed:
    """Read a reply by the module's table.

    Args:
        text: The reply without its end-of-turn token.
        thinking_open: Whether the prompt ends inside a thinking block.
        delimiters: The model's thinking delimiters.
    """
    thinking, rest = _split_thinking(text, thinking_open, delimiters)
    tags = list(_BLOCK_TAG.finditer(rest))
    summary = _single_block("summary", rest, tags)
    answer = _single_block("answer", rest, tags)
    score = 0.5 * (summary is not None) + 0.5 * (answer is not None)
    return Parsed(thinking, summary, answer, score)


def neutralise(text: str) -> str:
    """Rival text whose tags are visible but no longer tags: `<answer>` becomes `[answer]`.

    A prefix of the result is left as it is by a second call, so cutting cannot revive a tag.
    """
    return _TAG_LIKE.sub(lambda match: f"[{match[1]}{']' if match[2] else ''}", text)


@cache
def _patterns(delimiters: Delimiters) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """One pattern for all opening and one for all closing delimiters."""
    openings, closings = zip(*delimiters, strict=True)
    return (
        re.compile("|".join(map(re.escape, openings))),
        re.compile("|".join(map(re.escape, closings))),
    )


def _split_thinking(
    text: str, thinking_open: bool, delimiters: Delimiters
) -> tuple[str | None, str]:
    """The closed thinking and what follows it; nothing follows thinking that is left open."""
    opening, closing = _patterns(delimiters)
    traces: list[str] = []
    position = 0
    while True:
        if not (thinking_open and not traces):
            opened = opening.search(text, position)
            if opened is None:
                return _joined(traces), text[position:]
            position = opened.end()
        closed = closing.search(text, position)
        if closed is None:
            return _joined(traces), ""
        traces.append(text[position : closed.start()].strip())
        position = closed.end()


def _joined(traces: list[str]) -> str | None:
    return "\n".join(traces) if traces else None


def _single_block(name: str, rest: str, tags: list[re.Match[str]]) -> str | None:
    """Content of the only block of a kind, if it holds no tag and lies in no answer block."""
    opening, closing = f"<{name}>", f"</{name}>"
    own = [index for index, tag in enumerate(tags) if tag[0] in (opening, closing)]
    if [tags[index][0] for index in own] != [opening, closing] or own[1] != own[0] + 1:
        return None
    # Only the other kind's tags can stand before the single opening one.
    inside_answer = name == "summary" and own[0] > 0 and tags[own[0] - 1][0] == "<answer>"
    if inside_answer:
        return None
    content = rest[tags[own[0]].end() : tags[own[1]].start()].strip()
    return None if all(map(_says_nothing, content)) else content


def _says_nothing(character: str) -> bool:
    return (
        character.isspace()
        or character in _SAYS_NOTHING
        or unicodedata.category(character) in _INVISIBLE
    )
