"""The adapter as one operation: PEFT's function and gradients, on exactly the layers it fits."""

from __future__ import annotations

import warnings

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora.layer import Linear as LoraLinear
from torch import Tensor, nn

from agon.lora import one_operation


class Tower(nn.Module):
    """Two linear layers with a bend between them; the first has a bias."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.up = nn.Linear(6, 10, dtype=dtype)
        self.down = nn.Linear(10, 4, bias=False, dtype=dtype)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.down(torch.tanh(self.up(inputs)))


def adapted(dtype: torch.dtype = torch.float32, **settings: object) -> nn.Module:
    """The tower with two adapters, `a` active, no weight of them zero."""
    torch.manual_seed(0)
    config = LoraConfig(
        **{"r": 3, "lora_alpha": 5.0, "target_modules": ["up", "down"]} | settings  # type: ignore[arg-type]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = get_peft_model(Tower(dtype), config, adapter_name="a")
        model.add_adapter("b", config)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(0, 0.5)
    model.set_adapter("a")
    return model.eval()


def run(model: nn.Module, inputs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Output, and gradients of a loss that weighs every output differently."""
    inputs = inputs.clone().requires_grad_()
    model.zero_grad()
    output = model(inputs)
    weights = torch.linspace(-1, 2, output.numel(), dtype=output.dtype).view_as(output)
    (output * weights).sum().backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return output.detach(), {"inputs": inputs.grad, **gradients}  # type: ignore[dict-item]


def changed(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if "forward" in vars(module)]


@pytest.mark.parametrize("shape", [(6,), (7, 6), (2, 5, 6)])
def test_function_and_gradients_are_peft_s(shape: tuple[int, ...]) -> None:
    model, inputs = adapted(), torch.randn(shape)
    expected, expected_gradients = run(model, inputs)
    with one_operation(model, "a"):
        assert len(changed(model)) == 2
        output, gradients = run(model, inputs)
    torch.testing.assert_close(output, expected)
    assert gradients.keys() == expected_gradients.keys()
    assert len(gradients) == 1 + 4
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected_gradients[name], msg=name)


def test_gradients_are_those_of_finite_differences() -> None:
    model = adapted(torch.float64).double()
    inputs = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    with one_operation(model, "a"):
        assert torch.autograd.gradcheck(model, (inputs,))


def test_a_low_precision_base_is_rounded_where_peft_rounds_it() -> None:
    model = adapted(torch.bfloat16)
    adapters = [p for n, p in model.named_parameters() if "lora_" in n]
    assert {p.dtype for p in adapters} == {torch.float32}
    inputs = torch.randn(32, 6).bfloat16()
    expected, expected_gradients = run(model, inputs)
    with one_operation(model, "a"):
        output, gradients = run(model, inputs)
    # One rounding to bfloat16 of the same float32 sum; the last bit may fall either way.
    assert (output == expected).float().mean() > 0.95
    torch.testing.assert_close(output, expected, rtol=2**-7, atol=2**-7)
    for name, gradient in gradients.items():
        assert gradient.dtype == expected_gradients[name].dtype
        torch.testing.assert_close(gradient, expected_gradients[name], rtol=0.02, atol=0.05)


def test_inputs_without_gradient_get_none() -> None:
    model, inputs = adapted(), torch.randn(3, 6)
    with one_operation(model, "a"):
        model(inputs).sum().backward()
    assert inputs.grad is None
    assert all(p.grad is not None for n, p in model.named_parameters() if ".a." in n)


def test_only_the_named_adapter_is_used_and_only_it_gets_gradients() -> None:
    model, inputs = adapted(), torch.randn(3, 6)
    model.set_adapter("b")
    expected, _ = run(model, inputs)
    with one_operation(model, "b"):
        output, gradients = run(model, inputs)
    torch.testing.assert_close(output, expected)
    assert not any(".a." in name for name in gradients)


def test_the_layers_own_forward_is_back_afterwards_also_after_an_error() -> None:
    model = adapted()
    with pytest.raises(RuntimeError), one_operation(model, "a"):
        raise RuntimeError
    assert changed(model) == []


def test_less_is_kept_for_the_backward_pass() -> None:
    def kept() -> int:
        sizes = {}

        def note(tensor: Tensor) -> Tensor:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            model(inputs)
        return sum(sizes.values())

    model, inputs = adapted(torch.bfloat16), torch.randn(4096, 6).bfloat16()
    plain = kept()
    with one_operation(model, "a"):
        assert kept() < 0.8 * plain


class _Quantised(nn.Linear):
    """Stands for a linear layer of somebody else's."""


def test_other_layers_keep_peft_s_forward() -> None:
    def untouched(model: nn.Module, name: str = "a") -> bool:
        with one_operation(model, name):
            return changed(model) == []

    assert not untouched(adapted())
    assert untouched(adapted(), "b"), "another adapter is active"
    assert untouched(adapted(use_dora=True)), "DoRA is another function"
    assert untouched(adapted(lora_bias=True)), "a bias of the adapter's own"
    assert untouched(adapted(lora_dropout=0.5).train()), "dropout"
    assert not untouched(adapted(lora_dropout=0.5)), "dropout does nothing outside training"
    disabled = adapted()
    disabled.base_model.disable_adapter_layers()
    assert untouched(disabled)
    merged = adapted()
    merged.merge_adapter()
    assert untouched(merged)
    trained = adapted()
    for module in trained.modules():
        if isinstance(module, LoraLinear):
            module.get_base_layer().weight.requires_grad_()
    assert untouched(trained), "the base's own gradients are not computed here"
    other = adapted()
    for module in other.modules():
        if isinstance(module, LoraLinear):
            module.get_base_layer().__class__ = _Quantised
    assert untouched(other)
