"""Every recipe can be shown and planned; adapters lie in the text decoder and nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from agon.cli import app
from agon.errors import ConfigError
from agon.planning.architectures import known_shapes, shape_of
from agon.planning.ghost import raise_ghost
from agon.planning.plan import refused
from agon.policies import adapter_targets
from agon.recipes import load_recipe

RECIPES = sorted(Path(__file__).parents[2].glob("recipes/*.toml"))
HUB = [path for path in RECIPES if load_recipe(str(path), []).model.name_or_path.count("/") == 1]
TINY = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "vocab_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_can_be_shown_wherever_it_is(path: Path) -> None:
    done = CliRunner().invoke(app, ["train", str(path), "--dry-run"])
    if path.stem.startswith("smollm2") and done.exception is not None:
        assert "model.name_or_path" in str(done.exception)  # a folder that is built first
        return
    assert done.exit_code == 0, done.output
    assert "resolved configuration" in done.output


@pytest.mark.slow
@pytest.mark.parametrize("path", HUB, ids=lambda path: path.stem)
def test_every_recipe_for_the_hub_fits_a_card_of_80_gb_by_its_plan(path: Path) -> None:
    cards = "8" if "accelerate launch" in path.read_text() else "1"
    done = CliRunner().invoke(app, ["plan", str(path), "--card", "h100", "--cards", cards])
    assert done.exit_code == 0, done.output


def small_shape(name: str) -> Any:
    """A published architecture, made small; its layers keep their kinds."""
    fields = dict(known_shapes()[name])

    def shrink(part: dict[str, Any]) -> dict[str, Any]:
        made = {key: shrink(v) if isinstance(v, dict) else v for key, v in part.items()}
        made |= {key: value for key, value in TINY.items() if key in made}
        if "layer_types" in made:
            made["layer_types"] = made["layer_types"][-8:]
            made["num_hidden_layers"] = len(made["layer_types"])
        elif "num_kv_shared_layers" in made:
            made |= {"num_hidden_layers": 12, "num_kv_shared_layers": 6}
        elif "num_hidden_layers" in made:
            made["num_hidden_layers"] = 4
        return made

    return shape_of(shrink(fields))


@pytest.mark.parametrize("path", HUB, ids=lambda path: path.stem)
def test_adapters_lie_in_every_layer_of_the_text_decoder_and_nowhere_else(path: Path) -> None:
    config = load_recipe(str(path), [])
    shape = small_shape(config.model.name_or_path)
    ghost = raise_ghost(shape, torch.float32, "sdpa", config.adapters, 2)
    adapted = {
        name.partition(".lora_A")[0]
        for name, _ in ghost.model.named_parameters()
        if ".lora_A.a." in name
    }
    assert adapted
    assert not [name for name in adapted if "vision" in name or "audio" in name]
    decoder = ghost.base.get_decoder()
    linears = [m for m in decoder.modules() if type(m) is torch.nn.Linear]
    assert linears
    for index, layer in enumerate(decoder.layers):
        within = {id(module) for module in layer.modules()}
        there = [name for name, m in ghost.model.named_modules() if id(m) in within]
        assert adapted & set(there), f"layer {index} has no adapter"


@pytest.mark.parametrize("path", HUB, ids=lambda path: path.stem)
def test_the_in_process_engine_is_named_only_where_it_can_sample(path: Path) -> None:
    config = load_recipe(str(path), [])
    shape = small_shape(config.model.name_or_path)
    ghost = raise_ghost(shape, torch.float32, "sdpa", config.adapters, 2)

    class Held:
        def __init__(self) -> None:
            self.ghost = ghost

    reason = refused(Held())  # type: ignore[arg-type]
    assert (reason is None) or config.engine.kind != "torch"
    if reason is not None:
        assert "vLLM" in reason


class Base(torch.nn.Module):
    """A text decoder, a vision tower and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.text = torch.nn.ModuleDict({"q_proj": torch.nn.Linear(2, 2), "down": lin()})
        self.vision = torch.nn.ModuleDict({"q_proj": torch.nn.Linear(2, 2)})
        self.lm_head = lin()

    def get_decoder(self) -> torch.nn.Module:
        return self.text

    def get_output_embeddings(self) -> torch.nn.Module:
        return self.lm_head


def lin() -> torch.nn.Linear:
    return torch.nn.Linear(2, 2)


def test_towers_are_left_out_and_the_head_is_adapted_by_name_alone() -> None:
    base = Base()
    assert set(adapter_targets(base, "all-linear")) == {"text.q_proj", "text.down"}
    assert adapter_targets(base, ("q_proj",)) == ("text.q_proj",)
    assert adapter_targets(base, ("lm_head",)) == ("lm_head",)
    with pytest.raises(ConfigError, match="'qkv' names no linear layer"):
        adapter_targets(base, ("qkv",))
