"""The layer by torch alone: its roundings, and what it does not compute. ``test_api.py`` compares it with float64."""

from __future__ import annotations

import torch

from course_kernels.moe import ACTIVATIONS, Routing, torch_layer
from course_kernels.moe.form import Form, Operands
from moe_layers import NAMES, assert_near, make, oracle

FORM = Form(ACTIVATIONS["swiglu"], backend="torch")


def given(made):
    return Operands(*(made.tensors.get(name) for name in NAMES)), Routing.of(made.ids, 5)


def test_backward_gives_what_is_asked_for():
    made = make(bias=True)
    exact = made.exact()
    oracle(exact).sum().backward()
    grad = torch.ones_like(made.tensors["x"])
    for i, name in enumerate(NAMES):
        needs = tuple(i == j for j in range(6))
        found = torch_layer.backward(grad, *given(made), FORM, needs, (None, None))
        assert [each is not None for each in found] == list(needs)
        assert_near(found[i], exact.tensors[name].grad, torch.float32, name)


def test_an_expert_without_tokens_is_not_computed():
    made = make()
    made.ids.clamp_(min=-1, max=1)
    made.tensors["gate_up"][2:], made.tensors["down"][2:] = float("nan"), float("nan")
    assert not torch_layer.forward(*given(made), FORM).isnan().any()


def test_autocast_around_it_changes_nothing():
    made = make()
    with torch.autocast("cpu", torch.bfloat16):
        found = torch_layer.forward(*given(made), FORM)
    assert torch.equal(found, torch_layer.forward(*given(made), FORM))


def test_the_backward_needs_no_autograd():
    """An operator's implementation may run where autograd's keys are excluded."""
    made = make(bias=True)
    grad = torch.ones_like(made.tensors["x"])
    wanted = torch_layer.backward(grad, *given(made), FORM, (True,) * 6, (None, None))
    with torch._C._AutoDispatchBelowAutograd():
        found = torch_layer.backward(grad, *given(made), FORM, (True,) * 6, (None, None))
    assert all(each.any() and torch.equal(each, other) for each, other in zip(found, wanted))
