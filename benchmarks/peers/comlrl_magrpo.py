"""CoMLRL's MAGRPOTrainer with two agents, as a process that a benchmark drives.

The trainer's own loop runs: for each problem both agents sample a group, each with a prompt of its
own, and once all problems are sampled each agent takes one optimizer step. Its two agents are two
whole models of which every weight is trained: it has no code for adapters. It also runs rows one
at a time, and its loss covers what pads a row after its end.

Rewards are dealt without verifying anything. Each row samples to a length that the benchmark gives.
The second agent gets, for a whole group, the prompt of the group's first challenge, since CoMLRL
knows no prompts that differ within a group.

Settings: `folder` of the model, `problems`, `group`, `limit` of completion tokens, `seed`. Calls:
`ready`, `threads`, `load`, `step`. Only CoMLRL's environment is needed, not Agon.
"""

from __future__ import annotations

import os
import random
from functools import partial
from typing import Any

from peers.memory import Meter, ready, set_threads
from peers.protocol import Channel, serve, settings_of

os.environ.setdefault("WANDB_MODE", "disabled")

import datasets
import torch
from comlrl.trainers.reinforce import MAGRPOConfig, MAGRPOTrainer
from transformers import AutoModelForCausalLM, AutoTokenizer

from peers.forced import force_lengths

AGENTS, RATE = 2, 1e-6


class MagrpoArm:
    """The trainer and what its rollouts shall be."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """Load two models."""
        self._group = settings["group"]
        self._lengths: list[list[list[int]]] = []
        self._rewards: list[float] = []
        self._calls = [0] * AGENTS
        self._judged = 0
        tokenizer = AutoTokenizer.from_pretrained(settings["folder"])
        tokenizer.pad_token = padding_token(tokenizer)
        models = [
            AutoModelForCausalLM.from_pretrained(
                settings["folder"], dtype=torch.float32, attn_implementation="sdpa"
            )
            for _ in range(AGENTS)
        ]
        self.trainer = MAGRPOTrainer(
            agents=models,
            num_agents=AGENTS,
            tokenizer=tokenizer,
            reward_func=self._reward,
            formatters=[lambda item: item["draft"], lambda item: item["challenge"]],
            wandb_config=None,
            args=MAGRPOConfig(
                num_train_epochs=1,
                num_turns=1,
                num_agents=AGENTS,
                num_generations=settings["group"],
                max_new_tokens=settings["limit"],
                temperature=1.0,
                top_p=1.0,
                top_k=0,
                agent_learning_rate=RATE,
                rollout_buffer_size=settings["problems"],
                train_batch_size=settings["problems"],
                eval_interval=0,
                agent_devices="cpu",
            ),
        )
        self.trainer.verbose = False
        for agent, model in enumerate(models):
            force_lengths(model, [tokenizer.eos_token_id], partial(self._next_lengths, agent))

    def load(
        self, prompts: list[list[str]], lengths: list[list[int]], rewards: list[float]
    ) -> None:
        """Take the next steps' work.

        Args:
            prompts: Each problem's two prompts, as text.
            lengths: Each agent's completion lengths over all problems.
            rewards: Of each pair of rollouts.
        """
        size = self._group
        self._lengths = [
            [own[start : start + size] for start in range(0, len(own), size)] for own in lengths
        ]
        self._rewards = rewards
        self.trainer.train_dataset = datasets.Dataset.from_list(
            [{"draft": one, "challenge": other} for one, other in prompts]
        )

    def step(self) -> dict[str, Any]:
        """One pass over the problems: one optimizer step of each agent."""
        self._calls, self._judged = [0] * AGENTS, 0
        probes = [next(iter(agent.parameters())) for agent in self.trainer.agents]
        before = [probe.detach().clone() for probe in probes]
        meter = Meter()
        self.trainer.train()
        figures = meter.read()
        moved = [
            float((p.detach() - old).abs().max()) for p, old in zip(probes, before, strict=True)
        ]
        return {**figures, "moved": min(moved), "rollouts": self._judged}

    def _next_lengths(self, agent: int, _rows: int) -> list[int]:
        call = self._calls[agent]
        self._calls[agent] += 1
        return self._lengths[agent][call]

    def _reward(self, _first: list[str], _second: list[str]) -> list[float]:
        reward = self._rewards[self._judged]
        self._judged += 1
        return [reward]


def padding_token(tokenizer: Any) -> str:
    """A special token that is no part of a prompt.

    CoMLRL takes the first padding token in a prompt for the prompt's end, and some chat templates
    end a user's turn with the very token that the tokenizer pads with.
    """
    turn = [{"role": "user", "content": "x"}]
    used = tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
    free = [t for t in tokenizer.all_special_tokens if t not in used and t != tokenizer.eos_token]
    if not free:
        raise ValueError("every special token occurs in prompts: none is left to pad with")
    return str(free[0])


def main() -> None:
    """Load and serve."""
    channel = Channel()
    settings = settings_of()
    random.seed(settings["seed"])
    torch.manual_seed(settings["seed"])
    arm = MagrpoArm(settings)
    serve(channel, {"ready": ready, "threads": set_threads, "load": arm.load, "step": arm.step})


if __name__ == "__main__":
    main()
