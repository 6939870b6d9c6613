"""The policies: two LoRA adapters, `a` and `b`, over one frozen base.

One adapter is active at a time, or none (`base`). Each adapter's parameters are collected once,
by name, so that an update can never reach the other's; adapters are never merged into the base,
which in low precision would drift.

This module trains nothing: `update` does.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, load_peft_weights, set_peft_model_state_dict
from safetensors import SafetensorError

from agon.adapter_folders import FINGERPRINT_FILE, check_adapter_folder
from agon.config import AdapterConfig, ModelConfig
from agon.engines.base import BASE
from agon.errors import AdapterError, ConfigError
from agon.quantised import quantised, settle


class Policies:
    """The frozen base and its adapters.

    Attributes:
        model: The PEFT model that holds all of them.
        names: The trained adapters, `("a",)` or `("a", "b")`.
        fingerprint: Identifies the base's weights.
    """

    def __init__(self, base: torch.nn.Module, config: AdapterConfig, count: int, seed: int):
        """Wrap a base model with fresh adapters.

        `a` starts as the base (lora_B zero). `b` gets lora_B from a normal distribution of
        deviation `config.start_scale`, so that the two have different starting points; PEFT's
        own "gaussian" draws lora_A and leaves lora_B zero, which would start both as the base.

        Args:
            base: A transformers causal language model; it is frozen and put into eval mode.
            config: Rank, alpha, targets, start.
            count: 1 for `a` alone, 2 for `a` and `b`.
            seed: Draws the initial weights.
        """
        self.names = ("a", "b")[:count]
        self.fingerprint = fingerprint(base)
        _silence_dropout(base)
        lora = lora_config(base, config)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            with warnings.catch_warnings():
                # PEFT warns that "a" occurs in its prefix "lora_"; only its tensor-parallel loading
                # searches by that, and tests/test_policies.py proves the round trip.
                warnings.filterwarnings("ignore", message="Adapter name 'a'")
                warnings.filterwarnings("ignore", category=FutureWarning)
                self.model: PeftModel = get_peft_model(base, lora, adapter_name="a")
                if count == 2:
                    self.model.add_adapter("b", lora)
            self._parameters = {name: self._collect(name) for name in self.names}
            if count == 2:
                with torch.no_grad():
                    for name, parameter in self._parameters["b"].items():
                        if "lora_B" in name:
                            noise = torch.randn(parameter.shape) * config.start_scale
                            parameter.copy_(noise.to(parameter))
        self._versions = dict.fromkeys((BASE, *self.names), 0)
        self._revisions = dict.fromkeys((BASE, *self.names), 0)
        self.model.eval()
        self._select(BASE)

    def _collect(self, name: str) -> dict[str, torch.nn.Parameter]:
        """An adapter's parameters by a name that does not hold the adapter's own."""
        mark = f".{name}."
        return {
            full.replace(mark, "."): parameter
            for full, parameter in self.model.named_parameters()
            if "lora_" in full and mark in full
        }

    def parameters(self, name: str) -> dict[str, torch.nn.Parameter]:
        """The parameters of one adapter, float32, keyed alike for both adapters."""
        return self._parameters[name]

    def version(self, name: str) -> int:
        """Optimizer steps that a policy has had; 0 for the base."""
        return self._versions[name]

    def set_version(self, name: str, version: int) -> None:
        """Record a policy's version after an update or a resume."""
        self._versions[name] = version
        self._revisions[name] += 1

    def revision(self, name: str) -> int:
        """How often a policy's weights have been changed in this process, by updates or loading.

        Whoever keeps a copy of the weights tells by it when the copy is old; versions may repeat.
        """
        return self._revisions[name]

    @contextmanager
    def active(self, name: str) -> Iterator[None]:
        """Forward passes inside use this policy: `base`, `a` or `b`.

        Only the active adapter requires gradients. A backward pass must end inside the block that
        ran its forward: checkpointed activations are recomputed under whatever is active then.
        """
        previous = self._selected
        self._select(name)
        try:
            yield
        finally:
            self._select(previous)

    def _select(self, name: str) -> None:
        if name != BASE and name not in self.names:
            raise AdapterError(f"policy {name!r} does not exist: expected one of {self.known}")
        if name == BASE:
            self.model.base_model.disable_adapter_layers()
        else:
            self.model.base_model.enable_adapter_layers()
            self.model.set_adapter(name)
        for other, parameters in self._parameters.items():
            for parameter in parameters.values():
                parameter.requires_grad_(other == name)
        self._selected = name

    @property
    def known(self) -> tuple[str, ...]:
        """Every policy that can be sampled."""
        return (BASE, *self.names)

    def digest(self, name: str) -> str:
        """A hash of every byte of an adapter."""
        digest = hashlib.sha256()
        for key, parameter in self._parameters[name].items():
            digest.update(key.encode())
            digest.update(parameter.detach().cpu().numpy().tobytes())
        return digest.hexdigest()[:16]

    def save(self, folder: Path, names: Sequence[str] | None = None) -> None:
        """Write adapters, all of them by default, as plain PEFT folders `folder/a`, `folder/b`."""
        names = list(self.names if names is None else names)
        self.model.save_pretrained(
            str(folder), selected_adapters=names, save_embedding_layers=False
        )
        for name in names:
            note = {"base_fingerprint": self.fingerprint, "version": self.version(name)}
            (folder / name / FINGERPRINT_FILE).write_text(json.dumps(note, indent=2) + "\n")

    def load(self, name: str, folder: Path, field: str = "adapter folder") -> None:
        """Put the weights of a PEFT folder into an adapter.

        Args:
            name: `a` or `b`.
            folder: A folder as PEFT saves it.
            field: What the folder was named by, for the error's text.

        Raises:
            AdapterError: The folder is missing or unreadable, or belongs to another base, rank,
                scale or set of target modules.
        """
        lora = self.model.peft_config[name]
        check_adapter_folder(folder, lora.r, lora.lora_alpha, self.fingerprint, field)
        try:
            weights = load_peft_weights(str(folder), device="cpu")
        except Exception as error:
            raise AdapterError(f"{field}: {folder} holds no readable weights: {error}") from error
        expected = self._parameters[name]
        found = weights
        wrong = {key for key in expected if key not in found} | {
            key
            for key, value in found.items()
            if key not in expected or expected[key].shape != value.shape
        }
        if wrong:
            raise AdapterError(
                f"{field}: {folder} does not fit this base: {len(wrong)} tensors are missing, "
                f"unknown or of another shape, such as {sorted(wrong)[0]}. Use adapters trained "
                "over the same base with the same adapters.target_modules and adapters.rank"
            )
        set_peft_model_state_dict(self.model, weights, adapter_name=name)
        self._revisions[name] += 1
        self._select(self._selected)

    def weight_changes(self) -> dict[str, float]:
        """How far the adapters have moved from the base and from each other.

        With D = alpha / rank * B A the change of a weight matrix and <,> the Frobenius product
        over all of them: `norm_a`, `norm_b`, `distance` |D_a - D_b| and `cosine` of the angle
        between them. Computed in rank x rank products; no D is formed.
        """
        names = self.names
        products = {
            (x, y): sum(_inner(*pair) for pair in self._pairs(x, y))
            for x, y in combinations_with_replacement(names, 2)
        }
        norms = {name: max(products[name, name], 0.0) ** 0.5 for name in names}
        result = {f"norm_{name}": norm for name, norm in norms.items()}
        if len(names) == 2:
            cross = products["a", "b"]
            squared = products["a", "a"] + products["b", "b"] - 2 * cross
            result["distance"] = max(squared, 0.0) ** 0.5
            scale = norms["a"] * norms["b"]
            result["cosine"] = cross / scale if scale > 0 else 0.0
        return result

    def _pairs(self, x: str, y: str) -> Iterator[tuple[torch.Tensor, ...]]:
        scale_x = self._scale(x)
        scale_y = self._scale(y)
        for key in self._parameters[x]:
            if "lora_A" in key:
                other = key.replace("lora_A", "lora_B")
                yield (
                    self._parameters[x][key].detach(),
                    self._parameters[x][other].detach() * scale_x,
                    self._parameters[y][key].detach(),
                    self._parameters[y][other].detach() * scale_y,
                )

    def _scale(self, name: str) -> float:
        config = self.model.peft_config[name]
        return float(config.lora_alpha / config.r)


