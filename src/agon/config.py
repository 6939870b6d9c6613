"""Every setting of a run, documented where it stands.

A recipe is a TOML file whose tables are the sections below. Unknown keys are errors, values are
frozen after loading, and combinations that cannot work fail here, by name, before anything is
loaded. Each field carries the source of its default:

    PAPER     the method's publication states it
    INFERRED  the publication does not; chosen to agree with what it does state
    OURS      our choice

A recipe tags the values that it sets itself in its table `[sources]`.
This module reads no data and loads no model: that is `preflight`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

PAPER, INFERRED, OURS = "paper", "inferred", "ours"
SOURCES = (PAPER, INFERRED, OURS)


class Section(BaseModel):
    """A table of a recipe: frozen, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


def _refuse(rules: list[tuple[bool, str]]) -> None:
    """Raise the message of the first rule that is broken.

    Raises:
        ValueError: One is.
    """
    for wrong, message in rules:
        if wrong:
            raise ValueError(message)


class ModelConfig(Section):
    """The frozen base."""

    name_or_path: Annotated[str, OURS] = "embedded"
    """A local folder, a hub name, or `embedded` for the small model inside the package."""

    revision: Annotated[str | None, OURS] = None
    """Hub revision (branch, tag or commit); null takes the default branch."""

    dtype: Annotated[Literal["float32", "bfloat16", "auto"], OURS] = "float32"
    """Type of the base's weights; adapters are always float32. `auto` keeps the checkpoint's."""

    quantization: Annotated[Literal["none", "nf4"], OURS] = "none"
    """Whether the base's linear layers are kept in 4 bits (NF4, through bitsandbytes; QLoRA).
    `model.dtype` is what they compute in. Adapters stay float32 and are never folded in."""

    shard: Annotated[bool, OURS] = False
    """Whether several processes share out the base's layers (FSDP2) instead of keeping a whole one
    each. Sampling brings them together for the time of a step's rollouts."""

    attention: Annotated[Literal["sdpa", "eager"], OURS] = "sdpa"
    """Attention implementation of transformers; the in-process engine needs masks it can give."""

    trust_remote_code: Annotated[bool, OURS] = False
    """Whether code from the model's repository may run. Never needed for supported models."""

    chat_template_kwargs: Annotated[dict[str, Any], OURS] = Field(default_factory=dict)
    """Arguments for the tokenizer's chat template, such as `enable_thinking = true`."""


class AdapterConfig(Section):
    """The policies: LoRA adapters over the base."""

    rank: Annotated[int, PAPER] = Field(16, ge=1)
    """LoRA rank."""

    alpha: Annotated[float, INFERRED] = Field(32.0, gt=0)
    """LoRA alpha; the update is scaled by alpha / rank."""

    target_modules: Annotated[Literal["all-linear"] | tuple[str, ...], INFERRED] = "all-linear"
    """Modules that get an adapter; `all-linear` is every linear layer but the head."""

    start_scale: Annotated[float, OURS] = Field(1e-2, ge=0)
    """Standard deviation of b's initial lora_B. `a` starts at zero, so `b` starts near the base
    but apart from `a`; 0 starts both as the base. The default gives a mean token KL from the
    base between 1e-4 and 1e-2 on the embedded model (tests/test_policies.py)."""

    warm_a: Annotated[str | None, OURS] = None
    """PEFT folder that `a` starts from, instead of its fresh start."""

    warm_b: Annotated[str | None, OURS] = None
    """PEFT folder that `b` starts from."""


class GameConfig(Section):
    """Who plays, what is passed on, and who swaps."""

    policies: Annotated[Literal[1, 2], PAPER] = 2
    """How many adapters are trained: one plays both roles, two play against each other."""

    exchange: Annotated[Literal["none", "paired", "hidden", "shuffled", "filler"], PAPER] = "paired"
    """What the challenger's prompt holds. `none`: there is no second stage. `paired`: the summary
    of its own rival draft. `hidden`: nothing, the plain draft prompt byte for byte. `shuffled`:
    the summary of a draft of another problem. `filler`: a fixed text of the summary's length."""

    rotate: Annotated[bool, PAPER] = True
    """Whether the two adapters swap roles at every step."""

    max_summary_tokens: Annotated[int, INFERRED] = Field(512, ge=1)
    """Tokens of a summary that are passed on; longer ones are cut."""

    filler: Annotated[str, OURS] = "The quick brown fox jumps over the lazy dog. "
    """Text that `exchange = "filler"` repeats to the summary's token length."""

    @property
    def second_stage(self) -> bool:
        """Whether there are challenges."""
        return self.exchange != "none"


