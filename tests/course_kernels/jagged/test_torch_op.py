"""The operator of named implementations. ``test_public_contexts`` has torch's contexts."""

from __future__ import annotations

import pytest
import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from course_kernels import grouped_gemm_jagged, grouped_gemm_jagged_persistent, runtime
from course_kernels.testing import integers

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []
DEVICE = runtime.device()
FUNCTIONS = grouped_gemm_jagged, grouped_gemm_jagged_persistent


def operands(b_dtype: torch.dtype = torch.float16):
    offsets = torch.tensor([0, 3, 3, 7], device=DEVICE)
    return integers((7, 16), torch.float16, 1, device=DEVICE), integers((16, 6), b_dtype, 2, device=DEVICE), offsets


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("place", [0, 1])
def test_pending_collectives_are_waited_for(function, place):
    given = list(operands())
    expected = given[0].float() @ given[1].float()
    given[place] = AsyncCollectiveTensor(given[place])
    result = function(*given, implementation="triton")
    assert torch.equal(torch.as_tensor(result).float(), expected)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("b_dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("column_major", [False, True])
def test_the_operator_has_the_gradients_of_the_plain_way(function, b_dtype, column_major):
    A, B, offsets = operands(b_dtype)
    B = B.mT.contiguous().mT if column_major else B
    grad = integers((7, 6), b_dtype, 3, device=DEVICE)
    found = []
    for profiled in (False, True):  # profiled calls are operators
        leaves = [each.clone().requires_grad_() for each in (A, B)]
        with torch.profiler.profile() if profiled else torch.enable_grad():
            out = function(*leaves, offsets, implementation="triton")
        found.append([out, *torch.autograd.grad(out, leaves, grad)])
    for one, other in zip(*found):
        assert (one.dtype, one.stride()) == (other.dtype, other.stride())
        assert torch.equal(one, other)
    assert torch.equal(found[0][1].float(), grad.float() @ B.float().mT)
    assert torch.equal(found[0][2].float(), A.float().mT @ grad.float())


def test_opcheck():
    A, B, offsets = operands()
    arguments = (A.requires_grad_(), B.requires_grad_(), offsets, "simple", "triton")
    torch.library.opcheck(torch.ops.course_kernels.grouped_gemm_jagged.default, arguments)