def lora_config(base: torch.nn.Module, config: AdapterConfig) -> LoraConfig:
    """PEFT's settings of either adapter.

    Raises:
        ConfigError: A target names no linear layer of the text decoder.
    """
    targets = adapter_targets(base, config.target_modules)
    return LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        target_modules=targets if isinstance(targets, str) else list(targets),
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )


def adapter_targets(base: Any, targets: str | tuple[str, ...]) -> str | tuple[str, ...]:
    """What gets an adapter, as PEFT is to be told it.

    Vision and audio towers of a multimodal base see nothing in a text game: adapters there would
    cost memory and never move, and vLLM has no place for them. Where a base has linear layers
    outside its text decoder, the decoder's layers are therefore named one by one.

    Args:
        base: A transformers causal language model.
        targets: `all-linear`, or the last parts of module names.

    Raises:
        ConfigError: A target names no linear layer of the text decoder.
    """
    decoder, head = base.get_decoder(), base.get_output_embeddings()
    within = {id(module) for module in decoder.modules()}
    linears = {
        name: id(module) in within
        for name, module in base.named_modules()
        if isinstance(module, torch.nn.Linear) and module is not head
    }
    outputs = [name for name, module in base.named_modules() if module is head]
    inside = [name for name, is_inside in linears.items() if is_inside]
    if targets == "all-linear":
        return targets if len(inside) == len(linears) else tuple(inside)
    chosen = []
    for target in targets:
        named = [*inside, *outputs]  # the head gets an adapter where it is asked for by name
        found = [name for name in named if name == target or name.endswith(f".{target}")]
        if not found:
            known = sorted({name.rpartition(".")[2] for name in inside})
            raise ConfigError(
                f"adapters.target_modules: {target!r} names no linear layer of the text decoder, "
                f"expected some of {', '.join(known)}"
            )
        chosen += found
    return tuple(targets) if len(inside) == len(linears) else tuple(dict.fromkeys(chosen))


