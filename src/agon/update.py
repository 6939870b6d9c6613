"""One adapter's optimizer step on the streams that it sampled.

A stream is all rollouts of one role of one step. It is normalised by itself; a policy that played
both roles takes the sum of its two streams' losses in one optimizer step. Each adapter has its own
AdamW and its own clip norm, and the learning rate is a function of the step alone.

Rows that cannot change the result are left out: unscored ones, and those of zero advantage when
beta = 0.

Of several processes each runs its own rows. Their weights hold the denominators of the whole
stream, so that the sum of the processes' gradients is the gradient of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from agon import lora
from agon.config import Config, OptimizerConfig
from agon.distributed import ALONE, Processes
from agon.engines.base import BASE
from agon.logprobs import Batch, Prefixes, Scorer
from agon.objective import (
    Row,
    StreamSize,
    importance_weights,
    kl_penalty,
    row_weights,
    token_losses,
)
from agon.policies import Policies
from agon.records import Challenge, Draft
from agon.sharing import Pack

IDLE = Row(prompt_ids=(0,), completion_ids=(0,), logprobs=(0.0,), advantage=0.0)
"""What a process runs, with weight 0, while others still have rows."""


@dataclass(frozen=True, slots=True)
class UpdateStats:
    """What one optimizer step of one adapter did.

    Attributes:
        loss: The streams' losses, summed.
        grad_norm: Norm of the adapter's gradient before clipping.
        rows: Rows that were run.
        scored: Scored rows of the streams, those of zero advantage included.
        clipped: Share of the run rows' completion tokens that the ratio clip held back.
        ratio_gap: Mean of |log p - log q| over the same tokens: how far the policy being updated
            is from the sampler's word.
        capped: Share of the same tokens whose importance weight was truncated; None without a cap.
    """

    loss: float
    grad_norm: float
    rows: int
    scored: int
    clipped: float
    ratio_gap: float
    capped: float | None = None


class Pass(NamedTuple):
    """Figures of one forward and backward pass over all rows.

    Attributes:
        loss: The streams' losses, summed.
        clipped: Share of completion tokens that the ratio clip held back.
        gap: Mean of |log p - log q| per token, q the sampler's.
        capped: Share of completion tokens whose importance weight was truncated.
    """

    loss: float = 0.0
    clipped: float = 0.0
    gap: float = 0.0
    capped: float = 0.0


Old = dict[int, torch.Tensor]
"""Log-probabilities of a row's completion tokens by the trainer before the first of the updates,
by the row's place in its stream."""


def stream_rows(
    rollouts: Sequence[Draft | Challenge], config: Config, processes: Processes = ALONE
) -> tuple[list[Row], list[float]]:
    """The scored rows of one stream and the weight of each row's summed token losses.

    Args:
        rollouts: This process's part of the stream.
        config: The run's configuration.
        processes: Who has the other parts.
    """
    scored = [rollout for rollout in rollouts if rollout.reward is not None]
    rows = [
        Row(
            rollout.prompt.token_ids,
            rollout.reply.completion.token_ids,
            rollout.reply.completion.logprobs,
            rollout.advantage,
        )
        for rollout in scored
    ]
    lengths = [len(row.completion_ids) for row in rows]
    count, tokens = processes.total([len(rows), sum(lengths)])
    size = StreamSize(int(count), int(tokens))
    limit = config.sampling.max_new_tokens
    return rows, row_weights(config.objective.aggregation, lengths, limit, size)


def learning_rate(step: int, steps: int, config: OptimizerConfig) -> float:
    """Linear warm-up to the peak and linear decay to zero; never zero within 0..steps-1."""
    warm = max(1, round(config.warmup * steps))
    rising = (step + 1) / warm
    falling = (steps - step) / max(1, steps - warm + 1)
    return config.learning_rate * min(1.0, rising, falling)


def make_optimizers(policies: Policies, config: OptimizerConfig) -> dict[str, torch.optim.AdamW]:
    """One AdamW for each adapter."""
    return {
        name: torch.optim.AdamW(
            list(policies.parameters(name).values()),
            lr=config.learning_rate,
            betas=config.betas,
            weight_decay=config.weight_decay,
        )
        for name in policies.names
    }