class RewardConfig(Section):
    """The reward equations' settings; `rewards.py` has the equations."""

    credit: Annotated[Literal["correctness", "conversion", "margin"], PAPER] = "conversion"
    """The challenger's credit: its own correctness alone; plus a bonus where it is right and its
    rival wrong; or the margin 3c(b) - c(a)."""

    rival: Annotated[Literal["paired", "shared"], PAPER] = "paired"
    """Which draft the credit is computed against: the rollout's own a_i, or a_1 for the group."""

    format_weight: Annotated[float, PAPER] = Field(0.5, ge=0)
    """lambda, the weight of the format score."""

    tiebreak: Annotated[float, PAPER] = Field(0.0, ge=0)
    """gamma, paid where both are right and the challenger is strictly shorter (paper: 0.5 where
    the tiebreak is asked for)."""

    length_penalty: Annotated[float, OURS] = Field(0.0, ge=0)
    """kappa: the reward loses kappa * tokens / max_new_tokens."""


class SamplingConfig(Section):
    """How rollouts are sampled in training. The distribution is never truncated."""

    group_size: Annotated[int, PAPER] = Field(8, ge=2)
    """N, rollouts of one problem in one role."""

    max_new_tokens: Annotated[int, OURS] = Field(128, ge=1)
    """Completion limit in tokens, the end-of-turn token included."""

    temperature: Annotated[float, INFERRED] = Field(1.0, gt=0)
    """Sampling temperature; log-probabilities are those of the tempered distribution."""

    slots: Annotated[int, OURS] = Field(256, ge=1)
    """Most rows that decode at once; bounds the KV cache."""

    fold_weights: Annotated[bool, OURS] = True
    """Whether sampling on a CPU in float32 multiplies by transposed copies of the weights with the
    adapter folded in: faster, for the memory of a second set of linear weights."""


class ObjectiveConfig(Section):
    """The GRPO surrogate; `objective.py` has the equation."""

    aggregation: Annotated[Literal["dapo", "grpo", "dr_grpo"], INFERRED] = "dapo"
    """Normaliser of a role's stream: its scored completion tokens; rows, each averaged over its
    tokens; or rows times the completion limit."""

    scale_rewards: Annotated[bool, INFERRED] = True
    """Whether advantages are divided by the group's standard deviation."""

    clip: Annotated[float, INFERRED] = Field(0.2, gt=0, lt=1)
    """epsilon of the clipped ratio."""

    updates_per_step: Annotated[int, INFERRED] = Field(1, ge=1)
    """mu, optimizer steps of each adapter on one step's rollouts."""

    beta: Annotated[float, INFERRED] = Field(0.0, ge=0)
    """Weight of the KL penalty from the base (adapters off)."""

    old_logprobs: Annotated[Literal["sampler", "trainer"], INFERRED] = "sampler"
    """Whose log-probabilities the ratio divides by: those that the sampler returned, or those of
    the trainer's own forward pass before the first of the updates."""

    importance_cap: Annotated[float | None, OURS] = Field(None, gt=0)
    """Largest weight exp(trainer - sampler) of a token's loss, which corrects for a sampler whose
    kernels or precision are not the trainer's; null weighs all tokens alike. It needs
    `old_logprobs = "trainer"`, since the sampler's ratio has that correction in it."""


