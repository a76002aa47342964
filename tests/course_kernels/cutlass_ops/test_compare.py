"""A result in out is compared with the oracle and with torch."""

from __future__ import annotations

import pytest
import torch

from course_kernels import cutlass_ops
from course_kernels.testing import reference
from course_kernels.testing.data import integers
from cutlass_cases import BF16, FP16


def small(dtype=BF16, tail=5):
    """Operands on the CPU, with integers that make every sum exact, and the right answer in ``out``."""
    generator = torch.Generator().manual_seed(0)
    offs = torch.tensor([16, 16, 48, 64], dtype=torch.int32)
    mat_a = integers((64 + tail, 32), dtype=dtype, generator=generator)
    mat_b = integers((4, 24, 32), dtype=dtype, generator=generator).mT
    args = cutlass_ops.arguments(mat_a, mat_b, offs=offs)
    out = args.out.tensor.runtime_tensor
    out.copy_(reference.grouped_mm(mat_a, mat_b, offs, out_dtype=dtype))
    return args, out


@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_a_right_answer_is_right_and_equals_torchs(dtype):
    args, _ = small(dtype)
    assert cutlass_ops.compare(args) == (True, 0.0, 0.0, "zero")
    args, _ = small(dtype, tail=0)
    assert cutlass_ops.compare(args) == (True, 0.0, 0.0, "none")


@pytest.mark.parametrize("wrong", [1.0, float("nan")])
def test_a_wrong_element_is_not(wrong):
    args, out = small()
    out[17, 3] += wrong
    found = cutlass_ops.compare(args)
    assert not found.right
    assert found.worst > 1
    args, out = small()
    out[66, 3] += wrong
    assert cutlass_ops.compare(args)[::3] == (True, "other"), "the tail is reported and does not count"
