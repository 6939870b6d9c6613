"""The head's log-probabilities and their slope are those of the logits that it never keeps."""

from __future__ import annotations

import pytest
import torch

import models
from agon import head as head_module
from agon.head import Head


def made_head(softcap: float | None, bias: bool, dtype: torch.dtype = torch.float64) -> Head:
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(models.VOCABULARY, 7, generator=generator, dtype=dtype)
    shift = torch.randn(models.VOCABULARY, generator=generator, dtype=dtype) if bias else None
    return Head(weight, shift, softcap)


def expected(
    head: Head, hidden_ND: torch.Tensor, targets_N: torch.Tensor, temperature: float
) -> torch.Tensor:
    logits = hidden_ND @ head.weight_VD.T
    if head.bias_V is not None:
        logits = logits + head.bias_V
    if head.softcap is not None:
        logits = head.softcap * torch.tanh(logits / head.softcap)
    logprobs = torch.log_softmax(logits / temperature, dim=1)
    return logprobs[torch.arange(len(targets_N)), targets_N]


@pytest.mark.parametrize("chunk", [1, 3 * models.VOCABULARY, 2**20])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize(("softcap", "bias"), [(None, False), (None, True), (2.5, False)])
def test_value_and_slope_are_those_of_the_softmax(
    softcap: float | None,
    bias: bool,
    temperature: float,
    chunk: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(head_module, "CHUNK_ELEMENTS", chunk)
    head = made_head(softcap, bias)
    generator = torch.Generator().manual_seed(4)
    hidden = torch.randn(10, 7, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, models.VOCABULARY, (10,), generator=generator)
    upstream = torch.randn(10, generator=generator, dtype=torch.float64)
    ours, theirs = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
    found = head.logprobs(ours, targets, temperature)
    wanted = expected(head, theirs, targets, temperature)
    torch.testing.assert_close(found.double(), wanted, atol=2e-6, rtol=0)
    (found.double() * upstream).sum().backward()
    (wanted * upstream).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-5, rtol=0)


def test_without_gradients_no_slope_is_kept() -> None:
    found = made_head(None, False).logprobs(torch.ones(3, 7).double(), torch.tensor([0, 1, 2]), 1.0)
    assert not found.requires_grad


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "mistral", "gemma3", "gemma4"])
def test_a_plain_head_is_taken(architecture: str) -> None:
    policies = models.tiny_policies(base=models.tiny_base(architecture))
    head = Head.of(policies.model.get_base_model())
    assert head is not None
    assert head.softcap == (2.0 if architecture == "gemma4" else None)


def test_a_model_that_does_more_to_its_logits_is_left_alone() -> None:
    policies = models.tiny_policies(base=models.tiny_base("granite"))
    assert Head.of(policies.model.get_base_model()) is None


def test_a_head_with_an_adapter_of_its_own_is_left_alone() -> None:
    policies = models.tiny_policies(target_modules=("q_proj", "lm_head"))
    assert Head.of(policies.model.get_base_model()) is None
