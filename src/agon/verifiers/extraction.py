r"""The claimed answer in running text, for auditing what other systems wrote.

Training never uses this: there an answer is what stands in the answer block, and nothing else. Here
the claim is looked for in this order, outside the thinking: the answer block; the last `\boxed`;
a line `#### 42`; a sentence that says what the answer is; the last sentence that gives a value. A
claim that is negated or hedged is none, and neither is a box that is empty or was never closed.

Everything takes time linear in the text. What this module does not do: judge the claim.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from agon.parsing import parse

MAX_SENTENCE = 2_000
"""Characters of the text's end in which a sentence is looked for."""

_BOX_TOKEN = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*|\\.|[{}]", re.DOTALL)
_BARE_BOX = re.compile(r"([A-Za-z0-9]|\\[A-Za-z]+)")
_JOINT = re.compile(
    r"[\s,$.;]*(?:\\\)|\\\]|\\\(|\\\[|and|or|,|\s|\$|\\text\s*\{\s*(?:and|or)\s*\})*"
)
_REJECTED = re.compile(
    r"(?:\bnot|n't|\bnever|\brul(?:e|es|ed) out|\bexclud(?:e|es|ed)|\breject(?:s|ed)?|"
    r"\bdiscard(?:s|ed)?|\bcannot be|\binstead of|\brather than)"
    r"\s*(?:equal to|the value|the answer|\$|\\\(|\\\[|\s)*$"
)
_TAKEN_BACK = re.compile(
    r"\b(?:that|this|it|which)(?:\s+answer)?\s+(?:is|was|isn't|wasn't)\s+(?:all\s+)?"
    r"(?:wrong|incorrect|false|not\s+(?:right|correct)|right\?|a\s+mistake)",
    re.IGNORECASE,
)
_HASHES = re.compile(r"^\s*####\s*(\S.*?)\s*$", re.MULTILINE)
_CUE = re.compile(
    r"(?<![A-Za-z])(?:answer|correct\s+(?:option|choice))(?:\s+to\s+[^.:\n]{0,60})?\s*(?:\*\*|__)?\s*"
    r"(?:is|are|was|must be|should be|equals|would be|will be|:|=|$(?=\s*\n))\s*:?\s*",
    re.IGNORECASE | re.MULTILINE,
)
_FOREIGN = re.compile(
    r"(?:reference|gold|expected|true|student's|wrong|incorrect)\s+answer", re.IGNORECASE
)
_VALUE_CUE = re.compile(
    r"(?:\bis|\bare|\bhas|\bhave|\bequals|\bgives|\bget|=)\s+(?=[-+]?[$\\(]*[-+]?\d)", re.IGNORECASE
)
_HEDGE = re.compile(
    r"\b(?:not|never|no longer|cannot|isn't|can't|might|may|maybe|could|perhaps|possibly|probably|"
    r"either|between|around|about|roughly|approximately|unknown|unclear|unsure)\b",
    re.IGNORECASE,
)
_OPEN_QUESTION = re.compile(
    r"(?:\b(?:not|whether|unclear|unless|if|doubt|wrong that)\b|n't\b)[^,]*$", re.IGNORECASE
)
_END_OF_SENTENCE = re.compile(r"[.!?](?=\s|$|\*)|\n")
_AFTERTHOUGHT = re.compile(r",\s+(?=(?:[a-z]{3,}|I)\b)(?!(?:and|or)\b)")


@dataclass(frozen=True, slots=True)
class Extraction:
    """What a text claims.

    Attributes:
        answer: The claimed answer as it stands, or None where the text claims none.
        rule: How it was found, or why there is none.
    """

    answer: str | None
    rule: str


def extract(completion: str) -> Extraction:
    """Find the claimed answer of a completion."""
    if "<answer>" in completion:
        answer = parse(completion, thinking_open="</think>" in completion).answer
        return Extraction(answer, "answer block" if answer else "no single closed answer block")
    _, mark, text = completion.rpartition("</think>")
    if not mark and "<think>" in completion:
        return Extraction(None, "the thinking is never closed")
    for find in (_boxed, _hashes, _stated, _valued):
        found = find(text)
        if found is not None:
            return found
    return Extraction(None, "no claim found")


