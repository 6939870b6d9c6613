"""TRL's GRPOTrainer, as a process that a benchmark drives.

The trainer's own loop runs (`trainer.train()`): its sampler, slices, loss, backward, clipping and
optimizer. A callback stops it between two optimizer steps until the benchmark asks for the next.
What is timed depends on the setting `given`:

    given       the rollouts come from the benchmark. The clock runs from where TRL has them padded,
                scored, shuffled and cut into slices to the end of the optimizer step, so that what
                it spends on decoding, rewards and logging before that does not count against it.
    not given   TRL samples with transformers' `generate`, each row to a length that the benchmark
                gives, and the clock runs over the whole step. Rewards are dealt without verifying
                anything, and prompts come encoded: both save TRL some time.

Settings beside it: `folder` of the model, `problems`, `group`, `slice` (rows of a forward pass,
`per_device_train_batch_size`), `limit` of completion tokens, `checkpointing`, `seed`. Calls:
`ready`, `threads`, `adapter`, `load`, `step`. Only TRL's environment is needed, not Agon.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from peers.memory import Meter, ready, set_threads
from peers.protocol import Channel, settings_of

os.environ.setdefault("WANDB_DISABLED", "true")

import datasets
import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from peers.forced import force_lengths

RANK, ALPHA, RATE = 16, 32, 1e-5
FOREVER = 10**6


class Rollouts:
    """What the benchmark gave: prompts and rewards, and completions or their lengths."""

    def __init__(self, group: int) -> None:
        """Nothing yet."""
        self.group = group
        self.prompts: list[list[int]] = []
        self.completions: list[list[int]] = []
        self.lengths: list[int] = []
        self.rewards: list[float] = []

    def load(self, rollouts: dict[str, Any]) -> None:
        """Take the next step's rollouts."""
        self.prompts, self.rewards = rollouts["prompts"], rollouts["rewards"]
        self.completions = rollouts.get("completions", [])
        self.lengths = rollouts.get("lengths", [])

    def places(self, rows: Sequence[str | int]) -> list[int]:
        """Places of the rows that TRL asks for, by their problems' numbers in its order."""
        counts: dict[int, Iterator[int]] = {}
        return [
            int(row) * self.group + next(counts.setdefault(int(row), itertools.count()))
            for row in rows
        ]


class Conductor(TrainerCallback):  # type: ignore[misc]  # transformers is untyped
    """Stops the loop before every step and reports after it."""

    def __init__(self, channel: Channel, rollouts: Rollouts, given: bool) -> None:
        """Not started."""
        self._channel, self._rollouts, self._given = channel, rollouts, given
        self._begin: dict[str, torch.Tensor] = {}
        self._meter: Meter | None = None
        self._gradients: dict[str, torch.Tensor] = {}
        self._gradients_file: str | None = None
        self._losses: list[float] = []

    def attach(self, trainer: Any) -> None:
        """Listen to the trainer's slices and losses."""
        prepare, compute = trainer._prepare_inputs, trainer.compute_loss

        def prepare_inputs(batch: Any) -> Any:
            inputs = prepare(batch)
            if self._meter is None:
                self._meter = Meter()
            return inputs

        def compute_loss(*arguments: Any, **more: Any) -> Any:
            loss = compute(*arguments, **more)
            self._losses.append(loss.detach())
            return loss

        trainer._prepare_inputs, trainer.compute_loss = prepare_inputs, compute_loss

    def on_step_begin(self, *_: Any, model: Any, **__: Any) -> None:
        """Do what the benchmark asks until it asks for a step."""
        while True:
            try:
                name, arguments = self._channel.receive()
            except EOFError:
                os._exit(0)  # the loop has no other way out that costs nothing
            try:
                if name == "step":
                    return self._start(model, **arguments)
                result = self._do(name, model, **arguments)
            except Exception:
                self._channel.fail()
            else:
                self._channel.answer(result)

    def on_pre_optimizer_step(self, *_: Any, model: Any, **__: Any) -> None:
        """Hold on to the gradients, which the loop is about to let go of."""
        self._gradients = {_plain_name(n): p.grad for n, p in _trained(model) if p.grad is not None}

    def on_step_end(self, *_: Any, model: Any, **__: Any) -> None:
        """Report."""
        assert self._meter is not None
        figures = self._meter.read()
        if self._gradients_file is not None:
            torch.save(self._gradients, self._gradients_file)
        self._gradients = {}
        loss = sum(float(loss) for loss in self._losses)
        moved = max(
            float((parameter.detach() - self._begin[_plain_name(name)]).abs().max())
            for name, parameter in _trained(model)
        )
        self._channel.answer({**figures, "loss": loss, "moved": moved})

    def _do(self, name: str, model: Any, **arguments: Any) -> Any:
        match name:
            case "ready":
                return ready()
            case "threads":
                return set_threads(**arguments)
            case "load":
                return self._rollouts.load(**arguments)
            case "adapter":
                weights = torch.load(arguments["path"])
                with torch.no_grad():
                    for full, parameter in _trained(model):
                        parameter.copy_(weights[_plain_name(full)])
                self._begin = {}
                return None
        raise ValueError(f"there is no call {name!r}")

    def _start(self, model: Any, gradients: str | None = None) -> None:
        """Put the first weights back and start the clock."""
        if not self._begin:
            self._begin = {_plain_name(n): p.detach().clone() for n, p in _trained(model)}
        with torch.no_grad():
            for name, parameter in _trained(model):
                parameter.copy_(self._begin[_plain_name(name)])
        self._gradients_file, self._losses = gradients, []
        self._meter = None if self._given else Meter()


