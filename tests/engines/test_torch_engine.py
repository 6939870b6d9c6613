"""Properties of the in-process engine, on small random models with random adapters."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model
from scipy.stats import chisquare

from agon.engines import prefill as prefill_module
from agon.engines import spans
from agon.engines.base import Sampling
from agon.engines.cache import Lane
from agon.engines.folded import FoldedLinears
from agon.engines.sampler import generator, sample
from agon.engines.torch_engine import TorchEngine
from agon.errors import EngineError
from agon.records import Completion, Prompt

VOCABULARY, PAD, END = 61, 0, 1
CONTEXT = 256
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_hidden_layers": 3,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": PAD,
    "eos_token_id": END,
    "bos_token_id": None,
    "initializer_range": 0.3,
}
SLIDING = {
    "num_hidden_layers": 4,
    "sliding_window": 6,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}


def config_of(architecture: str) -> Any:
    match architecture:
        case "llama":
            return transformers.LlamaConfig(**COMMON)
        case "qwen3":
            return transformers.Qwen3Config(**COMMON)
        case "mistral":
            return transformers.MistralConfig(**COMMON, sliding_window=6)
        case "gemma3":
            return transformers.Gemma3TextConfig(**COMMON | SLIDING, query_pre_attn_scalar=8)
        case "gemma4":
            shared = {"num_kv_shared_layers": 2, "hidden_size_per_layer_input": 8}
            ple = {"vocab_size_per_layer_input": VOCABULARY, "global_head_dim": 16}
            return transformers.Gemma4TextConfig(**COMMON | SLIDING | shared | ple)
    raise AssertionError(architecture)


ARCHITECTURES = ["llama", "qwen3", "mistral", "gemma3", "gemma4"]


class StandInPolicies:
    """A base with the random adapters a and b."""

    def __init__(self, config: Any, scale: float = 0.3, dtype: torch.dtype = torch.float32) -> None:
        torch.manual_seed(0)
        base = transformers.AutoModelForCausalLM.from_config(config).to(dtype)
        targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        lora = LoraConfig(r=4, lora_alpha=8, target_modules=targets, task_type="CAUSAL_LM")
        self.model = get_peft_model(base, lora, adapter_name="a")
        self.model.add_adapter("b", lora)
        for name, parameter in self.model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=scale)
        self.model.eval()

    @contextmanager
    def active(self, name: str) -> Iterator[None]:
        if name == "base":
            with self.model.disable_adapter():
                yield
        else:
            self.model.set_adapter(name)
            yield

    def version(self, name: str) -> int:
        return {"base": 0, "a": 3, "b": 5}[name]


@cache
def policies_of(architecture: str) -> StandInPolicies:
    return StandInPolicies(config_of(architecture))


def engine_of(architecture: str, slots: int = 64, ends: tuple[int, ...] = (END,)) -> TorchEngine:
    return TorchEngine(policies_of(architecture), ends, PAD, slots, CONTEXT)


def prompt_of(*token_ids: int) -> Prompt:
    return Prompt("", token_ids, thinking_open=False)


def prompts_of(*lengths: int) -> list[Prompt]:
    rng = np.random.default_rng(7)
    return [prompt_of(*rng.integers(2, VOCABULARY, size=length).tolist()) for length in lengths]


def keys_of(number: int) -> list[str]:
    return [f"key {index}" for index in range(number)]


def plain_forward(
    policies: StandInPolicies, policy: str, prompt: Prompt, completion: Completion, heat: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies from one uncached pass over prompt and completion."""
    ids = torch.tensor([[*prompt.token_ids, *completion.token_ids]])
    with policies.active(policy), torch.no_grad():
        logits_TV = policies.model(input_ids=ids, use_cache=False).logits[0].double() / heat
    logprobs_TV = logits_TV[len(prompt.token_ids) - 1 : -1].log_softmax(-1)
    tokens_T1 = torch.tensor(completion.token_ids)[:, None]
    entropies_T = -(logprobs_TV.exp() * logprobs_TV).sum(-1)
    return logprobs_TV.gather(1, tokens_T1)[:, 0], entropies_T


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("policy", ["base", "a", "b"])
def test_logprobs_and_entropies_are_those_of_a_plain_forward(
    architecture: str, policy: str
) -> None:
    prompts = prompts_of(3, 11, 7, 1, 20, 7)
    prompts.append(prompts[1])
    heat = 1.0 if policy == "a" else 1.7
    engine = engine_of(architecture, slots=3)
    completions = engine.generate(prompts, policy, Sampling(24, heat), keys_of(len(prompts)))
    assert max(len(completion.token_ids) for completion in completions) > 12
    for prompt, completion in zip(prompts, completions, strict=True):
        logprobs, entropies = plain_forward(engine.policies, policy, prompt, completion, heat)
        torch.testing.assert_close(
            torch.tensor(completion.logprobs).double(), logprobs, atol=1e-4, rtol=0
        )
        torch.testing.assert_close(
            torch.tensor(completion.entropies).double(), entropies, atol=1e-4, rtol=0
        )


