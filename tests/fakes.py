"""A scripted table for rounds, and records made by hand. Nothing here needs torch.

The fakes are small and honest: the engine writes what a script says for a sampling key, tokens are
the UTF-8 bytes of a text, the prompter reads replies with the real parser, and the judge compares
the answer block with the gold answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agon.config import Config
from agon.engines.base import OnToken, Sampling
from agon.parsing import neutralise, parse
from agon.recipes import build_config
from agon.records import (
    Challenge,
    Completion,
    Draft,
    Outcome,
    PolicyVersion,
    Problem,
    Prompt,
    Reply,
    Reward,
    Role,
    Verdict,
)
from agon.rounds import Table
from agon.verifiers.base import NO_ANSWER

VERDICTS = {
    "right": Verdict(Outcome.RIGHT, "equal"),
    "wrong": Verdict(Outcome.WRONG, "different"),
    "unscored": Verdict(Outcome.UNSCORED, "the judge fell over"),
}
UNJUDGED = "unjudgeable"
"""An answer that the fake judge cannot judge."""

Script = Callable[[str, str], str]
"""(policy, sampling key) -> the text of the completion."""


def written(answer: str | None, summary: str | None = "recap", thinking: str = "hm") -> str:
    """A reply in the form that the prompts ask for; None leaves a block out."""
    text = f"<think>{thinking}</think>"
    text += "" if summary is None else f"<summary>{summary}</summary>"
    return text + ("" if answer is None else f"<answer>{answer}</answer>")


@dataclass(frozen=True)
class Call:
    """One call of the engine."""

    policy: str
    prompts: tuple[Prompt, ...]
    sampling: Sampling
    keys: tuple[str, ...]
    texts: tuple[str, ...]


@dataclass
class ScriptedEngine:
    """Writes what the script says, in bytes unless told how to encode, and remembers every call."""

    script: Script
    encode: Callable[[str], Sequence[int]] = str.encode
    calls: list[Call] = field(default_factory=list)

    def generate(
        self,
        prompts: Sequence[Prompt],
        policy: str,
        sampling: Sampling,
        keys: Sequence[str],
        on_token: OnToken | None = None,
    ) -> list[Completion]:
        texts = tuple(self.script(policy, key) for key in keys)
        self.calls.append(Call(policy, tuple(prompts), sampling, tuple(keys), texts))
        return [completion_of(self.encode(text), policy) for text in texts]


@dataclass
class GoldJudge:
    """Right is the gold answer, unscored is `UNJUDGED`; remembers what it was asked."""

    asked: list[list[tuple[Problem, str | None]]] = field(default_factory=list)

    def judge(self, items: Sequence[tuple[Problem, str | None]]) -> list[Verdict]:
        self.asked.append(list(items))
        return [self._verdict(problem, answer) for problem, answer in items]

    def _verdict(self, problem: Problem, answer: str | None) -> Verdict:
        if answer is None:
            return NO_ANSWER
        if answer == UNJUDGED:
            return VERDICTS["unscored"]
        return VERDICTS["right" if answer == problem.gold else "wrong"]


@dataclass(frozen=True)
class BytePrompter:
    """Legible prompts whose tokens are bytes."""

    max_summary_tokens: int = 512
    filler_text: str = "lorem ipsum "

    def plain(self, problem: Problem) -> Prompt:
        return prompt_of(f"solve {problem.question}")

    def challenge(self, problem: Problem, shown: str | None) -> Prompt:
        rival = "(none)" if shown is None else neutralise(shown)
        return prompt_of(f"solve {problem.question} rival {rival}")

    def clip(self, summary: str) -> str:
        return neutralise(summary)[: self.max_summary_tokens]

    def count(self, text: str) -> int:
        return len(text.encode())

    def filler(self, tokens: int) -> str:
        return (self.filler_text * tokens)[:tokens]

    def read(self, prompt: Prompt, completion: Completion) -> Reply:
        text = bytes(completion.token_ids).decode()
        return Reply(text, *parse(text, prompt.thinking_open), completion=completion)


def make_table(script: Script, prompter: Any = None) -> Table:
    """A fresh engine and judge around a script."""
    return Table(ScriptedEngine(script), GoldJudge(), prompter or BytePrompter())


def make_config(settings: Mapping[str, Any], **sections: Mapping[str, Any]) -> Config:
    """A configuration from `section.field` settings."""
    tables: dict[str, dict[str, Any]] = {name: dict(value) for name, value in sections.items()}
    for name, value in settings.items():
        section, key = name.split(".")
        tables.setdefault(section, {})[key] = value
    return build_config(tables)


def make_problems(count: int) -> list[Problem]:
    """Problems p0, p1, ... with the gold answers g0, g1, ..."""
    return [Problem(f"p{p}", f"question {p}", f"g{p}", "fake") for p in range(count)]


def prompt_of(text: str) -> Prompt:
    """A prompt whose tokens are its bytes."""
    return Prompt(text, tuple(text.encode()), thinking_open=False)


def completion_of(token_ids: Sequence[int], policy: str = "a") -> Completion:
    """A completion that its policy's version 3 was certain of."""
    zeros = (0.0,) * len(token_ids)
    return Completion(tuple(token_ids), zeros, zeros, False, PolicyVersion(policy, 3))


def make_reply(
    length: int = 10,
    *,
    summary: str | None = "recap",
    answer: str | None = "4",
    format_score: float = 0.0,
    entropies: Sequence[float] | None = None,
    truncated: bool = False,
    policy: str = "a",
) -> Reply:
    """A reply of so many tokens, each of entropy 0 unless given."""
    given = tuple(entropies) if entropies is not None else (0.0,) * length
    completion = Completion(
        tuple(range(length)), (0.0,) * length, given, truncated, PolicyVersion(policy, 3)
    )
    return Reply("text", "hm", summary, answer, format_score, completion)


def make_draft(
    outcome: str, reply: Reply | None = None, reward: Reward | None = None, advantage: float = 0.0
) -> Draft:
    """A draft with an outcome; an unscored one has no reward."""
    verdict = VERDICTS[outcome]
    paid = (reward or Reward(correctness=2.0 * verdict.correct)) if verdict.scored else None
    return Draft(prompt_of("solve"), reply or make_reply(), verdict, paid, advantage)


def make_challenge(
    outcome: str,
    rival: int,
    reply: Reply | None = None,
    reward: Reward | None = None,
    *,
    shown: str | None = "recap",
    paid: bool = True,
) -> Challenge:
    """A challenge with an outcome; `paid=False` leaves it unscored through its rival."""
    verdict = VERDICTS[outcome]
    scored = verdict.scored and paid
    reward = (reward or Reward(correctness=2.0 * verdict.correct)) if scored else None
    reply = reply or make_reply(policy="b")
    return Challenge(prompt_of("solve it"), reply, verdict, reward, 0.0, shown, rival)


def key_parts(key: str) -> tuple[Role, int, int]:
    """Role, problem number and sample number of a training key."""
    *_, role, problem, sample = key.split("/")
    return Role(role), int(problem.removeprefix("p")), int(sample)
