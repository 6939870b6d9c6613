"""One try at a problem by one of the served systems, told as it is written.

The stages, what passes between them and their randomness are evaluation's (`agon.cascade`,
`agon.evaluation.protocols`); here one try runs for itself, so that the second stage of one request
overlaps the first stage of others. Two options leave work out and are off by default, since either
may change an answer:

    cut drafts   the draft ends where its summary does: its answer block is not read by anyone. A
                 draft that would have spoilt its summary later (a second block) is thus mended.
    early exit   the challenger drafts as well, at the same time, as its try number `sample + 1`
                 (under one key two policies that are alike draw the same text, which would prove
                 nothing); if both answer the same, that is the answer and there is no challenge.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from agon.cascade import passed_on, sampling_key
from agon.evaluation.overlap import votes
from agon.prompts import Prompter
from agon.records import Problem, Prompt, Role
from agon.serving.backends import Ask, Backend, Written, write_out


class Part(StrEnum):
    """What a piece of reasoning belongs to."""

    HEADING = "heading"
    DRAFT = "draft"
    SUMMARY = "summary"
    CHALLENGE = "challenge"
    REPLY = "reply"


@dataclass(frozen=True, slots=True)
class Event:
    """A piece of what is written on the way to the answer."""

    part: Part
    policy: str
    text: str


@dataclass(frozen=True, slots=True)
class Shortcuts:
    """Work that may be left out."""

    cut_drafts: bool = False
    early_exit: bool = False


@dataclass(frozen=True, slots=True)
class Try:
    """One try at one problem.

    Attributes:
        problem: What is asked.
        plain: Its draft prompt.
        stages: One policy or two.
        seed: Of the request.
        sample: Number of the try, a choice's index.
        temperature: 0 is greedy.
        limit: Most tokens of each stage.
        stops: Strings that end the last stage.
    """

    problem: Problem
    plain: Prompt
    stages: tuple[str, ...]
    seed: int
    sample: int
    temperature: float
    limit: int
    stops: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage that was written."""

    role: Role
    policy: str
    written: Written


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a try.

    Attributes:
        content: The last stage's answer block; empty where it has no single closed one.
        answered: Whether it has.
        finish: `stop` or `length`, of the last stage.
        stages: All that was written.
        skipped: Whether the challenge was left out, since two drafts agreed.
    """

    content: str
    answered: bool
    finish: str
    stages: tuple[Stage, ...]
    skipped: bool = False


Tell = Callable[[Event], None]


async def play(
    asked: Try, shortcuts: Shortcuts, backend: Backend, prompter: Prompter, tell: Tell
) -> Answer:
    """Run a try to its answer; cancelling it frees what it holds.

    Raises:
        ApiError: A stage could not be written.
    """
    if len(asked.stages) == 1:
        (policy,) = asked.stages
        only = await _write(asked, Role.DRAFT, policy, asked.plain, backend, tell, Part.REPLY)
        return _answer(only, asked.plain, prompter, (only,))
    drafter, challenger = asked.stages
    other = None
    if shortcuts.early_exit and drafter != challenger:
        next_try = replace(asked, sample=asked.sample + 1)
        silent = _write(next_try, Role.DRAFT, challenger, asked.plain, backend, lambda _event: None)
        other = asyncio.create_task(silent)
    try:
        tell(Event(Part.HEADING, drafter, f"[draft by {drafter}]\n"))
        draft = await _write(
            asked, Role.DRAFT, drafter, asked.plain, backend, tell, Part.DRAFT,
            enough=partial(_has_summary, asked.plain, prompter) if shortcuts.cut_drafts else None,
        )  # fmt: skip
        done: tuple[Stage, ...] = (draft,)
        if other is not None:
            done = (draft, await other)
            answers = [prompter.parts(asked.plain, s.written.text).answer for s in done]
            agreed = votes(answers)
            if agreed[0] is not None and agreed[0] == agreed[1]:
                tell(Event(Part.HEADING, challenger, f"\n\n[{challenger}'s own draft agrees]\n"))
                return _answer(draft, asked.plain, prompter, done, skipped=True)
    finally:
        if other is not None:
            other.cancel()
            await asyncio.gather(other, return_exceptions=True)
    shown = passed_on(prompter.parts(asked.plain, draft.written.text).summary, prompter)
    tell(Event(Part.HEADING, drafter, "\n\n[summary passed on]\n"))
    tell(Event(Part.SUMMARY, drafter, shown or "(no usable summary)"))
    prompt = prompter.challenge(asked.problem, shown)
    tell(Event(Part.HEADING, challenger, f"\n\n[challenge by {challenger}]\n"))
    last = await _write(asked, Role.CHALLENGE, challenger, prompt, backend, tell, Part.CHALLENGE)
    return _answer(last, prompt, prompter, (*done, last))


async def _write(
    asked: Try,
    role: Role,
    policy: str,
    prompt: Prompt,
    backend: Backend,
    tell: Tell,
    part: Part = Part.DRAFT,
    enough: Callable[[str], bool] | None = None,
) -> Stage:
    """Write one stage. The last one may be ended by a stop string."""
    last = part in (Part.REPLY, Part.CHALLENGE)
    ask = Ask(
        prompt=prompt,
        policy=policy,
        key=sampling_key(asked.seed, role, asked.problem, asked.sample),
        temperature=asked.temperature,
        limit=asked.limit,
        stage=int(role is Role.CHALLENGE),
    )
    written = await write_out(
        backend,
        ask,
        lambda text: tell(Event(part, policy, text)),
        asked.stops if last else (),
        enough,
    )
    return Stage(role, policy, written)


def _has_summary(prompt: Prompt, prompter: Prompter, text: str) -> bool:
    return prompter.parts(prompt, text).summary is not None


def _answer(
    last: Stage,
    prompt: Prompt,
    prompter: Prompter,
    stages: tuple[Stage, ...],
    skipped: bool = False,
) -> Answer:
    found = prompter.parts(prompt, last.written.text).answer
    finish = "length" if last.written.finish == "length" else "stop"
    return Answer(found or "", found is not None, finish, stages, skipped)
