"""Properties of the frozen base and its two adapters."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

import models
from agon.adapter_folders import FINGERPRINT_FILE
from agon.config import Config
from agon.engines.base import BASE, Sampling
from agon.engines.torch_engine import TorchEngine
from agon.errors import AdapterError
from agon.policies import Policies, fingerprint, load_base
from agon.preflight import read_language
from agon.tasks.countdown import enumerate_problems
from agon.tasks.splits import Split

IDS = torch.tensor([[5, 9, 2, 33, 17, 8, 8, 21]])


def logits(policies: Policies, policy: str) -> torch.Tensor:
    with policies.active(policy), torch.no_grad():
        return policies.model(input_ids=IDS).logits


def plain_logits(model: torch.nn.Module) -> torch.Tensor:
    model.eval()
    with torch.no_grad():
        return model(input_ids=IDS).logits


# The start


def test_a_starts_as_the_base_and_b_apart_from_it() -> None:
    policies = models.tiny_policies(moved=False)
    base = plain_logits(models.tiny_base())
    assert torch.equal(logits(policies, BASE), base)
    assert torch.equal(logits(policies, "a"), base)
    assert (logits(policies, "b") - base).abs().max() > 0.01


def test_a_start_scale_of_zero_starts_both_as_the_base() -> None:
    policies = models.tiny_policies(moved=False, start_scale=0.0)
    assert torch.equal(logits(policies, "a"), logits(policies, BASE))
    assert torch.equal(logits(policies, "b"), logits(policies, BASE))


def test_lora_b_of_b_has_the_deviation_asked_for() -> None:
    policies = models.tiny_policies(moved=False, start_scale=0.05)
    values = [v.flatten() for name, v in policies.parameters("b").items() if "lora_B" in name]
    drawn = torch.cat(values).detach()
    assert drawn.std().item() == pytest.approx(0.05, rel=0.15)
    assert abs(drawn.mean().item()) < 0.01


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_b_starts_near_the_embedded_base_and_not_on_it(seed: int) -> None:
    """The default start: mean token KL between 1e-4 and 1e-2, over replies of the base."""
    config = Config()
    language = read_language(config)
    policies = Policies(load_base(config.model), config.adapters, 2, seed)
    engine = TorchEngine(
        policies, language.prompter.end_token_ids, language.pad_token_id, 64, language.context
    )
    problems = itertools.islice(enumerate_problems(Split.DEV), 0, 400, 25)
    prompts = [language.prompter.plain(problem) for problem in problems]
    keys = [f"start {index}" for index in range(len(prompts))]
    completions = engine.generate(prompts, BASE, Sampling(96), keys)
    divergences = []
    for prompt, completion in zip(prompts, completions, strict=True):
        ids = torch.tensor([[*prompt.token_ids, *completion.token_ids]])
        logprobs = {}
        for policy in (BASE, "b"):
            with policies.active(policy), torch.no_grad():
                logits_LV = policies.model(input_ids=ids).logits[0].double()
            logprobs[policy] = logits_LV[len(prompt.token_ids) - 1 : -1].log_softmax(-1)
        gaps_TV = logprobs["b"] - logprobs[BASE]
        divergences.append((logprobs["b"].exp() * gaps_TV).sum(-1))
    divergence_T = torch.cat(divergences)
    assert len(divergence_T) > 300
    assert 1e-4 < divergence_T.mean().item() < 1e-2


def test_equal_seeds_give_equal_starts_and_different_seeds_different_ones() -> None:
    first, again, other = (models.tiny_policies(seed=seed, moved=False) for seed in (3, 3, 4))
    assert models.digests(first) == models.digests(again)
    assert models.digests(first)["a"] != models.digests(other)["a"]
    assert models.digests(first)["b"] != models.digests(other)["b"]


def test_a_starts_alike_with_and_without_b() -> None:
    one, two = models.tiny_policies(count=1, moved=False), models.tiny_policies(moved=False)
    models.assert_same(models.weights(one, "a"), models.weights(two, "a"))


def test_drawing_the_start_leaves_the_global_generator_as_it_was() -> None:
    base = models.tiny_base()
    before = torch.get_rng_state()
    models.tiny_policies(base=base)
    assert torch.equal(torch.get_rng_state(), before)


def test_adapters_are_float32_over_a_base_in_low_precision() -> None:
    policies = models.tiny_policies(base=models.tiny_base().to(torch.bfloat16))
    for name in policies.names:
        assert {value.dtype for value in policies.parameters(name).values()} == {torch.float32}
    assert policies.model.get_input_embeddings().weight.dtype == torch.bfloat16


def test_every_linear_layer_but_the_head_has_an_adapter() -> None:
    policies = models.tiny_policies()
    adapted = {name.rsplit(".", 2)[0] for name in policies.parameters("b")}
    assert len(adapted) == 2 * 7
    assert len(policies.parameters("b")) == 2 * len(adapted)
    assert not any("lm_head" in name for name in adapted)
    assert policies.parameters("a").keys() == policies.parameters("b").keys()


# One adapter at a time


@pytest.mark.parametrize("policy", [BASE, "a", "b"])
def test_only_the_active_adapter_requires_gradients(policy: str) -> None:
    policies = models.tiny_policies()
    with policies.active(policy):
        trainable = {id(p) for p in policies.model.parameters() if p.requires_grad}
    own = policies.parameters(policy).values() if policy != BASE else ()
    assert trainable == {id(parameter) for parameter in own}


def test_nothing_requires_gradients_outside_of_active() -> None:
    policies = models.tiny_policies()
    with policies.active("b"):
        pass
    assert not any(parameter.requires_grad for parameter in policies.model.parameters())


@pytest.mark.parametrize("policy", ["a", "b"])
def test_a_policy_is_the_base_plus_its_own_delta_alone(policy: str) -> None:
    """Against a model that holds no other adapter (to the bit), and against dense weights."""
    policies = models.tiny_policies()
    alone = get_peft_model(
        models.tiny_base(),
        LoraConfig(r=3, lora_alpha=6, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    dense = models.tiny_base()
    own = models.weights(policies, policy)
    with torch.no_grad():
        for name, parameter in alone.named_parameters():
            if "lora_" in name:
                parameter.copy_(own[name.replace(".default.", ".")])
        for name, lora_a in own.items():
            if "lora_A" in name:
                module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
                lora_b = own[name.replace("lora_A", "lora_B")]
                dense.get_submodule(module).weight += 2.0 * lora_b @ lora_a
    assert torch.equal(logits(policies, policy), plain_logits(alone))
    torch.testing.assert_close(logits(policies, policy), plain_logits(dense), atol=2e-5, rtol=0)
    assert (logits(policies, policy) - logits(policies, BASE)).abs().max() > 0.01


def test_the_base_under_adapters_is_the_base() -> None:
    assert torch.equal(logits(models.tiny_policies(), BASE), plain_logits(models.tiny_base()))


def test_active_restores_what_was_active_before() -> None:
    policies = models.tiny_policies()
    expected = {policy: logits(policies, policy) for policy in (BASE, "a", "b")}

    def now() -> torch.Tensor:
        with torch.no_grad():
            return policies.model(input_ids=IDS).logits

    for outer, inner in itertools.product((BASE, "a", "b"), repeat=2):
        with policies.active(outer):
            with policies.active(inner):
                assert torch.equal(now(), expected[inner])
            assert torch.equal(now(), expected[outer])
            trainable = {id(p) for p in policies.model.parameters() if p.requires_grad}
            own = policies.parameters(outer).values() if outer != BASE else ()
            assert trainable == {id(parameter) for parameter in own}
        assert torch.equal(now(), expected[BASE])


def test_active_restores_after_an_error() -> None:
    policies = models.tiny_policies()
    with pytest.raises(ZeroDivisionError), policies.active("b"):
        _ = 1 / 0
    with torch.no_grad():
        assert torch.equal(policies.model(input_ids=IDS).logits, logits(policies, BASE))


def test_an_unknown_policy_is_named_and_changes_nothing() -> None:
    policies = models.tiny_policies(count=1)
    with (
        policies.active("a"),
        pytest.raises(AdapterError, match=r"'b' does not exist.*base.*a"),
        policies.active("b"),
    ):
        pass
    assert torch.equal(logits(policies, BASE), plain_logits(models.tiny_base()))


# Folders


def saved(policies: Policies, folder: Path) -> Path:
    policies.save(folder)
    return folder


@pytest.mark.parametrize("policy", ["a", "b"])
def test_a_saved_folder_loads_alone_in_peft(policy: str, tmp_path: Path) -> None:
    """PEFT warns of the name "a", which occurs in its prefix "lora_"; it must do no harm."""
    policies = models.tiny_policies()
    folder = saved(policies, tmp_path) / policy
    alone = PeftModel.from_pretrained(models.tiny_base(), str(folder))
    assert torch.equal(plain_logits(alone), logits(policies, policy))


@pytest.mark.parametrize("policy", ["a", "b"])
def test_a_saved_folder_holds_one_adapter_and_nothing_else(policy: str, tmp_path: Path) -> None:
    policies = models.tiny_policies()
    folder = saved(policies, tmp_path) / policy
    models.assert_same(
        load_file(folder / "adapter_model.safetensors"), models.weights(policies, policy)
    )
    note = json.loads((folder / FINGERPRINT_FILE).read_text())
    assert note == {"base_fingerprint": fingerprint(models.tiny_base()), "version": 0}


@pytest.mark.parametrize("count", [1, 2])
def test_a_run_starts_warm_from_saved_folders(count: int, tmp_path: Path) -> None:
    policies = models.tiny_policies(count=count)
    folder = saved(policies, tmp_path)
    warm = models.tiny_policies(count=count, seed=5, moved=False)
    for name in warm.names:
        warm.load(name, folder / name)
    assert models.digests(warm) == models.digests(policies)
    for name in warm.names:
        assert torch.equal(logits(warm, name), logits(policies, name))


def test_either_folder_fits_either_adapter(tmp_path: Path) -> None:
    policies = models.tiny_policies()
    folder = saved(policies, tmp_path)
    swapped = models.tiny_policies(seed=5)
    swapped.load("a", folder / "b")
    swapped.load("b", folder / "a")
    models.assert_same(models.weights(swapped, "a"), models.weights(policies, "b"))
    models.assert_same(models.weights(swapped, "b"), models.weights(policies, "a"))


def test_loading_one_adapter_leaves_the_base_and_the_other_as_they_were(tmp_path: Path) -> None:
    """The parameters stay the same objects too: the optimizers hold them."""
    folder = saved(models.tiny_policies(), tmp_path)
    policies = models.tiny_policies(seed=5)
    before, objects = models.digests(policies), policies.parameters("a").copy()
    policies.load("a", folder / "a")
    after = models.digests(policies)
    assert (after["base"], after["b"]) == (before["base"], before["b"])
    assert after["a"] != before["a"]
    live = {id(parameter) for parameter in policies.model.parameters()}
    for name, parameter in policies.parameters("a").items():
        assert parameter is objects[name]
        assert id(parameter) in live


def test_loading_keeps_what_is_active(tmp_path: Path) -> None:
    folder = saved(models.tiny_policies(), tmp_path)
    policies = models.tiny_policies(seed=5)
    with policies.active("b"):
        policies.load("a", folder / "a")
        trainable = {id(p) for p in policies.model.parameters() if p.requires_grad}
        assert trainable == {id(p) for p in policies.parameters("b").values()}
        with torch.no_grad():
            inside = policies.model(input_ids=IDS).logits
    assert torch.equal(inside, logits(policies, "b"))


def test_a_folder_that_peft_alone_wrote_is_accepted(tmp_path: Path) -> None:
    """Without Agon's note the base cannot be checked by fingerprint, only by shapes."""
    lora = LoraConfig(r=3, lora_alpha=6, target_modules="all-linear", task_type="CAUSAL_LM")
    foreign = get_peft_model(models.tiny_base(), lora)
    with torch.no_grad():
        for parameter in foreign.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.2)
    foreign.save_pretrained(str(tmp_path))
    policies = models.tiny_policies()
    policies.load("b", tmp_path)
    assert torch.equal(logits(policies, "b"), plain_logits(foreign))


