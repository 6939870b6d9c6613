"""What fused kernels hold, in place of what torch would do on the meta device.

There scaled-dot-product attention builds the whole score matrix, and a gated delta net runs its
reference implementation, step by step. `fused_kernels` puts stand-ins in their place that make and
keep tensors of the sizes that the kernels do; they compute nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_RECURRENCE = "torch_chunk_gated_delta_rule"
_CHUNK = 64
"""Tokens of a chunk in flash-linear-attention's kernels."""


@contextmanager
def fused_kernels(base: Any) -> Iterator[None]:
    """Within, a ghost's passes hold what they would with fused kernels.

    Args:
        base: The transformers model.
    """
    code: dict[str, Any] = vars(sys.modules[type(base).__module__])
    reference = code.get(_RECURRENCE)
    if reference is not None:
        code[_RECURRENCE] = _chunk_gated_delta_rule
    try:
        with FusedAttention():
            yield
    finally:
        if reference is not None:
            code[_RECURRENCE] = reference


class FusedAttention(TorchFunctionMode):
    """Within, scaled-dot-product attention holds what a fused kernel holds.

    Models ask their tensors one question, whether positions run on without a break (several texts
    in one row would need a mask); there is no value to answer from, and they do.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace the one function."""
        kwargs = kwargs or {}
        if func is Tensor.__bool__ and args[0].is_meta:
            return True
        if func is not torch.nn.functional.scaled_dot_product_attention:
            return func(*args, **kwargs)
        query, key, value = args[:3]
        mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
        return _Fused.apply(query, key, value, mask)  # type: ignore[no-untyped-call]


class _Fused(torch.autograd.Function):
    """A fused attention kernel's memory, after Dao et al. 2022 (FlashAttention).

    Forward keeps query, key, value, the output and one number for each head and token; backward
    makes the three gradients. No score matrix exists.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        rows, heads, length, _ = query.shape
        # The kernels lay their output out by token, which the next projection wants.
        result = query.new_empty(rows, length, heads, value.shape[-1]).transpose(1, 2)
        sums = query.new_empty(rows, heads, length, dtype=torch.float32)
        kept = [query, key, value, result, sums]
        ctx.save_for_backward(*kept, *([] if mask is None else [mask]))
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        query, key, value = ctx.saved_tensors[:3]
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), None


def _chunk_gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    **_ignored: Any,
) -> tuple[Tensor, Tensor | None]:
    """As transformers' function of this name."""
    rows, width = key.shape[0], key.shape[3]
    state = None
    if output_final_state:
        shape = (rows, value.shape[2], width, value.shape[3])
        state = value.new_empty(shape, dtype=torch.float32)
    result: Tensor = _DeltaRule.apply(query, key, value, g, beta)  # type: ignore[no-untyped-call]
    return result, state


class _DeltaRule(torch.autograd.Function):
    """Memory of the chunked gated delta rule (Yang et al. 2024; flash-linear-attention).

    Forward keeps its inputs and a lower triangle of one chunk's width for each head and token;
    backward makes every chunk's state again, and the gradients.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor
    ) -> Tensor:
        rows, length, heads, _ = value.shape
        triangles = value.new_empty(rows, length, heads, _CHUNK)
        ctx.save_for_backward(query, key, value, g, beta, triangles)
        return torch.empty_like(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        query, key, value, g, beta, _ = ctx.saved_tensors
        rows, length, heads, width = value.shape
        states = value.new_empty(rows, -(-length // _CHUNK), heads, key.shape[-1], width)
        made = tuple(torch.empty_like(tensor) for tensor in (query, key, value, g, beta))
        del states
        return made
