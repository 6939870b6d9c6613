"""One round: draft -> exchange -> challenge -> verify -> credit.

Every system in the comparison is this one function under other settings:

    game.policies    one adapter plays both roles, or two play against each other
    game.exchange    what the challenger is shown of its rival, or no second stage at all
    reward.credit    what a challenge is paid for
    reward.rival     which draft it is paid against

Both stages are sampled from the policies as they stand at the step's start. This module imports
no torch: an engine samples, a judge gives verdicts, a prompter writes prompts and reads replies.
It updates no policy; that is the trainer's part.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from agon.cascade import passed_on
from agon.config import Config, GameConfig
from agon.distributed import ALONE, Processes, joined
from agon.engines.base import Engine, Sampling
from agon.records import (
    Challenge,
    Completion,
    Draft,
    Problem,
    Prompt,
    Reply,
    Role,
    Round,
    Verdict,
)
from agon.rewards import challenge_reward, draft_reward, group_advantages
from agon.verifiers.base import Judge

Item = TypeVar("Item")

Stopwatch = Callable[[str], AbstractContextManager[object]]
"""Called with the name of a part of the round; times what runs inside."""


class Prompter(Protocol):
    """Writes prompts and reads replies; `prompts.Prompter` is the real one."""

    def plain(self, problem: Problem) -> Prompt:
        """The draft prompt."""
        ...

    def challenge(self, problem: Problem, shown: str | None) -> Prompt:
        """The challenge prompt; None where the rival left no usable summary."""
        ...

    def clip(self, summary: str) -> str:
        """A summary cut to the length that is passed on."""
        ...

    def count(self, text: str) -> int:
        """Tokens of a text."""
        ...

    def filler(self, tokens: int) -> str:
        """The fixed filler text at a token length."""
        ...

    def read(self, prompt: Prompt, completion: Completion) -> Reply:
        """A completion read as thinking, summary and answer."""
        ...


@dataclass(frozen=True, slots=True)
class Table:
    """What a round is played with."""

    engine: Engine
    judge: Judge
    prompter: Prompter


def seats(step: int, game: GameConfig) -> tuple[str, str | None]:
    """Who drafts and who challenges at a step; no challenger without a second stage."""
    swapped = game.policies == 2 and game.rotate and step % 2 == 1
    first, second = ("b", "a") if swapped else ("a", "b")
    if not game.second_stage:
        return first, None
    return first, second if game.policies == 2 else first


def play_round(
    problems: Sequence[Problem],
    step: int,
    config: Config,
    table: Table,
    stopwatch: Stopwatch = nullcontext,
    processes: Processes = ALONE,
) -> Round:
    """Play one round over P problems with groups of N; of several processes, each its own part.

    Args:
        problems: P distinct problems, the same at every process.
        step: Index of the step; decides the seats and, with `seeds.sampling`, all randomness.
        config: The run's configuration.
        table: Engine, judge and prompter.
        stopwatch: Times the parts `draft`, `challenge` and `verify`; the last is the time that
            sampling had to wait for verdicts.
        processes: The run's processes; summaries are passed on between them where a challenge is
            shown another problem's.
    """
    problems = processes.share(problems)
    drafter, challenger = seats(step, config.game)
    sources = [problem for problem in problems for _ in range(config.sampling.group_size)]
    plain = [table.prompter.plain(problem) for problem in problems]
    prompts = [prompt for prompt in plain for _ in range(config.sampling.group_size)]
    rest = (step, config, table, stopwatch)
    challenges: list[Challenge] = []
    with ThreadPoolExecutor(1, thread_name_prefix="agon-judge") as clerk:
        replies = _sample(sources, prompts, drafter, Role.DRAFT, *rest)
        # Verdicts are not passed on, so the drafts are judged while the challenges are sampled.
        verdicts = clerk.submit(table.judge.judge, _answers(sources, replies))
        if challenger is not None:
            shown = exchange(replies, step, config, table.prompter, processes)
            asked = _challenge_prompts(sources, prompts, shown, config, table.prompter)
            answers = _sample(sources, asked, challenger, Role.CHALLENGE, *rest)
        with stopwatch("verify"):
            drafts = credit_drafts(
                list(zip(prompts, replies, verdicts.result(), strict=True)), config
            )
            if challenger is not None:
                judged = table.judge.judge(_answers(sources, answers))
                stage = list(zip(asked, answers, judged, strict=True))
                challenges = credit_challenges(stage, shown, drafts, config)
    size = config.sampling.group_size
    return Round(
        step=step,
        drafter=drafter,
        challenger=challenger,
        problems=tuple(problems),
        drafts_PN=tuple(tuple(g) for g in _groups(drafts, size)),
        challenges_PN=tuple(tuple(g) for g in _groups(challenges, size))
        or tuple(() for _ in problems),
    )


def join_rounds(parts: Sequence[Round]) -> Round | None:
    """The round whose problems were played in parts, in their order; None where there are none."""
    if not parts:
        return None
    return replace(
        parts[0],
        problems=tuple(joined(part.problems for part in parts)),
        drafts_PN=tuple(joined(part.drafts_PN for part in parts)),
        challenges_PN=tuple(joined(part.challenges_PN for part in parts)),
    )


def exchange(
    replies: Sequence[Reply],
    step: int,
    config: Config,
    prompter: Prompter,
    processes: Processes = ALONE,
) -> list[str | None]:
    """What each challenge is shown, for the P * N drafts in order.

    Only summaries travel: never the thinking, never the answer block. None stands for a draft
    without a usable summary and, in the hidden exchange, for everything.
    """
    kind, size = config.game.exchange, config.sampling.group_size
    own = [passed_on(reply.summary, prompter) for reply in replies]
    if kind == "hidden":
        return [None] * len(replies)
    if kind == "filler":
        return [None if text is None else prompter.filler(prompter.count(text)) for text in own]
    if kind == "shuffled":
        everyone = joined(processes.gather(own, "the summaries"))
        order = derangement(len(everyone) // size, f"{config.seeds.sampling}/{step}/shuffle")
        return joined(everyone[p * size : (p + 1) * size] for p in processes.share(order))
    return own


def derangement(count: int, key: str) -> list[int]:
    """A seeded permutation of 0..count-1 that leaves no item in its place.

    Sattolo's algorithm: one cycle through all items, uniform over such cycles.

    Raises:
        ValueError: Fewer than two items.
    """
    if count < 2:
        raise ValueError(f"a derangement needs at least 2 items, got {count}")
    generator, order = random.Random(key), list(range(count))
    for last in range(count - 1, 0, -1):
        other = generator.randrange(last)
        order[last], order[other] = order[other], order[last]
    return order


def rollout_keys(seed: int, step: int, role: Role, sources: Sequence[Problem]) -> list[str]:
    """Sampling keys: by seed, step, role, problem and the sample's number within its group."""
    seen: dict[str, int] = {}
    keys = []
    for problem in sources:
        sample = seen.get(problem.id, 0)
        seen[problem.id] = sample + 1
        keys.append(f"train/{seed}/{step}/{role}/{problem.id}/{sample}")
    return keys


