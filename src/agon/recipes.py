"""Recipes: TOML files and `--set` overrides read into a `Config`; errors name the field."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agon.config import Config, TaskConfig, default_source, leaves
from agon.errors import ConfigError

_PLACES = (Path(__file__).parent / "assets" / "recipes", Path(__file__).parents[2] / "recipes")

RESUMABLE = frozenset(
    {
        "checkpoint.every",
        "checkpoint.keep",
        "engine.api_key_variable",
        "engine.folder",
        "engine.gpu_memory",
        "engine.kv_cache_gib",
        "engine.seconds",
        "engine.urls",
        "logging.project",
        "logging.trackers",
        "model.shard",
        "stop.truncated_share",
        "stop.unscored_share",
        "stop.window",
        "training.device",
        "training.process_timeout",
        "training.threads",
        "training.wait_timeout",
        "verifier.workers",
    }
)
"""Settings that may change when a run is resumed: none of them is part of the method. All others
are refused, since half a run with each of two settings is a run of neither."""


def find_recipe(name: str) -> Path:
    """A recipe's file: a path, or the name of one that comes with Agon.

    Raises:
        ConfigError: There is no such file.
    """
    given = Path(name)
    if given.is_file():
        return given
    for place in _PLACES:
        packaged = place / f"{name.removesuffix('.toml').removeprefix('recipes/')}.toml"
        if packaged.is_file():
            return packaged
    known = sorted({path.stem for place in _PLACES for path in place.glob("*.toml")})
    raise ConfigError(
        f"RECIPE: there is no file {name}. Give a TOML file or one of {', '.join(known)}"
    )


def load_recipe(name: str, overrides: Sequence[str] = ()) -> Config:
    """Read a recipe and apply `section.field=value` overrides.

    Raises:
        ConfigError: A file that is not TOML, an unknown key, a wrong value or an impossible
            combination, named.
    """
    path = find_recipe(name)
    try:
        tables = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    return build_config(tables, overrides, origin=str(path))


def build_config(
    tables: Mapping[str, Any], overrides: Sequence[str] = (), origin: str = "configuration"
) -> Config:
    """Validate tables with overrides applied.

    Raises:
        ConfigError: As for `load_recipe`.
    """
    merged: dict[str, Any] = {
        key: dict(value) if isinstance(value, Mapping) else value for key, value in tables.items()
    }
    for override in overrides:
        section, field, value = parse_override(override)
        table = merged.setdefault(section, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{origin}: {section} is not a table")
        table[field] = value
        if isinstance(merged.get("sources"), dict):
            merged["sources"].pop(f"{section}.{field}", None)
    try:
        return Config.model_validate(merged)
    except ValidationError as error:
        raise ConfigError(f"{origin} cannot be used:\n{sentences(error)}") from error


def build_task(values: Mapping[str, Any]) -> TaskConfig:
    """Validate a task's settings alone, without the rules for training.

    Raises:
        ConfigError: An unknown key, a wrong value or an impossible combination, named.
    """
    try:
        return TaskConfig.model_validate(values)
    except ValidationError as error:
        items = [item | {"loc": ("task", *item["loc"])} for item in error.errors()]
        raise ConfigError("; ".join(map(_sentence, items))) from error


def parse_override(text: str) -> tuple[str, str, Any]:
    """`section.field=value`; the value is read as TOML, and as plain text where it is not.

    `null` is no value. `none` is a text: `game.exchange` and `logging.rounds` take it.

    Raises:
        ConfigError: The text has another form.
    """
    name, equals, raw = text.partition("=")
    section, dot, field = name.strip().partition(".")
    if not (equals and dot and section and field):
        raise ConfigError(f"--set: got {text!r}, expected section.field=value")
    raw = raw.strip()
    if raw == "null":
        return section, field, None
    try:
        return section, field, tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        return section, field, raw


def sentences(error: ValidationError) -> str:
    """What is wrong, a line for each field."""
    return "\n".join(f"  {_sentence(item)}" for item in error.errors())


def _sentence(item: Any) -> str:
    """One validation error in words."""
    name = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        known = [full for full, _ in leaves(Config())] + list(Config.model_fields)
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        return f"{name}: there is no such setting{hint}"
    if item["type"] == "value_error":
        return str(item["ctx"]["error"])
    got = f", got {item['input']!r}" if not isinstance(item["input"], Mapping) else ""
    return f"{name}: {item['msg'][0].lower()}{item['msg'][1:]}{got}"


def sources_of(config: Config, overrides: Sequence[str] = ()) -> dict[str, str]:
    """Where each setting's value comes from.

    The recipe's own tag where it has one; `command line` for an override; the default's tag where
    the value is the default; else `recipe`.
    """
    overridden = {".".join(parse_override(text)[:2]) for text in overrides}
    defaults = dict(leaves(Config()))
    result = {}
    for name, value in leaves(config):
        if name in overridden:
            result[name] = "command line"
        elif name in config.sources:
            result[name] = config.sources[name]
        elif value == defaults[name]:
            result[name] = default_source(name)
        else:
            result[name] = "recipe"
    return result


def change_config(config: Config, overrides: Sequence[str]) -> Config:
    """A resumed run's configuration with the overrides that resuming allows.

    Raises:
        ConfigError: An override that would change the method in mid-run.
    """
    for override in overrides:
        section, field, _ = parse_override(override)
        name = f"{section}.{field}"
        if name not in RESUMABLE:
            raise ConfigError(
                f"--set {name}: a resumed run keeps its settings, since half a run with each of "
                "two settings is a run of neither. These may change: "
                + ", ".join(sorted(RESUMABLE))
            )
    return change(config, overrides)


def change(config: Config, overrides: Sequence[str]) -> Config:
    """A configuration with other settings.

    Raises:
        ConfigError: As for `load_recipe`.
    """
    return build_config(json.loads(config.model_dump_json()), overrides, "the run's configuration")
