"""Systems made of base, a and b, and how each is evaluated.

A system is a sequence of one or two policies: `a` alone; `a->b`, the cascade in which b reads the
summary of a's draft; `base->base`, the untrained mixture; `a->a`, the two-pass self-cascade.
Two controls take the draft's summary away: `a->b/shuffled` shows b the summary of a draft of
another problem, `a->b/filler` a fixed text of the summary's length.

Every policy drafts once per problem and sample, and all systems that begin with it share that
draft. Randomness is keyed by (seed, stage, problem, sample) and not by the system, so systems are
paired. This module trains nothing and chooses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from agon.cascade import passed_on, sampling_key
from agon.engines.base import BASE, Sampling
from agon.records import Outcome, Problem, Reply, Role, Verdict
from agon.rounds import Table, derangement

Shown = Literal["own", "shuffled", "filler"]
"""What a second stage reads: its own rival's summary, or one of the two controls."""

Progress = Callable[[str, int, int], None]
"""Called with a stage's name, its number from 1 and how many stages there are."""


@dataclass(frozen=True, slots=True)
class System:
    """Which policies work on a problem, in order: one, or a drafter and a challenger.

    Attributes:
        stages: One policy or two.
        shown: What the second is shown.
    """

    stages: tuple[str, ...]
    shown: Shown = "own"

    @property
    def name(self) -> str:
        """`a`, `a->b`, `a->b/filler`, ..."""
        return "->".join(self.stages) + ("" if self.shown == "own" else f"/{self.shown}")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One system's try at one problem.

    Attributes:
        problem: The problem's id.
        sample: Number of the try.
        outcome: Of the last stage.
        draft_outcome: Of the first of two stages; None for one.
        answer: The last stage's answer block.
        generated: Generated tokens of each stage.
        prompt: Prompt tokens of each stage.
        truncated: Whether the last stage hit the completion limit.
    """

    problem: str
    sample: int
    outcome: Outcome
    draft_outcome: Outcome | None
    answer: str | None
    generated: tuple[int, ...]
    prompt: tuple[int, ...]
    truncated: bool


@dataclass(frozen=True, slots=True)
class _Stage:
    """Replies and verdicts of one stage over all problems and samples."""

    replies: list[Reply]
    verdicts: list[Verdict]
    prompt_tokens: list[int]


def standard_systems(policies: int) -> list[System]:
    """What `agon eval` runs: the base, each adapter alone, every cascade and self-cascade."""
    trained = ("a", "b")[:policies]
    pairs = [("a", "b"), ("b", "a")] if policies == 2 else []
    return [
        System((BASE,)),
        System((BASE, BASE)),
        *(System((name,)) for name in trained),
        *(System(pair) for pair in pairs),
        *(System((name, name)) for name in trained),
    ]


def controls(policies: int) -> list[System]:
    """Every two-pass system of the trained policies, shown what is not its rival's summary."""
    pairs = [("a", "b"), ("b", "a")] if policies == 2 else [("a", "a")]
    return [System(pair, shown) for pair in pairs for shown in ("shuffled", "filler")]


def evaluate(
    systems: Sequence[System],
    problems: Sequence[Problem],
    samples: int,
    seed: int,
    sampling: Sampling,
    table: Table,
    progress: Progress = lambda _name, _number, _of: None,
) -> dict[str, list[Attempt]]:
    """Try every problem `samples` times with every system.

    Returns:
        For each system's name its attempts, by problem and then sample.
    """
    sources = [problem for problem in problems for _ in range(samples)]
    drafters = list(dict.fromkeys(system.stages[0] for system in systems))
    stages = len(drafters) + sum(len(system.stages) > 1 for system in systems)
    number, drafts = 0, {}
    for drafter in drafters:
        number += 1
        progress(drafter, number, stages)
        drafts[drafter] = _run_stage(sources, None, drafter, Role.DRAFT, seed, sampling, table)
    results = {}
    for system in systems:
        first = drafts[system.stages[0]]
        second = None
        if len(system.stages) > 1:
            number += 1
            progress(system.name, number, stages)
            shown = _summaries(first.replies, system.shown, samples, seed, table)
            second = _run_stage(
                sources, shown, system.stages[1], Role.CHALLENGE, seed, sampling, table
            )
        results[system.name] = _attempts(sources, samples, first, second)
    return results


def _summaries(
    drafts: Sequence[Reply], shown: Shown, samples: int, seed: int, table: Table
) -> list[str | None]:
    """What each challenge is shown; None stands for a draft without a usable summary.

    Raises:
        ValueError: One problem alone has no other whose summary could be shown.
    """
    prompter = table.prompter
    own = [passed_on(draft.summary, prompter) for draft in drafts]
    if shown == "filler":
        return [None if text is None else prompter.filler(prompter.count(text)) for text in own]
    if shown == "shuffled":
        order = derangement(len(drafts) // samples, f"eval/{seed}/shuffle")
        return [text for p in order for text in own[p * samples : (p + 1) * samples]]
    return own


def _run_stage(
    sources: Sequence[Problem],
    shown: Sequence[str | None] | None,
    policy: str,
    role: Role,
    seed: int,
    sampling: Sampling,
    table: Table,
) -> _Stage:
    prompter = table.prompter
    if shown is None:
        plain = {problem.id: prompter.plain(problem) for problem in sources}
        prompts = [plain[problem.id] for problem in sources]
    else:
        prompts = [
            prompter.challenge(problem, text) for problem, text in zip(sources, shown, strict=True)
        ]
    samples = len(sources) // max(1, len({problem.id for problem in sources}))
    keys = [
        sampling_key(seed, role, problem, index % samples) for index, problem in enumerate(sources)
    ]
    completions = table.engine.generate(prompts, policy, sampling, keys)
    replies = [prompter.read(p, c) for p, c in zip(prompts, completions, strict=True)]
    verdicts = table.judge.judge([(p, r.answer) for p, r in zip(sources, replies, strict=True)])
    return _Stage(replies, verdicts, [len(prompt.token_ids) for prompt in prompts])


def _attempts(
    sources: Sequence[Problem], samples: int, first: _Stage, second: _Stage | None
) -> list[Attempt]:
    last = second or first
    stages = [first] if second is None else [first, second]
    return [
        Attempt(
            problem=problem.id,
            sample=index % samples,
            outcome=last.verdicts[index].outcome,
            draft_outcome=None if second is None else first.verdicts[index].outcome,
            answer=last.replies[index].answer,
            generated=tuple(stage.replies[index].length for stage in stages),
            prompt=tuple(stage.prompt_tokens[index] for stage in stages),
            truncated=last.replies[index].completion.truncated,
        )
        for index, problem in enumerate(sources)
    ]