def _trained(model: Any) -> list[tuple[str, torch.nn.Parameter]]:
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]


def _plain_name(name: str) -> str:
    """A parameter's name without that of its adapter."""
    return name.replace(".default.", ".")


def make_trainer(settings: dict[str, Any], rollouts: Rollouts) -> Any:
    """A trainer over the model with TRL's defaults but for what the benchmark fixes."""
    rows = settings["problems"] * settings["group"]
    given: dict[str, Any] = {}
    if settings["given"]:
        given["rollout_func"] = lambda prompts, _trainer: {
            "prompt_ids": [rollouts.prompts[place] for place in rollouts.places(prompts)],
            "completion_ids": [rollouts.completions[place] for place in rollouts.places(prompts)],
            "logprobs": None,
        }

    def reward(index: list[int], **_: Any) -> list[float]:
        return [rollouts.rewards[place] for place in rollouts.places(index)]

    arguments = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="agon-bench-"),
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        logging_steps=FOREVER,
        disable_tqdm=True,
        max_steps=FOREVER,
        shuffle_dataset=False,
        per_device_train_batch_size=settings["slice"],
        gradient_accumulation_steps=rows // settings["slice"],
        num_generations=settings["group"],
        max_completion_length=settings["limit"],
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        beta=0.0,
        loss_type="dapo",
        learning_rate=RATE,
        lr_scheduler_type="constant",
        max_grad_norm=1e9,
        gradient_checkpointing=settings["checkpointing"],
        gradient_checkpointing_kwargs={"use_reentrant": False},
        seed=settings["seed"],
    )
    problems = range(settings["problems"])
    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(
            settings["folder"], dtype=torch.float32, attn_implementation="sdpa"
        ),
        args=arguments,
        reward_funcs=reward,
        train_dataset=datasets.Dataset.from_dict(
            {"prompt": [str(p) for p in problems], "index": list(problems)}
        ),
        processing_class=AutoTokenizer.from_pretrained(settings["folder"], padding_side="left"),
        peft_config=LoraConfig(
            r=RANK, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM"
        ),
        **given,
    )


def main() -> None:
    """Load, and let TRL's loop serve."""
    channel = Channel()
    settings = settings_of()
    torch.manual_seed(settings["seed"])
    rollouts = Rollouts(settings["group"])
    trainer = make_trainer(settings, rollouts)
    if not settings["given"]:
        # TRL asks for the rows of whole groups, in the problems' order.
        trainer._tokenize_prompts = lambda prompts: (
            [rollouts.prompts[place] for place in rollouts.places(prompts)], None, {}
        )  # fmt: skip
        force_lengths(trainer.model, trainer.eos_token_ids, lambda _rows: rollouts.lengths)
    conductor = Conductor(channel, rollouts, settings["given"])
    conductor.attach(trainer)
    trainer.add_callback(conductor)
    trainer.train()


if __name__ == "__main__":
    main()
