"""Bytes of a layer's operations, counted with and without memory, and those that autograd keeps."""

from __future__ import annotations

import pytest
import torch

from gemm_course.lessons import l14_layer_bytes


def tensor(*shape, device="cpu", dtype=torch.float32, grad=False):
    return torch.empty(shape, dtype=dtype, device=device, requires_grad=grad)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_each_operation_reads_its_inputs_and_writes_its_result(device):
    def function(a, b):
        return (a @ b).relu().view(-1)

    found = l14_layer_bytes.operations(function, tensor(4, 8, device=device), tensor(8, 2, device=device))
    assert found == [("mm", 4 * (32 + 16), 4 * 8, 0), ("relu", 32, 32, 0)]
    assert [each.moved for each in found] == [4 * 56, 64]


def test_a_gather_reads_what_it_writes_and_its_index():
    index = tensor(3, device="meta", dtype=torch.int64)
    found = l14_layer_bytes.operations(lambda x: x[index], tensor(1000, 8, device="meta", dtype=torch.float16))
    assert found == [("gather", 3 * 8 * 2 + 3 * 8, 3 * 8 * 2, 0)]


def test_views_move_nothing():
    assert l14_layer_bytes.operations(lambda x: x.mT.chunk(2), tensor(4, 8)) == []


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_tensors_that_backward_needs_are_counted_once_and_without_the_arguments(device):
    def function(x, w):
        gate, up = (x @ w).chunk(2, 1)
        return torch.sigmoid(gate) * up * up

    x, w = tensor(4, 8, device=device, grad=True), tensor(8, 6, device=device, grad=True)
    # The product, whose half is kept three times; sigmoid's result; sigmoid times up.
    names = [(each.name, each.kept) for each in l14_layer_bytes.operations(function, x, w)]
    assert names == [("mm", 4 * 24), ("sigmoid", 4 * 12), ("multiply", 4 * 12), ("multiply", 0)]
    assert l14_layer_bytes.kept(function, x, w) == {"4 × 6": 4 * 24, "4 × 3": 2 * 4 * 12}
