"""The frozen base shared out among processes, layer by layer (FSDP2).

Each process keeps a part of every decoder layer's frozen weights. A pass through a layer brings its
parts together just before and lets go of them just after, in the forward and in the backward pass,
so that one whole layer at a time is held beside the parts. Embeddings, head and last norm stay
whole at every process, since the update takes logits a few positions at a time; so do the adapters,
whose gradients the trainer adds up itself.

All processes must pass through the layers equally often. The update sees to that (`update`); in
sampling they cannot, since replies end when they end: there the layers are brought together once
for a whole stage (`whole`). That costs the memory of the whole base while rollouts are sampled,
beside caches and without activations, and one exchange of the base's bytes a step. A base that does
not fit even then is to be sampled elsewhere.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from agon.errors import ConfigError
from agon.policies import Policies


class ShardedBase:
    """The layers of a base whose weights are shared out."""

    def __init__(self, policies: Policies, device: torch.device, size: int) -> None:
        """Share out the base's layers; their parts lie on the device afterwards.

        Args:
            policies: The base and its adapters, on the CPU.
            device: Where the parts go.
            size: Number of processes.

        Raises:
            ConfigError: The base has no list of layers, or this torch cannot do it.
        """
        if "reset_iter_state" not in dict(inspect.getmembers(FSDPModule)):
            raise ConfigError(
                f"model.shard = true needs a newer torch than {torch.__version__}: install torch "
                "2.13 or newer, or set model.shard = false"
            )
        decoder = policies.model.get_base_model().get_decoder()
        layers = getattr(decoder, "layers", None)
        if not isinstance(layers, nn.ModuleList):
            raise ConfigError(
                f"model.shard = true needs a base with a list of decoder layers, and "
                f"{type(decoder).__name__} has none: set model.shard = false"
            )
        mesh = init_device_mesh(device.type, (size,))
        adapters = {p for name in policies.names for p in policies.parameters(name).values()}
        for layer in layers:
            fully_shard(layer, mesh=mesh, ignored_params=adapters)
        outside = {p for p in decoder.parameters() if not isinstance(p, DTensor)}
        self._root = fully_shard(decoder, mesh=mesh, ignored_params=outside)
        self._layers = [layer for layer in layers if isinstance(layer, FSDPModule)]
        policies.model.to(device)
        # The first pass makes the decoder the root of its layers.
        with torch.no_grad():
            decoder(input_ids=torch.zeros((1, 1), dtype=torch.long, device=device), use_cache=False)

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Inside, every process has whole layers and may pass through them as often as it likes."""
        self._root.set_reshard_after_forward(False)
        for layer in self._layers:
            layer.unshard()
        try:
            yield
        finally:
            # This parts them again, and forgets the order of passes that had no backward pass.
            self._root.reset_iter_state()
            self._root.set_reshard_after_forward(True)
