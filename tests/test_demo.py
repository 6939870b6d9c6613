"""`agon demo` on a small scale: two real runs, real evaluations, the table and the plot."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from agon.commands import demo as module
from agon.commands.demo import ARMS, SHOWN, demo
from agon.errors import ConfigError

SMALL = [
    "training.steps=2",
    "training.problems_per_step=2",
    "sampling.group_size=4",
    "evaluation.every=1",
    "evaluation.problems=4",
]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A finished demo's folder and what it printed."""
    out = tmp_path_factory.mktemp("demo") / "demo"
    whole = module._eval_command
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_eval_command", lambda arm: [*whole(arm), "--problems", "12"])
        text = io.StringIO()
        assert demo(out, SMALL, Console(file=text, width=80)) == 0
    return out, text.getvalue()


def test_every_row_of_the_comparison_is_printed_whole_in_80_columns(
    played: tuple[Path, str],
) -> None:
    _, text = played
    for _, _, label in SHOWN:
        assert any(line.startswith(f"{label} ") for line in text.splitlines())
    assert "  pass@2 " in text
    assert "…" not in text


def test_both_sides_trained_the_same_number_of_steps_and_rollouts(
    played: tuple[Path, str],
) -> None:
    out, _ = played
    results = [json.loads((out / name / "evaluations/dev.json").read_text()) for name in ARMS]
    assert [result["step"] for result in results] == [2, 2]
    # The override gives both the same group size, so two stages are twice the rollouts.
    assert results[0]["systems"]["a"]["training_rollouts"] == 2 * 2 * 4
    assert results[1]["systems"]["a"]["training_rollouts"] == 2 * 2 * 4 * 2


def test_the_base_is_the_same_on_both_sides(played: tuple[Path, str]) -> None:
    out, _ = played
    first, second = (
        json.loads((out / name / "evaluations/dev.json").read_text())["attempts"]["base"]
        for name in ARMS
    )
    assert [item for item in first if item["sample"] == 0] == second


def test_the_plot_is_a_picture(played: tuple[Path, str]) -> None:
    out, _ = played
    with Image.open(out / "demo.png") as picture:
        colours = picture.convert("RGB").getcolors(1 << 24)
        assert picture.width > 1000
    assert colours is not None
    assert len(colours) > 10


def test_a_demo_with_other_settings_refuses_the_folder(played: tuple[Path, str]) -> None:
    out, _ = played
    with pytest.raises(ConfigError, match="other settings"):
        demo(out, [*SMALL[1:], "training.steps=3"], Console(quiet=True))


def test_the_shipped_recipes_give_both_sides_the_same_rollouts_and_schedule() -> None:
    arms = [module._arm(name, Path("unused"), []) for name in ARMS]
    grpo, agon = (arm.config for arm in arms)
    assert grpo.sampling.group_size == 2 * agon.sampling.group_size
    assert grpo.training == agon.training
    assert grpo.optimizer == agon.optimizer
    assert grpo.seeds == agon.seeds