class OptimizerConfig(Section):
    """AdamW, one for each adapter."""

    learning_rate: Annotated[float, PAPER] = Field(5e-5, gt=0)
    """Peak rate."""

    warmup: Annotated[float, PAPER] = Field(0.1, ge=0, le=1)
    """Share of the steps with a linearly rising rate; it falls linearly to zero after them."""

    betas: Annotated[tuple[float, float], OURS] = (0.9, 0.999)
    """AdamW's decay rates."""

    weight_decay: Annotated[float, OURS] = Field(0.0, ge=0)
    """AdamW's weight decay."""

    clip_norm: Annotated[float, OURS] = Field(1.0, gt=0)
    """Largest gradient norm of one adapter."""


class TrainingConfig(Section):
    """The loop."""

    steps: Annotated[int | None, PAPER] = Field(None, ge=1)
    """Optimizer steps of every adapter; null is one pass over the training problems."""

    problems_per_step: Annotated[int, OURS] = Field(16, ge=1)
    """P, problems of one step."""

    microbatch_tokens: Annotated[int, OURS] = Field(16_384, ge=1)
    """Padded tokens of one forward and backward pass; a longer row runs alone."""

    share_prefixes: Annotated[bool, OURS] = True
    """Whether the update runs once what the prompts of several rollouts have in common. The
    gradient is the same to rounding; off under gradient checkpointing."""

    gradient_checkpointing: Annotated[bool, OURS] = False
    """Whether activations are recomputed in the backward pass, to save memory."""

    device: Annotated[Literal["auto", "cpu", "cuda"], OURS] = "auto"
    """Where to train; `auto` takes a GPU when there is one."""

    threads: Annotated[int | None, OURS] = Field(None, ge=1)
    """CPU threads of torch; null leaves its own choice."""

    process_timeout: Annotated[float, OURS] = Field(60.0, gt=0)
    """Seconds without a sign of life after which one of several processes is lost and the run
    ends."""

    wait_timeout: Annotated[float, OURS] = Field(3600.0, gt=0)
    """Seconds that several processes wait for the slowest living one before the run ends."""


class EngineConfig(Section):
    """Who samples."""

    kind: Annotated[Literal["torch", "vllm", "vllm-server"], OURS] = "torch"
    """`torch` samples from the trained model itself. `vllm` starts vLLM beside it on this machine,
    `vllm-server` asks OpenAI-compatible vLLM servers that are running already; both sample from
    copies of the adapters that are renewed at each step (docs/scaling-vllm.md)."""

    urls: Annotated[tuple[str, ...], OURS] = ()
    """Addresses of the servers, such as `http://localhost:8000`; requests are spread over them."""

    api_key_variable: Annotated[str | None, OURS] = None
    """Environment variable that holds the servers' API key; null sends none."""

    seconds: Annotated[float, OURS] = Field(1800.0, gt=0)
    """Longest wait for one reply of a server, the time in its queue included."""

    folder: Annotated[str | None, OURS] = None
    """Where copies of the adapters are written for vLLM to read; servers must see the same folder
    under the same path. Null takes shared memory (/dev/shm) where vLLM runs on this machine and
    there is room, else the run's folder."""

    context: Annotated[int | None, OURS] = Field(None, ge=1)
    """Longest prompt and completion in tokens that vLLM makes room for (kind = "vllm"); null is the
    model's. Servers have their own limit, which is asked of them."""

    tensor_parallel: Annotated[int, OURS] = Field(1, ge=1)
    """GPUs that share one copy of the base in vLLM (kind = "vllm")."""

    gpu_memory: Annotated[float, OURS] = Field(0.45, gt=0, lt=1)
    """Share of a GPU's memory that vLLM takes for itself (kind = "vllm"); the trainer needs the
    rest."""

    kv_cache_gib: Annotated[float | None, OURS] = Field(None, gt=0)
    """Size of vLLM's key-value cache in GiB (kind = "vllm"); null lets vLLM choose."""

    options: Annotated[dict[str, JsonValue], OURS] = Field(default_factory=dict)
    """Further arguments of `vllm.LLM` (kind = "vllm"), such as `enforce_eager = true`."""

    gap_limit: Annotated[float, OURS] = Field(0.1, gt=0)
    """Training stops when the sampler's log-probabilities differ from the trainer's by more than
    this on average, in nats a token, on the few tokens that are compared after each renewal."""

    @model_validator(mode="after")
    def _combinations(self) -> EngineConfig:
        _refuse(self._rules())
        return self

    def _rules(self) -> list[tuple[bool, str]]:
        served, own = self.kind == "vllm-server", self.kind == "vllm"
        fields = type(self).model_fields
        given = {
            name: getattr(self, name) != field.get_default(call_default_factory=True)
            for name, field in fields.items()
        }
        wrong = [url for url in self.urls if not _URL.fullmatch(url)]
        strange = sorted(ENGINE_OPTIONS_OF_OURS & set(self.options))
        return [
            (
                served and not self.urls,
                'engine.kind = "vllm-server" needs engine.urls, such as ["http://localhost:8000"]',
            ),
            (bool(wrong), f"engine.urls: got {wrong}, expected http://HOST:PORT or https://..."),
            (len(set(self.urls)) < len(self.urls), "engine.urls names a server twice"),
            *(
                (
                    not of and given[field],
                    f'engine.{field} has no meaning for engine.kind = "{self.kind}": remove it',
                )
                for of, names in (
                    (served, ("urls", "api_key_variable", "seconds")),
                    (own, ("tensor_parallel", "gpu_memory", "kv_cache_gib", "options", "context")),
                    (served or own, ("folder", "gap_limit")),
                )
                for field in names
            ),
            (
                bool(strange),
                f"engine.options: {', '.join(strange)} cannot be set there, since Agon sets them "
                "itself or would sample another distribution; see the engine's and the model's "
                "own settings",
            ),
        ]


