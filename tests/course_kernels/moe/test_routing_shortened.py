"""A routing without its rows after the last end gives the same layer, with smaller buffers."""

from __future__ import annotations

import pytest
import torch

from course_kernels import moe_feed_forward
from course_kernels.moe import Routing


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("weights_on", ["output", "input"])
def test_the_layer_is_the_same(backend, weights_on):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(-3, 5, (6, 3), generator=generator)
    shapes = (6, 16), (2, 32, 16), (2, 16, 16), (6, 3)
    tensors = [torch.randn(shape, generator=generator) for shape in shapes]
    whole, found = Routing.of(ids, 2), []
    held = int(whole.ends[-1])
    assert held < ids.numel() - 3
    for routing in (whole, whole.shortened(held)):
        x, gate_up, down, weights = (each.clone().requires_grad_() for each in tensors)
        out = moe_feed_forward(
            x, gate_up, down, None, weights, routing=routing, backend=backend, weights_on=weights_on
        )  # fmt: skip
        out.sum().backward()
        found.append([out, x.grad, gate_up.grad, down.grad, weights.grad])
    assert all(map(torch.equal, *found))


def test_one_row_is_left():
    routing = Routing.of(torch.tensor([[5, 6]]), 2).shortened(0)
    assert routing.tokens.shape == (1,)
    assert routing.rows.tolist() == [[-1, -1]]