def _inner(a_x: torch.Tensor, b_x: torch.Tensor, a_y: torch.Tensor, b_y: torch.Tensor) -> float:
    """<B_x A_x, B_y A_y> as trace((B_x' B_y) (A_y A_x'))."""
    return float(((b_x.double().T @ b_y.double()) * (a_x.double() @ a_y.double().T)).sum())


def _silence_dropout(base: torch.nn.Module) -> None:
    """Turn every dropout off, so that train mode (for checkpointing) changes no figure."""
    for module in base.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            setattr(module, "attention_dropout", 0.0)  # noqa: B010


def fingerprint(base: torch.nn.Module) -> str:
    """A hash of the base: names, shapes, and the first and last values of every tensor."""
    digest = hashlib.sha256()
    for name, tensor in base.state_dict().items():
        flat = tensor.detach().flatten()
        edges = torch.cat([flat[:64], flat[-64:]]).float().cpu().numpy()
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(edges.tobytes())
    return digest.hexdigest()[:16]


def attention_of(name: str) -> dict[str, str]:
    """An attention implementation as transformers is to be told it: for the text model alone.

    Not every tower of a multimodal base has it, and none of them is run.
    """
    return {"": name, "text_config": name}


def load_base(config: ModelConfig, device: torch.device | None = None) -> torch.nn.Module:
    """Load the base into CPU memory; `preflight` has checked that it is there.

    A quantised base is loaded onto the device (the CPU by default), since it is quantised there.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    from agon.assets import model_folder

    logging.disable_progress_bar()
    more = {} if config.quantization == "none" else quantised(config, device or torch.device("cpu"))
    try:
        base: torch.nn.Module = AutoModelForCausalLM.from_pretrained(
            model_folder(config.name_or_path),
            revision=config.revision or "main",
            dtype=config.dtype if config.dtype == "auto" else getattr(torch, config.dtype),
            attn_implementation=attention_of(config.attention),
            trust_remote_code=config.trust_remote_code,
            **more,
        )
    except (OSError, ValueError, SafetensorError) as error:
        raise ConfigError(
            f"model.name_or_path: the weights of {config.name_or_path} cannot be loaded: "
            f"{str(error).strip().splitlines()[0]} Give a complete folder of a causal language "
            "model, or a hub name that this machine can reach"
        ) from error
    if config.quantization != "none":
        settle(base)
    return base
