"""The floor of sampling: the matrix products with the weights that cannot be left out.

Every token that goes through the layers is multiplied by each of their weight matrices, and every
row that a token is drawn for by the head. `recorded` writes down how many of both an engine's
forward passes have, and `Floor` does those products again, one after the other, and nothing else:
no attention, no normalisation, no sampling, no code of the model. An engine that samples the same
tokens in the same batches on the same kernels cannot be faster; one that puts more rows into a
batch can.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from agon.engines.torch_engine import TorchEngine

Shape = tuple[int, int]
"""Of one forward pass: tokens through the layers, rows through the head."""


class Floor:
    """The linear layers of a plain model, in both layouts."""

    def __init__(self, model: Any) -> None:
        """Collect the weights; the transposed copies take as much memory again."""
        head = model.get_output_embeddings()
        self._layers_OI = [
            module.weight.detach()
            for module in model.modules()
            if isinstance(module, torch.nn.Linear) and module is not head
        ]
        self._head_VD = head.weight.detach()
        self._layers_IO = [weight.T.contiguous() for weight in self._layers_OI]
        self._head_DV = self._head_VD.T.contiguous()

    def replay(self, shapes: Sequence[Shape], transposed: bool) -> None:
        """Do the products of recorded passes.

        Args:
            shapes: What `recorded` noted.
            transposed: Whether against transposed copies of the weights.
        """
        most = max(tokens for tokens, _ in shapes)
        widths = {weight.shape[1] for weight in (*self._layers_OI, self._head_VD)}
        inputs = {width: torch.randn(most, width) for width in widths}
        with torch.inference_mode():
            for tokens, rows in shapes:
                if transposed:
                    for weight_IO in self._layers_IO:
                        inputs[weight_IO.shape[0]][:tokens] @ weight_IO
                    inputs[self._head_DV.shape[0]][:rows] @ self._head_DV
                else:
                    for weight_OI in self._layers_OI:
                        torch.nn.functional.linear(inputs[weight_OI.shape[1]][:tokens], weight_OI)
                    torch.nn.functional.linear(inputs[self._head_VD.shape[1]][:rows], self._head_VD)


@contextmanager
def recorded(engine: TorchEngine, shapes: list[Shape]) -> Iterator[None]:
    """Note the shape of each forward pass of an engine that runs inside."""
    inner = engine.forward

    def forward(ids: Tensor, positions: Tensor, masks: Any, cache: Any) -> Tensor:
        shapes.append((ids.numel(), ids.shape[0]))
        return inner(ids, positions, masks, cache)

    vars(engine)["forward"] = forward
    try:
        yield
    finally:
        del vars(engine)["forward"]