def test_eager_attention_and_low_precision_bases_are_sampled_alike() -> None:
    prompts = prompts_of(3, 11, 7, 20)
    for attention, dtype, tolerance in (("eager", "float32", 1e-4), ("sdpa", "bfloat16", 0.15)):
        config = config_of("gemma3")
        config._attn_implementation = attention
        policies = StandInPolicies(config, dtype=getattr(torch, dtype))
        engine = TorchEngine(policies, (END,), PAD, 3, CONTEXT)
        completions = engine.generate(prompts, "b", Sampling(24), keys_of(4))
        for prompt, completion in zip(prompts, completions, strict=True):
            logprobs, _ = plain_forward(policies, "b", prompt, completion, 1.0)
            difference = np.abs(np.array(completion.logprobs) - logprobs.numpy())
            assert difference.mean() < tolerance


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_tokens_hang_on_the_key_alone(architecture: str) -> None:
    prompts = prompts_of(5, 2, 30, 9, 9, 14, 3, 8, 17, 4)
    prompts += prompts[:4]
    keys = keys_of(len(prompts))

    def tokens(chosen: list[int], slots: int) -> list[tuple[int, ...]]:
        engine = engine_of(architecture, slots, ends=(1, 2, 3, 4))
        completions = engine.generate(
            [prompts[index] for index in chosen],
            "a",
            Sampling(40),
            [keys[index] for index in chosen],
        )
        return [completion.token_ids for completion in completions]

    everything = list(range(len(prompts)))
    alone = [tokens([index], slots=1)[0] for index in everything]
    assert len(set(map(len, alone))) > 3
    assert tokens(everything, slots=64) == alone
    assert tokens(everything, slots=3) == alone
    assert tokens(everything[::-1], slots=5) == alone[::-1]


def test_finished_rows_leave_the_others_as_they_were() -> None:
    """With many end tokens rows finish all the time; each equals its one-at-a-time sample."""
    ends = tuple(range(1, 12))
    prompts = prompts_of(*range(1, 60))
    keys = keys_of(len(prompts))
    crowded = engine_of("gemma3", slots=7, ends=ends).generate(prompts, "b", Sampling(80), keys)
    alone = engine_of("gemma3", slots=1, ends=ends).generate(prompts, "b", Sampling(80), keys)
    for one, other in zip(crowded, alone, strict=True):
        assert one.token_ids == other.token_ids
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)


def test_long_prompts_may_enter_beside_short_rows() -> None:
    """A prompt longer than anything in the cache moves what lies there."""
    prompts = prompts_of(2, 2, 2, 120, 2)
    engine = engine_of("llama", slots=2)
    completions = engine.generate(prompts, "a", Sampling(100), keys_of(5))
    for prompt, completion in zip(prompts, completions, strict=True):
        logprobs, _ = plain_forward(engine.policies, "a", prompt, completion, 1.0)
        np.testing.assert_allclose(completion.logprobs, logprobs.numpy(), atol=1e-4)


def test_different_keys_give_different_samples() -> None:
    prompts = prompts_of(5) * 8
    completions = engine_of("llama").generate(prompts, "base", Sampling(20), keys_of(8))
    assert len({completion.token_ids for completion in completions}) == 8


