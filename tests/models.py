"""Tiny seeded models, policies and rollouts of the torch tests, and plain ways to compute things.

What stands here is written without the package's own tensor code, so that a test compares two
computations.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
import transformers

from agon.config import AdapterConfig, Config
from agon.objective import Row
from agon.policies import Policies
from agon.records import (
    Completion,
    Draft,
    Outcome,
    PolicyVersion,
    Prompt,
    Reply,
    Reward,
    Verdict,
)
from agon.update import Updater

VOCABULARY, PAD = 41, 0
CPU = torch.device("cpu")
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "num_hidden_layers": 2,
    "max_position_embeddings": 64,
    "pad_token_id": PAD,
    "eos_token_id": 1,
    "bos_token_id": None,
    "initializer_range": 0.2,
}
SLIDING = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}


def model_config(architecture: str = "llama", **overrides: Any) -> Any:
    """Configuration of a tiny model of an architecture."""
    match architecture:
        case "llama":
            return transformers.LlamaConfig(**COMMON | overrides)
        case "qwen3":
            return transformers.Qwen3Config(**COMMON | overrides)
        case "gemma3":
            more = {**SLIDING, "query_pre_attn_scalar": 6, **overrides}
            return transformers.Gemma3TextConfig(**COMMON | more)
        case "mistral":
            return transformers.MistralConfig(**COMMON | {"sliding_window": 5} | overrides)
        case "gemma4":
            more = {
                **SLIDING,
                "num_hidden_layers": 4,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
                "num_kv_shared_layers": 2,
                "hidden_size_per_layer_input": 8,
                "vocab_size_per_layer_input": VOCABULARY,
                "global_head_dim": 12,
                "final_logit_softcapping": 2.0,
            }
            return transformers.Gemma4TextConfig(**COMMON | more | overrides)
        case "granite":  # scales its logits after the head
            return transformers.GraniteConfig(**COMMON | {"logits_scaling": 4.0} | overrides)
        case "phi":
            more = {key: value for key, value in COMMON.items() if key != "head_dim"}
            return transformers.PhiConfig(**more | {"hidden_size": 32} | overrides)
    raise AssertionError(architecture)


def tiny_base(architecture: str = "llama", seed: int = 0, **overrides: Any) -> torch.nn.Module:
    """A random base; equal arguments give equal weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return transformers.AutoModelForCausalLM.from_config(
            model_config(architecture, **overrides)
        )


def adapter_config(**overrides: Any) -> AdapterConfig:
    """Settings of a tiny adapter that is well away from the base."""
    return AdapterConfig(**{"rank": 3, "alpha": 6.0, "start_scale": 0.2} | overrides)


def tiny_policies(
    count: int = 2,
    seed: int = 0,
    base: torch.nn.Module | None = None,
    moved: bool = True,
    **overrides: Any,
) -> Policies:
    """Policies over a tiny base.

    With `moved`, `a` gets a random lora_B as if it had been trained, or else it is the base.
    """
    policies = Policies(base or tiny_base(), adapter_config(**overrides), count, seed)
    if moved:
        generator = torch.Generator().manual_seed(99)
        with torch.no_grad():
            for name, parameter in policies.parameters("a").items():
                if "lora_B" in name:
                    parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    return policies


def settings(**sections: dict[str, Any]) -> Config:
    """A configuration for tiny policies; sections override field by field."""
    defaults: dict[str, dict[str, Any]] = {
        "optimizer": {"clip_norm": 1e6},
        "training": {"device": "cpu"},
        "sampling": {"max_new_tokens": 12},
    }
    merged = {
        name: defaults.get(name, {}) | sections.get(name, {}) for name in {*defaults, *sections}
    }
    return Config.model_validate(merged)


def updater(policies: Policies, config: Config | None = None) -> Updater:
    """What takes the optimizer steps of tiny policies."""
    return Updater(policies, config or settings(), PAD, CPU)


def plain_logprobs(
    policies: Policies,
    policy: str,
    prompt_ids: Sequence[int],
    completion_ids: Sequence[int],
    temperature: float = 1.0,
) -> torch.Tensor:
    """Log-probabilities of a completion's tokens, from one row alone, without padding."""
    ids = torch.tensor([[*prompt_ids, *completion_ids]])
    with policies.active(policy):
        logits_LV = policies.model(input_ids=ids, use_cache=False).logits[0] / temperature
    logprobs_TV = logits_LV[len(prompt_ids) - 1 : -1].log_softmax(-1)
    return torch.stack([logprobs_TV[t, token] for t, token in enumerate(completion_ids)])


