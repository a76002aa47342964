"""Factors of whole lines, and of each group's lines: against their definition."""

from __future__ import annotations

import torch

from course_kernels import runtime
from course_kernels.fp8.lines import quantize_group_lines, quantize_lines

DEVICE = runtime.device()
FP8 = torch.float8_e4m3fn


def test_lines():
    x = torch.randn(3, 5, 7, device=DEVICE)
    x[0, 0] = 0
    values, factors = quantize_lines(x, FP8)
    assert torch.equal(factors[0, 1:], x[0, 1:].abs().amax(-1) / 448)
    assert not values[0, 0].float().any()
    assert torch.equal(values[2].float(), (x[2] * factors[2].reciprocal()[:, None]).to(FP8).float())


def test_lines_of_groups():
    x, offs = torch.randn(9, 4, device=DEVICE), torch.tensor([2, 2, 7], dtype=torch.int32, device=DEVICE)
    values, factors = quantize_group_lines(x, offs, FP8)
    assert values.shape == (4, 9)
    assert torch.equal(factors[2], x[2:7].abs().amax(0) / 448)
    assert torch.equal(values[:, 2:7].float(), (x[2:7] * factors[2].reciprocal()).to(FP8).float().mT)
    assert not values[:, 7:].float().any()
