"""Everything that can be found wrong before a model is loaded.

Reads the tokenizer, the model's configuration and the data, checks that problem, summary and
completion fit the context, and returns what the later parts need. No weights are read here.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agon.adapter_folders import check_adapter_folder
from agon.assets import EMBEDDED, model_folder
from agon.config import (
    PROGRAM_TASKS,
    CodeConfig,
    Config,
    ModelConfig,
    TaskConfig,
    VerifierConfig,
)
from agon.errors import ConfigError, Unreachable
from agon.hub import hub_fault
from agon.prompts import Prompter
from agon.quantised import check_quantization
from agon.records import Outcome, Problem
from agon.tasks import TaskData, load_task
from agon.tasks.splits import Split

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LONGEST_PROBLEMS = 64
"""How many of the longest questions are encoded to find the longest prompt."""


@dataclass(frozen=True, slots=True)
class Language:
    """The tokenizer's side of a model: what `preflight` reads and the engine needs.

    Attributes:
        context: Most tokens of prompt and completion together.
        pad_token_id: Fills short rows; its value reaches no result.
    """

    tokenizer: PreTrainedTokenizerBase
    prompter: Prompter
    context: int
    pad_token_id: int


def check_settings(config: Config) -> None:
    """Refuse what this machine cannot do or what is not there.

    Raises:
        ConfigError: No GPU for `training.device = "cuda"`, no bitsandbytes for a quantised base, or
            a missing model folder.
        AdapterError: A warm start from a folder that does not fit.
    """
    if config.training.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise ConfigError(
                'training.device = "cuda", but this machine has no usable GPU: set '
                'training.device = "cpu" or "auto"'
            )
    check_quantization(config.model)
    name = config.model.name_or_path
    looks_local = name.startswith((".", "/", "~")) or name.count("/") > 1 or Path(name).exists()
    if name != EMBEDDED and looks_local and not (Path(name) / "config.json").is_file():
        raise ConfigError(
            f"model.name_or_path: {name} is no model folder: it has no config.json. Give a folder "
            "that transformers' save_pretrained wrote, or a hub name"
        )
    for field, folder in (
        ("adapters.warm_a", config.adapters.warm_a),
        ("adapters.warm_b", config.adapters.warm_b),
    ):
        if folder is not None:
            check_adapter_folder(
                Path(folder), config.adapters.rank, config.adapters.alpha, None, field
            )


def check_sandbox(task: TaskConfig, code: CodeConfig) -> str | None:
    """Find out which sandbox a task's programs will run in, by running one.

    Returns:
        What is in force, in a sentence; None for a task without programs.

    Raises:
        ConfigError: The isolation that is asked for does not work on this machine.
    """
    if task.name not in PROGRAM_TASKS:
        return None
    from agon.sandbox import NoIsolation, describe, open_sandbox

    try:
        with open_sandbox(code.isolation) as sandbox:
            return describe(sandbox)
    except NoIsolation as reasons:
        remedy = (
            "Install bubblewrap or allow user namespaces, or accept weaker protection with "
            'code.isolation = "limits" (docs/verifiers.md says what it does not cover)'
        )
        if code.isolation == "limits":
            remedy = "Run it on Linux"
        raise ConfigError(
            f'task.name = "{task.name}" runs programs that a model wrote, and code.isolation = '
            f'"{code.isolation}" does not work here. {reasons}. {remedy}'
        ) from reasons


def check_own_verifier(task: TaskConfig, limits: VerifierConfig) -> None:
    """Find a verifier of the user's own, in a worker process as it will run.

    Raises:
        ConfigError: It cannot be imported, or called with a gold answer and an answer.
    """
    if task.verifier is None or ":" not in task.verifier:
        return
    from agon.verifiers import WorkerPool

    with WorkerPool(1, limits.seconds, limits.memory_mib, modules=()) as pool:
        verdict = pool.map("agon.verifiers.own.check", [(task.verifier,)])[0]
    if verdict.outcome is not Outcome.RIGHT:
        lines = verdict.detail.splitlines()
        frames = [line for line in lines if line.lstrip().startswith("File ")]
        inside = any("verifiers/own.py" not in f and "importlib" not in f for f in frames)
        raise ConfigError(
            f"task.verifier: {task.verifier} cannot be used: {(lines or [verdict.reason])[-1]}. "
            "Give a function of two texts, the gold answer and the reply's answer, in a module "
            "that can be imported from here" + (f"\n{verdict.detail}" if inside else "")
        )


def read_language(config: Config) -> Language:
    """Load tokenizer and model configuration.

    Raises:
        ConfigError: They cannot be reached or read, or the tokenizer has no usable template.
    """
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    folder = model_folder(config.model.name_or_path)
    revision = config.model.revision or "main"
    trust = config.model.trust_remote_code
    check_reachable(folder, config.model)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, revision=revision, trust_remote_code=trust
        )
        model_config = AutoConfig.from_pretrained(
            folder, revision=revision, trust_remote_code=trust
        )
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"model.name_or_path: {config.model.name_or_path} cannot be loaded: {first} Give a "
            "local folder, or a hub name that this machine can reach"
        ) from error
    try:
        generation: Any = GenerationConfig.from_pretrained(folder, revision=revision).eos_token_id
    except OSError:
        generation = model_config.get_text_config().eos_token_id
    prompter = Prompter(
        tokenizer,
        config.prompts,
        config.game,
        config.model.chat_template_kwargs,
        style="compact" if config.model.name_or_path == EMBEDDED else "standard",
        eos_token_ids=generation,
    )
    context = getattr(model_config.get_text_config(), "max_position_embeddings", None)
    pad = tokenizer.pad_token_id
    return Language(
        tokenizer=tokenizer,
        prompter=prompter,
        context=int(context) if context else 2**31,
        pad_token_id=int(pad) if pad is not None else int(prompter.end_token_ids[0]),
    )


def check_reachable(folder: str, model: ModelConfig) -> None:
    """Say at once that a hub model is out of reach, unless it lies in the local cache.

    Raises:
        Unreachable: It is.
    """
    from huggingface_hub import try_to_load_from_cache

    if Path(folder).is_dir():
        return
    revision = model.revision or "main"
    if isinstance(try_to_load_from_cache(folder, "config.json", revision=revision), str):
        return
    fault = hub_fault()
    if fault is not None:
        raise Unreachable(
            f"model.name_or_path: {folder} cannot be loaded: {fault}. Give a local folder, or "
            "connect to the hub"
        )


def read_task(config: Config) -> TaskData:
    """Load the data set and check that a step can be filled.

    Raises:
        DataError: The data cannot be read.
        ConfigError: There are fewer training problems than a step takes.
    """
    data = load_task(config.task)
    count = len(training_problems(data, config))
    if count < config.training.problems_per_step:
        raise ConfigError(
            f"training.problems_per_step = {config.training.problems_per_step}, but the task has "
            f"only {count} training problems: lower it, or widen task.limit or the filters"
        )
    return data


def training_problems(data: TaskData, config: Config) -> tuple[Problem, ...]:
    """The training problems in a seeded order, cut at `task.limit`."""
    problems = list(data.problems[Split.TRAIN])
    random.Random(f"order/{config.seeds.data}").shuffle(problems)
    return tuple(problems[: config.task.limit])


def longest_prompts(config: Config, language: Language, data: TaskData) -> tuple[int, int]:
    """Tokens of the longest plain prompt and of the longest possible challenge prompt.

    The longest questions by characters stand for the longest by tokens. A challenge may hold a
    summary of `game.max_summary_tokens`.
    """
    problems = [problem for split in data.problems.values() for problem in split]
    problems.sort(key=lambda problem: len(problem.question), reverse=True)
    prompter = language.prompter
    tokens = [len(prompter.plain(problem).token_ids) for problem in problems[:LONGEST_PROBLEMS]]
    if not problems:
        return 0, 0
    with_empty = len(prompter.challenge(problems[0], "").token_ids)
    frame = with_empty - len(prompter.plain(problems[0]).token_ids)
    return max(tokens), max(tokens) + frame + config.game.max_summary_tokens


def shows_summaries(config: Config) -> bool:
    """Whether a training run shows summaries: in its rounds, or in its dev evaluations."""
    return config.game.exchange not in ("none", "hidden") or config.evaluation.every > 0


def check_context(
    config: Config, language: Language, data: TaskData, shows: bool = True
) -> tuple[int, int]:
    """Check that problem, summary and completion limit fit the context.

    Args:
        config: The run's configuration.
        language: From `read_language`.
        data: From `read_task` or `load_task`.
        shows: Whether summaries are shown to anyone, in rounds or in evaluations.

    Returns:
        Tokens of the longest plain and challenge prompts.

    Raises:
        ConfigError: They do not fit; names the numbers and the settings.
    """
    plain, challenge = longest_prompts(config, language, data)
    prompt = challenge if shows else plain
    total = prompt + config.sampling.max_new_tokens
    if total > language.context:
        part = (
            f" (of which game.max_summary_tokens = {config.game.max_summary_tokens})"
            if shows
            else ""
        )
        raise ConfigError(
            f"sampling.max_new_tokens = {config.sampling.max_new_tokens} does not fit: the longest "
            f"prompt may have {prompt} tokens{part} and the model's context is "
            f"{language.context}. Lower sampling.max_new_tokens to at most "
            f"{max(0, language.context - prompt)}"
            + (" or game.max_summary_tokens" if shows else "")
        )
    return plain, challenge


def pass_steps(problems: int, config: Config) -> int:
    """Steps of one pass over the training problems; an incomplete last batch is left out."""
    return problems // config.training.problems_per_step


def total_steps(problems: int, config: Config) -> int:
    """Steps of the run."""
    return config.training.steps or pass_steps(problems, config)
