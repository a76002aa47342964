"""Activations in torch: as they are defined elsewhere, and with autograd's gradients."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from course_kernels.engine.torch_activations import activate, activation_gradient
from course_kernels.moe import ACTIVATIONS, Activation, Function
from moe_layers import activated


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_values(name):
    pre = torch.linspace(-11, 11, 120).reshape(4, 30)
    for takes_turns in (False, True):
        found = activate(pre, ACTIVATIONS[name], takes_turns)
        assert torch.allclose(found.double(), activated(pre.double(), name, takes_turns), rtol=1e-5, atol=1e-6)
        assert found.dtype == torch.float32


def test_names_mean_what_they_mean_elsewhere():
    pre = torch.linspace(-9, 9, 40).reshape(2, 20)
    gate, up = pre.chunk(2, dim=1)
    assert torch.allclose(activate(pre, ACTIVATIONS["swiglu"], False), functional.silu(gate) * up)
    assert torch.allclose(activate(pre, ACTIVATIONS["relu2"], False), functional.relu(pre) ** 2)
    gate, up = gate.clamp(max=7), up.clamp(-7, 7)
    wanted = (up + 1) * gate * torch.sigmoid(1.702 * gate)
    assert torch.allclose(activate(pre, ACTIVATIONS["swiglu_oai"], False), wanted)


@pytest.mark.parametrize("function", Function)
@pytest.mark.parametrize("gated", [True, False])
def test_gradients(function, gated):
    kind, made = Activation(function, gated), torch.Generator().manual_seed(0)
    pre = torch.randn(5, 8, generator=made, requires_grad=True)
    value = activate(pre, kind, False)
    grad = torch.randn(value.shape, generator=made)
    value.backward(grad)
    assert torch.allclose(activation_gradient(grad, pre.detach(), kind, False), pre.grad, rtol=1e-5, atol=1e-6)


def test_an_unknown_function_has_no_gradient():
    pre = torch.ones(2, 8)
    with pytest.raises(ValueError, match="an unknown Function: 99"):
        activation_gradient(pre[:, ::2], pre, Activation(99), False)
