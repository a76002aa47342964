"""Tensors belong to the fake GPU or to the host, and functions that get tensors of both are named."""

from __future__ import annotations

import pytest
import torch

from gemm_course.runner.fake_gpu import FakeGPU


@pytest.mark.parametrize(
    ("make", "there"),
    [
        (lambda x: x + 1, True),
        (lambda x: torch.arange(3), False),
        (lambda x: torch.arange(3, device=x.device), True),
        (lambda x: torch.arange(3).to(x.device), True),
        (lambda x: torch.arange(3).cuda(), True),
        (lambda x: torch.arange(3).pin_memory().to(x), True),
        (lambda x: x.cpu(), False),
        (lambda x: x.to("cpu"), False),
        (lambda x: x.to(torch.zeros(1)), False),
        (lambda x: torch.tensor(x), True),
        (lambda x: torch.tensor([x[0], x[1]]), False),
        (lambda x: x.new_zeros(2), True),
    ],
)
def test_where_a_tensor_is(make, there):
    x = torch.ones(3)
    with FakeGPU() as gpu:
        made = make(x)
        assert gpu.has(made) == there
        assert made.is_cuda == there
        assert made.device == (torch.device("cuda", 0) if there else torch.device("cpu"))
    assert x.device.type == "cpu"


def test_functions_that_get_tensors_of_both_devices_are_named_except_copies_and_single_numbers():
    mixed, x = [], torch.ones(3)
    with FakeGPU(mixed.append):
        torch.cat([x, torch.zeros(1)])
        x.copy_(torch.zeros(3))
        x * torch.tensor(2)
        x[torch.tensor([0, 1])]
    assert mixed == ["cat"]
