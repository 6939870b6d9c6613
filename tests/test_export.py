"""Exported folders load with plain transformers and PEFT and give the policies' own logits."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer

from agon.assets import model_folder
from agon.commands.export import export
from agon.errors import CheckpointError, ConfigError
from agon.preflight import read_language
from agon.runs import RunFolder
from agon.workshop import load_run_adapters, open_engine
from serving.conftest import make_run

BASE = model_folder("embedded")


def digest(folder: Path) -> dict[str, str]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("export") / "run")


@pytest.fixture(scope="module")
def exported(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    before = digest(Path(BASE)), digest(run)
    out = tmp_path_factory.mktemp("exported") / "out"
    export(run, out, merge=True, console=Console(quiet=True))
    assert (digest(Path(BASE)), digest(run)) == before
    return out


def logits_of(model: torch.nn.Module) -> torch.Tensor:
    ids = AutoTokenizer.from_pretrained(BASE)("make 22 from 4,7,6", return_tensors="pt")
    with torch.no_grad():
        logits: torch.Tensor = model.eval()(input_ids=ids["input_ids"]).logits
    return logits


def own_logits(run: Path, name: str) -> torch.Tensor:
    config = RunFolder(run).read_config()
    policies, _ = open_engine(config, read_language(config))
    load_run_adapters(RunFolder(run), policies, 1)
    with policies.active(name):
        return logits_of(policies.model)


@pytest.mark.parametrize("name", ["a", "b"])
def test_adapter_folders_and_merged_checkpoints_give_the_policys_logits(
    run: Path, exported: Path, name: str
) -> None:
    own = own_logits(run, name)
    plain = logits_of(AutoModelForCausalLM.from_pretrained(BASE))
    adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(BASE), exported / name)
    merged = AutoModelForCausalLM.from_pretrained(exported / f"merged-{name}")
    assert torch.equal(logits_of(adapted), own)
    torch.testing.assert_close(logits_of(merged), own, atol=1e-4, rtol=0)
    assert float((own - plain).abs().max()) > 0.1
    words = AutoTokenizer.from_pretrained(exported / f"merged-{name}")
    assert words.chat_template == AutoTokenizer.from_pretrained(BASE).chat_template


def test_only_safetensors_cards_and_a_launch_line_are_written(exported: Path) -> None:
    files = {str(path.relative_to(exported)) for path in exported.rglob("*") if path.is_file()}
    assert {"README.md", "vllm.sh", "a/README.md", "b/README.md"} <= files
    assert {"a/adapter_model.safetensors", "merged-b/model.safetensors"} <= files
    assert not [name for name in files if name.endswith((".bin", ".pt", ".pth", ".pkl"))]
    for name in ("a", "b"):
        settings = json.loads((exported / name / "adapter_config.json").read_text())
        assert settings["base_model_name_or_path"] == BASE
        assert settings["inference_mode"] is True
        assert (exported / name / "README.md").read_text().startswith("---\nlibrary_name: peft\n")
    launch = (exported / "vllm.sh").read_text()
    assert "--max-loras 2 --max-lora-rank 16" in launch
    assert 'agon-a="$HERE/a" agon-b="$HERE/b"' in launch
    assert "rival {summary}" in (exported / "README.md").read_text()


def test_nothing_is_overwritten_and_a_run_without_checkpoint_is_named(
    run: Path, exported: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="exists already"):
        export(run, exported, merge=False, console=Console(quiet=True))
    with pytest.raises(CheckpointError, match="no run folder"):
        export(tmp_path, tmp_path / "out", merge=False, console=Console(quiet=True))
    (tmp_path / "config.json").write_text((run / "config.json").read_text())
    with pytest.raises(CheckpointError, match="no checkpoint yet"):
        export(tmp_path, tmp_path / "out", merge=False, console=Console(quiet=True))
    assert not (tmp_path / "out").exists()
