"""Lists are packed with the B that they share, and refused where they share none."""

from __future__ import annotations

import pytest
import torch

from course_kernels import grouped_gemm_jagged
from course_kernels.jagged.packing import pack_group_inputs, reference
from jagged_cases import DEVICE

SIZES = (3, 0, 5)


def lists(dtype=torch.float32):
    group_A = [torch.randn(size, 4, device=DEVICE).to(dtype) for size in SIZES]
    B = torch.randn(4, 6, device=DEVICE).to(dtype)
    return group_A, [B] * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_lists_give_the_reference(dtype):
    group_A, group_B = lists(dtype)
    A_packed, B, offsets = pack_group_inputs(group_A, group_B)
    assert B is group_B[0]
    assert torch.equal(A_packed, torch.cat(group_A))
    assert A_packed.data_ptr() != group_A[0].data_ptr()
    assert (offsets.tolist(), offsets.dtype, offsets.device) == ([0, 3, 3, 8], torch.int32, A_packed.device)
    right = torch.cat([a.float() @ B.float() for a in group_A]).to(dtype)
    torch.testing.assert_close(reference(group_A, group_B), right, rtol=1e-6, atol=0)
    result = grouped_gemm_jagged(A_packed, B, offsets)
    torch.testing.assert_close(result, right, rtol=2**-7 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)


def test_the_reference_uses_every_b_and_promotes():
    group_A, (B, *_) = lists()
    result = reference(group_A, [B.half(), 2 * B.half(), 3 * B.half()])
    assert result.dtype == torch.float32
    torch.testing.assert_close(result[3:], group_A[2] @ (3 * B.half()).float())


def test_copies_and_views_of_one_b_are_shared_and_others_are_not():
    group_A, (B, *_) = lists()
    B[1, 2] = float("nan")
    for others in ([B, B.clone(), B[:]], [B.mT.contiguous().mT, B, B]):
        assert pack_group_inputs(group_A, others)[1] is others[0]
    different = B.clone()
    different[3, 5] += 1
    with pytest.raises(ValueError, match=r"group_B\[2\] differs from group_B\[0\].*group_gemm .*grouped_mm "):
        pack_group_inputs(group_A, [B, B.clone(), different])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda A, B: (A[0], B), TypeError, "group_A must be a list of matrices, got Tensor"),
        (lambda A, B: (A, 3), TypeError, "group_B must be a list of matrices, got int"),
        (lambda A, B: ([], []), ValueError, "at least one; got 0 and 0"),
        (lambda A, B: (A, B[:2]), ValueError, "got 3 and 2"),
        (lambda A, B: ([*A[:2], None], B), TypeError, r"group_A\[2\] must be a torch.Tensor"),
        (lambda A, B: ([A[0], A[1][0:0, 0], A[2]], B), ValueError, r"group_A\[1\] must be 2-D"),
        (lambda A, B: ([A[0].half(), *A[1:]], B), TypeError, r"group_A\[1\] must have the dtype of group_A\[0\]"),
        (lambda A, B: ([A[0], A[1][:, :3], A[2]], B), ValueError, r"group_A\[1\] must have K = 4 columns.* got 3"),
        (lambda A, B: (A, [*B[:2], B[0][:, :5]]), ValueError, r"group_B\[2\] must have the shape of group_B\[0\]"),
        (lambda A, B: (A, [B[0].to("meta")] * 3), ValueError, r"group_B\[0\] must be on the device of group_A\[0\]"),
    ],
)
def test_lists_that_do_not_fit(change, error, message):
    for function in (pack_group_inputs, reference):
        with pytest.raises(error, match=message):
            function(*change(*lists()))