def test_first_tokens_are_distributed_as_the_softmax() -> None:
    number, prompt = 4000, prompts_of(6)[0]
    engine = engine_of("llama", slots=4000)
    completions = engine.generate([prompt] * number, "a", Sampling(1), keys_of(number))
    with engine.policies.active("a"), torch.no_grad():
        ids = torch.tensor([prompt.token_ids])
        probabilities_V = engine.policies.model(input_ids=ids).logits[0, -1].double().softmax(-1)
    firsts = [completion.token_ids[0] for completion in completions]
    seen_V = np.bincount(firsts, minlength=VOCABULARY)
    expected_V = probabilities_V.numpy() * number
    frequent_V = expected_V >= 5
    observed = np.append(seen_V[frequent_V], seen_V[~frequent_V].sum())
    expected = np.append(expected_V[frequent_V], expected_V[~frequent_V].sum())
    assert frequent_V.sum() > 10
    assert chisquare(observed, expected).pvalue > 1e-3


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_temperature_zero_equals_greedy_generate(architecture: str) -> None:
    prompts = prompts_of(9, 4, 15)
    engine = engine_of(architecture, slots=2)
    completions = engine.generate(prompts, "b", Sampling(20, 0.0), keys_of(3))
    for prompt, completion in zip(prompts, completions, strict=True):
        ids = torch.tensor([prompt.token_ids])
        with engine.policies.active("b"):
            greedy = engine.policies.model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=20,
                eos_token_id=END,
                pad_token_id=PAD,
            )
        assert completion.token_ids == tuple(greedy[0, ids.shape[1] :].tolist())
        logprobs, _ = plain_forward(engine.policies, "b", prompt, completion, 1.0)
        np.testing.assert_allclose(completion.logprobs, logprobs.numpy(), atol=1e-4)


def test_truncated_says_whether_an_end_token_was_reached() -> None:
    ends = (END, 5, 6, 7)
    prompts = prompts_of(*[4] * 40)
    completions = engine_of("llama", ends=ends).generate(prompts, "a", Sampling(12), keys_of(40))
    assert {completion.truncated for completion in completions} == {True, False}
    for completion in completions:
        assert len(completion.logprobs) == len(completion.entropies) == len(completion.token_ids)
        assert not set(completion.token_ids[:-1]) & set(ends)
        assert completion.truncated == (completion.token_ids[-1] not in ends)
        assert len(completion.token_ids) == 12 or not completion.truncated


@pytest.mark.parametrize("slots", [1, 3, 64])
def test_a_limit_of_its_own_cuts_a_row_and_changes_nothing_before(slots: int) -> None:
    """Without an end token lengths are the limits, and each row begins as its longest sample."""
    prompts = prompts_of(5, 2, 30, 9, 9, 14) * 2
    keys, limits = keys_of(12), [1, 20, 3, 2, 40, 7, 40, 1, 1, 19, 5, 33]
    engine = engine_of("gemma3", slots=slots, ends=())
    whole = engine.generate(prompts, "b", Sampling(40), keys)
    cut = engine.generate(prompts, "b", Sampling(40), keys, limits=limits)
    assert {len(completion.token_ids) for completion in whole} == {40}
    for one, other, limit in zip(cut, whole, limits, strict=True):
        assert one.token_ids == other.token_ids[:limit]
        assert one.truncated
        np.testing.assert_allclose(one.logprobs, other.logprobs[:limit], atol=1e-4)


def test_an_end_token_comes_before_its_rows_limit() -> None:
    ends = tuple(range(1, 20))
    prompts, limits = prompts_of(*[4] * 40), [6, 12] * 20
    engine = engine_of("llama", ends=ends)
    completions = engine.generate(prompts, "a", Sampling(12), keys_of(40), limits=limits)
    assert {completion.truncated for completion in completions} == {True, False}
    for completion, limit in zip(completions, limits, strict=True):
        assert completion.truncated == (completion.token_ids[-1] not in ends)
        assert len(completion.token_ids) <= limit
        assert len(completion.token_ids) == limit or not completion.truncated


def test_a_row_needs_room_for_its_own_limit_alone() -> None:
    engine, prompts = engine_of("llama", ends=()), prompts_of(250, 3)
    completions = engine.generate(prompts, "a", Sampling(240), keys_of(2), limits=[6, 240])
    assert [len(completion.token_ids) for completion in completions] == [6, 240]
    with pytest.raises(EngineError, match=r"250 tokens and its limit = 7 make 257.*256"):
        engine.generate(prompts, "a", Sampling(240), keys_of(2), limits=[7, 240])


