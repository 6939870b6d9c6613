"""What a model computes and reads for one token: counted from its modules and its cache.

    matrices     sum of out x in over the decoder's linear layers and one adapter: a forward pass
                 takes 2 operations for each (a product and a sum)
    head         vocabulary x width, for tokens whose distribution is wanted
    attention    4 H D W operations a token and layer, H heads of width D over W visible tokens

(Kaplan et al. 2020, section 2.1.) The backward pass through a frozen base computes gradients by
inputs alone, as many operations as the forward pass; gradients by the adapters' own matrices come
on top, and checkpointing runs every layer's forward pass once more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from agon.engines.cache import cache_argument
from agon.planning.ghost import POLICY, Ghost, quiet
from agon.planning.kernels import fused_kernels

_PROBE_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's attention.

    Attributes:
        window: Tokens that it sees, None where all.
        stored: Bytes of keys and values that a token adds; 0 where it reads another layer's.
        read: Bytes of keys and values that it reads for each visible token.
        width: Heads times their width, of the queries; 0 without softmax attention.
        state: Bytes of a row's recurrent state, read and written by each token.
    """

    window: int | None
    stored: int
    read: int
    width: int
    state: int = 0

    def visible(self, length: int) -> int:
        """Tokens that the last of so many sees."""
        return length if self.window is None else min(length, self.window)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """A model's figures.

    Attributes:
        matrices: Elements of the linear layers that every token passes, one adapter among them.
        adapter: Those of the adapter.
        head: Elements of the head.
        weight_bytes: Of a base element.
        layers: Attention of each.
    """

    matrices: int
    adapter: int
    head: int
    weight_bytes: int
    layers: tuple[Layer, ...]

    def step_bytes(self) -> float:
        """Weights read in one decoding step, whatever the number of rows."""
        base = self.matrices - self.adapter + self.head
        return float(base * self.weight_bytes + self.adapter * 4)

    def row_bytes(self, length: float) -> float:
        """Keys, values and states read for one row whose context has this length."""
        return sum(
            layer.read * min(length, layer.window or length) + 2 * layer.state
            for layer in self.layers
        )

    def stored_bytes(self, length: int) -> int:
        """Keys, values and states of one row of this length, without any room to grow."""
        return sum(layer.stored * layer.visible(length) + layer.state for layer in self.layers)

    def token_operations(self, length: float, head: bool = True) -> float:
        """Operations of one token's forward pass with a context of this length."""
        seen = sum(layer.width * min(length, layer.window or length) for layer in self.layers)
        return 2.0 * (self.matrices + (self.head if head else 0)) + 4.0 * seen

    def text_operations(self, length: float) -> float:
        """Operations of the forward pass over a whole text, without the head."""
        seen = sum(
            layer.width * _seen_in_all(length, layer.window) for layer in self.layers if layer.width
        )
        return 2.0 * self.matrices * length + 4.0 * seen

    def update_operations(self, prompt: float, reply: float, checkpointing: bool) -> float:
        """Operations of forward and backward pass over one rollout.

        The head works where a reply's token is predicted: once for the log-probability and once
        for its derivative (`agon.head`). The backward pass of fused attention computes scores
        again: two and a half times its forward pass (Dao et al. 2022).
        """
        whole = prompt + reply
        plain = 2.0 * self.matrices * whole
        attention = self.text_operations(whole) - plain
        forward = plain + attention
        backward = plain + 2.5 * attention + 2.0 * self.adapter * whole
        again = forward if checkpointing else 0.0
        return forward + again + backward + 2 * 2.0 * self.head * reply


def _seen_in_all(length: float, window: int | None) -> float:
    """Sum over a text's tokens of the tokens that each sees."""
    if window is None or length <= window:
        return length * (length + 1) / 2
    return window * (window + 1) / 2 + (length - window) * window


def count(ghost: Ghost) -> Arithmetic:
    """Read a model's figures off its modules and the cache that a short text leaves."""
    base = ghost.base
    decoder, head = base.get_decoder(), base.get_output_embeddings()
    matrices = sum(
        module.weight.numel()
        for name, module in decoder.named_modules()
        if isinstance(module, torch.nn.Linear) and "lora_" not in name
    )
    adapter = ghost.adapter_parameters(POLICY)
    return Arithmetic(
        matrices=matrices + adapter,
        adapter=adapter,
        head=head.weight.numel(),
        weight_bytes=head.weight.element_size(),
        layers=tuple(_layers(base)),
    )


def _layers(base: Any) -> list[Layer]:
    config = base.config.get_text_config(decoder=True)
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    window = getattr(config, "sliding_window", None)
    heads, size = config.num_attention_heads, base.get_output_embeddings().weight.element_size()
    ids = torch.zeros((1, _PROBE_TOKENS), dtype=torch.long, device="meta")
    cache = DynamicCache() if "linear_attention" not in kinds else DynamicCache(config=config)
    with torch.inference_mode(), fused_kernels(base), quiet():
        base(input_ids=ids, use_cache=True, **{cache_argument(base): cache})
    found: list[Layer] = []
    for index, kind in enumerate(kinds):
        limit = window if kind == "sliding_attention" else None
        if kind == "linear_attention":
            found.append(Layer(None, 0, 0, 0, _state_bytes(config, size)))
            continue
        own = index < len(cache.layers) and cache.layers[index].is_initialized
        if own:
            keys, values = cache.layers[index].keys, cache.layers[index].values
            stored = size * (keys.shape[1] * keys.shape[3] + values.shape[1] * values.shape[3])
            found.append(Layer(limit, stored, stored, heads * keys.shape[3]))
        else:
            # It reads what the last layer of its kind has stored.
            like = next(layer for layer in reversed(found) if layer.window == limit)
            found.append(Layer(limit, 0, like.read, like.width))
    return found


def _state_bytes(config: Any, size: int) -> int:
    """A gated delta net's state of one row: a matrix for each value head, and the convolution's.

    The matrices are float32 (Yang et al. 2024, and Qwen3.5's `mamba_ssm_dtype`).
    """
    keys = config.linear_num_key_heads * config.linear_key_head_dim
    values = config.linear_num_value_heads * config.linear_value_head_dim
    matrices = values * config.linear_key_head_dim * 4
    return int(matrices + (2 * keys + values) * config.linear_conv_kernel_dim * size)
