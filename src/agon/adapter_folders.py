"""Adapter folders on disk, checked before any weight is read. Imports no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agon.errors import AdapterError

FINGERPRINT_FILE = "agon_adapter.json"
"""Written beside PEFT's own files: the base that the adapter belongs to, and its version."""


def read_adapter_config(folder: Path, field: str) -> dict[str, Any]:
    """The `adapter_config.json` of a PEFT folder.

    Raises:
        AdapterError: There is none, or it is not a LoRA's.
    """
    path = folder / "adapter_config.json"
    if not path.is_file():
        raise AdapterError(
            f"{field}: {folder} holds no adapter_config.json; give a folder that PEFT's "
            "save_pretrained wrote (a run keeps its own under checkpoints/step-*/adapters/a)"
        )
    try:
        config: dict[str, Any] = json.loads(path.read_text())
    except ValueError as error:
        raise AdapterError(f"{field}: {path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise AdapterError(f"{field}: {path} is not a table of settings")
    if config.get("peft_type") != "LORA":
        raise AdapterError(
            f"{field}: {folder} is a {config.get('peft_type')} adapter, expected LORA"
        )
    return config


def check_adapter_folder(
    folder: Path, rank: int, alpha: float, base: str | None, field: str
) -> None:
    """Refuse a folder of another rank, scale or base.

    Args:
        folder: A PEFT folder.
        rank: This run's LoRA rank.
        alpha: This run's LoRA alpha.
        base: Fingerprint of this run's base; None while it is not known.
        field: What the folder was named by.

    Raises:
        AdapterError: With the difference and the remedy.
    """
    config = read_adapter_config(folder, field)
    pairs = (("rank", config.get("r"), rank), ("alpha", config.get("lora_alpha"), alpha))
    for name, have, want in pairs:
        if have != want:
            raise AdapterError(
                f"{field}: {folder} has {name} {have}, this run has adapters.{name} = {want}; "
                f"set adapters.{name} = {have}"
            )
    for name in ("use_rslora", "alpha_pattern", "rank_pattern", "use_dora"):
        if config.get(name):
            raise AdapterError(
                f"{field}: {folder} sets {name} = {config[name]}, expected a plain LoRA of one "
                "scale, alpha / rank: give an adapter that was trained without it"
            )
    note = folder / FINGERPRINT_FILE
    if base is None or not note.is_file():
        return
    try:
        trained_over = json.loads(note.read_text())["base_fingerprint"]
    except (ValueError, KeyError, TypeError) as error:
        raise AdapterError(f"{field}: {note} cannot be read: {error}") from error
    if trained_over != base:
        raise AdapterError(
            f"{field}: {folder} was trained over another base "
            f"({config.get('base_model_name_or_path')}, fingerprint {trained_over}; this base has "
            f"{base}): set model.name_or_path to that base"
        )
