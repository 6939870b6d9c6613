"""A linear layer with its adapter as one operation of the graph.

PEFT adds an adapter in four steps, each with a tensor of the output's size of its own, forward and
again backward: y = x W' + b, then + s (x A') B'. As one operation the product with B is added in
place, the scale meets tensors of width r alone, and the two parts of the input's gradient become
one. The same function and gradient to rounding, a fifth less of the update's time, and less memory.

Layers that are anything but a plain linear layer with plain LoRA keep PEFT's own forward pass.
This module changes no weight, and sampling does not use it (`engines.folded` does more there).

Dimensions: N positions, I input features, O output features, R rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from peft.tuners.lora.layer import Linear as LoraLinear
from torch import Tensor
from torch.autograd.function import once_differentiable

_PLAIN = (Tensor, torch.nn.Parameter)


class _Product(torch.autograd.Function):
    """y = x W' + bias + scale (x A') B'.

    Rounded where PEFT rounds: adapters compute in their own type, the sum returns to the base's.
    """

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight_OI: Tensor,
        bias_O: Tensor | None,
        a_RI: Tensor,
        b_OR: Tensor,
        scale: float,
    ) -> Tensor:
        """Keeps the input and the product with A, nothing of the output's size."""
        inputs_NI = inputs.reshape(-1, inputs.shape[-1])
        output_NO = torch.nn.functional.linear(inputs_NI, weight_OI, bias_O)
        inner_NR = inputs_NI.to(a_RI.dtype) @ a_RI.T
        sum_NO = output_NO.to(b_OR.dtype)
        sum_NO.addmm_(inner_NR, b_OR.T, alpha=scale)
        ctx.save_for_backward(inputs_NI, inner_NR, weight_OI, a_RI, b_OR)
        ctx.scale, ctx.shape = scale, inputs.shape
        return sum_NO.to(output_NO.dtype).view(*inputs.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the input, A and B; the base is frozen."""
        inputs_NI, inner_NR, weight_OI, a_RI, b_OR = ctx.saved_tensors
        gradient_NO = gradient.reshape(-1, gradient.shape[-1])
        own_NO = gradient_NO.to(b_OR.dtype)
        inner_gradient_NR = (own_NO @ b_OR).mul_(ctx.scale)
        a_gradient_RI = inner_gradient_NR.T @ inputs_NI.to(a_RI.dtype)
        b_gradient_OR = own_NO.T @ (inner_NR * ctx.scale)
        input_gradient = None
        if ctx.needs_input_grad[0]:
            base_NI = gradient_NO @ weight_OI
            sum_NI = base_NI.to(a_RI.dtype)
            sum_NI.addmm_(inner_gradient_NR, a_RI)
            input_gradient = sum_NI.to(base_NI.dtype).view(ctx.shape)
        return input_gradient, None, None, a_gradient_RI, b_gradient_OR, None


@contextmanager
def one_operation(model: torch.nn.Module, adapter: str) -> Iterator[None]:
    """Within, every plain linear layer runs with `adapter` as one operation.

    Args:
        model: A PEFT model whose active adapter is `adapter`.
        adapter: Its name.
    """
    changed = [
        module
        for module in model.modules()
        if type(module) is LoraLinear and _is_plain(module, adapter)
    ]
    for module in changed:
        module.forward = partial(_forward, module, adapter)
    try:
        yield
    finally:
        for module in changed:
            del module.forward


def _forward(module: LoraLinear, adapter: str, inputs: Tensor) -> Tensor:
    base = module.get_base_layer()
    output: Tensor = _Product.apply(  # type: ignore[no-untyped-call]
        inputs,
        base.weight,
        base.bias,
        module.lora_A[adapter].weight,
        module.lora_B[adapter].weight,
        module.scaling[adapter],
    )
    return output


def _is_plain(module: LoraLinear, adapter: str) -> bool:
    """Whether a layer is y = x W' + bias + scale (x A') B' and nothing else."""
    base = module.get_base_layer()
    return (
        type(base) is torch.nn.Linear
        and type(base.weight) in _PLAIN  # sharded and quantised weights have types of their own
        and not base.weight.requires_grad
        and (base.bias is None or not base.bias.requires_grad)
        and not base._forward_hooks
        and not base._forward_pre_hooks
        and not module.merged
        and not module.disable_adapters
        and list(module.active_adapters) == [adapter]
        and adapter in module.lora_A
        and adapter not in module.lora_variant
        and module.lora_A[adapter].bias is None
        and module.lora_B[adapter].bias is None
        and not (module.lora_dropout[adapter].training and _drops(module.lora_dropout[adapter]))
    )


def _drops(dropout: torch.nn.Module) -> bool:
    return isinstance(dropout, torch.nn.Dropout) and dropout.p > 0
