"""The policies without weights: what a run's own code would allocate, counted and not allocated.

torch's `meta` device has shapes and types but no memory. The model is built there from its
configuration, with its adapters; its forward and backward passes then run in a second or so, and
`LiveBytes` counts what they would hold. So the count follows transformers' and PEFT's code as
installed, for every architecture, and no formula has to be kept in step with it.

Two things differ from a run. Attention is replaced by what fused kernels promise (`_Fused`), since
on this device torch would build the whole score matrix. And what libraries take behind torch's
back (packing buffers, workspaces) is not seen.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from peft import get_peft_model
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from agon.config import AdapterConfig
from agon.policies import attention_of, lora_config

POLICY = "a"
"""The adapter that the passes run under; the others are as large."""


@dataclass(slots=True)
class Ghost:
    """A base with its adapters, all of it on the meta device.

    Attributes:
        model: The PEFT model.
        names: Its adapters.
    """

    model: Any
    names: tuple[str, ...]
    versions: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def active(self, name: str) -> Iterator[None]:
        """As `Policies.active`; one adapter stands for every policy."""
        yield

    def version(self, name: str) -> int:
        """As `Policies.version`."""
        return self.versions.get(name, 0)

    @property
    def base(self) -> Any:
        """The transformers model with its adapted layers."""
        return self.model.get_base_model()

    def base_bytes(self) -> int:
        """Weights and buffers of the frozen base, tied ones once."""
        return _storage_bytes(
            tensor
            for owner in (self.model.named_parameters(), self.model.named_buffers())
            for name, tensor in owner
            if "lora_" not in name
        )

    def base_parameters(self) -> int:
        """Weights of the frozen base, tied ones once."""
        return sum(p.numel() for n, p in self.model.named_parameters() if "lora_" not in n)

    def adapter_parameters(self, name: str = POLICY) -> int:
        """Weights of one adapter; they are float32."""
        mark = f".{name}."
        return sum(
            p.numel()
            for full, p in self.model.named_parameters()
            if "lora_" in full and mark in full
        )

    def linears(self) -> dict[str, torch.nn.Linear]:
        """Every linear layer of the base, the head and unused towers included, by name."""
        return {
            name: module
            for name, module in self.base.named_modules()
            if type(module) is torch.nn.Linear and "lora_" not in name
        }


def raise_ghost(
    config: Any, dtype: torch.dtype, attention: str, adapters: AdapterConfig, policies: int
) -> Ghost:
    """Build base and adapters on the meta device.

    Args:
        config: A transformers configuration.
        dtype: Of the base's weights.
        attention: `sdpa` or `eager`.
        adapters: Rank and targets.
        policies: How many adapters.
    """
    from transformers import AutoModelForCausalLM

    names = ("a", "b")[:policies]
    with torch.device("meta"), quiet():
        base = AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation=attention_of(attention)
        )
        lora = lora_config(base, adapters)
        model = get_peft_model(base, lora, adapter_name=names[0])
        for name in names[1:]:
            model.add_adapter(name, lora)
    model.eval()
    model.set_adapter(POLICY)
    for full, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in full and f".{POLICY}." in full)
    return Ghost(model, names)


@contextmanager
def quiet() -> Iterator[None]:
    """Libraries' warnings about names to come are no part of a plan."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the memory of tensors on the meta device that are made within.

    Attributes:
        live: Bytes alive now.
        peak: Most bytes alive at once since `mark`.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self._known: dict[int, weakref.ref[Any]] = {}

    def mark(self) -> int:
        """Begin a new peak; returns what is alive."""
        self.peak = self.live
        return self.live

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and note the storages that it makes."""
        # What goes in was there before, or is known.
        before = {id_ for t in tree_iter((args, kwargs)) if (id_ := _storage_id(t)) is not None}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_iter(result):
            key = _storage_id(tensor)
            if key is not None and key not in before and key not in self._known:
                self._add(key, tensor.untyped_storage())
        return result

    def _add(self, key: int, storage: Any) -> None:
        size = storage.nbytes()
        self.live += size
        self.peak = max(self.peak, self.live)

        def gone(_: Any) -> None:
            self.live -= size
            self._known.pop(key, None)

        self._known[key] = weakref.ref(storage, gone)


def _storage_id(value: Any) -> int | None:
    if isinstance(value, Tensor) and value.device.type == "meta":
        return int(value.untyped_storage()._cdata)
    return None


def _storage_bytes(tensors: Iterator[Tensor]) -> int:
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())
