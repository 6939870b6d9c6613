"""Copies of a model's linear layers for fast sampling on a CPU, with one adapter folded in.

A decoding step is a sequence of products of few rows with large matrices. On a CPU they run up to
a third faster against transposed matrices, and an adapter's own small products, two for each
layer, cost more time than their arithmetic says. So for the time of a sampling call each linear
layer multiplies by a transposed copy of W + (alpha / rank) B A. The base and the adapters
themselves stay untouched, and the copy is made again whenever one of them has changed: nothing
drifts. The price is the memory of a second set of linear weights.

Only single precision on a CPU is folded. On a GPU, and in half precision, where W + B A would be
rounded, sampling uses the layers as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor


class FoldedLinears:
    """The folded copies of one model; at most one policy's at a time."""

    def __init__(self, base: torch.nn.Module) -> None:
        """Find the linear layers; nothing is copied before the first use."""
        inside = {
            id(module)
            for layer in base.modules()
            if isinstance(layer, LoraLinear)
            for module in layer.modules()
            if module is not layer
        }
        self._layers = [
            layer
            for layer in base.modules()
            if id(layer) not in inside
            and (type(layer) is torch.nn.Linear or _plain_lora(layer))
            and _weight(layer).dtype == torch.float32
            and _weight(layer).device.type == "cpu"
        ]
        self._copies: list[Tensor] = []
        self._made_of: tuple[Any, ...] | None = None

    @contextmanager
    def applied(self, adapter: str | None) -> Iterator[None]:
        """Linear layers multiply by their copies inside.

        Args:
            adapter: Whose change is folded in; None is the base alone.
        """
        self._refresh(adapter)
        try:
            for layer, copy in zip(self._layers, self._copies, strict=True):
                vars(layer)["forward"] = _Product(copy, _linear(layer).bias)
            yield
        finally:
            for layer in self._layers:
                vars(layer).pop("forward", None)

    def _refresh(self, adapter: str | None) -> None:
        """Make the copies again where weights have changed since."""
        made_of = (adapter, *(_state(layer, adapter) for layer in self._layers))
        if made_of == self._made_of:
            return
        if not self._copies:
            self._copies = [
                _weight(layer).new_empty(_weight(layer).T.shape) for layer in self._layers
            ]
        for layer, copy in zip(self._layers, self._copies, strict=True):
            copy.copy_(_weight(layer).T)
            if _changes(layer, adapter):
                copy += layer.get_delta_weight(adapter).T  # type: ignore[operator]
        self._made_of = made_of


class _Product:
    """x W^T + b on a transposed copy of W."""

    __slots__ = ("bias_O", "weight_IO")

    def __init__(self, weight_IO: Tensor, bias_O: Tensor | None) -> None:
        self.weight_IO, self.bias_O = weight_IO, bias_O

    def __call__(self, x: Tensor) -> Tensor:
        # A slice of a prefill is not contiguous: `@` would multiply it row by row.
        product = (x.reshape(-1, x.shape[-1]) @ self.weight_IO).view(*x.shape[:-1], -1)
        return product if self.bias_O is None else product + self.bias_O


def _plain_lora(layer: torch.nn.Module) -> bool:
    """A LoRA layer over a linear one whose adapters are W + B A and nothing more."""
    return (
        isinstance(layer, LoraLinear)
        and type(layer.get_base_layer()) is torch.nn.Linear
        and not any(layer.use_dora.values())
        and not any(layer.lora_bias.values())
    )


def _linear(layer: Any) -> torch.nn.Linear:
    linear: torch.nn.Linear = layer.get_base_layer() if isinstance(layer, LoraLinear) else layer
    return linear


def _weight(layer: Any) -> Tensor:
    return _linear(layer).weight


def _changes(layer: Any, adapter: str | None) -> bool:
    return isinstance(layer, LoraLinear) and adapter in layer.lora_A


def _state(layer: Any, adapter: str | None) -> tuple[int, ...]:
    """What changes whenever a layer's weights do: where they lie, and torch's write counters."""
    tensors = [_weight(layer)]
    if _changes(layer, adapter):
        tensors += [layer.lora_A[adapter].weight, layer.lora_B[adapter].weight]
    return tuple(number for t in tensors for number in (t.data_ptr(), t._version))