def _boxed(text: str) -> Extraction | None:
    boxes, unclosed = closed_boxes(text)
    last = boxes[-1][0] if boxes else -1
    if unclosed > last:
        return Extraction(None, "the last box is never closed")
    boxes = [box for box in boxes if not _REJECTED.search(text[max(0, box[0] - 80) : box[0]])]
    if not boxes:
        return None
    if _TAKEN_BACK.search(text[boxes[-1][2] :][:400]):
        return Extraction(None, "the last box is taken back")
    joined = [boxes[-1]]
    for box in reversed(boxes[:-1]):
        between = text[box[2] : joined[0][0]]
        if not _JOINT.fullmatch(between) or not re.search(r",|and|or", between):
            break
        joined.insert(0, box)
    contents = [_content(text, begin, end) for _, begin, end in joined]
    if not all(contents):
        return Extraction(None, "the last box is empty")
    rule = "last box" if len(contents) == 1 else f"the last {len(contents)} boxes as a list"
    return Extraction(", ".join(contents), rule)


def _content(text: str, begin: int, end: int) -> str:
    """What stands in a box, with or without braces."""
    inside = text[begin + 1 : end - 1] if text[begin] == "{" else text[begin:end]
    return inside.strip()


def closed_boxes(text: str) -> tuple[list[tuple[int, int, int]], int]:
    r"""Outermost boxes as (start, content's begin, end), and the start of the last unclosed one.

    One pass over the text, whatever its nesting. The content begins at its brace; `\boxed 5` has
    none.
    """
    boxes: list[tuple[int, int, int]] = []
    stack: list[tuple[int, int] | None] = []  # a box's (start, brace), or None for another brace
    inside = 0
    start, place = -1, 0
    while (match := _BOX_TOKEN.search(text, place)) is not None:
        place = match.end()
        token = match[0]
        if token.startswith((r"\boxed", r"\fbox")):
            start = match.start()
            if text.startswith("{", place):
                stack.append((start, place))
                inside += 1
                place += 1
            elif (bare := _BARE_BOX.match(text, place)) is not None and not inside:
                boxes.append((start, place, bare.end()))
        elif token == "{":
            stack.append(None)
        elif token == "}" and stack:
            opened = stack.pop()
            if opened is not None:
                inside -= 1
                if not inside:
                    boxes.append((*opened, place))
    unclosed = max((opened[0] for opened in stack if opened is not None), default=-1)
    return boxes, unclosed


def _hashes(text: str) -> Extraction | None:
    lines = _HASHES.findall(text[-MAX_SENTENCE:])
    return Extraction(lines[-1], "line after ####") if lines else None


def _stated(text: str) -> Extraction | None:
    """What the last sentence about the answer says."""
    end = text[-MAX_SENTENCE:]
    cues = [
        cue
        for cue in _CUE.finditer(end)
        if not _FOREIGN.search(end[max(0, cue.start() - 20) : cue.start() + 6])
    ]
    if not cues:
        return None
    claim = _claim(end, cues[-1].end())
    sentence = end[cues[-1].start() : cues[-1].end()] + claim
    before = re.split(r"[.!?\n]", end[: cues[-1].start()])[-1]
    if _HEDGE.search(sentence) or _OPEN_QUESTION.search(before):
        return Extraction(None, "the answer is negated or hedged")
    return Extraction(claim or None, "sentence about the answer")


def _valued(text: str) -> Extraction | None:
    """The value that the last sentence gives, for texts that never say `answer`."""
    end = text[-MAX_SENTENCE:].strip()
    cues = list(_VALUE_CUE.finditer(end))
    if not cues:
        return None
    rest = end[cues[-1].end() :]
    sentence_end = _END_OF_SENTENCE.search(rest)
    if sentence_end is not None and rest[sentence_end.end() :].strip(" *\n"):
        return None  # more is said after it
    claim = _claim(end, cues[-1].end())
    before = re.split(r"[.!?\n]", end[: cues[-1].start()])[-1]
    if _HEDGE.search(before + claim):
        return Extraction(None, "the value is negated or hedged")
    return Extraction(claim or None, "value of the last sentence")


def _claim(text: str, begin: int) -> str:
    """From a cue to the end of what it introduces: a formula in dollar signs, or the sentence."""
    rest = text[begin:].lstrip(" *_:")
    formula = re.match(r"\$\$?([^$\n]+)\$\$?|\\\((.+?)\\\)|\\\[(.+?)\\\]", rest, re.DOTALL)
    if formula is not None and not re.match(r"\$[\d,.]+\s+[A-Za-z]", rest):
        return formula[0]
    end = _END_OF_SENTENCE.search(rest)
    sentence = rest[: end.start()] if end is not None else rest
    return _AFTERTHOUGHT.split(sentence)[0].strip(" *_")
