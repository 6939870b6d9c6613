"""Agon's update on given rollouts, as a process that a benchmark drives.

Settings: `folder` of the model, `microbatch_tokens`, `checkpointing`, `plain` and `seed`. Plain is
Agon without what makes it fast: every row is run, those of zero advantage too, nothing that rows
share is run once, and adapters run as PEFT runs them. Calls: `ready`, `threads`, `export`,
`budget`, `load`, `step`.

Each step begins with the same adapter weights. The rollouts' log-probabilities are those of these
weights, computed once when they are loaded, so that every ratio is one, as it is in TRL.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch

import workloads
from agon import lora, process
from agon.config import Config
from agon.logprobs import Scorer
from agon.objective import Row
from agon.policies import Policies, load_base
from agon.records import (
    Completion,
    Draft,
    Outcome,
    PolicyVersion,
    Prompt,
    Reply,
    Reward,
    Verdict,
)
from agon.rewards import group_advantages
from agon.update import Updater, stream_rows
from peers.memory import Meter, ready, set_threads
from peers.protocol import Channel, Handler, serve, settings_of

POLICY, RATE = "b", 1e-5


class UpdateArm:
    """The policies, what they are trained on, and the weights that each step begins with."""

    def __init__(
        self,
        base: torch.nn.Module,
        microbatch_tokens: int,
        pad: int,
        checkpointing: bool = False,
        plain: bool = False,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        """Start two adapters over the base; `b`, whose lora_B is not zero, is trained."""
        self._training = {
            "gradient_checkpointing": checkpointing,
            "share_prefixes": not plain,
            "device": device,
        }
        self.policies = Policies(base, Config().adapters, 2, seed)
        self.policies.model.to(device)
        self._pad, self._device = pad, torch.device(device)
        self.budget(microbatch_tokens)
        self._plain, self._scorer = plain, Scorer(self.policies.model, pad, share=False)
        self._begin = {
            name: value.detach().clone() for name, value in self.policies.parameters(POLICY).items()
        }
        self._gradients: dict[str, torch.Tensor] = {}
        self.drafts: list[Draft] = []

    def budget(self, microbatch_tokens: int) -> None:
        """Run so many padded tokens a pass from now on."""
        training = {**self._training, "microbatch_tokens": microbatch_tokens}
        self.config = Config.model_validate(
            # A norm that clips nothing, so that gradients can be compared.
            {"training": training, "optimizer": {"clip_norm": 1e9}}
        )
        self.updater = Updater(self.policies, self.config, self._pad, self._device)
        self.updater.optimizers[POLICY].register_step_pre_hook(self._keep_gradients)

    def export(self, path: str) -> None:
        """Write the adapter that each step begins with."""
        torch.save(self._begin, path)

    def load(self, rollouts: dict[str, Any]) -> None:
        """Take rollouts as a stream of drafts with advantages and log-probabilities."""
        given = workloads.Rollouts(**rollouts)
        totals = given.rewards
        advantages = [
            advantage
            for start in range(0, len(totals), given.group)
            for advantage in group_advantages(totals[start : start + given.group], True)
        ]
        self._restore()
        rows = [
            Row(tuple(prompt), tuple(completion), (0.0,) * len(completion), advantage)
            for prompt, completion, advantage in zip(
                given.prompts, given.completions, advantages, strict=True
            )
        ]
        logprobs = self._logprobs(rows)
        self.drafts = [
            _draft(replace(row, logprobs=own), total)
            for row, own, total in zip(rows, logprobs, totals, strict=True)
        ]

    def step(self, gradients: str | None = None, only: int | None = None) -> dict[str, Any]:
        """One optimizer step, timed.

        Args:
            gradients: File to write the step's gradients to.
            only: As a warm-up, so many rollouts with a nonzero advantage instead of all.
        """
        self._restore()
        drafts = self.drafts
        if only is not None:
            drafts = [draft for draft in drafts if draft.advantage != 0][:only]
        meter = Meter()
        run = self._plain_step if self._plain else self._agon_step
        loss, rows = run(drafts)
        figures = meter.read()
        if gradients is not None:
            torch.save(self._gradients, gradients)
        return {**figures, "loss": loss, "rows": rows}

    def _agon_step(self, drafts: Sequence[Draft]) -> tuple[float, int]:
        stats = self.updater.step(POLICY, [drafts], RATE)
        return stats.loss, stats.rows

    def _plain_step(self, drafts: Sequence[Draft]) -> tuple[float, int]:
        """As `Updater.step`, with every row run."""
        rows, weights = stream_rows(drafts, self.config)
        optimizer = self.updater.optimizers[POLICY]
        parameters = list(self.policies.parameters(POLICY).values())
        optimizer.zero_grad(set_to_none=True)
        loss, *_ = self.updater.backward(POLICY, rows, weights)
        torch.nn.utils.clip_grad_norm_(parameters, self.config.optimizer.clip_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss, len(rows)

    def _restore(self) -> None:
        with torch.no_grad():
            for name, parameter in self.policies.parameters(POLICY).items():
                parameter.copy_(self._begin[name])

    def _keep_gradients(self, *_: Any) -> None:
        # References are enough: the step ends by letting go of gradients, not by zeroing them.
        self._gradients = {
            name: parameter.grad
            for name, parameter in self.policies.parameters(POLICY).items()
            if parameter.grad is not None
        }

    def _logprobs(self, rows: Sequence[Row]) -> list[tuple[float, ...]]:
        """Each row's log-probabilities under the policy as it begins."""
        result: list[tuple[float, ...]] = [()] * len(rows)
        with self.policies.active(POLICY), torch.no_grad():
            for pack in self._scorer.plan(rows, self.config.training.microbatch_tokens):
                for part in pack.batches:
                    logprobs_N = self._scorer.logprobs(self._scorer.batch(rows, pack, part), 1.0)
                    counts = [len(rows[index].completion_ids) for index in part]
                    for index, own in zip(part, torch.split(logprobs_N, counts), strict=True):
                        result[index] = tuple(own.tolist())
        return result


def _draft(row: Row, total: float) -> Draft:
    """A row as the rollout that a round would have made of it."""
    ids = row.completion_ids
    version = PolicyVersion(POLICY, 0)
    completion = Completion(ids, row.logprobs, (0.0,) * len(ids), False, version)
    return Draft(
        Prompt("", row.prompt_ids, thinking_open=False),
        Reply("", None, None, None, 0.0, completion),
        Verdict(Outcome.RIGHT if total else Outcome.WRONG, ""),
        Reward(correctness=total),
        row.advantage,
    )


def main() -> None:
    """Load and serve."""
    from agon.config import ModelConfig

    process.prepare()
    channel = Channel()
    settings = settings_of()
    if settings["plain"]:
        lora.one_operation = lambda _model, _adapter: nullcontext()
    pad = workloads.Vocabulary.of(settings["folder"]).pad
    arm = UpdateArm(
        load_base(ModelConfig(name_or_path=settings["folder"])),
        settings["microbatch_tokens"],
        pad,
        settings["checkpointing"],
        settings["plain"],
        settings["seed"],
    )
    handlers: dict[str, Handler] = {
        "ready": ready,
        "threads": set_threads,
        "export": arm.export,
        "budget": arm.budget,
        "load": arm.load,
        "step": arm.step,
    }
    serve(channel, handlers)


if __name__ == "__main__":
    main()
