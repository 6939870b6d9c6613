"""What the README says is run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agon.recipes import build_config, find_recipe

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_library_example_runs_as_printed(capsys: pytest.CaptureFixture[str]) -> None:
    [example] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    # Two policies take one optimizer step in each of three steps, then the pair is summarised.
    assert [line.split()[:2] for line in printed[:6]] == [
        [str(step), policy] for step, pair in enumerate(("ab", "ba", "ab")) for policy in pair
    ]
    assert printed[6].startswith("Summary(problems=32, passes=2")


def test_every_recipe_that_the_readme_trains_exists() -> None:
    names = set(re.findall(r"agon train ([a-z0-9.-]+)", README)) - {"--resume"}
    assert {"countdown-agon", "qwen3-0.6b-deepmath", "smollm2-gsm8k"} <= names
    for name in names:
        assert find_recipe(name).is_file()


def test_the_settings_of_the_arms_table_load() -> None:
    rows = re.findall(r"^\| [^|]+ \| (`[^|]+) \|$", README.split("## Arms")[1], re.MULTILINE)
    assert len(rows) >= 8
    for row in rows:
        settings = [text for text in re.findall(r"`([^`]+)`", row) if "=" in text]
        assert settings
        build_config({}, [text.replace(" = ", "=") for text in settings])