def _sample(
    sources: Sequence[Problem],
    prompts: Sequence[Prompt],
    policy: str,
    role: Role,
    step: int,
    config: Config,
    table: Table,
    stopwatch: Stopwatch,
) -> list[Reply]:
    """Sample one stage's replies."""
    sampling = Sampling(config.sampling.max_new_tokens, config.sampling.temperature)
    keys = rollout_keys(config.seeds.sampling, step, role, sources)
    with stopwatch(role):
        completions = table.engine.generate(prompts, policy, sampling, keys)
    return [
        table.prompter.read(prompt, completion)
        for prompt, completion in zip(prompts, completions, strict=True)
    ]


def _challenge_prompts(
    sources: Sequence[Problem],
    plain: Sequence[Prompt],
    shown: Sequence[str | None],
    config: Config,
    prompter: Prompter,
) -> Sequence[Prompt]:
    """What the challenger is asked; in the hidden exchange the draft prompts themselves."""
    if config.game.exchange == "hidden":
        return plain
    return [prompter.challenge(p, text) for p, text in zip(sources, shown, strict=True)]


def _answers(
    sources: Sequence[Problem], replies: Sequence[Reply]
) -> list[tuple[Problem, str | None]]:
    """What the judge is asked."""
    return [(problem, reply.answer) for problem, reply in zip(sources, replies, strict=True)]


def credit_drafts(stage: Sequence[tuple[Prompt, Reply, Verdict]], config: Config) -> list[Draft]:
    """Drafts with their rewards and advantages, for the P * N rollouts in order."""
    limit = config.sampling.max_new_tokens
    drafts = [
        Draft(prompt, reply, verdict, draft_reward(reply, verdict, config.reward, limit), 0.0)
        for prompt, reply, verdict in stage
    ]
    advantages = _advantages(drafts, config)
    return [replace(d, advantage=value) for d, value in zip(drafts, advantages, strict=True)]


def credit_challenges(
    stage: Sequence[tuple[Prompt, Reply, Verdict]],
    shown: Sequence[str | None],
    drafts: Sequence[Draft],
    config: Config,
) -> list[Challenge]:
    """Challenges with their rewards against the drafts that `reward.rival` names."""
    size, limit = config.sampling.group_size, config.sampling.max_new_tokens
    challenges = []
    for index, (prompt, reply, verdict) in enumerate(stage):
        rival = 0 if config.reward.rival == "shared" else index % size
        draft = drafts[index - index % size + rival]
        reward = challenge_reward(reply, verdict, draft, config.reward, limit)
        challenges.append(Challenge(prompt, reply, verdict, reward, 0.0, shown[index], rival))
    advantages = _advantages(challenges, config)
    return [replace(c, advantage=value) for c, value in zip(challenges, advantages, strict=True)]


def _advantages(rollouts: Sequence[Draft | Challenge], config: Config) -> list[float]:
    totals = [None if r.reward is None else r.reward.total for r in rollouts]
    return [
        advantage
        for group in _groups(totals, config.sampling.group_size)
        for advantage in group_advantages(group, config.objective.scale_rewards)
    ]


def _groups(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
