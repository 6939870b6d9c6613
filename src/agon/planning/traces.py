"""The sampler's and the update's passes run on a ghost, to count what they hold.

Dimensions: B rows, T prompt tokens, C completion tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from agon.engines.cache import SlotCache, masks_by_kind
from agon.engines.prefill import chunks, prefill
from agon.engines.sampler import sample
from agon.engines.torch_engine import TorchEngine
from agon.logprobs import Scorer
from agon.lora import one_operation
from agon.objective import Row, kl_penalty, token_losses
from agon.planning.ghost import POLICY, Ghost, LiveBytes, quiet
from agon.planning.kernels import FusedAttention, fused_kernels

END = 1
_CLIP = 0.2


@dataclass(frozen=True, slots=True)
class SamplerTrace:
    """Bytes of one sampling call at its largest.

    Attributes:
        cache: Keys and values of all rows at the completion limit, with the room they grow in.
        prefill: Most alive while prompts are run, their keys and values among it.
        growth: Most alive while the cache is laid out anew for the last time.
        decode: Most alive while the last tokens are sampled.
    """

    cache: int
    prefill: int
    growth: int
    decode: int

    @property
    def work(self) -> int:
        """What sampling needs above the cache, at the worst moment."""
        return max(self.prefill, self.growth, self.decode) - self.cache


@dataclass(frozen=True, slots=True)
class UpdateTrace:
    """Bytes of the update's largest microbatch, gradients of the adapter not counted.

    Attributes:
        activations: Kept for the backward pass when the decoder's forward pass has ended.
        forward: Most alive during that pass.
        head: Most alive while the head makes log-probabilities of hidden states.
        backward: Most alive during the backward pass.
    """

    activations: int
    forward: int
    head: int
    backward: int

    @property
    def logits(self) -> int:
        """What the head needs above the activations."""
        return self.head - self.activations

    @property
    def work(self) -> int:
        """What the worst moment needs above the activations."""
        return max(self.forward, self.head, self.backward) - self.activations


def trace_sampler(
    ghost: Ghost, prompts: int, prompt_tokens: int, limit: int, rows: int, on_cpu: bool
) -> SamplerTrace:
    """Prefill different prompts, admit so many rows and decode at the completion limit.

    Args:
        ghost: The policies.
        prompts: Different prompts; each is prefilled once.
        prompt_tokens: Of each.
        limit: Completion limit, reached by every row.
        rows: That decode at once.
        on_cpu: Whether rows are sampled a few at a time, as on a CPU.

    Raises:
        EngineError: The in-process engine cannot sample this architecture.
    """
    engine = TorchEngine(ghost, (END,), 0, rows, prompt_tokens + limit, fold=False)
    longest = prompt_tokens + limit
    with torch.inference_mode(), fused_kernels(ghost.base), LiveBytes() as count:
        cache = SlotCache(engine.windows_L, longest)
        cache.rows_wanted = rows
        ids = [(index, *[0] * (prompt_tokens - 1)) for index in range(prompts)]
        waiting = rows
        count.mark()
        for chunk in chunks(ids):
            done = prefill(engine, chunk)
            share = min(waiting, -(-rows * len(chunk) // prompts))
            if share:
                cache.length = max(cache.length, prompt_tokens)
                cache.admit(done.states_L, torch.arange(share) % len(chunk))
            waiting -= share
            del done
        prefilled = count.peak
        count.mark()
        _grow(cache, rows, prompt_tokens, longest)
        grown, held = count.peak, count.mark()
        _decode(engine, cache, rows, longest, on_cpu)
        return SamplerTrace(held, prefilled, grown, count.peak)


def _grow(cache: SlotCache, rows: int, length: int, longest: int) -> None:
    """Lay every layer's buffers out anew, as often as decoding to the limit would."""
    for lane in cache.lanes:
        at = length
        while lane.buffers_BHCD and at < longest:
            room = lane.buffers_BHCD[0].shape[2] - lane.end
            step = min(room, longest - 1 - at)
            lane.end += step
            at += step
            if at >= longest - 1:
                break
            states = tuple(buffer[:rows, :, :1] for buffer in lane.buffers_BHCD)
            lane.lay_out((states[0], states[1]), rows, rows, at, 0, longest)
    cache.length = longest - 1


