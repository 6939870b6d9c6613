"""Agon's whole training step, as a process that a benchmark drives.

`agon.trainer.Trainer` runs as in `agon train`: both stages are sampled, replies parsed, answers
verified, rewards and advantages computed, both adapters updated, figures and rounds written to a
run folder. Three things are dealt, so that every arm of the benchmark does the same work:

    lengths    each rollout runs to the length that the benchmark gives; there is no end token
    summaries  a random reply has none, so each gets a text of its own of a given length, which the
               challenger's prompt then holds
    answers    a random reply has none, so each gets a right or a wrong one, as the benchmark says;
               it goes through the judge, and its verdict must be the expected one

Settings: `folder` of the model, `problems`, `group`, `limit`, `summary_tokens`, `slots`, `slice`
(a pass of the update takes as many padded tokens as so many rows of the greatest length),
`checkpointing`, `policies` (2 plays Agon, 1 is GRPO without a second stage) and `seed`. Calls:
`ready`, `threads`, `load`, `step`. A step answers with the prompts that its stages had, so that
peers can be given the same.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from agon import process
from agon.config import Config
from agon.display import Display
from agon.engines.base import OnToken, Sampling
from agon.engines.torch_engine import TorchEngine
from agon.preflight import read_language
from agon.prompts import Prompter
from agon.records import Completion, Outcome, Problem, Prompt, Reply, Role, Verdict
from agon.rounds import Table
from agon.runs import RunFolder
from agon.trainer import Trainer
from agon.verifiers.base import Judge
from agon.workshop import Workshop, open_workshop
from peers.memory import Meter, ready, set_threads
from peers.protocol import Channel, Handler, settings_of

FOREVER = 10**6
WORDS = ("first", "then", "multiply", "add", "check", "carry", "over", "total", "left", "pens")


class Deal:
    """What the benchmark fixes, and what the steps' prompts were.

    Attributes:
        lengths: Completion tokens of each rollout of a stage, by the stage's role.
        right: For each rollout of a stage, whether its answer is.
        prompts: The last prompts of each stage, token ids.
    """

    def __init__(self) -> None:
        """Nothing yet."""
        self.lengths: dict[str, list[int]] = {}
        self.right: list[bool] = []
        self.prompts: dict[str, list[tuple[str, list[int]]]] = {}

    def load(self, lengths: dict[str, list[int]], right: list[bool]) -> None:
        """Take the next steps' lengths and answers."""
        self.lengths, self.right = lengths, right


class DealtEngine:
    """The torch engine with every row's length given."""

    def __init__(self, engine: TorchEngine, deal: Deal) -> None:
        """Take away the engine's end tokens."""
        engine.end_token_ids = engine.end_token_ids[:0]
        self._engine, self._deal = engine, deal

    def generate(
        self,
        prompts: Sequence[Prompt],
        policy: str,
        sampling: Sampling,
        keys: Sequence[str],
        on_token: OnToken | None = None,
    ) -> list[Completion]:
        """Sample; the stage is told by the keys."""
        role = next(role for role in Role if f"/{role}/" in keys[0])
        self._deal.prompts[role] = [(prompt.text, list(prompt.token_ids)) for prompt in prompts]
        limits = self._deal.lengths[role]
        return self._engine.generate(prompts, policy, sampling, keys, on_token, limits)


class DealtPrompter(Prompter):
    """The real prompter; every reply has a summary of a given length."""

    def __init__(self, prompter: Prompter, tokens: int) -> None:
        """Become a copy of a prompter."""
        vars(self).update(vars(prompter))
        self._tokens = tokens

    def read(self, prompt: Prompt, completion: Completion) -> Reply:
        """Read the completion, then put a summary that hangs on its tokens beside it."""
        words = random.Random(str(completion.token_ids)).choices(WORDS, k=self._tokens)
        return replace(super().read(prompt, completion), summary=self.clip(" ".join(words)))


class DealtJudge:
    """The real judge on answers that are right or wrong as dealt."""

    def __init__(self, judge: Judge, deal: Deal) -> None:
        """Wrap a judge."""
        self._judge, self._deal = judge, deal

    def judge(self, items: Sequence[tuple[Problem, str | None]]) -> list[Verdict]:
        """Judge one stage.

        Raises:
            RuntimeError: A verdict is not what its answer must give.
        """
        dealt = [
            (problem, answer_of(problem, right))
            for (problem, _), right in zip(items, self._deal.right, strict=True)
        ]
        verdicts = self._judge.judge(dealt)
        found = [verdict.outcome is Outcome.RIGHT for verdict in verdicts]
        if found != self._deal.right or not all(verdict.scored for verdict in verdicts):
            raise RuntimeError(f"the judge said {verdicts}, expected {self._deal.right}")
        return verdicts