_URL = re.compile(r"https?://[^\s/]+(/[^\s?#]*)?")

ENGINE_OPTIONS_OF_OURS = frozenset(
    {
        "model",
        "tokenizer",
        "revision",
        "dtype",
        "trust_remote_code",
        "max_model_len",
        "max_num_seqs",
        "enable_lora",
        "max_loras",
        "max_cpu_loras",
        "max_lora_rank",
        "logprobs_mode",
        "generation_config",
        "tensor_parallel_size",
        "gpu_memory_utilization",
        "kv_cache_memory_bytes",
        "skip_tokenizer_init",
        "seed",
        "watermark_config",
    }
)
"""Arguments of `vllm.LLM` that the engine gives itself."""


TaskName = Literal[
    "countdown",
    "gsm8k",
    "math500",
    "deepmath",
    "codecontests",
    "humaneval",
    "mbpp",
    "reasoning_gym",
    "jsonl",
]


OWN_VERIFIER = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
"""`package.module:function`."""


class TaskConfig(Section):
    """The data set."""

    name: Annotated[TaskName, OURS] = "countdown"
    """Which task. `jsonl` is a file of your own, `reasoning_gym` any data set of that library."""

    path: Annotated[str | None, OURS] = None
    """Local file or folder in the hub data set's schema; null asks the hub. Generated tasks
    (countdown, reasoning_gym) take no path, `jsonl` needs one."""

    question_field: Annotated[str, OURS] = "question"
    """Column of the question (jsonl)."""

    answer_field: Annotated[str, OURS] = "answer"
    """Column of the gold answer (jsonl)."""

    verifier: Annotated[str | None, OURS] = None
    """Who judges (jsonl): `math`, `text` (the same text), or a Python function of your own as
    `package.module:function`, called with the gold answer and the reply's answer block; null is
    `math`."""

    dataset: Annotated[str | None, OURS] = None
    """Name of the data set (reasoning_gym), such as `leg_counting`."""

    dataset_options: Annotated[dict[str, JsonValue], OURS] = Field(default_factory=dict)
    """The data set's own parameters (reasoning_gym), such as `max_animals = 3`: text, numbers,
    truth values, lists and tables."""

    generator_seed: Annotated[int, OURS] = Field(0, ge=0)
    """Seed that the problems are generated from (reasoning_gym)."""

    train_problems: Annotated[int, OURS] = Field(2000, ge=1)
    """Training problems to generate (reasoning_gym)."""

    limit: Annotated[int | None, OURS] = Field(None, ge=1)
    """At most so many training problems, the first of the seeded order; null is all."""

    min_difficulty: Annotated[float | None, PAPER] = None
    """Lowest difficulty kept (deepmath); lowest Codeforces rating kept (codecontests)."""

    max_difficulty: Annotated[float | None, PAPER] = None
    """Highest difficulty kept (deepmath); highest Codeforces rating kept (codecontests)."""

    drop_binary: Annotated[bool, PAPER] = True
    """Whether problems with a yes, no, true or false answer are dropped (deepmath)."""

    dev_problems: Annotated[int, OURS] = Field(300, ge=1)
    """Problems held out for dev where the data set has no such split, or generated for it
    (deepmath, gsm8k, codecontests, reasoning_gym, jsonl)."""

    test_problems: Annotated[int, PAPER] = Field(300, ge=1)
    """Problems held out for test where the data set has no such split, or generated for it
    (deepmath, reasoning_gym, jsonl)."""

    @model_validator(mode="after")
    def _combinations(self) -> TaskConfig:
        _refuse(self._rules())
        return self

    def _rules(self) -> list[tuple[bool, str]]:
        """As those of `Config`, for the task alone; evaluations may take another than the run's."""
        return [
            (
                self.name == "jsonl" and self.path is None,
                'task.name = "jsonl" needs task.path: a .jsonl, .json or .parquet file, or a '
                "folder with train, dev and test files",
            ),
            (
                self.name != "jsonl" and self.verifier is not None,
                f"task.verifier has no meaning for the task {self.name}: remove it, or bring "
                'your own data with task.name = "jsonl"',
            ),
            (
                self.verifier is not None
                and self.verifier not in ("math", "text")
                and OWN_VERIFIER.fullmatch(self.verifier) is None,
                f"task.verifier: got {self.verifier!r}, expected math, text or a function "
                "of your own as package.module:function",
            ),
            (
                self.name in ("countdown", "reasoning_gym") and self.path is not None,
                f"task.path has no meaning for the generated task {self.name}: remove it",
            ),
            (
                (self.name == "reasoning_gym") != (self.dataset is not None),
                'task.name = "reasoning_gym" and task.dataset = "NAME" belong together: give both '
                "or neither",
            ),
        ]