@pytest.mark.parametrize(
    ("limits", "words"),
    [([5], "2 prompts came with 1 limits"), ([5, 0], "between 0 and 5"), ([5, 9], "expected 1 to")],
)
def test_limits_out_of_range_are_refused(limits: list[int], words: str) -> None:
    with pytest.raises(EngineError, match=words):
        engine_of("llama").generate(prompts_of(3, 4), "a", Sampling(8), keys_of(2), limits=limits)


def test_each_policy_writes_its_own_completions() -> None:
    prompts = prompts_of(6) * 4
    engine = engine_of("qwen3")
    by_policy = {
        name: engine.generate(prompts, name, Sampling(15), keys_of(4))
        for name in ("base", "a", "b")
    }
    logprobs = {name: completions[0].logprobs[0] for name, completions in by_policy.items()}
    assert len(set(logprobs.values())) == 3
    versions = {(c.policy.name, c.policy.version) for many in by_policy.values() for c in many}
    assert versions == {("base", 0), ("a", 3), ("b", 5)}


def state_of(model: torch.nn.Module) -> tuple[str, list[bool], list[bool]]:
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.numpy().tobytes())
    gradients = [parameter.requires_grad for parameter in model.parameters()]
    return digest.hexdigest(), gradients, [module.training for module in model.modules()]


def test_generate_changes_nothing_of_the_policies() -> None:
    policies = StandInPolicies(config_of("llama"))
    policies.model.set_adapter("a")
    policies.model.train()
    policies.model.get_base_model().model.layers[1].eval()
    policies.model.get_base_model().gradient_checkpointing_enable()
    before, random_state = state_of(policies.model), torch.random.get_rng_state()
    engine = TorchEngine(policies, (END,), PAD, 4, CONTEXT)
    (trained,) = engine.generate(prompts_of(5), "a", Sampling(10), ["key"])
    assert state_of(policies.model) == before
    assert torch.equal(torch.random.get_rng_state(), random_state)
    assert policies.model.get_base_model().is_gradient_checkpointing
    (plain,) = engine_of("llama").generate(prompts_of(5), "a", Sampling(10), ["key"])
    assert trained.token_ids == plain.token_ids


def test_tokens_are_told_as_they_are_sampled() -> None:
    told: dict[int, list[int]] = {}
    completions = engine_of("llama", slots=2).generate(
        prompts_of(3, 8, 5, 5),
        "a",
        Sampling(9),
        keys_of(4),
        on_token=lambda request, token: told.setdefault(request, []).append(token),
    )
    assert [tuple(told[request]) for request in range(4)] == [c.token_ids for c in completions]


def test_equal_prompts_are_prefilled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of("llama", slots=3)
    shapes = []
    forward = engine.forward

    def counted(ids: torch.Tensor, *rest: Any) -> torch.Tensor:
        shapes.append(tuple(ids.shape))
        return forward(ids, *rest)

    monkeypatch.setattr(engine, "forward", counted)
    engine.generate(prompts_of(6, 9) * 5, "a", Sampling(7), keys_of(10))
    assert sum(rows for rows, length in shapes if length > 1) == 2
    assert max(rows for rows, length in shapes if length == 1) == 3


@pytest.mark.parametrize(("window", "most"), [(None, 3 * 500 + 64), (32, 40 + 64)])
def test_memory_grows_with_the_rows_and_not_with_their_limit(window: int | None, most: int) -> None:
    """Growing by half at least, so that copying costs no more than a few columns a step."""
    lane, columns = Lane(window), set()
    prompt = torch.zeros(3, 2, 20, 4)
    lane.lay_out((prompt, prompt), 3, 0, 0, 20, limit=32_000)
    lane.insert(0, (prompt, prompt), [0, 1, 2])
    for length in range(20, 500):
        token = torch.full((3, 2, 1, 4), float(length))
        if lane.full(0):
            lane.lay_out((token, token), 3, 3, length, 0, limit=32_000)
        keys, _ = lane.append((token, token), length + 1)
        columns.add(lane.buffers_BHCD[0].shape[2])
        if length >= 30:
            assert keys[2, 1, -10:, 0].tolist() == list(range(length - 9, length + 1))
        assert keys.shape[2] == (length + 1 if window is None else min(length + 1, window))
    assert max(columns) <= most
    assert len(columns) <= 6


def test_no_prompts_give_no_completions() -> None:
    assert engine_of("llama").generate([], "a", Sampling(5), []) == []


def test_a_prompt_that_cannot_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(EngineError, match=r"30 tokens.*sampling\.max_new_tokens = 240.*256"):
        engine_of("llama").generate(prompts_of(3, 30), "a", Sampling(240), keys_of(2))


