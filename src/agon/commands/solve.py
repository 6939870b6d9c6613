"""`agon solve`: one problem through the trained cascade, streamed to the terminal."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from agon.cascade import passed_on, sampling_key
from agon.config import Config
from agon.engines.base import Sampling
from agon.errors import ConfigError
from agon.preflight import Language, check_settings, read_language
from agon.records import Problem, Prompt, Reply, Role
from agon.runs import RunFolder
from agon.tasks.asked import problem_of
from agon.workshop import Workshop, for_use, in_process, load_run_adapters, open_workshop


def solve(
    run: Path,
    question: str,
    order: str | None,
    seed: int,
    temperature: float | None,
    console: Console,
) -> None:
    """Draft, pass the summary on, challenge; print everything as it is written.

    One reply at a time, streamed: the in-process engine samples it, whatever the run trained with.

    Args:
        run: A run folder.
        question: The problem's text.
        order: `a->b`, `b->a`, `a->a`, ...; None takes a->b, or a->a for a run of one policy.
        seed: Of the sampling.
        temperature: None takes the run's; 0 is greedy.
        console: Where to write.

    Raises:
        AgonError: Anything that the user can mend.
    """
    folder = RunFolder(run)
    config = in_process(for_use(folder.read_config()))
    check_settings(config)
    stages = read_order(order, config)
    if temperature is not None and temperature < 0:
        raise ConfigError(f"--temperature: got {temperature}, expected 0 or more")
    try:
        problem = problem_of(config.task.name, question)
    except ValueError as error:
        raise ConfigError(f"PROBLEM: {error}") from error
    language = read_language(config)
    workshop = open_workshop(config, language)
    try:
        load_run_adapters(folder, workshop.policies, config.objective.updates_per_step)
        if temperature is None:
            temperature = config.sampling.temperature
        sampling = Sampling(config.sampling.max_new_tokens, temperature)
        _cascade(problem, stages, seed, sampling, workshop, console)
    finally:
        workshop.close()


def read_order(order: str | None, config: Config) -> tuple[str, ...]:
    """The stages of `a->b` and its like.

    Raises:
        ConfigError: A policy that the run does not have, or more than two stages.
    """
    default = "a->b" if config.game.policies == 2 else "a->a"
    stages = tuple(part.strip() for part in (order or default).split("->"))
    known = ("base", "a", "b")[: config.game.policies + 1]
    if not 1 <= len(stages) <= 2 or any(stage not in known for stage in stages):
        raise ConfigError(
            f"--order: got {order!r}, expected one policy or two joined by '->', of "
            + ", ".join(known)
        )
    return stages


def _cascade(
    problem: Problem,
    stages: tuple[str, ...],
    seed: int,
    sampling: Sampling,
    workshop: Workshop,
    console: Console,
) -> None:
    prompter = workshop.table.prompter
    reply: Reply | None = None
    for policy in stages:
        if reply is None:
            prompt, role = prompter.plain(problem), Role.DRAFT
        else:
            shown = passed_on(reply.summary, prompter)
            prompt, role = prompter.challenge(problem, shown), Role.CHALLENGE
            console.print("\n[bold]passed on[/]", highlight=False)
            console.print(shown or "no usable summary", markup=False, highlight=False)
        console.print(f"\n[bold]{role} by {policy}[/]", highlight=False)
        key = sampling_key(seed, role, problem, 0)
        reply = _stream(prompt, policy, sampling, key, workshop, console)
    assert reply is not None
    tokens = f"({reply.length} tokens in the last stage)"
    console.print("\n[bold]answer[/]", highlight=False)
    console.print(f"{reply.answer or 'none: no single closed answer block'} {tokens}", markup=False)


def _stream(
    prompt: Prompt,
    policy: str,
    sampling: Sampling,
    key: str,
    workshop: Workshop,
    console: Console,
) -> Reply:
    """Sample one reply, writing its text as it grows."""
    language: Language = workshop.language
    ids: list[int] = []
    written = 0

    def on_token(_index: int, token: int) -> None:
        nonlocal written
        if token in language.prompter.end_token_ids:
            return
        ids.append(token)
        # Decode everything anew: a token may be part of a character or carry a space.
        text = language.tokenizer.decode(ids, skip_special_tokens=False)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            console.print(text[written:], end="", markup=False, highlight=False, soft_wrap=True)
            written = len(text)

    [completion] = workshop.table.engine.generate([prompt], policy, sampling, [key], on_token)
    console.print()
    return workshop.table.prompter.read(prompt, completion)