class VerifierConfig(Section):
    """Limits of the worker processes that judge answers; programs have their own, `code`."""

    workers: Annotated[int, OURS] = Field(2, ge=1)
    """Worker processes."""

    seconds: Annotated[float, OURS] = Field(5.0, gt=0)
    """Longest time of one check, counted from its start, before the worker is killed."""

    memory_mib: Annotated[int, OURS] = Field(1024, ge=128)
    """Memory that a worker may take, MiB."""


PROGRAM_TASKS = ("codecontests", "humaneval", "mbpp")
"""Tasks whose answers are programs, for which there has to be a sandbox."""


class CodeConfig(Section):
    """The sandbox that programs are run in, and what makes a program right."""

    isolation: Annotated[Literal["strongest", "bubblewrap", "namespaces", "limits"], OURS] = (
        "strongest"
    )
    """What holds a program: bubblewrap, Linux namespaces of our own, or resource limits alone.
    `strongest` takes the first of the first two that works here. `limits` sees the machine's
    files and network, so it is used only when named."""

    workers: Annotated[int, OURS] = Field(2, ge=1)
    """Programs that run at once."""

    seconds: Annotated[float, OURS] = Field(10.0, gt=0)
    """Longest wall time of one test; a problem's own time limit counts where it is shorter."""

    total_seconds: Annotated[float, OURS] = Field(60.0, gt=0)
    """Longest wall time of one program over all its tests; tests not reached have failed."""

    memory_mib: Annotated[int, OURS] = Field(1024, ge=64)
    """Memory of a program with all its processes, MiB."""

    processes: Annotated[int, OURS] = Field(64, ge=1)
    """Most processes and threads of a program at once."""

    output_kib: Annotated[int, OURS] = Field(16_384, ge=1)
    """Most output of one test, KiB."""

    file_mib: Annotated[int, OURS] = Field(64, ge=1)
    """Most that a program may write into its folder, MiB."""

    pass_share: Annotated[float, OURS] = Field(1.0, gt=0, le=1)
    """Share of the tests that a right program passes; 1 is all or nothing."""


