"""Operands of a row: random, and every wrong result of them is found."""

from __future__ import annotations

import pytest
import torch

from bench_stand_ins import TINY, TINY_8_BIT, Correct, product
from course_kernels.bench.interface import WrongResult
from course_kernels.bench.operands import make_operands
from course_kernels.bench.rows import PASSES

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


@pytest.mark.parametrize("of", PASSES)
def test_a_wrong_element_is_found(of):
    operands = make_operands(TINY, "cpu")
    result = next(iter(Correct().prepare(operands).of(of).values()))()
    operands.verify(result, of)
    place = (2, 3, 5) if of == "dB" else (9, 5)  # both in group 2
    for value in (float("nan"), result[place].item() + 1.0, float("inf")):
        broken = result.clone()
        broken[place] = value
        with pytest.raises(WrongResult, match=r"1 of \d+ elements of group 2 are wrong \(24 rows\)"):
            operands.verify(broken, of)


def test_the_gradient_of_an_empty_group_must_be_zero():
    operands = make_operands(TINY, "cpu")
    result = next(iter(Correct().prepare(operands).d_b.values()))()
    result[1, 0, 0] = 1e-30
    with pytest.raises(WrongResult, match="group 1"):
        operands.verify(result, "dB")


def test_a_result_of_another_shape_is_wrong():
    operands = make_operands(TINY, "cpu")
    with pytest.raises(WrongResult, match="shape"):
        operands.verify(operands.out[:, :8], "forward")


def test_a_result_with_too_few_groups_is_wrong():
    operands = make_operands(TINY, "cpu")
    with pytest.raises(WrongResult, match="3 groups came back, wanted 4"):
        operands.verify(operands.out.split(operands.sizes)[:3], "forward")


def test_a_wrong_result_of_8_bit_operands_is_found():
    operands = make_operands(TINY, "cpu", FP8)
    o = operands
    right = product(o.a, o.weight.mT, o.offs, o.scale_a, o.scale_b)
    operands.verify(right, "forward")
    for value in (float("nan"), right[9, 5].item() + 1.0):
        broken = right.clone()
        broken[9, 5] = value
        with pytest.raises(WrongResult, match="1 of 384 elements of group 2 are wrong"):
            operands.verify(broken, "forward")
    for scales in ((o.scale_a * 1.2, o.scale_b), (o.scale_a, o.scale_b.flip(0))):
        with pytest.raises(WrongResult):
            operands.verify(product(o.a, o.weight.mT, o.offs, *scales), "forward")
