"""A base in 4 bits: refused where it cannot be had, never changed, one arithmetic for all."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

import models
from agon.config import ModelConfig
from agon.engines.base import Sampling
from agon.errors import ConfigError
from agon.policies import Policies, load_base
from agon.preflight import read_language
from agon.quantised import check_quantization
from agon.recipes import load_recipe
from agon.records import Problem
from agon.workshop import open_workshop
from test_resume import RECIPE, TINY, agon, metrics, settings

NF4 = ModelConfig(quantization="nf4")
needs_bitsandbytes = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed"
)


def test_a_missing_library_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"nf4.* needs bitsandbytes.*pip install"):
        check_quantization(NF4)


def test_a_base_that_is_not_quantised_needs_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    check_quantization(ModelConfig())


@needs_bitsandbytes
def test_this_machine_is_checked_before_anything_is_loaded() -> None:
    check_quantization(NF4)


def policies(**overrides: Any) -> Policies:
    """The embedded base in 4 bits, with adapters away from it."""
    base = load_base(ModelConfig(quantization="nf4", **overrides))
    return models.tiny_policies(base=base)


@needs_bitsandbytes
def test_the_linear_layers_take_half_a_byte_a_weight_and_the_head_stays_whole() -> None:
    from bitsandbytes.nn import Linear4bit

    base, whole = load_base(NF4), load_base(ModelConfig())
    layers = [module for module in base.modules() if isinstance(module, Linear4bit)]
    assert layers
    for layer in layers:
        assert layer.weight.dtype == torch.uint8
        assert layer.weight.numel() * 2 == layer.in_features * layer.out_features
    assert torch.equal(base.get_output_embeddings().weight, whole.get_output_embeddings().weight)


@needs_bitsandbytes
@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_reach_the_adapter_and_nothing_else_checkpointed_or_not(checkpointing) -> None:
    quantised = policies()
    before = models.digests(quantised)
    drafts = models.sampled_by(quantised, "a", [1.0, -0.5, 0.25])
    config = models.settings(training={"device": "cpu", "gradient_checkpointing": checkpointing})
    models.updater(quantised, config).step("a", [drafts], 1e-2)
    after = models.digests(quantised)
    assert after["a"] != before["a"]
    assert (after["base"], after["b"]) == (before["base"], before["b"])


@needs_bitsandbytes
def test_checkpointing_and_shared_prefixes_give_the_plain_gradients() -> None:
    found = []
    for training in ({"gradient_checkpointing": True}, {"share_prefixes": True}):
        quantised = policies()
        drafts = models.sampled_by(quantised, "a", [1.0, -0.5, 0.25])
        config = models.settings(training={"device": "cpu", **training})
        models.updater(quantised, config).backward("a", models.rows_of(drafts), [0.1, 0.2, 0.3])
        found.append(models.gradients(quantised, "a"))
    models.assert_same(*found, relative=1e-5)


@needs_bitsandbytes
def test_the_sampler_gives_the_log_probabilities_of_a_plain_forward_and_folds_nothing() -> None:
    config = load_recipe(RECIPE, ["model.quantization=nf4", "training.device=cpu"])
    workshop = open_workshop(config, read_language(config))
    try:
        assert not workshop.table.engine._folded  # type: ignore[attr-defined]
        before = models.digests(workshop.policies)
        prompt = workshop.language.prompter.plain(
            Problem("p", "Use 2, 3 and 4 to reach 24.", "", "countdown")
        )
        [completion] = workshop.table.engine.generate([prompt], "b", Sampling(24), ["key"])
        with torch.no_grad():
            expected = models.plain_logprobs(
                workshop.policies, "b", prompt.token_ids, completion.token_ids
            )
        assert completion.logprobs == pytest.approx(expected.tolist(), abs=1e-4)
        assert models.digests(workshop.policies) == before
    finally:
        workshop.close()


@needs_bitsandbytes
def test_a_run_over_a_quantised_base_trains_and_is_evaluated(tmp_path: Path) -> None:
    options = settings(
        model={"quantization": "nf4"}, training={"steps": 2}, evaluation={"every": 1}
    )
    run = tmp_path / "run"
    ended = agon(tmp_path, "train", RECIPE, *TINY, *options, "--run-dir", run)
    assert ended.status == 0, ended.err
    assert ended.said == []
    for row in metrics(run)[:2]:
        assert row["update.a.ratio_gap"] < 1e-5
        assert row["update.b.grad_norm"] > 0
