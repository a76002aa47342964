"""Group ends from sizes: the values, the checks, and the operator."""

from __future__ import annotations

import pytest
import torch

from course_kernels.gmm.ends import group_ends
from gmm_cases import sizes_of


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("check", [False, True])
def test_ends_are_int32_whatever_the_sizes_are(dtype, check):
    ends = group_ends(sizes_of(3, 0, 4, dtype=dtype), 7, "the rows", check)
    assert (ends.dtype, ends.tolist()) == (torch.int32, [3, 3, 7])
    spread = sizes_of(3, -9, 0, -9, 4, -9, dtype=dtype)[::2]
    assert group_ends(spread, 7, "the rows", check).tolist() == [3, 3, 7]
    assert group_ends(sizes_of(dtype=dtype), 0, "the rows", check).tolist() == []


def test_a_wrong_sum_and_a_negative_size_are_found_on_request():
    assert group_ends(sizes_of(3, 4), 9, "the rows", False).tolist() == [3, 7]
    with pytest.raises(ValueError, match=r"^group_sizes must sum to 9, the rows of lhs, got 7$"):
        group_ends(sizes_of(3, 4), 9, "the rows of lhs", True)
    with pytest.raises(ValueError, match=r"^group_sizes\[1\] = -1: a group cannot have fewer than 0 rows"):
        group_ends(sizes_of(3, -1), 2, "the rows", True)
    huge = sizes_of(2**31 - 1, 2**31 - 1, 3)  # more than int32 holds, whose sum would be 1
    with pytest.raises(ValueError, match=r"more than torch.int32 can count|got 4294967297"):
        group_ends(huge, 1, "the rows", True)


def test_the_operator_is_well_formed():
    operator = torch.ops.course_kernels.checked_group_ends
    torch.library.opcheck(operator, (sizes_of(3, 0, 4), 7, "the rows"))
    assert operator(sizes_of(3, 4), 7, "the rows").tolist() == [3, 7]
    fake = operator(sizes_of(3, 4, dtype=torch.int64).to("meta"), 7, "the rows")
    assert (fake.dtype, fake.shape, fake.device.type) == (torch.int32, (2,), "meta")