def rewrite(folder: Path, **changes: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def cut_weights(folder: Path) -> None:
    path = folder / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-20])


def drop_a_tensor(folder: Path) -> None:
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    tensors.pop(sorted(tensors)[0])
    save_file(tensors, path)


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "the folder is missing": (shutil.rmtree, "holds no adapter_config.json; give a folder"),
    "the weights are missing": (
        lambda folder: (folder / "adapter_model.safetensors").unlink(),
        "holds no readable weights",
    ),
    "the weights are cut short": (cut_weights, "holds no readable weights"),
    "a tensor is missing": (drop_a_tensor, r"1 tensors are missing.*lora_A.*Use adapters"),
    "the configuration is not JSON": (
        lambda folder: (folder / "adapter_config.json").write_text('{"r": '),
        "is not JSON",
    ),
    "the configuration is no table": (
        lambda folder: (folder / "adapter_config.json").write_text("[]"),
        "is not",
    ),
    "it is no LoRA": (
        lambda folder: rewrite(folder, peft_type="IA3"),
        "is a IA3 adapter, expected LORA",
    ),
    "its scale goes by the root of the rank": (
        lambda folder: rewrite(folder, use_rslora=True),
        "use_rslora",
    ),
    "its scale differs between modules": (
        lambda folder: rewrite(folder, alpha_pattern={"q_proj": 1}),
        "alpha_pattern",
    ),
    "the note is cut short": (
        lambda folder: (folder / FINGERPRINT_FILE).write_text('{"base_fing'),
        "cannot be read",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_folder_that_does_not_fit_is_refused_by_name(damage: str, tmp_path: Path) -> None:
    change, message = DAMAGES[damage]
    folder = saved(models.tiny_policies(), tmp_path) / "a"
    change(folder)
    policies = models.tiny_policies(seed=5)
    before = models.digests(policies)
    with pytest.raises(AdapterError, match=message) as caught:
        policies.load("a", folder, field="adapters.warm_a")
    assert str(caught.value).startswith("adapters.warm_a: ")
    assert str(folder) in str(caught.value)
    assert models.digests(policies) == before


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"rank": 2}, r"has rank 3, this run has adapters\.rank = 2; set adapters\.rank = 3"),
        ({"alpha": 5.0}, r"has alpha 6\.0, .* adapters\.alpha = 5\.0; set adapters\.alpha = 6\.0"),
        ({"target_modules": ("q_proj",)}, r"unknown.*same adapters\.target_modules"),
    ],
)
def test_adapters_of_another_configuration_are_refused(
    overrides: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = saved(models.tiny_policies(), tmp_path)
    policies = models.tiny_policies(**overrides)
    with pytest.raises(AdapterError, match=rf"^adapters\.warm_b: .*{message}"):
        policies.load("b", folder / "b", field="adapters.warm_b")


def test_adapters_of_another_base_are_refused(tmp_path: Path) -> None:
    folder = saved(models.tiny_policies(), tmp_path)
    policies = models.tiny_policies(base=models.tiny_base(seed=1))
    with pytest.raises(AdapterError, match=r"another base.*set model\.name_or_path to that base"):
        policies.load("a", folder / "a")


def test_the_fingerprint_tells_bases_apart_and_knows_one_again() -> None:
    one = fingerprint(models.tiny_base())
    assert fingerprint(models.tiny_base()) == one
    assert fingerprint(models.tiny_base(seed=1)) != one
    changed = models.tiny_base()
    with torch.no_grad():
        changed.get_input_embeddings().weight[0, 0] += 1e-3
    assert fingerprint(changed) != one
    assert fingerprint(models.tiny_base(num_hidden_layers=1)) != one


# Distances


def dense_delta(policies: Policies, policy: str) -> torch.Tensor:
    own = models.weights(policies, policy)
    return torch.cat(
        [
            2.0 * (own[name.replace("lora_A", "lora_B")].double() @ value.double()).flatten()
            for name, value in own.items()
            if "lora_A" in name
        ]
    )


def test_weight_changes_are_those_of_the_dense_matrices() -> None:
    policies = models.tiny_policies()
    a, b = dense_delta(policies, "a"), dense_delta(policies, "b")
    changes = policies.weight_changes()
    assert changes["norm_a"] == pytest.approx(a.norm().item(), rel=1e-6)
    assert changes["norm_b"] == pytest.approx(b.norm().item(), rel=1e-6)
    assert changes["distance"] == pytest.approx((a - b).norm().item(), rel=1e-6)
    cosine = torch.dot(a, b) / (a.norm() * b.norm())
    assert changes["cosine"] == pytest.approx(cosine.item(), abs=1e-6)


def test_an_untrained_a_has_not_moved_and_has_no_direction() -> None:
    changes = models.tiny_policies(moved=False).weight_changes()
    assert (changes["norm_a"], changes["cosine"]) == (0.0, 0.0)
    assert changes["distance"] == pytest.approx(changes["norm_b"], rel=1e-9)


def test_equal_adapters_are_at_no_distance_and_of_one_direction(tmp_path: Path) -> None:
    policies = models.tiny_policies()
    policies.load("a", saved(policies, tmp_path) / "b")
    changes = policies.weight_changes()
    assert changes["distance"] == pytest.approx(0.0, abs=1e-6 * changes["norm_b"])
    assert changes["cosine"] == pytest.approx(1.0, abs=1e-9)


def test_one_policy_has_a_norm_alone() -> None:
    assert models.tiny_policies(count=1).weight_changes().keys() == {"norm_a"}


# Dropout


DROPPING = {
    "llama": {"attention_dropout": 0.5},
    "phi": {"attention_dropout": 0.5, "resid_pdrop": 0.5, "embd_pdrop": 0.5},
}


@pytest.mark.parametrize("architecture", DROPPING)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_train_mode_changes_no_figure_since_dropout_is_silenced(
    architecture: str, attention: str
) -> None:
    def base() -> torch.nn.Module:
        overrides = {**DROPPING[architecture], "attn_implementation": attention}
        return models.tiny_base(architecture, **overrides)

    dropping = base()
    still = plain_logits(dropping)
    dropping.train()
    assert not torch.equal(dropping(input_ids=IDS).logits, still), "the control drops nothing"
    policies = models.tiny_policies(base=base())
    expected = logits(policies, "b")
    policies.model.train()
    assert torch.equal(logits(policies, "b"), expected)
