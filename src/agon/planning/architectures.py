"""A model's shape without its weights: from its folder, the hub, or the table of this package."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from agon.assets import model_folder
from agon.config import ModelConfig
from agon.errors import ConfigError, Unreachable
from agon.preflight import check_reachable


def read_shape(model: ModelConfig) -> tuple[Any, str | None]:
    """A model's transformers configuration.

    Returns:
        The configuration, and a sentence where it is taken from the package's table.

    Raises:
        Unreachable: The hub is out of reach and the table does not have the model.
        ConfigError: The configuration cannot be read.
    """
    from transformers import AutoConfig

    folder = model_folder(model.name_or_path)
    try:
        check_reachable(folder, model)
    except Unreachable:
        fields = known_shapes().get(model.name_or_path)
        if fields is None:
            raise
        note = (
            f"the shape of {model.name_or_path} is taken from Agon's own table, since the hub is "
            "out of reach"
        )
        return shape_of(fields), note
    try:
        found = AutoConfig.from_pretrained(
            folder, revision=model.revision or "main", trust_remote_code=model.trust_remote_code
        )
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"model.name_or_path: the configuration of {model.name_or_path} cannot be read: "
            f"{str(error).strip().splitlines()[0]} Give a folder with a config.json, or a hub name"
        ) from error
    return found, None


def known_shapes() -> dict[str, dict[str, Any]]:
    """The table: fields of each model's config.json, by its name on the hub."""
    path = Path(__file__).with_name("architectures.toml")
    return tomllib.loads(path.read_text(encoding="utf-8"))


def shape_of(fields: dict[str, Any]) -> Any:
    """A transformers configuration of a table's row."""
    from transformers import AutoConfig

    rest = {name: value for name, value in fields.items() if name != "model_type"}
    return AutoConfig.for_model(fields["model_type"], **rest)