def problem_of(number: int) -> Problem:
    """A problem in words whose answer is a number."""
    generator = random.Random(f"problem/{number}")
    boxes, pens = generator.randint(11, 99), generator.randint(11, 99)
    question = (
        f"A shop has {boxes} boxes with {pens} pens in each of them and sells {number + 1} "
        "pens. How many pens are left?"
    )
    return Problem(f"shop/{number}", question, str(boxes * pens - number - 1), "math")


def answer_of(problem: Problem, right: bool) -> str:
    """A difference that is the gold answer, or off by one; it takes a worker process to tell."""
    return f"{int(problem.gold) + 1} - {1 if right else 2}"


class Conductor(Display):
    """Stands where the display does: lets the benchmark decide when a step begins."""

    def __init__(self, channel: Channel, deal: Deal, seconds_of: Sequence[str]) -> None:
        """Show nothing."""
        super().__init__(Console(quiet=True), FOREVER, "")
        self._channel, self._deal, self._parts = channel, deal, seconds_of
        self._meter = Meter()

    def wait(self) -> None:
        """Answer calls until a step is asked for.

        Raises:
            EOFError: The benchmark is over.
        """
        handlers: dict[str, Handler] = {
            "ready": ready,
            "threads": set_threads,
            "load": self._deal.load,
        }
        while True:
            name, arguments = self._channel.receive()
            if name == "step":
                self._meter = Meter()
                return
            try:
                result = handlers[name](**arguments)
            except Exception:
                self._channel.fail()
            else:
                self._channel.answer(result)

    def step(self, step: int, row: Any) -> None:
        """A step has ended: report, then wait."""
        figures: dict[str, Any] = self._meter.read()
        for part in self._parts:
            figures[part] = row.get(f"time.{part}", 0.0)
        self._channel.answer(
            {
                **figures,
                "prompts": self._deal.prompts,
                "flat_groups": [row[key] for key in sorted(row) if key.endswith(".flat_reward")],
                "moved": {k: v for k, v in row.items() if k.startswith("adapters.")},
            }
        )
        self.wait()

    def warn(self, text: str) -> None:
        """Nothing is learned here, and that needs no warning."""


def longest_prompt(settings: dict[str, Any]) -> int:
    """Tokens of the longest prompt that there can be."""
    prompter = read_language(configuration(settings, 1)).prompter
    problems = [problem_of(number) for number in range(settings["problems"])]
    frames = [len(prompter.challenge(problem, "").token_ids) for problem in problems]
    return max(frames) + int(settings["summary_tokens"])


def configuration(settings: dict[str, Any], microbatch_tokens: int) -> Config:
    """The run's settings."""
    two = settings["policies"] == 2
    return Config.model_validate(
        {
            "model": {"name_or_path": settings["folder"]},
            "game": {
                "policies": settings["policies"],
                "exchange": "paired" if two else "none",
                "max_summary_tokens": settings["summary_tokens"],
            },
            # Format depends on the random replies and would make flat groups uneven.
            "reward": {"credit": "conversion" if two else "correctness", "format_weight": 0.0},
            "sampling": {
                "group_size": settings["group"],
                "max_new_tokens": settings["limit"],
                "slots": settings["slots"],
            },
            "optimizer": {"learning_rate": 1e-5, "warmup": 0.0},
            "training": {
                "steps": FOREVER,
                "problems_per_step": settings["problems"],
                "microbatch_tokens": microbatch_tokens,
                "gradient_checkpointing": settings["checkpointing"],
                "device": "cpu",
            },
            "evaluation": {"every": 0},
            "checkpoint": {"every": FOREVER},
            "stop": {"window": FOREVER},
            "seeds": {"init": settings["seed"], "sampling": settings["seed"]},
        }
    )


def main() -> None:
    """Load, and let the trainer's loop serve."""
    process.prepare()
    channel = Channel()
    settings = settings_of()
    budget = settings["slice"] * (longest_prompt(settings) + settings["limit"])
    config, deal = configuration(settings, budget), Deal()
    opened = open_workshop(config, read_language(config))
    engine, table = opened.table.engine, opened.table
    assert isinstance(engine, TorchEngine)
    assert isinstance(table.prompter, Prompter)
    dealt = Table(
        DealtEngine(engine, deal),
        DealtJudge(opened.judge, deal),
        DealtPrompter(table.prompter, settings["summary_tokens"]),
    )
    workshop = Workshop(opened.policies, dealt, opened.judge, opened.device, opened.language)
    problems = [problem_of(number) for number in range(settings["problems"])]
    with tempfile.TemporaryDirectory(prefix="agon-bench-") as scratch:
        folder = RunFolder(Path(scratch) / "run")
        folder.create()
        trainer = Trainer(config, folder, workshop, problems, [], {})
        conductor = Conductor(channel, deal, ("draft", "challenge", "verify", "update"))
        try:
            conductor.wait()
            trainer.run(conductor)
        except EOFError:
            pass
        except Exception:
            channel.fail()
            raise
        finally:
            workshop.close()


if __name__ == "__main__":
    main()