class EvaluationConfig(Section):
    """Evaluation on dev during training."""

    every: Annotated[int, OURS] = Field(25, ge=0)
    """Steps between evaluations; 0 turns them off. There is one before the first step too."""

    problems: Annotated[int, OURS] = Field(128, ge=1)
    """Dev problems of one evaluation, the first of a seeded order."""


class CheckpointConfig(Section):
    """What is kept of a run."""

    every: Annotated[int, OURS] = Field(25, ge=1)
    """Steps between checkpoints; the last step always has one."""

    keep: Annotated[int, OURS] = Field(2, ge=1)
    """Newest checkpoints kept; older ones are deleted once a newer one is complete."""


class LoggingConfig(Section):
    """What is written and shown."""

    rounds: Annotated[Literal["all", "sampled", "none"], OURS] = "all"
    """Rollouts written to rounds.jsonl: all, those of one problem a step, or none."""

    compress: Annotated[bool, OURS] = False
    """Whether rounds go to rounds.jsonl.gz, one gzip member a step."""

    trackers: Annotated[tuple[Literal["tensorboard", "wandb", "trackio"], ...], OURS] = ()
    """Experiment trackers that the metrics go to, through Accelerate."""

    project: Annotated[str, OURS] = "agon"
    """Project name for the trackers."""


class StopConfig(Section):
    """When training says that nothing can be learned, and ends."""

    window: Annotated[int, OURS] = Field(20, ge=1)
    """Steps in a row after which training stops; it warns at half of them."""

    truncated_share: Annotated[float, OURS] = Field(0.95, gt=0, le=1)
    """A step is hopeless when this share of a role's rollouts hits the token limit, or when every
    group of every role is flat in correctness."""

    unscored_share: Annotated[float, OURS] = Field(0.5, gt=0, le=1)
    """Training stops when the judge fails on this share of a role's answers in a step. Where a step
    has few answers, steps in a row count together until there are some failures to go by."""


class SeedConfig(Section):
    """Separate seeds, so that one source of chance can be varied alone."""

    data: Annotated[int, OURS] = Field(0, ge=0)
    """Order of the problems."""

    init: Annotated[int, OURS] = Field(0, ge=0)
    """Initial adapter weights."""

    sampling: Annotated[int, OURS] = Field(0, ge=0)
    """Rollouts."""

    evaluation: Annotated[int, OURS] = Field(0, ge=0)
    """Samples drawn in evaluations."""


class PromptConfig(Section):
    """Role prompts; both stand in the user turn."""

    plain: Annotated[str | None, OURS] = None
    """Template of the plain prompt, with `{problem}`; null takes the model's default."""

    challenge: Annotated[str | None, OURS] = None
    """Text that follows the plain prompt in a challenge, with `{summary}`; null as above."""


