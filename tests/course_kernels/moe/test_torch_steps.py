"""The steps without kernels agree with those of kernels."""

from __future__ import annotations

import pytest
import torch

from course_kernels import runtime
from course_kernels.moe import ACTIVATIONS, Routing, steps, torch_steps
from moe_layers import DEVICE, make

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []


def test_all_steps():
    made = make(7, 24, 40, 5, 3)
    x, weights, routing = made.tensors["x"], made.tensors["weights"], Routing.of(made.ids, 5)
    last = int(routing.ends[-1])
    one, other = (way.gather(x, routing, weights) for way in (steps, torch_steps))
    assert torch.equal(one[:last], other[:last])
    pre, grad = torch.randn(21, 80, device=DEVICE), torch.randn(21, 40, device=DEVICE)
    for of_rows in (weights, None):
        found = [
            way.activation_gradient(grad, pre, routing, of_rows, 7, ACTIVATIONS["swiglu"], False)
            for way in (steps, torch_steps)
        ]
        for each in range(2):
            torch.testing.assert_close(found[0][each][:last], found[1][each][:last])
        assert of_rows is not None or found[1][2] is None
        if of_rows is not None:
            torch.testing.assert_close(found[0][2], found[1][2])
    rows = torch.randn(21, 24, device=DEVICE)
    for of_rows in (weights, None):
        torch.testing.assert_close(*(way.combine(rows, routing, 7, of_rows) for way in (steps, torch_steps)))
    torch.testing.assert_close(*(way.dots(rows, x, routing) for way in (steps, torch_steps)))