def _decode(engine: TorchEngine, cache: SlotCache, rows: int, longest: int, on_cpu: bool) -> None:
    """One step of the engine's loop at the longest row."""
    device = engine.base.device
    mask_BW = torch.zeros(rows, longest, dtype=engine.base.dtype, device=device)
    cache.advance()

    def mask_of(window: int | None) -> torch.Tensor:
        return mask_BW[:, None, None, 0 if window is None else max(0, longest - window) :]

    tokens_B = torch.zeros(rows, dtype=torch.long, device=device)
    logits_BV = engine.forward(
        tokens_B[:, None], tokens_B[:, None], masks_by_kind(engine.kinds, mask_of), cache
    )
    some = logits_BV[: max(1, 2**20 // logits_BV.shape[1])] if on_cpu else logits_BV
    sample(some, torch.zeros(len(some), dtype=torch.float64, device=device), 1.0)


def trace_update(
    ghost: Ghost,
    rows: Sequence[Row],
    microbatch_tokens: int,
    share_prefixes: bool,
    checkpointing: bool,
    beta: float = 0.0,
) -> UpdateTrace:
    """Run the pack with the most tokens forward and backward, as `update.Updater` does.

    Args:
        ghost: The policies.
        rows: One adapter's rows of a step.
        microbatch_tokens: Padded tokens of one pass.
        share_prefixes: Whether what prompts share is run once.
        checkpointing: Whether activations are recomputed.
        beta: Weight of the KL penalty; above zero the base's log-probabilities are kept.
    """
    scorer = Scorer(ghost.model, 0, share_prefixes and not checkpointing)
    packs = scorer.plan(rows, microbatch_tokens)
    pack = max(packs, key=lambda pack: max(_tokens(rows, pack, part) for part in pack.batches))
    part = max(pack.batches, key=lambda part: _tokens(rows, pack, part))
    for _, parameter in ghost.model.named_parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    if checkpointing:
        # Layers run again inside the backward pass, where the mode around it is off.
        again = {"use_reentrant": False, "context_fn": lambda: (nullcontext(), FusedAttention())}
        with quiet():
            ghost.model.gradient_checkpointing_enable(again)
    ghost.model.train(checkpointing)
    batch = scorer.batch(rows, pack, part)
    continued = [pack.prefix_of[index] for index in part] if pack.prefixes else []
    marks: list[tuple[int, int]] = []
    with (
        ghost.active(POLICY),
        one_operation(ghost.model, POLICY),
        fused_kernels(ghost.base),
        LiveBytes() as count,
    ):
        count.mark()
        prefixes = scorer.prefixes(pack)

        def ended(*_: Any) -> None:
            marks.append((count.peak, count.mark()))

        hook = scorer.base.get_decoder().register_forward_hook(ended)
        logprobs_N = scorer.logprobs(batch, 1.0, prefixes, continued)
        hook.remove()
        losses_N, _ = token_losses(logprobs_N, batch.sampler_logprobs_N, batch.advantages_N, _CLIP)
        if beta:
            losses_N = losses_N + beta * kl_penalty(logprobs_N, logprobs_N.detach())
        loss = losses_N.sum()
        (forward, activations), head = marks[0], count.peak
        count.mark()
        loss.backward()  # type: ignore[no-untyped-call]
        if prefixes is not None:
            prefixes.backward()
        backward = count.peak
    if checkpointing:
        with quiet():
            ghost.model.gradient_checkpointing_disable()
    ghost.model.eval()
    return UpdateTrace(activations, forward, head, backward)


def _tokens(rows: Sequence[Row], pack: Any, part: Sequence[int]) -> int:
    """Padded tokens of a microbatch with its pack's prefixes."""
    prefixes = max(map(len, pack.prefixes), default=0) * len(pack.prefixes)
    begins = [len(pack.prefixes[pack.prefix_of[i]]) if pack.prefixes else 0 for i in part]
    longest = max(rows[i].tokens - begin for i, begin in zip(part, begins, strict=True))
    return prefixes + longest * len(part)
