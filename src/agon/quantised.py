"""A base with linear layers in 4 bits, through bitsandbytes (QLoRA; Dettmers et al. 2023).

The base is frozen, so its quantised weights never change and are never written back. Adapters work
beside them in float32: neither update nor sampling folds one in. This module loads no model.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from agon.config import ModelConfig
from agon.errors import ConfigError

if TYPE_CHECKING:
    import torch


def check_quantization(config: ModelConfig) -> None:
    """Refuse a quantised base where it cannot be had.

    Raises:
        ConfigError: bitsandbytes is missing, or does not work on this machine.
    """
    if config.quantization == "none":
        return
    setting = f'model.quantization = "{config.quantization}"'
    if importlib.util.find_spec("bitsandbytes") is None:
        raise ConfigError(
            f"{setting} needs bitsandbytes, which is not installed: pip install "
            "'agon-rl[bitsandbytes]'"
        )
    try:
        importlib.import_module("bitsandbytes")
        from transformers.integrations import validate_bnb_backend_availability

        validate_bnb_backend_availability(raise_exception=True)
    except (ImportError, RuntimeError, OSError, ValueError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            f"{setting}: bitsandbytes does not work on this machine: {first} Set "
            'model.quantization = "none"'
        ) from error


def quantised(config: ModelConfig, device: torch.device) -> dict[str, Any]:
    """Arguments of `from_pretrained` that quantise the linear layers while they load."""
    import torch
    from transformers import BitsAndBytesConfig

    # With "auto" transformers takes the checkpoint's type for what stays, and float32 to compute.
    dtype = None if config.dtype == "auto" else getattr(torch, config.dtype)
    settings = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type=config.quantization, bnb_4bit_compute_dtype=dtype
    )
    return {"quantization_config": settings, "device_map": {"": str(device)}}


def settle(base: torch.nn.Module) -> None:
    """Keep one arithmetic in sampling and update.

    On a CPU with AVX-512 bitsandbytes packs a layer's weights anew in bfloat16 at its first pass
    without gradients, which refuses widths that are no multiple of 64 and would let the sampler's
    log-probabilities differ from the trainer's.
    """
    from bitsandbytes.nn.modules import Linear4bit

    for module in base.modules():
        if isinstance(module, Linear4bit):
            module.support_avx512bf16_for_cpu = False
