"""Log-probabilities of chosen tokens from last hidden states, without keeping any logits.

The vocabulary is the widest thing in a language model: the logits of one 24,000-token reply over
152,000 tokens take 15 GB in single precision. A token's log-probability has a closed derivative
by its hidden state h, with p the softmax and W the head's rows,

    d log p_target / d h = (W_target - sum_v p_v W_v) / temperature

so both are computed a few positions at a time and only the derivative, as wide as h, is kept. The
head itself is frozen: it gets no gradient.

Dimensions: N positions, V vocabulary, D hidden width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

CHUNK_ELEMENTS = 2**24
"""Logits at once: 64 MiB in single precision."""

_PROBE = 4
"""Tokens of the forward pass that a head is checked with."""


@dataclass(frozen=True, slots=True)
class Head:
    """A model's last projection.

    Attributes:
        weight_VD: Its rows, one for each token.
        bias_V: Its bias, if it has one.
        softcap: Logits z become softcap * tanh(z / softcap), as in Gemma; None leaves them.
    """

    weight_VD: Tensor
    bias_V: Tensor | None
    softcap: float | None

    @classmethod
    def of(cls, base: Any) -> Self | None:
        """The head of a causal language model, or None where it is not this simple.

        Whatever a model does between hidden states and logits, the head is taken only if it gives
        the model's own logits on a short text.
        """
        layer = base.get_output_embeddings()
        if type(layer) is not torch.nn.Linear or layer.weight.requires_grad:
            return None
        softcap = getattr(base.config.get_text_config(), "final_logit_softcapping", None)
        head = cls(layer.weight, layer.bias, softcap)
        if layer.weight.is_meta:  # a plan's model has no values to compare
            return head
        ids = torch.arange(min(_PROBE, len(layer.weight)), device=layer.weight.device)[None]
        with torch.no_grad():
            expected_LV = base(input_ids=ids, use_cache=False).logits[0].float()
            hidden_LD = base.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state[0]
            found_LV = head.logits(hidden_LD)
        scale = float(expected_LV.abs().max())
        same = torch.allclose(found_LV, expected_LV, rtol=1e-3, atol=1e-3 * scale)
        return head if same else None

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Logits in single precision (N, V)."""
        logits_NV = torch.nn.functional.linear(hidden_ND, self.weight_VD, self.bias_V).float()
        if self.softcap is not None:
            logits_NV = self.softcap * torch.tanh(logits_NV / self.softcap)
        return logits_NV

    def logprobs(self, hidden_ND: Tensor, targets_N: Tensor, temperature: float) -> Tensor:
        """Log-probabilities (N,) of the targets, in single precision, differentiable by h."""
        result: Tensor = _ChosenLogprobs.apply(  # type: ignore[no-untyped-call]
            hidden_ND, targets_N, self, temperature
        )
        return result


class _ChosenLogprobs(torch.autograd.Function):
    """log softmax(head(h) / temperature)[target], whose backward needs no logits."""

    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, targets_N: Tensor, head: Head, temperature: float
    ) -> Tensor:
        step = max(1, CHUNK_ELEMENTS // len(head.weight_VD))
        wanted = hidden_ND.requires_grad
        logprobs_N = torch.empty(len(hidden_ND), dtype=torch.float32, device=hidden_ND.device)
        slope_ND = torch.empty_like(hidden_ND) if wanted else None
        for start in range(0, len(hidden_ND), step):
            part = slice(start, start + step)
            logits_NV = head.logits(hidden_ND[part])
            # Softcapping bends the logits; the derivative of a z is 1 - (z / softcap)^2.
            bend_NV = None
            if head.softcap is not None and slope_ND is not None:
                bend_NV = 1 - (logits_NV / head.softcap) ** 2
            if temperature != 1.0:
                logits_NV /= temperature
            targets_N1 = targets_N[part, None]
            normaliser_N1 = torch.logsumexp(logits_NV, dim=1, keepdim=True)
            logprobs_N[part] = (logits_NV.gather(1, targets_N1) - normaliser_N1)[:, 0]
            if slope_ND is None:
                continue
            by_logit_NV = logits_NV.sub_(normaliser_N1).exp_().neg_()  # -p, then + 1 at the target
            by_logit_NV.scatter_add_(1, targets_N1, torch.ones_like(normaliser_N1))
            if bend_NV is not None:
                by_logit_NV *= bend_NV
            if temperature != 1.0:
                by_logit_NV /= temperature
            slope_ND[part] = by_logit_NV.to(head.weight_VD.dtype) @ head.weight_VD
        ctx.save_for_backward(*([slope_ND] if slope_ND is not None else []))
        return logprobs_N

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (slope_ND,) = ctx.saved_tensors
        return (gradients[0][:, None] * slope_ND).to(slope_ND.dtype), None, None, None
