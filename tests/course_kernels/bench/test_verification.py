"""Every wrong element is counted, by group."""

from __future__ import annotations

import pytest
import torch

from course_kernels.bench import verification
from course_kernels.bench.verification import count_unlike, count_wrong, exact_products
from course_kernels.engine.product import STORE, Ends, Gated, GatedBackward, Product
from course_kernels.engine.scaling import UNSCALED
from course_kernels.kernels.codes import Activation, Function


@pytest.fixture
def groups():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(rows, 8, dtype=torch.float64, generator=generator) for rows in (3, 0, 5)]


def test_results_that_are_only_rounded_are_right(groups):
    assert count_wrong([group.bfloat16() for group in groups], iter(groups), 2.0**-7) == [0, 0, 0]
    assert count_wrong([], [], 2.0**-7) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e3])
def test_wrong_elements_are_counted_in_their_group(groups, value):
    results = [group.clone() for group in groups]
    results[2][1, 2] = results[2][4, 7] = value
    assert count_wrong(results, groups, 2.0**-7) == [0, 0, 2]


def test_the_bound_is_the_elements_magnitude_and_the_groups():
    exact = torch.tensor([[8.0, 0.0, 0.0, 0.0]])  # root mean square 4
    for error, unit, wrong in ((0.99, 0.25, 0), (1.01, 0.25, 1)):
        assert count_wrong([exact + torch.tensor([0.0, error, 0.0, 0.0])], [exact], unit) == [wrong]
    assert count_wrong([exact + torch.tensor([2.9, 0.0, 0.0, 0.0])], [exact], 0.25) == [0]


def test_groups_must_match(groups):
    with pytest.raises(ValueError):
        count_wrong(groups[:2], groups, 1.0)


@pytest.mark.parametrize("at_once", [2**26, 16, 1])
def test_results_of_two_kernels_are_compared_in_pieces(monkeypatch, at_once):
    monkeypatch.setattr(verification, "_AT_ONCE", at_once)
    other = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    other[1] = 0.0  # an empty group
    result = other.clone()
    assert count_unlike(result, other, 2.0**-6) == 0
    result[0, 1, 2] += 1.0
    result[1, 4, 7] = 1e-6
    result[2, 0, 0] = float("nan")
    assert count_unlike(result, other, 2.0**-6) == 3
    assert count_unlike(result[:, :0], other[:, :0], 2.0**-6) == 0


def test_the_bound_of_two_kernels_is_the_elements_magnitude_and_the_rows():
    other = torch.tensor([[8.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])  # root mean squares 4 and 0
    for place, error, wrong in (
        ((0, 1), 0.99, 0),
        ((0, 1), 1.01, 1),
        ((0, 0), 2.9, 0),
        ((0, 0), 3.1, 1),
        ((1, 0), 0.01, 1),
    ):
        result = other.clone()
        result[place] += error
        assert count_unlike(result, other, 0.25) == wrong, (place, error)
    with pytest.raises(ValueError, match="one shape"):
        count_unlike(other, other[:1], 1.0)


def test_exact_products_gather_and_activate():
    """Against autograd in float64."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(shape, generator=generator)

    sizes, ends = (3, 0, 4), torch.tensor([3, 3, 7], dtype=torch.int32)
    index = torch.tensor([4, 0, 1, 1, 3, 0, 2], dtype=torch.int32)
    x, weight, grad, pre, factors = draw(5, 6), draw(3, 6, 8), draw(5, 6), draw(7, 16), draw(7)
    silu, rows = Activation(Function.SILU), Ends(ends, index)
    gated = Product(x, weight, rows, UNSCALED, Gated(silu))
    backward = Product(grad, weight, rows, UNSCALED, GatedBackward(silu, False, pre, factors, draw(7, 8), draw(7, 1)))
    lines = Product(draw(8, 7), x, Ends(ends, index, "b"), UNSCALED, STORE)
    found = [torch.cat([*exact_products(each, sizes)]) for each in (gated, backward, lines)]

    def swiglu(rows):
        gate, up = rows.chunk(2, 1)
        return torch.nn.functional.silu(gate) * up

    parts = [(slice(0, 3), 0), (slice(3, 3), 1), (slice(3, 7), 2)]
    at = index.long()
    right = swiglu(torch.cat([x[at[rows]] @ weight[g] for rows, g in parts]))
    arriving = torch.cat([grad[at[rows]] @ weight[g] for rows, g in parts]) * factors[:, None]
    (of_pre,) = torch.autograd.grad(swiglu(pre.requires_grad_()), pre, arriving)
    of_lines = torch.cat([lines.a[:, rows] @ x[at[rows]] for rows, _ in parts])
    for each, expected in zip(found, (right, of_pre, of_lines), strict=True):
        assert torch.allclose(each.float(), expected, atol=1e-4)