class Updater:
    """Takes the optimizer steps.

    Attributes:
        optimizers: One for each adapter.
    """

    def __init__(
        self,
        policies: Policies,
        config: Config,
        pad_token_id: int,
        device: torch.device,
        processes: Processes = ALONE,
    ):
        """Build the optimizers.

        Args:
            policies: What is trained.
            config: The run's configuration.
            pad_token_id: Fills short rows; its value reaches no result.
            device: Where the model is.
            processes: The run's processes.
        """
        self._policies, self._config = policies, config
        self._device, self._processes = device, processes
        # Every pass through a sharded base is made by all processes together.
        self._lockstep = config.model.shard and processes.size > 1
        # Checkpointing drops the cache that rows would continue.
        share = config.training.share_prefixes and not config.training.gradient_checkpointing
        share = share and not self._lockstep
        self._scorer = Scorer(policies.model, pad_token_id, share)
        self.optimizers = make_optimizers(policies, config.optimizer)
        if config.training.gradient_checkpointing:
            policies.model.gradient_checkpointing_enable({"use_reentrant": False})

    def step(
        self, name: str, streams: Sequence[Sequence[Draft | Challenge]], rate: float
    ) -> UpdateStats:
        """Give one adapter its optimizer steps (mu of them) on its streams.

        Args:
            name: `a` or `b`.
            streams: The rollouts of each role that this adapter played.
            rate: Learning rate.

        Returns:
            Figures of the last of the mu steps.
        """
        rows: list[Row] = []
        weights: list[float] = []
        for stream in streams:
            stream_row, stream_weight = stream_rows(stream, self._config, self._processes)
            rows += stream_row
            weights += stream_weight
        scored = len(rows)
        if self._config.objective.beta == 0:
            kept = [index for index, row in enumerate(rows) if row.advantage != 0.0]
            rows, weights = [rows[i] for i in kept], [weights[i] for i in kept]
        optimizer = self.optimizers[name]
        for group in optimizer.param_groups:
            group["lr"] = rate
        parameters = list(self._policies.parameters(name).values())
        old: Old = {}
        for _ in range(self._config.objective.updates_per_step):
            optimizer.zero_grad(set_to_none=True)
            figures = self.backward(name, rows, weights, old)
            self._processes.sum_gradients(parameters)
            for parameter in parameters:
                if parameter.grad is None:
                    # A step without any row to run is still a step: moments decay alike for
                    # both adapters, and the number of steps stays comparable between arms.
                    parameter.grad = torch.zeros_like(parameter)
            norm = torch.nn.utils.clip_grad_norm_(parameters, self._config.optimizer.clip_norm)
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        version = self._policies.version(name) + self._config.objective.updates_per_step
        self._policies.set_version(name, version)
        run, scored = map(int, self._processes.total([len(rows), scored]))
        return UpdateStats(
            figures.loss,
            float(norm),
            run,
            scored,
            figures.clipped,
            figures.gap,
            None if self._config.objective.importance_cap is None else figures.capped,
        )

    def backward(
        self, name: str, rows: Sequence[Row], weights: Sequence[float], old: Old | None = None
    ) -> Pass:
        """Accumulate the gradient of sum_rows w_row sum_t l_t into the adapter's parameters.

        Args:
            name: `a` or `b`.
            rows: Of its streams, this process's.
            weights: Of each row's summed token losses.
            old: Filled by the first of several updates on the same rows and read by the others.
                The first update runs under the weights that sampled, so that its forward pass is
                the trainer's word on them and no pass of its own is needed.

        Returns:
            Figures over the rows of all processes; the gradient is this process's.
        """
        old = {} if old is None else old
        totals = torch.zeros(4, dtype=torch.float64)
        packs = self._scorer.plan(rows, self._config.training.microbatch_tokens) if rows else []
        idle = 0
        if self._lockstep:
            packs = [Pack(batches=[batch]) for pack in packs for batch in pack.batches]
            idle = self._processes.largest(len(packs)) - len(packs)
        for pack in packs:
            totals += self._backward_pack(name, rows, weights, pack, old)
        for _ in range(idle):
            self._backward_pack(name, [IDLE], [0.0], Pack(batches=[[0]]), {})
        tokens = sum(len(row.completion_ids) for row in rows)
        loss, *sums, count = self._processes.total([*totals.tolist(), tokens])
        return Pass(loss, *(figure / max(count, 1) for figure in sums))

    def _backward_pack(
        self, name: str, rows: Sequence[Row], weights: Sequence[float], pack: Pack, old: Old
    ) -> torch.Tensor:
        model, checkpointing = self._policies.model, self._config.training.gradient_checkpointing
        batches = [(self._scorer.batch(rows, pack, part), part) for part in pack.batches]
        references = self._references(pack, batches)
        totals = torch.zeros(4, dtype=torch.float64)
        with self._policies.active(name), lora.one_operation(model, name):
            # transformers checkpoints activations in train mode alone; dropout is off for good.
            model.train(checkpointing)
            prefixes = self._scorer.prefixes(pack)
            for (batch, part), reference_N in zip(batches, references, strict=True):
                logprobs_N = self._logprobs(batch, part, pack, prefixes)
                weights_B = torch.tensor([weights[i] for i in part], device=self._device)
                old_N = batch.sampler_logprobs_N
                if self._config.objective.old_logprobs == "trainer":
                    old_N = before(
                        logprobs_N, [len(rows[i].completion_ids) for i in part], part, old
                    )
                loss, figures = self._loss(logprobs_N, old_N, reference_N, batch, weights_B)
                loss.backward()  # type: ignore[no-untyped-call]
                totals += figures
            if prefixes is not None:
                prefixes.backward()
            model.eval()
        return totals

    def _references(
        self, pack: Pack, batches: Sequence[tuple[Batch, list[int]]]
    ) -> list[torch.Tensor | None]:
        """The base's log-probabilities of each batch's tokens, where the penalty needs them."""
        if self._config.objective.beta == 0:
            return [None] * len(batches)
        with self._policies.active(BASE), torch.no_grad():
            prefixes = self._scorer.prefixes(pack)
            return [self._logprobs(batch, part, pack, prefixes) for batch, part in batches]

    def _logprobs(
        self, batch: Batch, part: Sequence[int], pack: Pack, prefixes: Prefixes | None
    ) -> torch.Tensor:
        temperature = self._config.sampling.temperature
        continued = [pack.prefix_of[i] for i in part] if prefixes is not None else []
        return self._scorer.logprobs(batch, temperature, prefixes, continued)

    def _loss(
        self,
        logprobs_N: torch.Tensor,
        old_N: torch.Tensor,
        reference_N: torch.Tensor | None,
        batch: Batch,
        weights_B: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A batch's weighted loss, and (loss, clipped, sum of |log p - log q|, capped)."""
        objective = self._config.objective
        sampler_N = batch.sampler_logprobs_N
        losses_N, clipped_N = token_losses(logprobs_N, old_N, batch.advantages_N, objective.clip)
        capped_N = torch.zeros_like(clipped_N)
        if objective.importance_cap is not None:
            weights_N, capped_N = importance_weights(old_N, sampler_N, objective.importance_cap)
            losses_N = losses_N * weights_N
        if reference_N is not None:
            losses_N = losses_N + objective.beta * kl_penalty(logprobs_N, reference_N)
        loss = (losses_N * weights_B[batch.rows_N]).sum()
        gap = (logprobs_N.detach() - sampler_N).abs().sum()
        figures = [loss.detach(), clipped_N.sum(), gap, capped_N.sum()]
        return loss, torch.stack(figures).double().cpu()


def before(
    logprobs_N: torch.Tensor, lengths: Sequence[int], places: Sequence[int], old: Old
) -> torch.Tensor:
    """The trainer's log-probabilities (N,) of a batch's tokens before the first update.

    Args:
        logprobs_N: Under the policy as it stands, row by row; kept where nothing is known yet.
        lengths: Completion tokens of each row.
        places: Each row's place in its stream, the key into `old`.
        old: What is known; filled here.
    """
    for place, now in zip(places, torch.split(logprobs_N.detach(), list(lengths)), strict=True):
        old.setdefault(place, now)
    return torch.cat([old[place] for place in places])
