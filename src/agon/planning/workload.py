"""How much there is to do: problems, steps, prompts and replies, read where they can be.

What cannot be read here (a hub that is out of reach) or is not known before a run (how long replies
get) is assumed, and every assumption is a sentence of the report.
"""

from __future__ import annotations

from dataclasses import dataclass

from agon.config import Config
from agon.errors import ConfigError, Unreachable
from agon.planning.hours import Stage
from agon.preflight import (
    longest_prompts,
    read_language,
    read_task,
    total_steps,
    training_problems,
)

LONGEST_PROMPT, MEAN_PROMPT = 1024, 256
"""Tokens of plain prompts, where tokenizer or data cannot be read."""

CHALLENGE_FRAME = 128
"""Tokens that a challenge's prompt has beside the problem and the summary, likewise."""

MEAN_SHARE = 1 / 3
"""Of the completion limit that a reply takes in the mean. The published GRPO wrote 8.1k tokens in
its last stage; recipes/qwen3-0.6b-deepmath.toml takes three times that as the limit."""

ASSUMED_PROBLEMS = {("deepmath", 8.0, 8.0): 5_700}
"""Training problems of (task, lowest, highest difficulty): the estimate that the published recipe
gives its reasons for, less 600 held out."""

_SAMPLE = 64


@dataclass(frozen=True, slots=True)
class Workload:
    """A run in numbers.

    Attributes:
        steps: Optimizer steps of each adapter.
        draft_prompt: Tokens of the longest plain prompt, and of one in the mean.
        challenge_prompt: Likewise of a challenge's.
        mean_reply: Tokens of a reply in the mean.
        notes: What was assumed, a sentence each.
    """

    steps: int
    draft_prompt: tuple[int, float]
    challenge_prompt: tuple[int, float]
    mean_reply: float
    notes: tuple[str, ...]


def read_workload(
    config: Config, prompt_tokens: int | None = None, reply_tokens: int | None = None
) -> Workload:
    """Read what can be read and assume the rest.

    Args:
        config: The run's configuration.
        prompt_tokens: The longest plain prompt, where it is known better.
        reply_tokens: The mean reply, likewise.

    Raises:
        ConfigError: The number of steps is neither set nor to be found out, or a number makes no
            sense.
    """
    limit, notes = config.sampling.max_new_tokens, []
    if reply_tokens is not None and not 1 <= reply_tokens <= limit:
        raise ConfigError(
            f"--reply-tokens: got {reply_tokens}, expected 1 to sampling.max_new_tokens = {limit}"
        )
    if prompt_tokens is not None and prompt_tokens < 2:
        raise ConfigError(f"--prompt-tokens: got {prompt_tokens}, expected 2 or more")
    mean = float(reply_tokens) if reply_tokens is not None else max(1.0, MEAN_SHARE * limit)
    if reply_tokens is None:
        notes.append(
            f"replies have {mean:.0f} tokens in the mean, a third of their limit (--reply-tokens)"
        )
    draft, challenge, prompt_note = _prompts(config, prompt_tokens)
    steps, step_note = _steps(config)
    notes += [note for note in (prompt_note, step_note) if note]
    return Workload(steps, draft, challenge, mean, tuple(notes))


def _prompts(
    config: Config, given: int | None
) -> tuple[tuple[int, float], tuple[int, float], str | None]:
    """(longest, mean) plain and challenge prompts, and what was assumed about them."""
    more = CHALLENGE_FRAME + config.game.max_summary_tokens
    try:
        if given is not None:
            raise Unreachable("")
        language, data = read_language(config), read_task(config)
    except Unreachable:
        longest = LONGEST_PROMPT if given is None else given
        usual = min(MEAN_PROMPT, longest)
        note = (
            f"plain prompts have at most {longest} tokens and {usual} in the mean, challenges "
            f"{more} more (--prompt-tokens)"
        )
        return (longest, usual), (longest + more, usual + more), note
    longest, longest_challenge = longest_prompts(config, language, data)
    some = training_problems(data, config)[:_SAMPLE]
    mean = sum(len(language.prompter.plain(p).token_ids) for p in some) / len(some)
    return (longest, mean), (longest_challenge, mean + longest_challenge - longest), None


def _steps(config: Config) -> tuple[int, str | None]:
    if config.training.steps is not None:
        return config.training.steps, None
    task = config.task
    try:
        count = len(training_problems(read_task(config), config))
        return total_steps(count, config), None
    except Unreachable as error:
        known = ASSUMED_PROBLEMS.get(
            (task.name, task.min_difficulty or 0, task.max_difficulty or 0)
        )
        if known is None:
            raise ConfigError(
                f"the number of steps is not known: {error}. Set it with "
                "--set training.steps=N, or give the data with --set task.path=..."
            ) from error
    known = min(known, task.limit or known)
    note = f"one pass over {task.name} is about {known} problems: the data is out of reach here"
    return total_steps(known, config), note


def stages(config: Config, load: Workload, mean: float, processes: int) -> list[Stage]:
    """What one card samples in a step, in order.

    Args:
        config: The run's configuration.
        load: From `read_workload`.
        mean: Tokens of a reply in the mean.
        processes: Cards that share the step's problems.
    """
    problems = -(-config.training.problems_per_step // processes)
    rollouts = problems * config.sampling.group_size
    limit, slots = config.sampling.max_new_tokens, config.sampling.slots
    draft = Stage(rollouts, problems, load.draft_prompt[1], mean, limit, slots)
    exchange = config.game.exchange
    if exchange == "none":
        return [draft]
    if exchange == "hidden":
        return [draft, draft]
    return [draft, Stage(rollouts, rollouts, load.challenge_prompt[1], mean, limit, slots)]


def evaluation_stages(config: Config, load: Workload, mean: float, processes: int) -> list[Stage]:
    """What one card samples in one dev evaluation: every adapter alone, then every cascade."""
    if config.evaluation.every == 0:
        return []
    problems = -(-config.evaluation.problems // processes)
    limit, slots = config.sampling.max_new_tokens, config.sampling.slots
    alone = Stage(problems, problems, load.draft_prompt[1], mean, limit, slots)
    second = Stage(problems, problems, load.challenge_prompt[1], mean, limit, slots)
    return [alone, second] * config.game.policies


def evaluations(config: Config, steps: int) -> int:
    """Dev evaluations of a run: before the first step, every so often, and after the last."""
    every = config.evaluation.every
    return 0 if every == 0 else 1 + -(-steps // every)
