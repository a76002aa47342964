"""Operands of a row, and exceptions as lines."""

from __future__ import annotations

import pytest
import torch

from bench_stand_ins import TINY, TINY_8_BIT, product
from course_kernels.bench.interface import make_operands, one_line

FP8 = torch.float8_e4m3fn


def test_operands_are_random_and_results_hold_nan():
    operands = make_operands(TINY, "cpu")
    assert operands.offs.tolist() == [8, 8, 32, 40]
    assert operands.offs.dtype == torch.int32
    for matrix, scale in ((operands.a, 1.0), (operands.d_out, 1.0), (operands.weight, 24**-0.5)):
        assert matrix.float().std().item() == pytest.approx(scale, rel=0.1)
    for result, shape in ((operands.out, (40, 16)), (operands.d_a, (40, 24)), (operands.d_weight, (4, 16, 24))):
        assert result.shape == shape
        assert result.isnan().all()
    assert torch.equal(make_operands(TINY, "cpu").a, operands.a)


def test_operands_of_8_bits_come_with_scales():
    operands = make_operands(TINY_8_BIT, "cpu", FP8)
    assert operands.a.dtype == operands.weight.dtype == FP8
    assert (operands.a.shape, operands.weight.shape) == ((40, 32), (4, 16, 32))
    assert operands.weight.float().std().item() == pytest.approx(1.0, rel=0.1)
    assert (operands.scale_a.shape, operands.scale_b.shape) == ((40,), (4, 16))
    assert operands.out.dtype == torch.bfloat16
    assert operands.out.isnan().all()
    assert operands.d_out is operands.d_a is operands.d_weight is None
    dense = operands.as_dense()
    assert (dense.weight.shape, dense.scale_b.shape, dense.sizes) == ((1, 16, 32), (1, 16), (40,))
    result = product(operands.a, operands.weight.mT, operands.offs, operands.scale_a, operands.scale_b)
    assert 0.3 < result.float().std() < 3


def test_an_exception_is_one_line():
    assert one_line(RuntimeError("no kernel image\nand a long story")) == "RuntimeError: no kernel image"
    assert one_line(KeyError()) == "KeyError"
    assert len(one_line(ValueError("x" * 1000))) == len("ValueError: ") + 200
