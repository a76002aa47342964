"""Every wrong argument has an error that names it."""

from __future__ import annotations

import pytest
import torch

from course_kernels.jagged.checks import check_form, check_values

A, B, OFFSETS = torch.ones(6, 4), torch.ones(4, 5), torch.tensor([0, 2, 6])
META = torch.device("meta")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (dict(A_packed=[1.0]), TypeError, "A_packed must be a torch.Tensor, got list"),
        (dict(B=None), TypeError, "B must be a torch.Tensor"),
        (dict(A_packed=A.to_sparse()), TypeError, "A_packed must be a dense"),
        (dict(A_packed=A[0]), ValueError, r"A_packed must be 2-D, \(total_m, K\), got shape \(4,\)"),
        (dict(B=B[None]), ValueError, r"B must be 2-D, \(K, N\), got shape \(1, 4, 5\)"),
        (dict(A_packed=A.int()), TypeError, "A_packed must have a dtype of .* got torch.int32"),
        (dict(B=B.double()), TypeError, "B must have a dtype of .* got torch.float64"),
        (dict(B=torch.ones(3, 5)), ValueError, "A_packed has K = 4 columns and B has 3 rows"),
        (dict(B=torch.ones(5, 4)), ValueError, r"B has 5 rows.*It has K columns: pass B\.mT"),
        (dict(group_offsets=[0, 6]), TypeError, "group_offsets must be a torch.Tensor, got list"),
        (dict(group_offsets=OFFSETS.float()), TypeError, "group_offsets must be torch.int32 or torch.int64"),
        (dict(group_offsets=OFFSETS[None]), ValueError, r"group_offsets must be 1-D .* got shape \(1, 3\)"),
        (dict(group_offsets=OFFSETS[:0]), ValueError, r"G \+ 1 entries"),
        (dict(B=B.to(META)), ValueError, "B must be on the device of A_packed, cpu, got meta"),
        (dict(group_offsets=OFFSETS.to(META)), ValueError, "group_offsets must be on the device of A_packed"),
        (dict(implementation="cublas"), ValueError, "implementation must be one of .*'cublas'"),
        (
            dict(A_packed=torch.empty(2**31, 4, device=META), B=B.to(META), group_offsets=OFFSETS.to(META)),
            ValueError,
            "A_packed must have extents below",
        ),
    ],
)
def test_wrong_forms(changes, error, message):
    arguments = dict(A_packed=A, B=B, group_offsets=OFFSETS, implementation="auto") | changes
    with pytest.raises(error, match=message):
        check_form(**arguments)


def test_right_forms_and_values():
    for offsets in (OFFSETS, OFFSETS.int(), torch.tensor([0])):
        check_form(A, B, offsets, "helion")
    check_values(OFFSETS, 6)
    check_values(torch.tensor([0]), 0)
    with pytest.raises(ValueError, match="number of A_packed's rows, 7"):
        check_values(OFFSETS, 7)