def sampled_by(
    policies: Policies,
    policy: str,
    advantages: Sequence[float | None],
    seed: int = 0,
    noise: float = 0.0,
    temperature: float = 1.0,
    longest: int = 11,
) -> list[Draft]:
    """Rollouts of random tokens and different lengths with a policy's own log-probabilities.

    Args:
        policies: Who "sampled" them.
        policy: Which one.
        advantages: One for each rollout; None makes it unscored.
        seed: Draws the tokens.
        noise: Deviation of what is added to the log-probabilities, so that the ratio is not 1.
        temperature: Of the sampled distribution.
        longest: Longest completion.
    """
    generator = torch.Generator().manual_seed(seed)

    def tokens(low: int, high: int) -> tuple[int, ...]:
        length = int(torch.randint(low, high + 1, (1,), generator=generator))
        return tuple(torch.randint(2, VOCABULARY, (length,), generator=generator).tolist())

    drafts = []
    for advantage in advantages:
        prompt_ids, completion_ids = tokens(2, 9), tokens(1, longest)
        with torch.no_grad():
            logprobs = plain_logprobs(policies, policy, prompt_ids, completion_ids, temperature)
        logprobs = logprobs + noise * torch.randn(len(completion_ids), generator=generator)
        drafts.append(draft(prompt_ids, completion_ids, logprobs.tolist(), advantage, policy))
    return drafts


def draft(
    prompt_ids: Sequence[int],
    completion_ids: Sequence[int],
    logprobs: Sequence[float],
    advantage: float | None,
    policy: str = "a",
) -> Draft:
    """One rollout; an advantage of None makes it unscored."""
    length = len(completion_ids)
    completion = Completion(
        tuple(completion_ids), tuple(logprobs), (0.0,) * length, False, PolicyVersion(policy, 0)
    )
    scored = advantage is not None
    return Draft(
        prompt=Prompt("", tuple(prompt_ids), thinking_open=False),
        reply=Reply("", None, None, None, 0.0, completion),
        verdict=Verdict(Outcome.WRONG if scored else Outcome.UNSCORED, ""),
        reward=Reward() if scored else None,
        advantage=advantage or 0.0,
    )


def rows_of(drafts: Sequence[Draft]) -> list[Row]:
    """Rollouts as rows of a stream."""
    return [
        Row(
            rollout.prompt.token_ids,
            rollout.reply.completion.token_ids,
            rollout.reply.completion.logprobs,
            rollout.advantage,
        )
        for rollout in drafts
    ]


def gradients(policies: Policies, policy: str) -> dict[str, torch.Tensor]:
    """A copy of an adapter's gradients."""
    return {
        name: parameter.grad.clone()
        for name, parameter in policies.parameters(policy).items()
        if parameter.grad is not None
    }


def clear_gradients(policies: Policies) -> None:
    """Forget all gradients."""
    for parameter in policies.model.parameters():
        parameter.grad = None


def weights(policies: Policies, policy: str) -> dict[str, torch.Tensor]:
    """A copy of an adapter's weights."""
    return {name: value.detach().clone() for name, value in policies.parameters(policy).items()}


def digests(policies: Policies) -> dict[str, str]:
    """Hashes of every byte of the base (buffers included) and of each adapter."""
    groups: dict[str, dict[str, torch.Tensor]] = {"base": {}, "a": {}, "b": {}}
    tensors = [*policies.model.named_parameters(), *policies.model.named_buffers()]
    for name, tensor in tensors:
        adapter = name.split(".")[-2] if "lora_" in name else "base"
        groups[adapter][name] = tensor
    assert len(groups["base"]) > 10
    return {group: _digest(members) for group, members in groups.items()}


def _digest(tensors: dict[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def assert_same(
    one: dict[str, torch.Tensor],
    other: dict[str, torch.Tensor],
    absolute: float = 0.0,
    relative: float = 0.0,
) -> None:
    """Equal tensors under equal names; to the bit unless a tolerance is given.

    `relative` is measured against the largest value over all tensors.
    """
    assert one.keys() == other.keys()
    assert one
    largest = max(float(value.abs().max()) for value in other.values())
    for name, value in one.items():
        torch.testing.assert_close(
            value, other[name], rtol=0, atol=absolute + relative * largest, msg=lambda m: m
        )