def test_unknown_policies_and_missing_keys_are_refused() -> None:
    with pytest.raises(EngineError, match="unknown policy 'c'"):
        engine_of("llama").generate(prompts_of(3), "c", Sampling(5), ["key"])
    with pytest.raises(EngineError, match="keys"):
        engine_of("llama").generate(prompts_of(3), "a", Sampling(5), [])
    with pytest.raises(EngineError, match="no tokens"):
        engine_of("llama").generate([prompt_of()], "a", Sampling(5), ["key"])


def test_models_with_recurrent_layers_are_refused() -> None:
    linear = {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
    config = transformers.Qwen3_5TextConfig(**COMMON | linear)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    policies = StandInPolicies.__new__(StandInPolicies)
    policies.model = get_peft_model(model, LoraConfig(target_modules=["down_proj"]))
    with pytest.raises(EngineError, match=r"Qwen3_5.*linear_attention"):
        TorchEngine(policies, (END,), PAD, 4, CONTEXT)


def test_diverged_weights_are_an_error_and_no_sample() -> None:
    policies = StandInPolicies(config_of("llama"), scale=float("inf"))
    with pytest.raises(EngineError, match="not finite"):
        TorchEngine(policies, (END,), PAD, 4, CONTEXT).generate(
            prompts_of(3), "a", Sampling(5), ["key"]
        )


@pytest.mark.parametrize("size", [5, 700, 1024, 1025, 1300, 4096])
@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53])
def test_impossible_tokens_are_never_drawn(size: int, uniform: float) -> None:
    generous = torch.Generator().manual_seed(size)
    logits_BV = torch.randn(64, size, generator=generous) * 3
    logits_BV[torch.rand(64, size, generator=generous) < 0.7] = float("-inf")
    logits_BV[:, 0] = logits_BV[:, -1] = float("-inf")
    logits_BV[:, size // 2] = 0.0
    uniforms_B = torch.full((64,), uniform, dtype=torch.float64)
    tokens_B, logprobs_B, entropies_B = sample(logits_BV, uniforms_B, 1.0)
    expected_BV = logits_BV.double().log_softmax(-1)
    expected_B = expected_BV.gather(1, tokens_B[:, None])[:, 0]
    assert torch.isfinite(expected_B).all()
    torch.testing.assert_close(logprobs_B, expected_B, atol=1e-5, rtol=0)
    plain_B = -(expected_BV.exp() * expected_BV.clamp(min=-1e4)).sum(-1)
    torch.testing.assert_close(entropies_B, plain_B, atol=1e-4, rtol=0)


@pytest.mark.parametrize("size", [700, 5000])
def test_the_token_is_where_the_cumulative_distribution_passes_the_number(size: int) -> None:
    random = torch.Generator().manual_seed(size)
    logits_BV = torch.randn(512, size, generator=random) * 2
    uniforms_B = torch.rand(512, generator=random, dtype=torch.float64)
    tokens_B, _, _ = sample(logits_BV, uniforms_B, 0.8)
    cumulative_BV = (logits_BV.double() / 0.8).softmax(-1).cumsum(-1)
    upper_B = cumulative_BV.gather(1, tokens_B[:, None])[:, 0]
    lower_B = cumulative_BV.gather(1, (tokens_B[:, None] - 1).clamp(min=0))[:, 0]
    lower_B[tokens_B == 0] = 0
    assert (lower_B - 1e-6 <= uniforms_B).all()
    assert (uniforms_B <= upper_B + 1e-6).all()


def test_a_generator_hangs_on_its_key_and_not_on_how_it_is_read() -> None:
    whole = generator("seed 0, problem x").random(128)
    halves = generator("seed 0, problem x")
    np.testing.assert_array_equal(whole, np.append(halves.random(64), halves.random(64)))
    assert not np.array_equal(whole, generator("seed 0, problem y").random(128))


# Prefill in slices


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_long_prompt_is_prefilled_in_slices(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = prompts_of(30, 7, 7, 3, 19)
    whole = engine_of(architecture).generate(prompts, "a", Sampling(10), keys_of(5))
    widths: list[int] = []
    engine = engine_of(architecture)
    forward = engine.forward

    def noted(ids: torch.Tensor, positions: torch.Tensor, masks: Any, cache: Any) -> torch.Tensor:
        widths.append(ids.numel())
        return forward(ids, positions, masks, cache)

    monkeypatch.setattr(engine, "forward", noted)
    monkeypatch.setattr(prefill_module, "PREFILL_TOKENS", 8)
    sliced = engine.generate(prompts, "a", Sampling(10), keys_of(5))
    assert max(widths) <= 8
    for one, other in zip(whole, sliced, strict=True):
        assert one.token_ids == other.token_ids
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)


# Folded weights


def logprobs_of(completions: list[Completion]) -> np.ndarray:
    return np.concatenate([completion.logprobs for completion in completions])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_attention_by_spans_changes_no_more_than_rounding(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of 3 to 60 tokens that end one after the other, so that gaps are closed all the time."""
    prompts = prompts_of(*range(3, 61, 3), 3, 3, 50, 50)
    limits = [5 + 7 * index % 23 for index in range(len(prompts))]
    split = []
    attend = spans._attend

    def watched(module: Any, query: Any, *states: Any, **options: Any) -> Any:
        if query.shape[2] == 1:
            split.append(len(spans._active.get()))
        return attend(module, query, *states, **options)

    def run() -> list[Completion]:
        split.clear()
        engine = engine_of(architecture, slots=16, ends=())
        return engine.generate(prompts, "b", Sampling(30), keys_of(len(prompts)), limits=limits)

    monkeypatch.setitem(transformers.AttentionInterface._global_mapping, spans.NAME, watched)
    monkeypatch.setattr(spans, "_CALL", 1e12)
    whole = run()
    assert split
    assert not any(split)
    monkeypatch.setattr(spans, "_CALL", 0)
    parts = run()
    assert sum(number > 1 for number in split) > len(split) / 2
    assert [c.token_ids for c in parts] == [c.token_ids for c in whole]
    np.testing.assert_allclose(logprobs_of(parts), logprobs_of(whole), atol=2e-5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("policy", ["base", "a", "b"])
def test_folding_changes_no_more_than_rounding(architecture: str, policy: str) -> None:
    policies = policies_of(architecture)
    prompts = prompts_of(3, 11, 7)
    results = [
        TorchEngine(policies, (END,), PAD, 4, CONTEXT, fold=fold).generate(
            prompts, policy, Sampling(12), keys_of(3)
        )
        for fold in (False, True)
    ]
    assert [c.token_ids for c in results[0]] == [c.token_ids for c in results[1]]
    np.testing.assert_allclose(logprobs_of(results[0]), logprobs_of(results[1]), atol=1e-4)


def test_folded_weights_follow_every_change() -> None:
    policies = StandInPolicies(config_of("qwen3"))
    engine = TorchEngine(policies, (END,), PAD, 4, CONTEXT)
    prompts = prompts_of(3, 11)

    def now(policy: str) -> np.ndarray:
        folded, plain = (
            logprobs_of(sampler.generate(prompts, policy, Sampling(12), keys_of(2)))
            for sampler in (engine, TorchEngine(policies, (END,), PAD, 4, CONTEXT, fold=False))
        )
        np.testing.assert_allclose(folded, plain, atol=1e-4)
        return folded

    first = now("a")
    assert not np.array_equal(first, now("b"))
    optimizer = torch.optim.SGD(
        [p for name, p in policies.model.named_parameters() if "lora_A.a" in name], lr=0.5
    )
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert not np.array_equal(first, now("a"))
    with torch.no_grad():
        policies.model.get_base_model().model.layers[0].mlp.up_proj.base_layer.weight.mul_(1.5)
    assert not np.array_equal(first, now("base"))


def test_layers_are_whole_again_after_sampling_even_when_it_fails() -> None:
    policies = StandInPolicies(config_of("llama"))
    engine = TorchEngine(policies, (END,), PAD, 4, CONTEXT)
    engine.generate(prompts_of(3), "a", Sampling(4), keys_of(1))

    def fail(_request: int, _token: int) -> None:
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        engine.generate(prompts_of(3), "a", Sampling(4), keys_of(1), on_token=fail)
    assert not [layer for layer in policies.model.modules() if "forward" in vars(layer)]


def test_half_precision_is_not_folded() -> None:
    policies = StandInPolicies(config_of("llama"), dtype=torch.bfloat16)
    assert not FoldedLinears(policies.model.get_base_model())._layers