class Config(Section):
    """A run's whole configuration."""

    model: ModelConfig = ModelConfig()
    adapters: AdapterConfig = AdapterConfig()
    game: GameConfig = GameConfig()
    reward: RewardConfig = RewardConfig()
    sampling: SamplingConfig = SamplingConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    training: TrainingConfig = TrainingConfig()
    engine: EngineConfig = EngineConfig()
    task: TaskConfig = TaskConfig()
    verifier: VerifierConfig = VerifierConfig()
    code: CodeConfig = CodeConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    logging: LoggingConfig = LoggingConfig()
    stop: StopConfig = StopConfig()
    seeds: SeedConfig = SeedConfig()
    prompts: PromptConfig = PromptConfig()
    sources: Annotated[dict[str, str], OURS] = Field(default_factory=dict)
    """Where the recipe's own values come from: `"optimizer.learning_rate" = "paper"`. An inferred
    value says why: `"inferred: the reasoning"`."""

    @model_validator(mode="after")
    def _combinations(self) -> Config:
        _refuse(self._rules())
        return self

    def _rules(self) -> list[tuple[bool, str]]:
        """Each impossible combination with the sentence that names it and its remedy."""
        game, reward, one_policy = self.game, self.reward, self.game.policies == 1
        return [
            (
                not game.second_stage and reward.credit != "correctness",
                f'reward.credit = "{reward.credit}" needs a second stage: set reward.credit = '
                '"correctness" or choose a game.exchange other than "none"',
            ),
            (
                not game.second_stage and reward.tiebreak > 0,
                "reward.tiebreak compares a challenge with its draft: set it to 0 or choose a "
                'game.exchange other than "none"',
            ),
            (
                not game.second_stage and game.policies == 2,
                'game.policies = 2 needs a second stage: with game.exchange = "none" only one '
                "policy plays; set game.policies = 1",
            ),
            (
                one_policy and reward.credit != "correctness",
                f'reward.credit = "{reward.credit}" sets a policy against itself: with '
                'game.policies = 1 set reward.credit = "correctness"',
            ),
            (
                one_policy and self.adapters.warm_b is not None,
                "adapters.warm_b names a second adapter, but game.policies = 1: remove it",
            ),
            (
                reward.rival == "shared" and game.exchange == "paired",
                'reward.rival = "shared" credits against a draft that game.exchange = "paired" '
                'does not show: set reward.rival = "paired" or game.exchange = "hidden"',
            ),
            (
                game.exchange == "shuffled" and self.training.problems_per_step < 2,
                'game.exchange = "shuffled" passes on another problem\'s summary: '
                "training.problems_per_step must be at least 2",
            ),
            (
                self.model.shard and self.model.quantization != "none",
                f'model.shard = true and model.quantization = "{self.model.quantization}" do not '
                "go together: 4-bit weights cannot be shared out; set one of the two",
            ),
            (
                self.task.name == "math500",
                'task.name = "math500" is for evaluation only: train on gsm8k or deepmath and '
                "evaluate with `agon eval RUN --task math500`",
            ),
            (
                self.task.name == "humaneval",
                'task.name = "humaneval" is for evaluation only: train on codecontests or mbpp and '
                "evaluate with `agon eval RUN --task humaneval`",
            ),
            (
                self.objective.importance_cap is not None
                and self.objective.old_logprobs == "sampler",
                'objective.importance_cap needs objective.old_logprobs = "trainer": a ratio to the '
                "sampler's log-probabilities corrects for the sampler already",
            ),
            (
                self.engine.kind != "torch" and self.model.name_or_path == "embedded",
                f'engine.kind = "{self.engine.kind}" cannot sample the embedded model, whose heads '
                "are too narrow for vLLM: give another model.name_or_path, or set engine.kind = "
                '"torch"',
            ),
            (
                self.code.total_seconds < self.code.seconds,
                f"code.total_seconds = {self.code.total_seconds:g} is the time for all tests of a "
                f"program, but one test alone may take code.seconds = {self.code.seconds:g}: raise "
                "the first or lower the second",
            ),
            *self._source_rules(),
        ]

    def _source_rules(self) -> list[tuple[bool, str]]:
        known = dict(leaves(self))
        rules = []
        for name, source in self.sources.items():
            kind, _, reason = source.partition(":")
            rules.append((name not in known, f"sources: there is no setting named {name!r}"))
            rules.append(
                (
                    kind not in SOURCES or (kind == INFERRED and not reason.strip()),
                    f"sources.{name!r}: got {source!r}, expected 'paper', 'ours' or "
                    "'inferred: the reasoning'",
                )
            )
        return rules


def leaves(config: Config) -> list[tuple[str, Any]]:
    """Every setting as (`section.field`, value), in the order of this file, without `sources`."""
    return [
        (f"{section}.{field}", getattr(getattr(config, section), field))
        for section in Config.model_fields
        if section != "sources"
        for field in type(getattr(config, section)).model_fields
    ]


def default_source(name: str) -> str:
    """The source tag of a setting's default, `paper`, `inferred` or `ours`."""
    section, field = name.split(".")
    annotation = Config.model_fields[section].annotation
    assert isinstance(annotation, type)
    assert issubclass(annotation, Section)
    return next(tag for tag in annotation.model_fields[field].metadata if isinstance(tag, str))
