"""The sampler's copies are the trainer's adapters, or training stops.

The sampler is a second model that reads the adapter folders (`mirror`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import mirror
import models
from agon.engines.adapter_store import AdapterStore, choose_place
from agon.engines.base import Sampling
from agon.engines.following import FollowingEngine, Sampled, seed_of
from agon.engines.torch_engine import TorchEngine
from agon.errors import EngineError
from agon.policies import Policies
from agon.records import PolicyVersion

SAMPLING = Sampling(12)


def opened(
    tmp_path: Path, policies: Policies | None = None, **faults: Any
) -> tuple[FollowingEngine, mirror.Mirror, Policies]:
    policies = policies or models.tiny_policies()
    backend = mirror.Mirror(**faults)
    return mirror.follow(policies, backend, tmp_path), backend, policies


def move(policies: Policies, name: str, by: float = 0.05) -> None:
    """What an update does, as far as the engine can tell."""
    with torch.no_grad():
        for parameter in policies.parameters(name).values():
            parameter += by * torch.randn(parameter.shape)
    policies.set_version(name, policies.version(name) + 1)


def test_completions_are_the_trainer_s_own_under_the_same_seeds(tmp_path: Path) -> None:
    engine, _, policies = opened(tmp_path)
    engine.prove()
    own = TorchEngine(policies, (mirror.END,), models.PAD, 64, mirror.LONGEST)
    prompts, keys = mirror.PROMPTS * 3, [f"k{i}" for i in range(6)]
    for policy in ("base", "a", "b"):
        found = engine.generate(prompts, policy, SAMPLING, keys)
        expected = own.generate(prompts, policy, SAMPLING, [str(seed_of(key)) for key in keys])
        for one, other in zip(found, expected, strict=True):
            assert one.token_ids == other.token_ids
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
            assert one.truncated == other.truncated


def test_each_completion_names_the_adapter_and_version_of_the_copy_that_wrote_it(
    tmp_path: Path,
) -> None:
    engine, _, policies = opened(tmp_path)
    policies.set_version("a", 3)
    for version in (3, 4):
        [found] = engine.generate(mirror.PROMPTS[:1], "a", SAMPLING, ["k"])
        assert found.policy == PolicyVersion("a", version)
        move(policies, "a")
    [found] = engine.generate(mirror.PROMPTS[:1], "base", SAMPLING, ["k"])
    assert found.policy == PolicyVersion("base", 0)


def test_only_adapters_that_changed_are_renewed_and_old_copies_go(tmp_path: Path) -> None:
    engine, backend, policies = opened(tmp_path)
    assert set(engine.sync()) == {"sync.a.gap", "sync.b.gap"}
    before = backend.loaded
    assert engine.sync() == {}
    move(policies, "b")
    assert set(engine.sync()) == {"sync.b.gap"}
    kept, fresh = set(before) & set(backend.loaded), set(backend.loaded) - set(before)
    assert [name.split("-")[2:4] for name in kept] == [["a", "v0"]]
    assert [name.split("-")[2:4] for name in fresh] == [["b", "v1"]]
    [folder] = tmp_path.iterdir()
    assert sorted(path.name for path in folder.iterdir()) == backend.loaded


def test_weights_that_were_loaded_without_a_new_version_are_renewed_under_another_name(
    tmp_path: Path,
) -> None:
    engine, backend, policies = opened(tmp_path)
    engine.sync()
    before = backend.loaded
    policies.save(tmp_path / "saved")
    policies.load("a", tmp_path / "saved" / "b")
    engine.sync()
    assert len(set(before) & set(backend.loaded)) == 1


def test_a_switch_drains_first_and_compares_before_the_old_copy_goes(tmp_path: Path) -> None:
    engine, backend, policies = opened(tmp_path)
    engine.sync()
    [old] = [name for name in backend.loaded if "-a-" in name]
    move(policies, "a")
    backend.log.clear()
    engine.sync()
    [new] = [name for name in backend.loaded if "-a-" in name]
    assert backend.log == [
        ("drain", ""),
        ("register", new),
        ("sample", new),
        ("unregister", old),
    ]


def test_the_canary_leaves_policies_sampler_and_folder_as_they_were(tmp_path: Path) -> None:
    policies = models.tiny_policies(moved=False)
    before = models.digests(policies)
    engine, backend, _ = opened(tmp_path, policies)
    gaps = engine.prove()
    assert models.digests(policies) == before
    assert backend.loaded == []
    [folder] = tmp_path.iterdir()
    assert list(folder.iterdir()) == []
    assert set(gaps) == {"base", "a", "b"}
    assert max(gaps.values()) < 1e-4


@pytest.mark.parametrize("ignores", ["", "mlp", "q_proj"])
def test_the_canary_finds_a_sampler_that_ignores_adapters_or_some_of_their_modules(
    tmp_path: Path, ignores: str
) -> None:
    """Adapter `a` is fresh and changes nothing yet: it is found out all the same."""
    engine, _, _ = opened(tmp_path, models.tiny_policies(moved=False), ignores=ignores)
    how = "ignores the adapter" if ignores == "" else "the adapter"
    with pytest.raises(EngineError, match=f"the mirror .*{how}.* adapters.target_modules"):
        engine.prove()


def test_the_canary_finds_another_base(tmp_path: Path) -> None:
    engine, _, _ = opened(tmp_path, base=models.tiny_base(seed=1))
    with pytest.raises(EngineError, match=r"does not sample from this run's base.*name_or_path"):
        engine.prove()


def test_the_canary_finds_log_probabilities_of_another_distribution(tmp_path: Path) -> None:
    policies, backend = models.tiny_policies(), mirror.Mirror(temperature_left_out=True)
    with pytest.raises(EngineError, match="--logprobs-mode processed_logprobs"):
        mirror.follow(policies, backend, tmp_path, temperature=0.5).prove()


def test_a_sampler_that_keeps_serving_the_first_weights_stops_the_run(tmp_path: Path) -> None:
    engine, backend, policies = opened(tmp_path, stale=True)
    engine.sync()
    move(policies, "a", by=0.5)
    with pytest.raises(EngineError, match="does not apply the adapter as the trainer does"):
        engine.sync()
    assert backend.stale


def test_small_adapters_that_are_ignored_are_found_by_their_likeness_to_the_base(
    tmp_path: Path,
) -> None:
    """Its gap is far below the limit; what gives it away is that it is the base to the digit."""
    policies = models.tiny_policies(start_scale=0.01, moved=False)
    engine, _, _ = opened(tmp_path, policies, ignores="")
    with pytest.raises(EngineError, match="ignores the adapter: b changes"):
        engine.sync()


def test_a_completion_that_ends_with_a_foreign_token_is_refused(tmp_path: Path) -> None:
    engine, _, _ = opened(tmp_path, ends=tuple(range(2, 20)))
    with pytest.raises(EngineError, match="--generation-config vllm"):
        engine.generate(mirror.PROMPTS * 4, "base", SAMPLING, [str(i) for i in range(8)])


def test_tokens_without_log_probabilities_are_refused(tmp_path: Path) -> None:
    engine, backend, _ = opened(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "sample", lambda *_: [Sampled((3, 4), (-1.0,), False)])
        with pytest.raises(EngineError, match="2 tokens with 1 log-probabilities"):
            engine.generate(mirror.PROMPTS[:1], "base", SAMPLING, ["k"])


def test_what_does_not_fit_is_refused_before_anything_is_sampled(tmp_path: Path) -> None:
    engine, backend, _ = opened(tmp_path)
    backend.log.clear()
    for prompts, policy, sampling, words in (
        (mirror.PROMPTS[:1], "c", SAMPLING, "unknown policy 'c'"),
        (mirror.PROMPTS[:1], "a", Sampling(mirror.LONGEST), "context holds 64"),
    ):
        with pytest.raises(EngineError, match=words):
            engine.generate(prompts, policy, sampling, ["k"])
    assert backend.log == []
    assert engine.generate([], "a", SAMPLING, []) == []


def test_entropies_are_estimates_by_the_sampled_tokens_alone(tmp_path: Path) -> None:
    """Their mean over many completions of one token is the entropy of its distribution."""
    engine, _, policies = opened(tmp_path)
    prompts, keys = mirror.PROMPTS[:1] * 4000, [str(i) for i in range(4000)]
    found = engine.generate(prompts, "b", Sampling(1), keys)
    ids = torch.tensor([mirror.PROMPTS[0].token_ids])
    with policies.active("b"), torch.no_grad():
        logprobs_V = policies.model(input_ids=ids).logits[0, -1].log_softmax(-1)
    entropy = float(-(logprobs_V.exp() * logprobs_V).sum())
    estimate = sum(completion.entropies[0] for completion in found) / len(found)
    deviation = float((logprobs_V.exp() * (logprobs_V + entropy) ** 2).sum()) ** 0.5
    assert abs(estimate - entropy) < 4 * deviation / len(found) ** 0.5


def test_seeds_hang_on_the_key_alone_and_fit_63_bits() -> None:
    seeds = {seed_of(f"train/0/{step}/draft/p/{n}") for step in range(100) for n in range(20)}
    assert len(seeds) == 2000
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**62


def test_closing_unloads_the_copies_and_removes_their_folder(tmp_path: Path) -> None:
    engine, backend, _ = opened(tmp_path)
    engine.sync()
    engine.close()
    assert backend.loaded == []
    assert backend.closed
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_reclaimed_and_a_living_one_s_is_not(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from agon.engines.adapter_store import AdapterStore"
    )
    code += "; print(AdapterStore(Path(sys.argv[1])).folder)"
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    left = Path(ended.stdout.strip())
    assert left.is_dir()
    living = AdapterStore(tmp_path)
    engine, backend, _ = opened(tmp_path)
    engine.prove()
    assert not left.exists()
    assert living.folder.is_dir()
    assert ("reclaim", str(left)) in backend.log


def test_copies_go_to_shared_memory_only_where_it_is_near_and_roomy(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert choose_place(str(tmp_path / "x"), True, run, 1) == tmp_path / "x"
    assert choose_place(None, False, run, 1) == run
    assert choose_place(None, True, run, 2**60) == run
    if os.access("/dev/shm", os.W_OK):
        assert choose_place(None, True, run, 1) == Path("/dev/shm")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EngineError, match=r"cannot be copied to .*engine\.folder"):
        AdapterStore(tmp_path / "file")
